// Package discovery decides which releases come in, and when: it polls the upstreams of the catalogue's packages at their time, earlier if an event
// names a package, plans which versions are due, and passes them to ingest by priority. It also compares published releases with their upstreams.
//
// Guarantees: every version that upstream has ends in a state with a reason; one that failed for a reason that may pass is tried again, also after a
// restart; one bad package never stops the others; an upstream that does not respond gets one request a minute; a wrong clock delays no poll for
// longer than an interval.
//
// The package must not know how a release is made from its files.
package discovery

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/larder-cdn/larder/bot/audit"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
)

// Options configures a [Scheduler].
type Options struct {
	Store     *kvstore.Store
	Log       *logs.Log
	Logger    *slog.Logger
	Npm       *npm.Client // may be nil, and so may Git
	Git       *git.Client
	Sources   *sources.Sources
	Records   *sources.Records
	Breakers  *sources.Breakers
	Publisher *ingest.Publisher
	Auditor   *audit.Auditor
	// Releases is how many of the newest releases a new package starts with.
	Releases int
	// Interval is the longest time between two polls of a package.
	Interval time.Duration
	// Downloads bounds the releases that are fetched at once, besides fresh ones.
	Downloads int
	// Runtime has the durable objects that say when each package is due.
	Runtime *durable.Runtime
	// Feed is the address of a registry's change feed, "" for none.
	Feed string
	// CountDownloads returns how often an npm package was downloaded in the last month; nil if npm is not requested.
	CountDownloads func(ctx context.Context, npmName string) (int64, error)
	// ClockCheck is the interval at which the scheduler checks whether the clock was set back.
	ClockCheck time.Duration
	// Changed is called with each package of which a page displays something else afterwards, although the log has no entry of it.
	Changed func(pkg string)
	Events  sources.Sink
	Now     func() time.Time
}

// A Scheduler polls the upstreams of one catalogue. Its methods may be called at the same time.
type Scheduler struct {
	options Options
	store   *kvstore.Store
	log     *logs.Log
	logger  *slog.Logger

	polling   *semaphore.Weighted          // bounds the upstreams that are polled or compared at once
	adopting  sync.Mutex                   // held by the one SetCatalogue that runs
	index     atomic.Pointer[packageIndex] // of the catalogue in use
	polled    ingest.Claims                // packages, by name: one poll at a time, until what it found is in the queue
	schedule  *pollSchedule
	announced *eventQueue
	feed      *feed      // nil for none
	watching  sync.Mutex // held while origins of releases are read and stored again
}

// New returns a scheduler with the options. It opens the poll schedule in o.Runtime and, if o.Feed is not "", the position in the
// change feed. It sends no request before a method such as Run is called.
func New(o Options) (*Scheduler, error) {
	sc := &Scheduler{options: o, store: o.Store, log: o.Log, logger: o.Logger, polling: semaphore.NewWeighted(PollsAtOnce), announced: newEventQueue()}
	var err error
	if sc.schedule, err = openPollSchedule(o.Runtime); err != nil {
		return nil, err
	}
	if o.Feed != "" {
		sc.feed, err = openFeed(o.Runtime, o.Feed)
	}
	return sc, err
}
