package bot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
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
	// Git answers for packages whose source is git. Default: they are not updated.
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
	// Interval is how often a package's upstream is asked; default one hour.
	Interval time.Duration
	// Downloads bounds the releases that are fetched and processed at once;
	// default 4.
	Downloads int
	// MemoryBytes bounds the contents and encoders of releases under way, in
	// bytes, and apart from that those of squeezing; default 512 MiB. A single
	// file may exceed it, alone.
	MemoryBytes int64
	// Workers is how many files are processed at once; default: one for each
	// processor.
	Workers int
	// Runtime has the agenda: when each package's upstream is to be asked. Default: one
	// of the bot's own.
	Runtime *durable.Runtime
	Logger  *slog.Logger
	// Events, where set, is told what happens, from several goroutines.
	Events func(Event)
	// Now is the clock; default time.Now.
	Now func() time.Time
}

func (o *Options) defaults() error {
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
	setDefault(&o.Releases, 10)
	setDefault(&o.Interval, time.Hour)
	setDefault(&o.Downloads, 4)
	setDefault(&o.MemoryBytes, 512<<20)
	setDefault(&o.Workers, runtime.GOMAXPROCS(0))
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

func setDefault[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

// A Bot fills one store. Its methods may be called at the same time.
type Bot struct {
	options Options
	store   *kvstore.Store
	log     *logs.Log
	logger  *slog.Logger

	memory    *semaphore.Weighted // bytes of releases under way
	squeezing *semaphore.Weighted // bytes of contents being squeezed
	releasing *semaphore.Weighted // releases under way
	polling   *semaphore.Weighted // upstreams being asked
	cpu       *semaphore.Weighted // files being processed
	parsing   *semaphore.Weighted // scripts whose format is being found out
	minifiers *worker.Pool
	squeezers *worker.Pool
	encoding  singleflight.Group // by content, so that equal ones are compressed once

	current  atomic.Pointer[packages.Catalogue] // nil while none is known
	adopting sync.Mutex                         // held by the one SetCatalogue that runs

	claims  claims
	agenda  *agenda
	own     *durable.Runtime // where Options has none
	resume  sync.Once        // see recovered
	squeeze squeezeQueue
	// leftovers says that contents may be stored that no release names.
	leftovers atomic.Bool
	collects  sync.Mutex // held by the one collect that runs
	watching  sync.Mutex // held by the one watch that runs
}

// PollsAtOnce bounds the upstreams that are asked at the same time.
const PollsAtOnce = 8

// minifyTimeout is far more than an honest file of selection.MaxMinify bytes needs.
const minifyTimeout = 20 * time.Second

// New returns a bot over a store. It removes what an interrupted download left.
func New(o Options) (*Bot, error) {
	if err := o.defaults(); err != nil {
		return nil, fmt.Errorf("bot: %w", err)
	}
	if err := clear(o.TempDir); err != nil {
		return nil, fmt.Errorf("bot: couldn't empty %s: %w", o.TempDir, err)
	}
	b := &Bot{
		options:   o,
		store:     o.Store,
		log:       o.Log,
		logger:    o.Logger,
		memory:    semaphore.NewWeighted(o.MemoryBytes),
		squeezing: semaphore.NewWeighted(o.MemoryBytes),
		releasing: semaphore.NewWeighted(int64(o.Downloads)),
		polling:   semaphore.NewWeighted(PollsAtOnce),
		cpu:       semaphore.NewWeighted(int64(o.Workers)),
		parsing:   semaphore.NewWeighted(1),
		minifiers: worker.NewPool(worker.Options{Program: o.Worker, Size: o.Workers, Timeout: minifyTimeout}),
		squeezers: worker.NewPool(worker.Options{Program: o.Worker, Size: o.Workers, Nice: true}),
	}
	b.current.Store(o.Catalogue)
	b.options.Catalogue = nil // it is the first one only
	if err := b.squeeze.open(b.store); err != nil {
		return nil, fmt.Errorf("bot: %w", err)
	}
	if err := b.begin(); err != nil {
		// Such as a full disk, of which whoever has something to write is told.
		b.logger.Warn("couldn't note that the bot is at work", "err", err)
		b.leftovers.Store(true)
	}
	if o.Runtime == nil {
		o.Runtime = durable.New(o.Store, durable.Options{Now: o.Now, Logger: o.Logger})
		b.own = o.Runtime
	}
	var err error
	if b.agenda, err = openAgenda(o.Runtime); err != nil {
		return nil, fmt.Errorf("bot: %w", err)
	}
	return b, nil
}

// Close ends the worker processes. No method may be running or follow.
func (b *Bot) Close() {
	if b.own != nil {
		if err := b.own.Close(context.Background()); err != nil {
			b.logger.Warn("the agenda was not closed", "err", err)
		}
	}
	b.minifiers.Close()
	b.squeezers.Close()
	if err := b.end(); err != nil {
		b.logger.Warn("couldn't note that the bot is done", "err", err)
	}
}

func clear(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, tempPattern))
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

// A Summary counts what a pass did.
type Summary struct {
	Packages  int   `json:"packages"` // whose upstream was asked
	Published int   `json:"published"`
	Refused   int   `json:"refused"`
	Failed    int   `json:"failed"` // packages and releases to be tried again
	Files     int   `json:"files"`
	Bytes     int64 `json:"bytes"`
}

// tally makes a Summary from events.
type tally struct {
	mu sync.Mutex
	s  Summary
}

func (t *tally) add(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case Checking:
		t.s.Packages++
	case Published:
		t.s.Published++
		t.s.Files += e.Files
		t.s.Bytes += e.Bytes
	case Refused:
		t.s.Refused++
	case Failed:
		t.s.Failed++
	}
}

func (t *tally) sum() Summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.s
}

// counted returns a context whose operation's events t counts as well.
func counted(ctx context.Context, t *tally) context.Context {
	outer, ok := ctx.Value(reportKey{}).(func(Event))
	return WithReport(ctx, func(e Event) {
		t.add(e)
		if ok {
			outer(e)
		}
	})
}

// Once asks every package's upstream and publishes what is due. What fails is
// recorded in the states, not returned; the error is for what stops everything,
// such as a full disk.
func (b *Bot) Once(ctx context.Context) (Summary, error) {
	var t tally
	ctx = counted(ctx, &t)
	b.recovered()
	if err := b.adoptFirst(ctx); err != nil {
		return Summary{}, err
	}
	queue := newQueue()
	g, groupCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.drain(groupCtx, queue) })
	g.Go(func() error {
		defer queue.close()
		polls, ctx := errgroup.WithContext(groupCtx)
		for _, p := range b.catalogue().Packages() {
			polls.Go(func() error { return b.poll(ctx, p, queue) })
		}
		return polls.Wait()
	})
	err := g.Wait()
	if err == nil {
		b.collect(ctx)
	}
	return t.sum(), err
}

// Run asks each package's upstream at its time, publishes what is new, tries
// again what failed and squeezes what was published, until ctx ends. It returns
// nil then, and an error where it cannot go on, such as a full disk.
func (b *Bot) Run(ctx context.Context) error {
	b.recovered()
	if err := b.adoptFirst(ctx); err != nil {
		return err
	}
	queue := newQueue()
	g, groupCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.drain(groupCtx, queue) })
	g.Go(func() error { return b.squeezeForever(groupCtx) })
	g.Go(func() error { b.collect(groupCtx); return nil })
	g.Go(func() error {
		defer queue.close()
		return b.schedule(groupCtx, queue)
	})
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// stops reports whether the bot cannot go on after err.
func stops(err error) bool {
	var start *worker.StartError
	var local *fetch.LocalError
	return errors.As(err, &start) || errors.As(err, &local) || errors.Is(err, kvstore.ErrDiskFull) || errors.Is(err, kvstore.ErrCorrupt) || errors.Is(err, context.Canceled)
}
