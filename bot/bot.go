// Package bot brings releases in: it opens the packages that do so over one store, and runs them together. Package discovery decides which releases
// come in and when, ingest makes and publishes them, and recompression makes what was published smaller; they work with the upstreams and records of
// package sources. [ReadStatus] reports from the store how far releases have come.
//
// Imports point one way: bot, discovery, ingest, recompression. None of them knows how files are served.
package bot

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/audit"
	"github.com/larder-cdn/larder/bot/discovery"
	"github.com/larder-cdn/larder/bot/events"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/recompression"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/attestation"
	"github.com/larder-cdn/larder/packages"
)

// Options configures a Bot. Store, Log and Npm are required.
type Options struct {
	Store *kvstore.Store
	Log   *logs.Log
	// Catalogue is the one to begin with, until SetCatalogue has another. Nil: none
	// is known yet, which is not the same as an empty one.
	Catalogue *packages.Catalogue
	// Npm answers for packages whose source is npm.
	Npm *npm.Client
	// Provenance verifies attestations of npm's releases. Default: by the embedded trusted root.
	Provenance *attestation.Verifier
	// Git answers for packages whose source is git, and says how many stars repositories have at GitHub. Default: they are
	// not updated, and nothing is known of stars.
	Git *git.Client
	// TempDir is a folder of the bot's own; what it finds there at the start it
	// removes. Default: a new one in the system's.
	TempDir string
	// Worker is the program that package worker's children run. Default: this
	// one, whose main must call worker.Main.
	Worker string
	// Releases is how many of the newest releases a new package starts with;
	// default 10.
	Releases int
	// Interval is the longest time between two looks at a package's upstream; default one hour. What has releases often is
	// asked more often, up to every five minutes.
	Interval time.Duration
	// Feed is the address of a registry's change feed, whose events packages from npm are looked at for. Default: none.
	Feed string
	// Demand returns how often an npm package was downloaded in the last month, or [fetch.ErrNotFound] where there is no
	// count. It is asked about each package once a month, for sixty an hour. Default: it is not asked.
	Demand func(ctx context.Context, npmName string) (int64, error)
	// Downloads bounds the releases that are fetched and processed at once;
	// default 4.
	Downloads int
	// MemoryBytes bounds the contents of releases under way and of squeezing, and
	// all child processes, in bytes; default 512 MiB. A single file whose child
	// needs more is squeezed alone, and not minified. An eighth is for fresh releases.
	MemoryBytes int64
	// Workers is how many files are processed at once; default: one for each
	// processor.
	Workers int
	// Runtime has the agenda: when each package's upstream is polled. Default: one
	// of the bot's own.
	Runtime *durable.Runtime
	Logger  *slog.Logger
	// Dictionaries has the bot store deltas between the versions of a file.
	Dictionaries bool
	// Squeezed, if set, is called for each content that has got smaller encodings, from several goroutines.
	Squeezed func(kvstore.Hash)
	// Changed is notified of each package of which something has changed that is in no log: a release's state, what upstream has. It is
	// called from several goroutines. Default: nothing is notified.
	Changed func(pkg string)
	// Events, if set, is called for each event, from several goroutines.
	Events events.Sink
	// ClockCheck is the interval at which the bot checks whether the clock was set back; default one minute.
	ClockCheck time.Duration
	// Now is the clock and Sleep waits on it, for at most that long; default the real ones.
	Now   func() time.Time
	Sleep func(context.Context, time.Duration) error
}

// setDefaults sets the options that are zero.
func (o *Options) setDefaults() error {
	if o.TempDir == "" {
		dir, err := os.MkdirTemp("", "larder-")
		if err != nil {
			return err
		}
		o.TempDir = dir
	}
	if o.Worker == "" {
		program, err := os.Executable()
		if err != nil {
			return fmt.Errorf("couldn't find this program's file to start workers from: %w", err)
		}
		o.Worker = program
	}
	if o.Provenance == nil {
		var err error
		if o.Provenance, err = attestation.NewVerifier(nil); err != nil {
			return err
		}
	}
	o.Releases = cmp.Or(o.Releases, 10)
	o.Interval = cmp.Or(o.Interval, time.Hour)
	o.Downloads = cmp.Or(o.Downloads, 4)
	o.MemoryBytes = cmp.Or(o.MemoryBytes, 512<<20)
	o.Workers = cmp.Or(o.Workers, runtime.GOMAXPROCS(0))
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sleep == nil {
		o.Sleep = retry.Sleep
	}
	if o.Changed == nil {
		o.Changed = func(string) {}
	}
	return nil
}

// A Bot fills one store: it is its three parts, and runs them together. Its methods may be called at the same time.
type Bot struct {
	*discovery.Scheduler
	*ingest.Publisher
	*recompression.Recompressor

	logger   *slog.Logger
	breakers *sources.Breakers
	runtime  *durable.Runtime // nil if Options has one
}

// RequestsAtOnce is how many requests a bot has under way, beside the downloads of its options: polls of upstreams,
// downloads of fresh releases and the feed.
const RequestsAtOnce = discovery.RequestsAtOnce + ingest.FreshDownloads

// New returns a bot over a store. It removes what an interrupted download left.
func New(o Options) (*Bot, error) {
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("bot: %w", err)
	}
	b := &Bot{logger: o.Logger}
	if o.Runtime == nil {
		b.runtime = durable.New(o.Store, durable.Options{Now: o.Now, Logger: o.Logger})
		o.Runtime = b.runtime
	}
	if err := b.open(o); err != nil {
		return nil, fmt.Errorf("bot: %w", err)
	}
	return b, nil
}

// open opens the parts of the bot, each from those below it.
func (b *Bot) open(o Options) (err error) {
	budget := ingest.NewBudget(o.Workers, o.Downloads, o.MemoryBytes)
	upstreams := &sources.Sources{Npm: o.Npm, Git: o.Git, Provenance: o.Provenance}
	records := sources.NewRecords(sources.RecordsOptions{Store: o.Store, Logger: o.Logger, Interval: o.Interval, Changed: o.Changed, Now: o.Now})
	b.breakers = sources.NewBreakers(o.Now, o.Logger)
	b.Recompressor, err = recompression.New(recompression.Options{
		Store: o.Store, Logger: o.Logger, Program: o.Worker, Workers: o.Workers, Budget: budget, Squeezed: o.Squeezed, Events: o.Events, Now: o.Now,
		Dictionaries: o.Dictionaries,
	})
	if err != nil {
		return err
	}
	b.Publisher, err = ingest.New(ingest.Options{
		Store: o.Store, Log: o.Log, Logger: o.Logger, Npm: o.Npm, Sources: upstreams, Records: records, Breakers: b.breakers,
		Recompressor: b.Recompressor, Budget: budget, Downloads: o.Downloads, Workers: o.Workers, MemoryBytes: o.MemoryBytes,
		TempDir: o.TempDir, Program: o.Worker, Changed: o.Changed, Events: o.Events, Now: o.Now, Sleep: o.Sleep,
		Reschedule: func(ctx context.Context, pkg string, at time.Time) { b.Scheduler.Reschedule(ctx, pkg, at) },
	})
	if err != nil {
		return err
	}
	b.Publisher.UseCatalogue(o.Catalogue)
	b.Scheduler, err = discovery.New(discovery.Options{
		Store: o.Store, Log: o.Log, Logger: o.Logger, Npm: o.Npm, Git: o.Git, Sources: upstreams, Records: records, Breakers: b.breakers,
		Publisher: b.Publisher, Releases: o.Releases, Interval: o.Interval, Downloads: o.Downloads, Runtime: o.Runtime, Feed: o.Feed,
		Demand: o.Demand, ClockCheck: o.ClockCheck, Changed: o.Changed, Events: o.Events, Now: o.Now,
		Auditor: audit.New(audit.Options{Npm: o.Npm, Git: o.Git, Minifiers: b.Publisher.Minifiers(), Provenance: o.Provenance, TempDir: o.TempDir}),
	})
	return err
}

// Close ends the child processes. No method may be running or follow.
func (b *Bot) Close() {
	if b.runtime != nil {
		if err := b.runtime.Close(context.Background()); err != nil {
			b.logger.Warn("the poll schedule was not closed", "err", err)
		}
	}
	b.Publisher.Close()
	b.Recompressor.Close()
}

// Once polls every package's upstream and publishes what is due. What fails is
// recorded in the states, not returned; the error is for what stops everything,
// such as a full disk.
func (b *Bot) Once(ctx context.Context) (events.Summary, error) {
	var t events.Tally
	ctx = events.Counted(ctx, &t)
	b.Publisher.Recover()
	if err := b.Scheduler.PollAll(ctx); err != nil {
		return t.Sum(), err
	}
	b.Publisher.RemoveLeftovers(ctx)
	return t.Sum(), nil
}

// Run polls each package's upstream at its time, publishes what is new, tries
// again what failed and recompresses what was published, until ctx ends. It returns
// nil then, and an error where it cannot go on, such as a full disk.
func (b *Bot) Run(ctx context.Context) error {
	b.Publisher.Recover()
	g, groupCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.Scheduler.Run(groupCtx) })
	g.Go(func() error { return b.Recompressor.Run(groupCtx) })
	g.Go(func() error { b.Publisher.RemoveLeftovers(groupCtx); return nil })
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}
