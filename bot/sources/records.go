package sources

import (
	"bytes"
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
	return r.store.WriteBatch(func(b *kvstore.Batch) error { return setRow(b, key, row) })
}

// setRow adds a row of the namespace of upstreams, as JSON, to a batch.
func setRow(b *kvstore.Batch, key []byte, row any) error {
	data, err := json.Marshal(row)
	if err != nil {
		return fmt.Errorf("bot: %w", err)
	}
	b.Set(kvstore.Upstreams, key, data)
	return nil
}

// readRow reads a row of the namespace of upstreams. The error is kvstore.ErrNotFound if it does not exist; with any other error, the
// result may be incomplete.
func readRow[T any](r kvstore.Reader, key []byte) (row T, err error) {
	data, err := r.Get(kvstore.Upstreams, key)
	if err == nil {
		err = json.Unmarshal(data, &row)
	}
	return row, err
}

// scanRows calls take with the package's name and the value of each row in a range of the namespace of upstreams whose key continues with
// suffix behind the name, and with what follows that. It leaves out rows that are damaged: what they have is requested again.
func scanRows[T any](r kvstore.Reader, within kvstore.Range, suffix []byte, take func(pkg, rest string, row T)) error {
	for item, err := range r.Scan(kvstore.Upstreams, within) {
		if err != nil {
			return err
		}
		name, kind, _ := bytes.Cut(item.Key, []byte{0})
		rest, ok := bytes.CutPrefix(kind, suffix)
		var row T
		if ok && json.Unmarshal(item.Value, &row) == nil {
			take(string(name), string(rest), row)
		}
	}
	return nil
}

// Set stores the record of a package's upstream. Then it calls Changed of the options if pages display something else than by the previous record.
// It does not take Mu: the caller holds that if u depends on the stored record.
func (r *Records) Set(u Upstream) error {
	before := r.Known(u.Package)
	err := r.store.WriteBatch(func(b *kvstore.Batch) error { return SetUpstream(r.store, b, u) })
	if err == nil && !u.displaysSame(before) {
		r.options.Changed(u.Package)
	}
	return err
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
