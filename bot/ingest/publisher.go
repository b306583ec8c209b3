// Package ingest makes releases: it fetches one from its source, takes the files that the package JSON names, makes what is missing, compresses
// and hashes them, and publishes the release in one atomic write. It takes releases also from uploads, folders, and other origins.
//
// Guarantees: a release is published completely or not at all; a published version is never rewritten; a release that cannot be published ends in a
// state with a reason and, if the reason may pass, with the time of the next attempt, also after a restart; memory and downloads under way are
// bounded by Options.
//
// The package must not know when upstreams are polled or which releases are due.
package ingest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/recompression"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// Options configures a [Publisher].
type Options struct {
	Store        *kvstore.Store
	Log          *logs.Log
	Logger       *slog.Logger
	Npm          *npm.Client // reconnects after wrong bytes; may be nil
	Sources      *sources.Sources
	Records      *sources.Records
	Breakers     *sources.Breakers
	Recompressor *recompression.Recompressor
	// Budget decides when a file may be processed.
	Budget *worker.Budget
	// Downloads bounds the releases that are fetched and processed at once, besides fresh ones; Workers bounds the files.
	// Encoders bounds the contents that are encoded at once.
	Downloads, Workers, Encoders int
	// MemoryBytes bounds the memory of the budget and of child processes, in bytes.
	MemoryBytes int64
	// TempDir is a folder of the publisher's own. New removes old downloads in it.
	TempDir string
	Program string // that of [worker.Options]
	// Reschedule is called if a package has to be polled at an earlier time, because a release of it can be tried then.
	Reschedule func(ctx context.Context, pkg string, at time.Time)
	// Changed is called with each package of which a state changed without a log entry.
	Changed func(pkg string)
	Events  sources.Sink
	Now     func() time.Time
	Sleep   func(context.Context, time.Duration) error
}

// A Publisher publishes releases in one store. Its methods may be called at the same time.
type Publisher struct {
	options Options
	store   *kvstore.Store
	log     *logs.Log
	logger  *slog.Logger

	releasing *semaphore.Weighted // releases under way that are not fresh
	// Fresh releases have a pipeline of their own, so that they wait for no other.
	backlog, fresh *pipeline
	encoding       singleflight.Group // by content, so that equal ones are compressed once
	encoders       chan struct{}      // has a value for each goroutine that encodes a content

	current atomic.Pointer[packages.Catalogue] // nil while none is known
	claims  Claims                             // versions that a goroutine is publishing
	refills sync.Map                           // packages, by name, that still need releases in place of refused ones
	resume  sync.Once                          // see Recover
	// leftovers reports whether contents may be stored that no release names.
	leftovers atomic.Bool
	collects  sync.Mutex // held by the goroutine in RemoveLeftovers
}

// New returns a publisher. It creates the folder o.TempDir if necessary, deletes the downloads that an earlier process left
// there, and fails if it cannot. It sets o.Budget.Minifiers and o.Budget.Fresh to its pools of child processes, for old releases
// and for fresh (new) ones, so that the budget can end idle ones. It stores a mark that a bot is at work (see
// [Publisher.RemoveLeftovers]), and only logs if that fails. The caller calls Close at the end.
func New(o Options) (*Publisher, error) {
	if err := emptyTempDir(o.TempDir); err != nil {
		return nil, fmt.Errorf("couldn't empty %s: %w", o.TempDir, err)
	}
	p := &Publisher{
		options: o, store: o.Store, log: o.Log, logger: o.Logger,
		backlog:   newPipeline(o, o.Workers, max(o.Workers, o.Downloads)),
		fresh:     newPipeline(o, freshWorkers(o.Workers), max(freshWorkers(o.Workers), FreshDownloads)),
		releasing: semaphore.NewWeighted(int64(o.Downloads)),
		encoders:  make(chan struct{}, o.Encoders),
	}
	o.Budget.Minifiers, o.Budget.Fresh = p.backlog.minifiers, p.fresh.minifiers
	if err := p.markUnclean(); err != nil {
		// Such as a full disk, which the next write reports.
		p.logger.Warn("couldn't record that the bot is at work", "err", err)
		p.leftovers.Store(true)
	}
	return p, nil
}

// Close ends the child processes. It also deletes the stored mark that a bot is at work, unless contents may be left over that no
// release names, so that the next process does not look for such contents. No other method may be running or follow. It logs
// errors.
func (pb *Publisher) Close() {
	pb.backlog.minifiers.Close()
	pb.fresh.minifiers.Close()
	if err := pb.markClean(); err != nil {
		pb.logger.Warn("couldn't record that the bot is done", "err", err)
	}
}

// BacklogMinifiers returns the pool of child processes in which releases that are not fresh are minified. Audits, which minify
// published files again, share it, so that they do not delay fresh releases. The publisher closes it.
func (pb *Publisher) BacklogMinifiers() *worker.Pool { return pb.backlog.minifiers }

// CurrentCatalogue returns the catalogue in use, nil while none was set; [Publisher.Catalogue] returns an empty one then.
func (pb *Publisher) CurrentCatalogue() *packages.Catalogue { return pb.current.Load() }

// UseCatalogue replaces the catalogue in use for following calls. It records nothing in the log, see
// [Publisher.RegisterCatalogue], and polls nothing.
func (pb *Publisher) UseCatalogue(c *packages.Catalogue) { pb.current.Store(c) }

// TakeRefill reports whether a package that does not have all releases yet with which it starts needs another one, because one
// was refused since the last call. It forgets this, so that the next call returns false unless another release is refused. It is
// known only in this process.
func (pb *Publisher) TakeRefill(pkg string) bool {
	_, ok := pb.refills.LoadAndDelete(pkg)
	return ok
}

// ClearRefills has [Publisher.TakeRefill] return false for all packages until another release is refused.
func (pb *Publisher) ClearRefills() { pb.refills.Clear() }
