package sources

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// RecordsOptions configures [Records].
type RecordsOptions struct {
	Store  *kvstore.Store
	Logger *slog.Logger
	// Interval is the longest time between two polls of a package.
	Interval time.Duration
	// Changed is called with each package of which a page displays something else afterwards.
	Changed func(pkg string)
	Now     func() time.Time
}

// Records are the stored records of upstreams.
type Records struct {
	options RecordsOptions
	store   *kvstore.Store
	logger  *slog.Logger
	// Mu is held while a record is replaced by one that depends on it.
	Mu sync.Mutex
}

// NewRecords returns the records about upstreams in a store.
func NewRecords(o RecordsOptions) *Records {
	return &Records{options: o, store: o.Store, logger: o.Logger}
}

// Write stores a row of the namespace of upstreams as JSON, in a batch of its own that it commits. It does not take Mu.
func (r *Records) Write(key []byte, row any) error {
	data, err := json.Marshal(row)
	if err != nil {
		return fmt.Errorf("bot: %w", err)
	}
	batch := r.store.NewBatch()
	defer batch.Close()
	batch.Set(kvstore.Upstreams, key, data)
	return batch.Commit()
}

// Set stores the record of a package's upstream. Then it calls Changed of the options if pages display something else than by the previous record.
// It does not take Mu: the caller holds that if u depends on the stored record.
func (r *Records) Set(u Upstream) error {
	before := r.Known(u.Package)
	batch := r.store.NewBatch()
	defer batch.Close()
	if err := SetUpstream(r.store, batch, u); err != nil {
		return err
	}
	if err := batch.Commit(); err != nil {
		return err
	}
	if !u.displaysSame(before) {
		r.options.Changed(u.Package)
	}
	return nil
}

// States returns the states of a package's versions. A next attempt that is further ahead than the bot ever schedules one counts as due now.
func (r *Records) States(pkg string) ([]views.State, error) {
	states, err := views.States(r.store, pkg)
	for i := range states {
		states[i].Next = BoundTime(states[i].Next, r.options.Now(), r.longestDelay())
	}
	return states, err
}

// Known returns the stored record of a package's upstream with times that are bounded by the clock. A row that cannot be read is logged and counts as
// missing, because a record only saves requests. Without any row the record has only the package's name.
func (r *Records) Known(pkg string) Upstream {
	u, err := LookupUpstream(r.store, pkg)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		r.logger.Warn("upstream row ignored", "package", pkg, "err", err)
		u = Upstream{} // also if only the versions are damaged: a conditional request would not bring them back
	}
	u.Package = pkg
	u.boundTimes(r.options.Now(), r.longestDelay())
	return u
}
