package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/gitlog"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
)

// Requests about the log.
type (
	// LogShowRequest requests the details of an entry.
	LogShowRequest struct {
		Index int64 `json:"index"`
	}
	// LogFollowRequest requests the entries after one as they come. Of the query, only package, version and kinds count.
	LogFollowRequest struct {
		logs.Query
		After int64 `json:"after"` // number of the entry before the first one, counted from 0; -1 for all
	}
	// LogExportRequest requests the changes that a git repository is missing.
	LogExportRequest struct {
		After gitlog.Position `json:"after"`
	}
)

// A LogPage is a page of the entries that a query selects, newest first.
type LogPage struct {
	Entries []logs.Indexed `json:"entries"`
	Next    int64          `json:"next,omitempty"` // Before in the query for the next page; 0 if there are no more entries
	Size    int64          `json:"size"`           // entries of the log
}

// LogDetails are an entry and what it refers to.
type LogDetails struct {
	logs.Indexed
	Hash      string           `json:"hash"` // of its leaf in the log's tree
	Documents gitlog.Documents `json:"documents,omitzero"`
}

// Operations that only read the log.
const (
	OpLogList   Operation[logs.Query, any, LogPage]              = "log-list"
	OpLogShow   Operation[LogShowRequest, any, LogDetails]       = "log-show"
	OpLogFollow Operation[LogFollowRequest, logs.Indexed, any]   = "log-follow"
	OpLogExport Operation[LogExportRequest, ExportedChange, any] = "log-export"
)

// addLogOperations adds the operations that only read the log.
func (r *Reader) addLogOperations(all operations) {
	addRequest(all, OpLogList, r.listLog)
	addRequest(all, OpLogShow, r.showLogEntry)
	addOperation(all, OpLogFollow, func(ctx context.Context, q LogFollowRequest, report func(logs.Indexed)) (any, error) {
		return nil, r.followLog(ctx, q, report)
	})
	addOperation(all, OpLogExport, func(ctx context.Context, q LogExportRequest, report func(ExportedChange)) (any, error) {
		return nil, r.exportLog(ctx, q.After, report)
	})
}

// listLog returns a page of the entries that match a query, newest first. An unknown package or version is an error that names
// it.
func (r *Reader) listLog(_ context.Context, q logs.Query) (LogPage, error) {
	size := r.log.Checkpoint().Size
	page, err := library.Entries(r.store, q)
	switch {
	case errors.Is(err, library.ErrNoLibrary):
		return LogPage{}, fmt.Errorf("the log has nothing about a package %q; `larder status` lists those that are here", q.Package)
	case errors.Is(err, library.ErrNoVersion):
		return LogPage{}, fmt.Errorf("the log has nothing about %s %q; `larder log list --package %s` lists its entries", q.Package, q.Version, q.Package)
	}
	return LogPage{Entries: append([]logs.Indexed{}, page.Entries...), Next: page.Next, Size: size}, err
}

// showLogEntry returns the entry with the number in q, counted from 0, its leaf hash and the documents that it refers to. A
// number beyond the log is an error.
func (r *Reader) showLogEntry(_ context.Context, q LogShowRequest) (LogDetails, error) {
	if size := r.log.Checkpoint().Size; q.Index >= size {
		return LogDetails{}, fmt.Errorf("the log has %s, and none with the number %d", text.Count(int(size), "entry", "entries"), q.Index)
	}
	e, err := logs.ReadEntry(r.store, q.Index)
	if err != nil {
		return LogDetails{}, err
	}
	d, err := gitlog.ReadDocuments(r.store, e)
	return LogDetails{e, gitlog.EntryHash(e), d}, err
}

// followLog reports the entries after q.After whose package, version and kind match the query, oldest first, also new ones,
// until ctx ends. It always returns an error, that of ctx or of reading.
func (r *Reader) followLog(ctx context.Context, q LogFollowRequest, report func(logs.Indexed)) error {
	for next := q.After + 1; ; {
		entries, after, err := r.log.Next(ctx, next, q.Query)
		if err != nil {
			return err
		}
		for _, e := range entries {
			report(e)
		}
		next = after
	}
}

// exportLog reports the changes that the log made after a position, which is that of a git repository, in the repository's
// form, oldest first. Each has the number of log entries at the start of the export, at which the export ends.
func (r *Reader) exportLog(ctx context.Context, position gitlog.Position, report func(ExportedChange)) error {
	size := r.log.Checkpoint().Size
	for c, err := range gitlog.Changes(r.store, position, size) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		report(ExportedChange{c, size})
	}
	return nil
}

// An ExportedChange is a change of the log with the number of entries that the log has.
type ExportedChange struct {
	gitlog.Change
	Of int64 `json:"of"` // entries that the log had at the start of the export
}

// ExportLog requests the changes of the log that a git repository lacks, adds them to it, and returns how many. After each it
// calls report with how many entries of the log the repository has, and how many the log has. After an error of the request or
// of adding, the changes before stay, and added counts them; if the repository cannot store them, added is 0.
func ExportLog(ctx context.Context, client *Client, repository *gitlog.Repository, report func(has, of int64)) (added int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	_, err = OpLogExport.Ask(ctx, client, LogExportRequest{After: repository.Position()}, func(c ExportedChange) {
		if ctx.Err() != nil {
			return
		}
		if err := repository.Add(c.Change); err != nil {
			cancel(err)
			return
		}
		added++
		report(c.Index+1, c.Of)
	})
	if failed := repository.Flush(); failed != nil {
		return 0, errors.Join(err, failed)
	}
	return added, err
}

// LogPush is the state of the log on GitHub, for `larder status`.
type LogPush struct {
	Repository string `json:"repository"`
	gitlog.PushState
	Of int64 `json:"of"` // entries of the log
	// Waiting is when GitHub accepts requests again, zero if it does now.
	Waiting time.Time `json:"waiting,omitzero"`
}

// newLogRepositoryClient returns the GitHub client that pushes the log, and sends no request yet. Errors are mistakes in the
// settings, such as a missing token.
func newLogRepositoryClient(s *settings.Settings, logger *slog.Logger) (*git.GitHubClient, error) {
	if s.Token == "" {
		return nil, settings.Mistakef("%s needs a token that may write there: put it into the variable %s or %s", s.Origin("log-repository"), settings.TokenVariables[0], settings.TokenVariables[1])
	}
	client, err := git.NewGitHubClient(git.GitHubOptions{URL: s.GitHubURL, Token: s.Token, UserAgent: UserAgent(), Logger: logger.With("part", "github")})
	if err != nil {
		return nil, settings.Mistakef("%s, or the token in %s: %w", s.Origin("github-url"), s.TokenFrom, err)
	}
	return client, nil
}

// newLogPusher returns the pusher that copies the signed log as git commits to the GitHub repository of the settings, without
// running it, and adds its state to the metrics and the status of the process.
func (r *roleRun) newLogPusher(client *git.GitHubClient, w *Writer) *gitlog.Pusher {
	remote, log := r.settings.LogRepository, w.folder.log
	signed := gitlog.SignedLog{Store: w.folder.store, Log: log, Signer: w.signature.signer}
	p := gitlog.NewPusher(gitlog.PushOptions{
		Client: client.HTTP, BaseURL: client.BaseURL, Remote: remote, Changes: signed.Changes, Wait: signed.Wait, Describe: git.DescribeGitHubError,
		Logger: r.logger.With("part", "push"), Registerer: r.metrics,
	})
	r.console.addStatus(func(s *Status) {
		s.LogPush = &LogPush{remote.String(), p.State(), log.Checkpoint().Size, client.LimitedUntil().UTC()}
	})
	return p
}

// BundleRequest says which bundle is written.
type BundleRequest struct {
	File string `json:"file"` // an absolute path
	// Since is how many log entries the reader of the bundle has.
	Since int64 `json:"since,omitempty"`
	// Packages are patterns, PACKAGE or PACKAGE@VERSION, of the releases whose files are in the bundle. nil is for all.
	Packages []string `json:"packages,omitempty"`
}

// OpBundle writes the log and its contents into one file.
const OpBundle Operation[BundleRequest, EntryProgress, replication.BundleResult] = "bundle"

// writeBundle writes the signed log, and the contents of the entries that q selects, into the new file of q, from which another
// Larder can read them. It resumes an interrupted bundle; see [replication.WriteBundle]. It calls report with the number of
// entries done. The error is errUnsigned if the log is not signed.
func (r *Reader) writeBundle(ctx context.Context, q BundleRequest, report func(EntryProgress)) (replication.BundleResult, error) {
	note, key, err := signing.PublishedNote(r.store, r.settings.KeyFolder())
	if err != nil {
		return replication.BundleResult{}, err
	}
	if note == nil {
		return replication.BundleResult{}, errUnsigned
	}
	return replication.WriteBundle(ctx, q.File, replication.BundleOptions{
		Source: replication.FromStore(r.store, r.settings.Data).WithCheckpoint(note), Trust: verify.Trust{Key: key}, Since: q.Since, Packages: q.Packages,
		Progress: func(entries, of int64) { report(EntryProgress{entries, of}) },
	})
}
