// Package bot brings releases in: it opens the packages that do so over one store, and runs them together. Package discovery decides which releases
// come in and when, ingest makes and publishes them, and recompression makes what was published smaller; they work with the upstreams and records of
// package sources. [ReadStatus] reports from the store how far releases have come. A [CatalogueWatcher] polls the
// folder, archive or git repository of the catalogue. A [WithdrawalService] takes releases out again, without the rest of the bot.
//
// Imports point one way: bot, discovery, ingest, recompression. None of them knows how files are served.
package bot

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/audit"
	"github.com/larder-cdn/larder/bot/discovery"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/recompression"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/priority"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// Options configures a Bot. Store, Log and Upstreams.Npm are required.
type Options struct {
	Store *kvstore.Store
	Log   *logs.Log
	// Catalogue is the first one, which SetCatalogue replaces. Nil: none is known yet, which differs from an empty one.
	Catalogue *packages.Catalogue
	Upstreams
	Limits
	Clock
	// TempDir is a folder of the bot's own, which it empties when it starts. Default: a new one in the system's.
	TempDir string
	// Worker is the program of the child processes of package worker. Default: this one, whose main must call worker.RunChild.
	Worker string
	// Runtime has the poll schedule. Default: one of the bot's own.
	Runtime *durable.Runtime
	Logger  *slog.Logger
	Recompression
	// Changed is notified of each package of which something changed that is in no log: a release's state, what upstream has. It is called
	// from several goroutines. Default: nothing is notified.
	Changed func(pkg string)
	// Events, if set, is called for each event, from several goroutines.
	Events sources.Sink
}

// Upstreams are the clients of upstreams. A nil client means that its upstreams are not requested.
type Upstreams struct {
	Npm *npm.Client
	Git *git.Client // also for the stars of repositories at GitHub
	// Provenance verifies attestations of npm's releases. Default: by the embedded trusted root.
	Provenance *npm.AttestationVerifier
	// Feed is the address of a registry's change feed, by which packages from npm are polled; "" for none.
	Feed string
	// CountDownloads returns how often an npm package was downloaded in the last month, or [fetch.ErrNotFound] if there is no count. It is called once
	// a month for each package, up to sixty times an hour.
	CountDownloads func(ctx context.Context, npmName string) (int64, error)
}

// Limits are the limits of a bot, which have defaults.
type Limits struct {
	// Releases is how many of the newest releases a new package starts with; default 10.
	Releases int
	// Interval is the longest time between two polls of a package; default one hour. Active packages are polled up to every five minutes.
	Interval time.Duration
	// MemoryBytes bounds the contents of releases and of recompression in memory, and all child processes, in bytes; default 512 MiB. A single
	// file whose child needs more is recompressed alone, and not minified. An eighth is for fresh releases.
	MemoryBytes int64
	// Encoders is how many contents of new releases are encoded at once, and how many are recompressed; default: one for each processor. A
	// process that serves leaves one processor to requests.
	Encoders int
}

// Recompression says what the bot makes of contents that are published.
type Recompression struct {
	// Dictionaries has the bot store deltas between the versions of a file.
	Dictionaries bool
	// Squeezed, if set, is called for each content that has smaller encodings, from several goroutines.
	Squeezed func(kvstore.Hash)
	// DeltaStored, if set, is called for each content that has a delta against a dictionary, from several goroutines.
	DeltaStored func(h, dictionary kvstore.Hash)
}

// A Clock is what the bot knows of time; default the real one.
type Clock struct {
	Now   func() time.Time
	Sleep func(context.Context, time.Duration) error
	// ClockCheck is the longest time between two reads of the clock while a goroutine waits, so that it notices a clock that was set;
	// default one minute.
	ClockCheck time.Duration
}

// setDefaults replaces options that are zero by their defaults. For TempDir it creates a new temporary folder. It returns an
// error if that, or this program's file, or the embedded trusted root of attestations is not available.
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
		if o.Provenance, err = npm.NewAttestationVerifier(nil); err != nil {
			return err
		}
	}
	o.Releases = cmp.Or(o.Releases, 10)
	o.Interval = cmp.Or(o.Interval, time.Hour)
	o.MemoryBytes = cmp.Or(o.MemoryBytes, 512<<20)
	o.Encoders = cmp.Or(o.Encoders, priority.Processors())
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sleep == nil {
		o.Sleep = retry.Sleep
	}
	o.ClockCheck = cmp.Or(o.ClockCheck, time.Minute)
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

// DownloadsAtOnce is how many releases a bot fetches and processes at once, besides fresh ones.
const DownloadsAtOnce = 4

// RequestsAtOnce is how many requests a bot has under way, besides [DownloadsAtOnce] downloads: polls of upstreams,
// downloads of fresh releases and the feed.
const RequestsAtOnce = discovery.RequestsAtOnce + ingest.FreshDownloads

// New returns a bot over a store, which polls and publishes nothing before Run or Once. It empties o.TempDir of what an
// interrupted download left, and sets defaults for options that are zero. The caller calls Close at the end, before it closes the
// store. After an error the result is nil, and the parts that New has opened stay open.
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

// open opens the three parts of the bot (recompressor, publisher, scheduler), with what they share, and sets them in b. After an
// error, the parts that were opened stay open.
func (b *Bot) open(o Options) (err error) {
	budget := worker.NewBudget(o.Encoders, o.MemoryBytes)
	upstreams := &sources.Sources{Npm: o.Npm, Git: o.Git, Provenance: o.Provenance}
	records := sources.NewRecords(sources.RecordsOptions{Store: o.Store, Logger: o.Logger, Interval: o.Interval, Changed: o.Changed, Now: o.Now})
	b.breakers = sources.NewBreakers(o.Now, o.ClockCheck, o.Logger)
	b.Recompressor, err = recompression.New(recompression.Options{
		Store: o.Store, Logger: o.Logger, Program: o.Worker, Workers: o.Encoders, Budget: budget, Squeezed: o.Squeezed, Events: o.Events, Now: o.Now,
		Dictionaries: o.Dictionaries, DeltaStored: o.DeltaStored,
	})
	if err != nil {
		return err
	}
	b.Publisher, err = ingest.New(ingest.Options{
		Store: o.Store, Log: o.Log, Logger: o.Logger, Npm: o.Npm, Sources: upstreams, Records: records, Breakers: b.breakers,
		Recompressor: b.Recompressor, Budget: budget, Downloads: DownloadsAtOnce, Workers: priority.Processors(),
		Encoders: o.Encoders, MemoryBytes: o.MemoryBytes, TempDir: o.TempDir, Program: o.Worker,
		Changed: o.Changed, Events: o.Events, Now: o.Now, Sleep: o.Sleep,
		Reschedule: func(ctx context.Context, pkg string, at time.Time) { b.Scheduler.Reschedule(ctx, pkg, at) },
	})
	if err != nil {
		return err
	}
	b.Publisher.UseCatalogue(o.Catalogue)
	b.Scheduler, err = discovery.New(discovery.Options{
		Store: o.Store, Log: o.Log, Logger: o.Logger, Npm: o.Npm, Git: o.Git, Sources: upstreams, Records: records, Breakers: b.breakers,
		Publisher: b.Publisher, Releases: o.Releases, Interval: o.Interval, Downloads: DownloadsAtOnce, Runtime: o.Runtime, Feed: o.Feed,
		CountDownloads: o.CountDownloads, ClockCheck: o.ClockCheck, Changed: o.Changed, Events: o.Events, Now: o.Now,
		Auditor: audit.New(audit.Options{Npm: o.Npm, Git: o.Git, Minifiers: b.Publisher.BacklogMinifiers(), Provenance: o.Provenance, TempDir: o.TempDir}),
	})
	return err
}

// UpstreamCollector returns a Prometheus collector of the metrics of upstreams (registries and git hosts), such as whether they
// respond.
func (b *Bot) UpstreamCollector() prometheus.Collector { return b.breakers }

// Close closes the poll schedule, if the bot has one of its own, and ends the child processes. It logs errors. No method may be
// running or follow.
func (b *Bot) Close() {
	if b.runtime != nil {
		if err := b.runtime.Close(context.Background()); err != nil {
			b.logger.Warn("the poll schedule was not closed", "err", err)
		}
	}
	b.Publisher.Close()
	b.Recompressor.Close()
}

// Once polls the upstream of each package in the catalogue, publishes the releases that are due, and then removes contents that
// interrupted publications have left. It recompresses nothing. Failures of packages and releases are recorded in their states;
// the error is for what stops everything, such as a full disk or the end of ctx. The summary counts what was done, also until an
// error.
func (b *Bot) Once(ctx context.Context) (sources.Summary, error) {
	var t sources.Tally
	ctx = sources.WithTally(ctx, &t)
	b.Publisher.Recover()
	if err := b.Scheduler.PollAll(ctx); err != nil {
		return t.Sum(), err
	}
	b.Publisher.RemoveLeftovers(ctx)
	return t.Sum(), nil
}

// Run polls each package's upstream at its time, publishes what is new, tries again what failed, compares published releases with
// upstream and recompresses what was published, until ctx ends; then it returns nil. If it cannot continue, such as after a full
// disk, it ends all this work and returns the error.
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
