package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/views"
)

// carried are the rows that do not follow from the log, as an operator knows them.
var carried = []struct {
	ns   kvstore.Namespace
	name string
}{
	{kvstore.Durable, "schedules, webhooks and waiting rooms"},
	{kvstore.Meta, "settings"},
	{kvstore.Upstreams, "what is known of upstreams"},
	{kvstore.Queue, "work that waits"},
	{kvstore.LogState, "which key signs"},
	{kvstore.States, "when failed releases are tried again"},
	{kvstore.Usage, "counts of requests"},
}

// deleteCarried deletes from the new store the rows that an interrupted repair has copied from the damaged one: that may have lost rows since, and
// carryRows deletes none. Without a damaged store nothing is deleted: then the new store may have the only copy.
func (e *engine) deleteCarried(ctx context.Context) error {
	if e.damaged == nil {
		return nil
	}
	if err := e.deleteRows(ctx, kvstore.Absent); err != nil {
		return err
	}
	for _, part := range carried {
		if err := e.deleteRows(ctx, part.ns); err != nil {
			return err
		}
	}
	return nil
}

// deleteRows deletes from the new store all rows of a namespace that isCarried selects.
func (e *engine) deleteRows(ctx context.Context, ns kvstore.Namespace) error {
	w := newRowWriter(e.store, rowsPerCommit)
	defer func() { w.batch.Close() }()
	for row, err := range e.store.Scan(ns, kvstore.Range{}) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if !isCarried(ns, row.Key) {
			continue
		}
		w.batch.Delete(ns, row.Key)
		if err := w.countAdded(1); err != nil {
			return err
		}
	}
	return w.commit()
}

// carryAll copies the rows that do not follow from the log, such as settings and schedules, from the damaged store, or without one from a backup
// among the sources. It lists in the result what is lost of them. It queues the deltas that the damaged store had, to be made again.
func (e *engine) carryAll(ctx context.Context) error {
	if e.damaged != nil && e.damaged.scan.Uncertain() {
		e.result.NotCarried = append(e.result.NotCarried, "which rows had been deleted: nothing says which files counted, so look through schedules, webhooks and settings")
	}
	for _, part := range carried {
		if part.ns == kvstore.Durable && e.Shared {
			part.name = "waiting rooms"
		}
		if e.damaged == nil {
			if restored, err := e.restoreRows(ctx, part.ns); err != nil {
				return err
			} else if !restored {
				e.result.NotCarried = append(e.result.NotCarried, part.name)
			}
			continue
		}
		if err := e.carryRows(ctx, part.ns, part.name); err != nil {
			return err
		}
	}
	return e.queueDeltas(ctx)
}

// queueDeltas queues the deltas that the damaged store had, to be made or fetched again. Without a damaged store it does nothing.
func (e *engine) queueDeltas(ctx context.Context) error {
	if e.damaged == nil {
		return nil
	}
	w := newRowWriter(e.store, rowsPerCommit)
	defer func() { w.batch.Close() }()
	for row, err := range e.damaged.scan.Rows(ctx, kvstore.Deltas) {
		if err != nil && !errors.Is(err, kvstore.ErrUndecided) {
			return err
		}
		if h, dictionary, ok := kvstore.ParseDeltaRow(row.Key); ok {
			w.batch.Set(kvstore.Queue, kvstore.QueuedDeltaKey(time.Time{}, h, dictionary), nil)
			if err := w.countAdded(1); err != nil {
				return err
			}
		}
	}
	return w.commit()
}

// carryRows copies the newest version of each row of a namespace that keepsRow selects from the damaged store to the new one. It lists in the result,
// under name, rows of which two versions contradict each other, and damaged parts of files that may have had such rows. Rows that were committed
// before an error stay.
func (e *engine) carryRows(ctx context.Context, ns kvstore.Namespace, name string) error {
	w := newRowWriter(e.store, rowsPerCommit)
	defer func() { w.batch.Close() }()
	for row, err := range e.damaged.scan.Rows(ctx, ns) {
		switch {
		case errors.Is(err, kvstore.ErrUndecided):
			e.result.NotCarried = append(e.result.NotCarried, fmt.Sprintf("%s: %q: %v", name, row.Key, err))
			continue
		case err != nil:
			return err
		case !e.keepsRow(ns, row):
			continue
		}
		w.batch.Set(ns, row.Key, row.Value)
		if err := w.countAdded(1); err != nil {
			return err
		}
	}
	for _, gap := range e.damaged.scan.Gaps() {
		if gap.Concerns(ns) {
			e.result.NotCarried = append(e.result.NotCarried, fmt.Sprintf("some of %s may be lost: %s", name, gap))
		}
	}
	return w.commit()
}

// A CarriedRow is a row of a store that does not follow from the log.
type CarriedRow struct {
	Namespace  kvstore.Namespace
	Key, Value []byte
}

// CarriedRows yields copies of the rows of a store that do not follow from its log, such as schedules and counts: a backup has them beside the log.
// For each delta it yields a row that queues it to be made again. An error is the last thing it yields.
func CarriedRows(r kvstore.Reader) iter.Seq2[CarriedRow, error] {
	return func(yield func(CarriedRow, error) bool) {
		for row, err := range r.Scan(kvstore.Deltas, kvstore.Range{}) {
			h, dictionary, ok := kvstore.ParseDeltaRow(row.Key)
			if (err != nil || ok) && (!yield(CarriedRow{kvstore.Queue, kvstore.QueuedDeltaKey(time.Time{}, h, dictionary), nil}, err) || err != nil) {
				return
			}
		}
		for _, part := range carried {
			for row, err := range r.Scan(part.ns, kvstore.Range{}) {
				if err == nil && !isCarried(part.ns, row.Key) {
					continue
				}
				if !yield(CarriedRow{part.ns, bytes.Clone(row.Key), bytes.Clone(row.Value)}, err) || err != nil {
					return
				}
			}
		}
	}
}

// A RowSource is a [Source] that also has rows that do not follow from the log: a backup.
type RowSource interface {
	// CarriedRows returns the rows that the backup has beside the log.
	CarriedRows(ctx context.Context) ([]CarriedRow, error)
}

// restoreRows copies the rows of a namespace that the first backup among the sources has, and that keepsRow selects, into the new store. It returns
// false if no source is a backup. It tries no second backup if the first fails. Rows that were committed before an error stay, and
// restored then means nothing.
func (e *engine) restoreRows(ctx context.Context, ns kvstore.Namespace) (restored bool, err error) {
	for _, source := range e.RepairOptions.Sources {
		backup, ok := source.(RowSource)
		if !ok {
			continue
		}
		rows, err := backup.CarriedRows(ctx)
		if err != nil {
			return false, err
		}
		w := newRowWriter(e.store, rowsPerCommit)
		defer func() { w.batch.Close() }()
		for _, row := range rows {
			if row.Namespace != ns || !e.keepsRow(ns, kvstore.Item{Key: row.Key, Value: row.Value}) {
				continue
			}
			w.batch.Set(ns, row.Key, row.Value)
			if err := w.countAdded(1); err != nil {
				return false, err
			}
		}
		return true, w.commit()
	}
	return false, nil
}

// carryAbsent copies from the damaged store the rows about releases that are in the log without their files, because a mirror leaves them out. The
// views depend on them. Without a damaged store it does nothing.
func (e *engine) carryAbsent(ctx context.Context) error {
	if e.damaged == nil {
		return nil
	}
	return e.carryRows(ctx, kvstore.Absent, "which releases a mirror leaves out")
}

// keepsRow reports whether the new store gets a row of the damaged store or of a backup: one that isCarried names and, if it is the state of a
// version, that wantsState selects.
func (e *engine) keepsRow(ns kvstore.Namespace, row kvstore.Item) bool {
	return isCarried(ns, row.Key) && (ns != kvstore.States || e.wantsState(row))
}

// isCarried reports whether a repair copies rows with a key in a namespace: all but a few settings and, of the state of the log, only the signed
// checkpoint and which key signed it. A new store writes the others itself.
func isCarried(ns kvstore.Namespace, key []byte) bool {
	switch ns {
	case kvstore.Meta:
		return !slices.Contains([]string{"format", "rows-in-tables", "stale"}, string(key))
	case kvstore.LogState:
		return signing.IsSignatureRow(key)
	}
	return true
}

// wantsState reports whether the new store gets this row with the state of a version: only if it and the log say that no attempt to publish the
// version has succeeded or was refused for good.
func (e *engine) wantsState(row kvstore.Item) bool {
	s, err := views.DecodeState(row)
	if err != nil || s.Kind.Final() || !bytes.Equal(row.Key, kvstore.Key(s.Package, s.Version)) {
		return false
	}
	now, err := views.LookupState(e.store, s.Package, s.Version)
	return errors.Is(err, kvstore.ErrNotFound) || err == nil && !now.Kind.Final()
}
