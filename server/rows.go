package server

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server/cachetag"
	"github.com/larder-cdn/larder/server/demand"
)

// recheck is how long an asset is believed whose codings are still to be replaced by
// smaller ones. Later it is read again, so hot files move to the smaller ones
// without being evicted. Assets that are squeezed are believed for ever.
const recheck = time.Minute

// A withdrawnError says that the version was withdrawn.
type withdrawnError struct{ views.Withdrawal }

func (e *withdrawnError) Error() string { return fmt.Sprintf("withdrawn by log entry %d", e.Entry) }

// rows finds assets, in a cache or in the store.
//
// Forgetting is by generation: each asset remembers the generation in which its
// reading began, and one of an earlier generation is read again before it is
// used. So a reading that a withdrawal overtakes cannot survive it, and a
// withdrawal, which is rare, costs each hot asset one more reading.
type rows struct {
	store      *kvstore.Store
	cache      *otter.Cache[string, *asset]
	hot        func(kvstore.Hash)
	demand     *demand.Demand
	tags       cachetag.Headers
	now        func() time.Time
	generation atomic.Uint64
	metrics    *cacheMetrics
}

func newRows(store *kvstore.Store, cacheBytes int64, hot func(kvstore.Hash), d *demand.Demand, m *cacheMetrics) (*rows, error) {
	cache, err := otter.New(&otter.Options[string, *asset]{
		MaximumWeight: uint64(cacheBytes),
		Weigher:       func(key string, f *asset) uint32 { return uint32(int64(len(key)) + f.weigh()) },
		StatsRecorder: m,
	})
	return &rows{store: store, cache: cache, hot: hot, demand: d, now: time.Now, metrics: m}, err
}

// cached returns the asset that t names, if the cache has it. One that is stale by now it
// returns too, for load.
func (r *rows) cached(t target, now time.Time) (*asset, bool) {
	f, ok := r.cache.GetIfPresent(t.key)
	return f, ok && r.current(f, now)
}

// load returns the asset that t names, where the cache has none or only stale:
// errNoFile, a *withdrawnError, or an error of the store otherwise. Absence is not
// remembered: a file that is published is there at once.
func (r *rows) load(t target, stale *asset) (*asset, error) {
	r.metrics.misses.Inc()
	t = t.clone() // the cache keeps the key, and who waits for it may outlive the request
	for {
		if stale != nil {
			r.drop(t, stale)
		}
		f, err := r.cache.Get(context.Background(), t.key, otter.LoaderFunc[string, *asset](func(context.Context, string) (*asset, error) {
			return r.read(t)
		}))
		if err != nil || r.current(f, r.now()) {
			return f, err
		}
		stale = f
	}
}

func (r *rows) current(f *asset, now time.Time) bool {
	return f.generation == r.generation.Load() && (f.squeezed || now.Sub(f.loaded) < recheck)
}

// drop forgets f, and not what somebody else has put into its place.
func (r *rows) drop(t target, f *asset) {
	r.cache.ComputeIfPresent(t.key, func(have *asset) (*asset, otter.ComputeOp) {
		if have == f {
			return nil, otter.InvalidateOp
		}
		return have, otter.CancelOp
	})
}

func (r *rows) read(t target) (*asset, error) {
	generation := r.generation.Load()
	file, err := views.LookupFile(r.store, t.pkg, t.version, t.path)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, r.absence(t)
	}
	if err != nil {
		return nil, err
	}
	content, err := r.store.Content(file.Hash)
	if err != nil {
		// Not even ErrNotFound is a 404 here: the store contradicts itself.
		return nil, fmt.Errorf("server: %s names the content %s: %w", t.key, file.Hash, err)
	}
	f := newAsset(t, file, content, r.tags)
	f.generation, f.loaded = generation, r.now()
	if r.demand != nil {
		f.demand = r.demand.Counter(t.pkg)
	}
	if !f.squeezed && r.hot != nil {
		r.hot(file.Hash)
	}
	return f, nil
}

// absence returns why there is no file.
func (r *rows) absence(t target) error {
	v, err := views.LookupVersion(r.store, t.pkg, t.version)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return errNoFile
	case err != nil:
		return err
	case v.Withdrawn != nil:
		return &withdrawnError{*v.Withdrawn}
	}
	return errNoFile
}
