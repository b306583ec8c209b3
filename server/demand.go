package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/kvstore"
)

// halfLife is after how long a request counts half.
const halfLife = 30 * 24 * time.Hour

// saveEvery is how often the numbers are written where they changed: the row of 4,000
// packages has about 100 KB.
const saveEvery = 5 * time.Minute

// DemandOptions says where the numbers are kept. Only Store is required.
type DemandOptions struct {
	// Store has the row.
	Store *kvstore.Store
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Logger hears that the row could not be read or written. Default: nothing is
	// logged.
	Logger *slog.Logger
}

// Demand knows how much each package is asked for lately, so that what is popular can come
// first: the number of requests for its assets, each of which counts less the longer it is
// past, half after 30 days. That is one number for each package, which needs no history.
//
// Counting takes one atomic addition: no lock, no allocation. The numbers survive a restart,
// but for what was counted in the last minutes before a crash; a row that cannot be read
// costs the numbers in it and nothing else. It is safe for use by several goroutines.
type Demand struct {
	store  *kvstore.Store
	now    func() time.Time
	logger *slog.Logger

	mu       sync.RWMutex
	counters map[string]*Counter
	at       time.Time // when the scores are from
	changed  bool      // whether scores are to be written
}

// A Counter counts the requests for one package.
type Counter struct {
	fresh atomic.Uint64 // requests since the score was made
	score float64       // guarded by Demand.mu
}

// Add counts one request.
func (c *Counter) Add() { c.fresh.Add(1) }

// OpenDemand returns the demand as it was when it was last written.
func OpenDemand(o DemandOptions) *Demand {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	d := &Demand{store: o.Store, now: o.Now, logger: o.Logger, counters: make(map[string]*Counter), at: o.Now()}
	scores, at, err := loadDemand(o.Store)
	if err != nil {
		o.Logger.Warn("demand: begins anew", "err", err)
		return d
	}
	faded := fade(d.at.Sub(at))
	for name, score := range scores {
		d.counters[name] = &Counter{score: score * faded}
	}
	return d
}

// Counter returns the counter of a package, the same for as long as d is used. Call
// it only with the name of a package that exists: it is kept.
func (d *Demand) Counter(name string) *Counter {
	d.mu.RLock()
	c := d.counters[name]
	d.mu.RUnlock()
	if c != nil {
		return c
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c = d.counters[name]; c == nil {
		c = new(Counter)
		d.counters[strings.Clone(name)] = c // it may be a part of something large
	}
	return c
}

// Of returns the demand for a package: 0 where it was never asked for.
func (d *Demand) Of(name string) float64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	c := d.counters[name]
	if c == nil {
		return 0
	}
	return c.value(fade(d.now().Sub(d.at)))
}

// Run writes the numbers every few minutes where they changed, until ctx ends. Then
// call [Demand.Save] once no request is counted any more. Do not call either where the store
// can only be read.
func (d *Demand) Run(ctx context.Context) {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := d.Save(); err != nil {
				d.logger.Warn("demand: couldn't be written; it is tried again", "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// Save writes the numbers if they changed since they were last written.
func (d *Demand) Save() error {
	scores, at := d.fold()
	if scores == nil {
		return nil
	}
	err := saveDemand(d.store, scores, at)
	if err != nil {
		d.mu.Lock()
		d.changed = true
		d.mu.Unlock()
	}
	return err
}

// fold adds what was counted to the scores and returns a copy of them, nil where
// there is nothing new to write. What only faded is not new.
func (d *Demand) fold() (map[string]float64, time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.counters {
		if c.fresh.Load() > 0 {
			d.changed = true
			break
		}
	}
	if !d.changed {
		return nil, time.Time{}
	}
	d.changed = false
	now := d.now()
	faded := fade(now.Sub(d.at))
	d.at = now
	scores := make(map[string]float64, len(d.counters))
	for name, c := range d.counters {
		c.score = c.score*faded + float64(c.fresh.Swap(0))
		scores[name] = c.score
	}
	maps.DeleteFunc(scores, func(_ string, score float64) bool { return score < negligible })
	return scores, now
}

// value is called with Demand.mu held for reading. A request that is counted
// meanwhile may be in it or not.
func (c *Counter) value(faded float64) float64 { return c.score*faded + float64(c.fresh.Load()) }

// fade is what is left of 1 after that long. A clock that was set back fades nothing.
func fade(d time.Duration) float64 {
	return math.Exp2(-max(0, d.Hours()) / halfLife.Hours())
}

// demandFormat is the version of the row's format.
const demandFormat = 1

// negligible is the score below which a package is not written any more: a single
// request is forgotten after half a year.
const negligible = 1.0 / 64

// demandKey is the row in the Meta namespace. It is no view: the log cannot explain it.
var demandKey = kvstore.Key("demand")

type demandRow struct {
	Format   int                `json:"format"`
	At       time.Time          `json:"at"` // when the scores are from
	Packages map[string]float64 `json:"packages"`
}

// loadDemand reads the scores and when they are from. There may be none.
func loadDemand(store *kvstore.Store) (map[string]float64, time.Time, error) {
	value, err := store.Get(kvstore.Meta, demandKey)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, time.Time{}, nil
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	return decodeDemand(value)
}

func decodeDemand(value []byte) (map[string]float64, time.Time, error) {
	var r demandRow
	if err := json.Unmarshal(value, &r); err != nil {
		return nil, time.Time{}, fmt.Errorf("the row of demand is damaged: %w", err)
	}
	if r.Format != demandFormat {
		return nil, time.Time{}, fmt.Errorf("the row of demand has the format %d, and this larder reads %d", r.Format, demandFormat)
	}
	for name, score := range r.Packages {
		if score < negligible {
			delete(r.Packages, name)
		}
	}
	return r.Packages, r.At, nil
}

func saveDemand(store *kvstore.Store, scores map[string]float64, at time.Time) error {
	value, err := json.Marshal(demandRow{demandFormat, at.UTC(), scores})
	if err != nil {
		return fmt.Errorf("couldn't encode the row of demand: %w", err)
	}
	batch := store.NewBatch()
	defer batch.Close()
	batch.Set(kvstore.Meta, demandKey, value)
	return batch.Commit()
}
