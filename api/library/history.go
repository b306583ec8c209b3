package library

import (
	"context"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// ErrNoEntry is the error for a log entry that does not exist.
var ErrNoEntry = errors.New("log entry not found")

// Entries returns a page of the log entries that a query selects, newest first, at most q.Limit. If the page is empty, the
// error is [ErrNoLibrary] or [ErrNoVersion] if no entry at all is about the query's library or version, and nil if only its
// other conditions exclude all.
func (x *Index) Entries(q logs.Query) (logs.Page, error) { return Entries(x.store, q) }

// Entries returns a page of the log entries that a query selects, newest first, at most q.Limit, for a caller without an
// Index. If the page is empty, the error is [ErrNoLibrary] or [ErrNoVersion] if no entry at all is about the query's library
// or version, and nil if only its other conditions exclude all.
func Entries(store *kvstore.Store, q logs.Query) (logs.Page, error) {
	snapshot := store.Snapshot()
	defer snapshot.Close()
	page, err := logs.Read(snapshot, q)
	if err != nil || len(page.Entries) > 0 || q.Package == "" {
		return page, err
	}
	for _, about := range []struct {
		version string
		missing error
	}{{"", ErrNoLibrary}, {q.Version, ErrNoVersion}} {
		switch known, err := logs.HasEntry(snapshot, q.Package, about.version); {
		case err != nil:
			return page, err
		case !known:
			return page, about.missing
		}
	}
	return page, nil
}

// Entry returns the log entry with this index, counted from 0, or [ErrNoEntry].
func (x *Index) Entry(index int64) (logs.Indexed, error) {
	return translateNotFound(logs.ReadEntry(x.store, index))
}

// translateNotFound returns an entry and the error of reading it, but [ErrNoEntry] if the store does not have it.
func translateNotFound(e logs.Indexed, err error) (logs.Indexed, error) {
	if errors.Is(err, kvstore.ErrNotFound) {
		return logs.Indexed{}, ErrNoEntry
	}
	return e, err
}

// LogSize returns how many entries the log has. It reads memory only.
func (x *Index) LogSize() int64 { return x.options.Log.Checkpoint().Size }

// Seen returns how many of the log's entries the listing reflects; 0 before the first listing. It may be less than LogSize
// for a moment.
func (x *Index) Seen() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen
}

// NextEntries waits until the log has an entry with the index from. It returns those of the entries from there on that are
// of the package, version and kinds of q, oldest first, at most 256 and perhaps none, and the index from which to continue
// (after). If ctx ends first, it returns the error of ctx. See [logs.Log.Next].
func (x *Index) NextEntries(ctx context.Context, from int64, q logs.Query) (entries []logs.Indexed, after int64, err error) {
	return x.options.Log.Next(ctx, from, q)
}

// FirstEntry returns the oldest log entry about the package name, or with "" the first entry of the log; [ErrNoEntry] if
// none exists.
func (x *Index) FirstEntry(name string) (logs.Indexed, error) {
	if name == "" {
		return x.Entry(0)
	}
	return translateNotFound(logs.FirstEntry(x.store, name))
}

// EntryManifest returns the manifest with the hash e.Manifest, nil without an error if the entry has none, as one from before the
// release's files were made. The caller must not change it.
func (x *Index) EntryManifest(e logs.Entry) (*logs.Manifest, error) {
	if e.Manifest == (kvstore.Hash{}) {
		return nil, nil
	}
	return x.manifest(e.Manifest)
}

// Document returns the text of the content with the hash h, which a log entry names as its Diff or Detail; "" for the zero
// hash. The error wraps [kvstore.ErrNotFound] if the content is not stored.
func (x *Index) Document(h kvstore.Hash) (string, error) {
	if h == (kvstore.Hash{}) {
		return "", nil
	}
	data, err := x.store.Identity(h)
	if err != nil {
		return "", fmt.Errorf("library: couldn't read %s, which the log names: %w", h, err)
	}
	return string(data), nil
}
