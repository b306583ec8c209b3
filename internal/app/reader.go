// Package app is a larder process: the supervisor, which outlives the roles of the process; the roles, which open their parts in
// order; and the operations that the process runs for commands.
//
// A [Reader] has a data folder open to read it, and a [Writer] to change it, both also for a command if no process runs. A
// [Server] is a process that runs until it is stopped, and serves, fills the folder, or both. A [WitnessServer] cosigns logs,
// without a data folder. A command requests an [Operation] with a [Client] of the process, or of the Reader or Writer that it
// has opened itself.
//
// What it guarantees: one process has a data folder open at a time; what was opened is closed in reverse order, also after an
// error; an operation that is under way ends before the folder is closed.
//
// It must not know commands and flags, and what people see: it gets settings, and hands out values.
package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot/discovery"
	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/internal/priority"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/server/usage"
)

// A Reader is an open data folder, which no other process can open meanwhile:
//
//	store/      the key-value store
//	catalogue/  the last good catalogue, where that is from a git repository
//	tmp/        downloads and other temporary files; emptied when the folder is opened for writing
//	admin.sock  the socket on which the process that has it open listens for commands
type Reader struct {
	settings         *settings.Settings
	logger           *slog.Logger
	assetBase        string // URL in front of the paths of files; "" if it is not known
	store            *kvstore.Store
	log              *logs.Log
	usage            func() *usage.Usage // counts of requests, read on first use
	popularityScores func() *sources.Popularity
	libraries        lazy[*library.Index] // follows the log from first use on
	pages            pageSources
	runtime          *durable.Runtime // of durable objects, such as waiting rooms
	outbox           lazy[*notify.Outbox]
	workers          int            // of a check: half of the processors where the process serves
	busy             sync.WaitGroup // operations under way
	stopReaders      func() error   // stops serving other commands; nil if they are not served
}

// openOptions are what distinguishes one Reader from another.
type openOptions struct {
	store   kvstore.Options
	working bool   // the outbox sends what is due; a short command would only begin to
	address string // URL at which the process serves, which lowers the number of workers of a check; "" if it does not serve
}

// OpenReader opens a data folder read-only. long says that the command takes long: then the Reader serves other commands that
// only read, over the admin socket. During a short command they wait. OpenReader returns an error if the folder has no store,
// is damaged, or if another process has it open ([kvstore.ErrLocked]).
func OpenReader(s *settings.Settings, long bool, logger *slog.Logger) (*Reader, error) {
	if err := checkStoreExists(s); err != nil {
		return nil, err
	}
	r, err := openFolder(s, openOptions{store: kvstore.Options{ReadOnly: true}}, logger)
	if err == nil && long {
		r.serveReaders(func(*Status) {})
	}
	return r, err
}

// openFolder opens the store and the log of a data folder, for reading only or for writing too, as o says. The rest is opened
// on first use. The error is a [*lockedError] if another process has the folder open, and a [*Shortfall] if the folder is
// damaged, or lacks a store although entries of its log were signed.
func openFolder(s *settings.Settings, o openOptions, logger *slog.Logger) (*Reader, error) {
	o.store.Logger, o.store.CacheBytes, o.store.MemTableBytes = logger.With("part", "store"), s.StoreCache, s.MemTableBytes()
	o.store.Program = ThisBuild().storeProgram()
	store, err := kvstore.Open(storeDir(s.Data), o.store)
	if errors.Is(err, kvstore.ErrLocked) {
		return nil, &lockedError{data: s.Data}
	}
	if err != nil {
		return nil, openingError(s, err)
	}
	log, err := logs.Open(store)
	if err != nil {
		return nil, openingError(s, errors.Join(err, store.Close()))
	}
	r := &Reader{settings: s, logger: logger, assetBase: s.AssetBaseAt(o.address), store: store, log: log, workers: priority.Processors()}
	if o.address != "" {
		r.workers = max(1, r.workers/2)
	}
	r.usage = sync.OnceValue(func() *usage.Usage {
		return usage.Open(usage.Options{Store: store, Logger: logger.With("part", "usage")})
	})
	r.popularityScores = sync.OnceValue(func() *sources.Popularity { return sources.NewPopularity(store, r.usage().Popularity) })
	r.prepareLibraries(logger.With("part", "library"))
	outboxLogger := logger.With("part", "outbox")
	r.pages.workers = newWorkers(worker.Options{Size: 1, Nice: true, Timeout: renderTimeout})
	r.pages.renderer = library.NewRenderer(library.RendererOptions{Store: store, Render: r.pages.render, Logger: logger.With("part", "renderer")})
	r.runtime = durable.New(store, durable.Options{Logger: outboxLogger, Quiet: !o.working})
	r.outbox.open = func() (*notify.Outbox, error) {
		return notify.OpenOutbox(notify.WebhookOptions{
			Runtime: r.runtime, Store: store, Log: log, UserAgent: UserAgent(), Purge: purgeOptions(s), Logger: outboxLogger,
		})
	}
	r.outbox.close = func(*notify.Outbox) {} // the runtime is closed
	return r, nil
}

// prepareLibraries sets how the index of libraries is opened on first use and closed. An open index reads all libraries, and
// then follows the log, in a goroutine until it is closed. A failure of that is only logged.
func (r *Reader) prepareLibraries(logger *slog.Logger) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	r.libraries.open = func() (*library.Index, error) {
		index := library.New(library.Options{Store: r.store, Log: r.log, Popularity: r.popularity, Downloads: r.npmDownloads, GitHub: r.gitHubCounts, Accounts: discovery.ReadAccounts, Deprecations: sources.ReadDeprecations, Upstream: sources.UpstreamNote, Dictionaries: r.settings.Dictionaries, Changes: &r.pages.changes, Logger: logger})
		go func() {
			defer close(done)
			if err := index.Run(ctx); err != nil {
				logger.Error("what is published from now on does not show in search and pages; start again", "err", err)
			}
		}()
		return index, nil
	}
	r.libraries.close = func(*library.Index) {
		cancel()
		<-done
	}
}

// popularity returns a score by which libraries are ranked: a greater one is that of a more popular library.
func (r *Reader) popularity(l *library.Library) float64 {
	return r.popularityScores().Score(l.Name, l.NPM(), l.Downloads)
}

// npmDownloads returns n, how often the npm package of the library name was downloaded in the month before asOf; ok is false if
// that is not known.
func (r *Reader) npmDownloads(name string) (n int64, asOf time.Time, ok bool) {
	d := r.popularityScores().Counts(name)
	return d.Downloads, d.AsOf, !d.AsOf.IsZero()
}

// gitHubCounts returns the stars, forks and subscribers of the repository of the library name, as GitHub reported them last.
// The bool is false if they are not known, or GitHub has no such repository.
func (r *Reader) gitHubCounts(name string) (library.GitHubCounts, bool) {
	g := r.popularityScores().Counts(name).GitHub
	if g == nil || g.Missing {
		return library.GitHubCounts{}, false
	}
	return library.GitHubCounts{Stars: g.Stars, Forks: g.Forks, Subscribers: g.Subscribers}, true
}

// Close waits for running operations, whose contexts must have ended, and closes the folder. It returns all errors of closing.
func (r *Reader) Close() error { return r.closeAfter() }

// closeAfter stops serving other commands, waits for running operations, closes the index of libraries, calls others one after
// the other, and closes the rest of the folder. Each step is done also after an error; closeAfter returns all errors, joined.
// The contexts of operations must have ended.
func (r *Reader) closeAfter(others ...func() error) error {
	var err error
	if r.stopReaders != nil {
		err = r.stopReaders()
	}
	r.busy.Wait()
	r.libraries.closeIfOpen()
	for _, end := range others {
		err = errors.Join(err, end())
	}
	r.pages.workers.Close()
	r.outbox.closeIfOpen()
	ctx, cancel := context.WithTimeout(context.Background(), runtimeClose)
	defer cancel()
	return errors.Join(err, r.runtime.Close(ctx), r.store.Close())
}

// storeDir returns the path of the store's folder in the data folder data.
func storeDir(data string) string { return filepath.Join(data, "store") }

// tmpDir returns the path of the folder for temporary files in the data folder data.
func tmpDir(data string) string { return filepath.Join(data, "tmp") }

// A lazy value is opened on first use, and closed if it was opened.
type lazy[T any] struct {
	open  func() (T, error)
	close func(T)

	once  sync.Once
	value T
	err   error
}

// errClosed is the error of [lazy.get] after the folder was closed before the value was used.
var errClosed = errors.New("the data folder is being closed")

// errUnopened is the error of [lazy.get] after a call that opened the value panicked.
var errUnopened = errors.New("couldn't open it before")

// get returns the value, and opens it the first time, while other calls wait. If that fails, each call returns the same error.
func (l *lazy[T]) get() (T, error) {
	l.once.Do(func() {
		l.err = errUnopened // stays if open panics, so that closeIfOpen does not close what was never opened
		l.value, l.err = l.open()
	})
	return l.value, l.err
}

// closeIfOpen closes the value if it was opened. If it was not, get returns errClosed from then on. It must not be called twice.
func (l *lazy[T]) closeIfOpen() {
	l.once.Do(func() { l.err = errClosed })
	if l.err == nil {
		l.close(l.value)
	}
}

// render renders one document in a worker process. Requests to find the imports of modules share a process if they have the
// same owner, a release; every other document gets a process of its own. A [*document.RefusedError] says that the document
// would fail again; other errors may not be the document's fault.
func (s *pageSources) render(ctx context.Context, owner string, r document.Request) (document.Result, error) {
	if r.Kind != document.Imports {
		owner = "" // so that no other document is rendered in the process
	}
	request, err := json.Marshal(r)
	if err != nil {
		return document.Result{}, err
	}
	data, err := s.workers.Do(ctx, owner, worker.Render, request)
	if err == nil {
		var result document.Result
		if result, err = document.Decode(r.Kind, data); err == nil {
			return result, nil
		}
	}
	return document.Result{}, classifyRenderError(ctx, err)
}
