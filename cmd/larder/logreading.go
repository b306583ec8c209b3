package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/gitlog"
	"github.com/larder-cdn/larder/logs/transcript"
)

// What commands ask of the log.
type (
	logQuery struct {
		Package string      `json:"package,omitempty"`
		Version string      `json:"version,omitempty"`
		Kinds   []logs.Kind `json:"kinds,omitempty"`
		Since   time.Time   `json:"since,omitzero"`
		Before  int64       `json:"before,omitempty"`
		Limit   int         `json:"limit"`
	}
	logShowRequest struct {
		Index int64 `json:"index"`
	}
	logFollowRequest struct {
		logQuery
		After int64 `json:"after"`
	}
	logExportRequest struct {
		After gitlog.Position `json:"after"`
	}
)

// logEntry is an entry with its index, as the API has it.
type logEntry struct {
	Index int64 `json:"index"`
	logs.Entry
}

type logPage struct {
	Entries []logEntry `json:"entries"`
	Next    int64      `json:"next,omitempty"` // Before of what follows
	Size    int64      `json:"size"`           // entries of the log
}

type logDetails struct {
	logEntry
	Hash      string               `json:"hash"` // in the log's tree
	Documents transcript.Documents `json:"documents,omitzero"`
}

func (q logQuery) query() logs.Query {
	return logs.Query{Package: q.Package, Version: q.Version, Kinds: q.Kinds, Since: q.Since, Before: q.Before, Limit: q.Limit}
}

// logOperations are those that only read the log.
func (f *folder) logOperations() map[string]admin.Operation {
	return map[string]admin.Operation{
		"log-list": admin.Typed(func(_ context.Context, q logQuery, _ func(any)) (any, error) { return f.logList(q) }),
		"log-show": admin.Typed(func(_ context.Context, r logShowRequest, _ func(any)) (any, error) { return f.logShow(r.Index) }),
		"log-follow": admin.Typed(func(ctx context.Context, r logFollowRequest, report func(any)) (any, error) {
			return nil, f.logFollow(ctx, r, report)
		}),
		"log-export": admin.Typed(func(ctx context.Context, r logExportRequest, report func(any)) (any, error) {
			return nil, f.logExport(ctx, r.After, report)
		}),
	}
}

func (f *folder) logList(q logQuery) (logPage, error) {
	size := f.log.Checkpoint().Size
	page, err := library.Entries(f.store, q.query())
	switch {
	case errors.Is(err, library.ErrNoLibrary):
		return logPage{}, fmt.Errorf("the log has nothing about a package %q; `larder status` lists those that are here", q.Package)
	case errors.Is(err, library.ErrNoVersion):
		return logPage{}, fmt.Errorf("the log has nothing about %s %q; `larder log list --package %s` tells what it has", q.Package, q.Version, q.Package)
	}
	return logPage{Entries: logEntries(page.Entries), Next: page.Next, Size: size}, err
}

func logEntries(entries []logs.Indexed) []logEntry {
	all := make([]logEntry, len(entries))
	for i, e := range entries {
		all[i] = logEntry{e.Index, e.Entry}
	}
	return all
}

func (f *folder) logShow(index int64) (logDetails, error) {
	if size := f.log.Checkpoint().Size; index >= size {
		return logDetails{}, fmt.Errorf("the log has %s, and none with the number %d", count(int(size), "entry", "entries"), index)
	}
	e, err := logs.ReadEntry(f.store, index)
	if err != nil {
		return logDetails{}, err
	}
	d, err := transcript.Load(f.store, e)
	return logDetails{logEntry{e.Index, e.Entry}, entryHash(e), d}, err
}

// entryHash is what the tree has of an entry, in the way in which checkpoints write hashes.
func entryHash(e logs.Indexed) string {
	h := tlog.RecordHash(e.Raw)
	return base64.StdEncoding.EncodeToString(h[:])
}

// logFollow reports entries as they come, until ctx ends.
func (f *folder) logFollow(ctx context.Context, r logFollowRequest, report func(any)) error {
	for next := r.After + 1; ; {
		entries, after, err := f.log.Next(ctx, next, r.query())
		if err != nil {
			return err
		}
		for _, e := range logEntries(entries) {
			report(e)
		}
		next = after
	}
}

// logExport reports what an export to git has not got yet.
func (f *folder) logExport(ctx context.Context, position gitlog.Position, report func(any)) error {
	size := f.log.Checkpoint().Size
	for c, err := range f.changes(position, size) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		report(exportedChange{c, size})
	}
	return nil
}

// An exportedChange also says how many entries the log has.
type exportedChange struct {
	gitlog.Change
	Of int64 `json:"of"`
}

// changes returns what a repository that has come to position lacks of the log's first size entries.
func (f *folder) changes(position gitlog.Position, size int64) iter.Seq2[gitlog.Change, error] {
	return func(yield func(gitlog.Change, error) bool) {
		if err := f.isPosition(position); err != nil {
			yield(gitlog.Change{}, err)
			return
		}
		for e, err := range logs.Entries(f.store, position.Index+1) {
			if err == nil && e.Index >= size {
				return
			}
			var c gitlog.Change
			if err == nil {
				c, err = f.change(e)
			}
			if !yield(c, err) || err != nil {
				return
			}
		}
	}
}

// isPosition returns an error where a position is not that of a repository of this log.
func (f *folder) isPosition(position gitlog.Position) error {
	if size := f.log.Checkpoint().Size; position.Index >= size {
		return fmt.Errorf("the repository has entry %d, and this log no more than %s: it was exported from another log, or this one is an old backup", position.Index, count(int(size), "entry", "entries"))
	}
	if position.Index < 0 {
		return nil
	}
	e, err := logs.ReadEntry(f.store, position.Index)
	if err != nil {
		return err
	}
	if entryHash(e) != position.Hash {
		return fmt.Errorf("entry %d in the repository is not the one of this log: it was exported from another log; give a new one", position.Index)
	}
	return nil
}

// change is an entry as a commit.
func (f *folder) change(e logs.Indexed) (gitlog.Change, error) {
	d, err := transcript.Load(f.store, e)
	if err != nil {
		return gitlog.Change{}, err
	}
	var text strings.Builder
	if err := transcript.Write(&text, e, d); err != nil {
		return gitlog.Change{}, err
	}
	return gitlog.Change{Index: e.Index, Hash: entryHash(e), Time: e.Time, Path: transcript.Path(e.Entry), Subject: transcript.Subject(e.Entry), Text: text.String()}, nil
}
