// Package bot brings releases in: it asks upstreams what is new, fetches a
// release, takes the files that the package JSON names, makes what is missing,
// compresses and hashes them, and publishes the release in one atomic write.
// Afterwards it squeezes what it published.
//
// Guarantees: a release is published whole or not at all; a published version is
// never rewritten; every version that upstream has ends in a state with a reason,
// and one that failed for a passing reason is tried again, also after a restart;
// one bad package never stops the others; memory and downloads under way are
// bounded by Options.
//
// The package does not know how files are served.
package bot

import (
	"cmp"
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

	"github.com/larder-cdn/larder/bot/audit"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
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
	// Squeezed, if set, is called for each content that has got smaller encodings, from several goroutines.
	Squeezed func(kvstore.Hash)
	// Changed is notified of each package of which something has changed that is in no log: a release's state, what upstream has. It is
	// called from several goroutines. Default: nothing is notified.
	Changed func(pkg string)
	// Events, if set, is called for each event, from several goroutines.
	Events func(Event)
	// Now is the clock and Sleep waits on it, for at most that long; default the real ones.
	Now   func() time.Time
	Sleep func(context.Context, time.Duration) error
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

// A Bot fills one store. Its methods may be called at the same time.
type Bot struct {
	options Options
	store   *kvstore.Store
	log     *logs.Log
	logger  *slog.Logger

	lanes     *lanes              // files of releases, and contents being squeezed
	releasing *semaphore.Weighted // releases under way that are not fresh
	polling   *semaphore.Weighted // upstreams being asked
	squeezers *worker.Pool
	// Fresh releases have a bench of their own, so that they wait for no other.
	backlog, fresh *bench
	encoding       singleflight.Group // by content, so that equal ones are compressed once

	current  atomic.Pointer[packages.Catalogue] // nil while none is known
	adopting sync.Mutex                         // held by the one SetCatalogue that runs

	following atomic.Pointer[followers] // of current

	outages *outages
	claims  claims
	rows    sync.Mutex // held while what is remembered of an upstream is written by what was read before
	looks   claims     // packages, by name: one look at a time, until what it found is in the queue
	refills sync.Map   // packages, by name, that still need releases in place of refused ones
	agenda  *agenda
	news    *news
	feed    *feed            // nil for none
	own     *durable.Runtime // where Options has none
	resume  sync.Once        // see recovered
	squeeze squeezeQueue
	// leftovers says that contents may be stored that no release names.
	leftovers atomic.Bool
	collects  sync.Mutex // held by the one collect that runs
	watching  sync.Mutex // held by the one watch that runs
	auditor   *audit.Auditor
}

// PollsAtOnce bounds the upstreams that are asked at their time at once, and namedAtOnce those that an event named.
const (
	PollsAtOnce = 8
	namedAtOnce = 4
)

// RequestsAtOnce is how many requests a bot has under way, beside the downloads of its options: looks at upstreams,
// downloads of fresh releases and the feed.
const RequestsAtOnce = PollsAtOnce + namedAtOnce + freshDownloads + 1

// A bench is where releases are made.
type bench struct {
	cpu       *semaphore.Weighted // files being processed
	minifiers *worker.Pool
}

// newBench returns a bench whose minifiers do so many jobs at once. As many children as there are releases at once exist, so that a
// child is not ended between two files of its release.
func newBench(o Options, minifiers, children int) *bench {
	return &bench{
		cpu: semaphore.NewWeighted(int64(o.Workers)),
		minifiers: worker.NewPool(worker.Options{
			Program: o.Worker, Size: minifiers, Children: children, Timeout: MinifyTimeout,
			Memory: max(worker.Small, o.MemoryBytes-coding.Memory(coding.Brotli, coding.Quick, packages.MaxMinify)),
		}),
	}
}

// freshWorkers is how many minifiers fresh releases have for themselves.
func freshWorkers(workers int) int { return max(1, workers/4) }

// MinifyTimeout is far more than an honest file of packages.MaxMinify bytes needs to be minified.
const MinifyTimeout = 20 * time.Second

// squeezeTimeout is far more than the largest content needs: a minute and a half where the processor is idle, and many
// times that at the lowest priority where it is not.
const squeezeTimeout = 2 * time.Hour

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
		backlog:   newBench(o, o.Workers, max(o.Workers, o.Downloads)),
		fresh:     newBench(o, freshWorkers(o.Workers), max(freshWorkers(o.Workers), freshDownloads)),
		lanes:     newLanes(o.Workers, o.MemoryBytes, max(o.Workers, o.Downloads), max(freshWorkers(o.Workers), freshDownloads)),
		releasing: semaphore.NewWeighted(int64(o.Downloads)),
		polling:   semaphore.NewWeighted(PollsAtOnce),
		squeezers: worker.NewPool(worker.Options{Program: o.Worker, Size: o.Workers + 1, Nice: true, Timeout: squeezeTimeout}),
	}
	b.lanes.minifiers.drop, b.lanes.fresh.drop, b.lanes.squeezers.drop = b.backlog.minifiers.EndIdleChild, b.fresh.minifiers.EndIdleChild, b.squeezers.EndIdleChild
	b.auditor = audit.New(audit.Options{Npm: o.Npm, Git: o.Git, Minifiers: b.backlog.minifiers, Provenance: o.Provenance, TempDir: o.TempDir})
	b.outages, b.news = newOutages(o.Now, o.Logger), newNews()
	b.current.Store(o.Catalogue)
	b.options.Catalogue = nil // it is the first one only
	if err := b.squeeze.open(b.store); err != nil {
		return nil, fmt.Errorf("bot: %w", err)
	}
	if err := b.begin(); err != nil {
		// Such as a full disk, which the next write reports.
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
	if o.Feed != "" {
		if b.feed, err = openFeed(o.Runtime, o.Feed); err != nil {
			return nil, fmt.Errorf("bot: %w", err)
		}
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
	b.backlog.minifiers.Close()
	b.fresh.minifiers.Close()
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
	mu    sync.Mutex
	s     Summary
	asked map[string]struct{} // packages
}

func (t *tally) add(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case Checking:
		if t.asked == nil {
			t.asked = make(map[string]struct{})
		}
		t.asked[e.Package] = struct{}{}
		t.s.Packages = len(t.asked)
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
	b.refills.Clear()
	for all := b.catalogue().Packages(); len(all) > 0; all = b.toRefill() {
		if err := b.pass(ctx, all); err != nil {
			return t.sum(), err
		}
	}
	b.collect(ctx)
	return t.sum(), nil
}

// pass asks the upstreams of packages and publishes what is due.
func (b *Bot) pass(ctx context.Context, all []*packages.Package) error {
	queue := newQueue()
	g, groupCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.drain(groupCtx, queue, false) })
	g.Go(func() error {
		defer queue.close()
		polls, ctx := errgroup.WithContext(groupCtx)
		for _, p := range all {
			polls.Go(func() error { return b.poll(ctx, p, queue, nil) })
		}
		return polls.Wait()
	})
	return g.Wait()
}

// toRefill returns the packages of which releases were refused since it was asked last, before they had those
// that they start with.
func (b *Bot) toRefill() []*packages.Package {
	var all []*packages.Package
	for _, p := range b.catalogue().Packages() {
		if _, ok := b.refills.LoadAndDelete(p.Name); ok {
			all = append(all, p)
		}
	}
	return all
}

// Run asks each package's upstream at its time, publishes what is new, tries
// again what failed and squeezes what was published, until ctx ends. It returns
// nil then, and an error where it cannot go on, such as a full disk.
func (b *Bot) Run(ctx context.Context) error {
	b.recovered()
	if err := b.adoptFirst(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil
		}
		return err
	}
	queue := newQueue()
	defer b.outages.close()
	g, groupCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.drain(groupCtx, queue, true) })
	g.Go(func() error { return b.squeezeForever(groupCtx) })
	g.Go(func() error { b.collect(groupCtx); return nil })
	g.Go(func() error { return b.pollNamed(groupCtx, queue) })
	g.Go(func() error { return b.auditForever(groupCtx) })
	if b.feed != nil {
		g.Go(func() error { return b.followFeed(groupCtx) })
	}
	if b.options.Demand != nil {
		g.Go(func() error { return b.tally(groupCtx, countEvery, b.countDownloads) })
	}
	if every := b.starsEvery(); every > 0 {
		g.Go(func() error { return b.tally(groupCtx, every, b.countStars) })
	}
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

// An EventKind says what an Event is about.
type EventKind string

// The kinds of events.
const (
	Checking  EventKind = "checking"  // a package's upstream is asked
	Checked   EventKind = "checked"   // upstream responded; Waiting releases of the package have to be fetched
	Releasing EventKind = "release"   // a release is being fetched and processed
	Published EventKind = "published" // it is served: Files files of Bytes bytes
	Refused   EventKind = "refused"   // it will not be published, for Reason
	Failed    EventKind = "failed"    // a package or a release could not be had, for Reason; Next says when it is tried again
	Waits     EventKind = "waits"     // a release has to wait for a limit of its upstream, for Reason, until Next
	Squeezed  EventKind = "squeezed"  // a content is at its best; Bytes were saved, Waiting contents are left
	Note      EventKind = "note"      // something worth knowing, in Reason
	Audited   EventKind = "audited"   // a release was compared with upstream, file by file, and does not differ; Reason says why it could not be compared
	Differing EventKind = "differs"   // a release is not what upstream has, as Reason says
	Changed   EventKind = "changed"   // upstream has changed or removed what a release was published from, as Reason says
)

// An Event tells the terminal or the command that watches what the bot does.
type Event struct {
	Kind    EventKind `json:"kind"`
	Package string    `json:"package,omitempty"`
	Version string    `json:"version,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Files   int       `json:"files,omitempty"`
	Bytes   int64     `json:"bytes,omitempty"`
	Waiting int       `json:"waiting,omitempty"`
	Next    time.Time `json:"next,omitzero"`
}

type reportKey struct{}

// WithReport returns a context whose operation's events also go to fn, which may
// be called from several goroutines at once.
func WithReport(ctx context.Context, fn func(Event)) context.Context {
	return context.WithValue(ctx, reportKey{}, fn)
}

func (b *Bot) emit(ctx context.Context, e Event) {
	if b.options.Events != nil {
		b.options.Events(e)
	}
	report(ctx, e)
}

// report tells only the caller that gave the context.
func report(ctx context.Context, e Event) {
	if fn, ok := ctx.Value(reportKey{}).(func(Event)); ok {
		fn(e)
	}
}
