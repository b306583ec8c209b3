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

// carried are the rows that do not follow from the log, as an operator knows them. Deltas have no name, because they are made again.
var carried = []struct {
	ns   kvstore.Namespace
	name string
}{
	{kvstore.Deltas, ""},
	{kvstore.Durable, "schedules, webhooks and waiting rooms"},
	{kvstore.Meta, "settings"},
	{kvstore.Upstreams, "what is known of upstreams"},
	{kvstore.Queue, "work that waits"},
	{kvstore.LogState, "which key signs"},
	{kvstore.States, "when failed releases are tried again"},
	{kvstore.Usage, "counts of requests"},
}

// carryAbsent copies from the damaged store the rows about releases that are in the log without their files, because a mirror leaves them out. The
// views depend on them. First it deletes from the new store all rows that an interrupted repair has copied from the damaged one: that may have lost
// rows since. Without a damaged store it does nothing: then the new store may have the only copy.
func (e *engine) carryAbsent(ctx context.Context) error {
	if e.damaged == nil {
		return nil
	}
	for _, part := range carried {
		if part.ns == kvstore.Deltas {
			continue // its rows are carried as rows of the queue
		}
		if err := e.deleteRows(ctx, part.ns); err != nil {
			return err
		}
	}
	if err := e.deleteRows(ctx, kvstore.Absent); err != nil {
		return err
	}
	return e.carryRows(e.damaged.scan.Rows(ctx, kvstore.Absent), kvstore.Absent, "which releases a mirror leaves out")
}

// deleteRows deletes from the new store all rows of a namespace that a repair carries.
func (e *engine) deleteRows(ctx context.Context, ns kvstore.Namespace) error {
	w := newRowWriter(e.store, rowsPerCommit)
	defer func() { w.batch.Close() }()
	for row, err := range e.store.Scan(ns, kvstore.Range{}) {
		if _, ok := carriedRow(ns, row); ok && err == nil {
			err = w.replace(ns, row, false)
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}
	return w.commit()
}

// carryAll copies the rows that do not follow from the log, such as settings and schedules, from the damaged store, or without one from a backup
// among the sources. It lists in the result what is lost of them.
func (e *engine) carryAll(ctx context.Context) error {
	if e.damaged != nil && e.damaged.scan.Uncertain() {
		e.result.NotCarried = append(e.result.NotCarried, "which rows had been deleted: nothing says which files counted, so look through schedules, webhooks and settings")
	}
	scan, err := e.carriedScan(ctx)
	if err != nil {
		return err
	}
	for _, part := range carried {
		if part.ns == kvstore.Durable && e.Shared {
			part.name = "waiting rooms"
		}
		if scan != nil {
			if err := e.carryRows(scan(part.ns), part.ns, part.name); err != nil {
				return err
			}
		} else if part.name != "" {
			e.result.NotCarried = append(e.result.NotCarried, part.name)
		}
	}
	return nil
}

// carriedScan returns a function that yields the rows of a namespace of the damaged store or, without one, of the first backup among the sources; nil
// if there is neither. It tries no second backup if the first fails.
func (e *engine) carriedScan(ctx context.Context) (func(kvstore.Namespace) iter.Seq2[kvstore.Item, error], error) {
	if e.damaged != nil {
		return func(ns kvstore.Namespace) iter.Seq2[kvstore.Item, error] { return e.damaged.scan.Rows(ctx, ns) }, nil
	}
	for _, source := range e.RepairOptions.Sources {
		backup, ok := source.(RowSource)
		if !ok {
			continue
		}
		rows, err := backup.CarriedRows(ctx)
		return func(ns kvstore.Namespace) iter.Seq2[kvstore.Item, error] {
			return func(yield func(kvstore.Item, error) bool) {
				for _, row := range rows {
					if row.Namespace == ns && !yield(kvstore.Item{Key: row.Key, Value: row.Value}, nil) {
						return
					}
				}
			}
		}, err
	}
	return nil, nil
}

// carryRows copies those rows of a namespace that carriedRow and wantsState select to the new store. It lists in the result, under name, rows of
// which two versions contradict each other, and damaged parts of the damaged store's files that may have had such rows; without a name it lists
// none. Rows that were committed before an error stay.
func (e *engine) carryRows(rows iter.Seq2[kvstore.Item, error], ns kvstore.Namespace, name string) error {
	w := newRowWriter(e.store, rowsPerCommit)
	defer func() { w.batch.Close() }()
	for row, err := range rows {
		undecided := errors.Is(err, kvstore.ErrUndecided)
		switch copied, ok := carriedRow(ns, row); {
		case undecided && name != "":
			e.result.NotCarried = append(e.result.NotCarried, fmt.Sprintf("%s: %q: %v", name, row.Key, err))
		case err != nil && !undecided:
			return err
		case ok && (ns != kvstore.States || e.wantsState(row)):
			if err := w.replace(copied.Namespace, kvstore.Item{Key: copied.Key, Value: copied.Value}, true); err != nil {
				return err
			}
		}
	}
	if e.damaged != nil && name != "" {
		for _, gap := range e.damaged.scan.Gaps() {
			if gap.Concerns(ns) {
				e.result.NotCarried = append(e.result.NotCarried, fmt.Sprintf("some of %s may be lost: %s", name, gap))
			}
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
		for _, part := range carried {
			for row, err := range r.Scan(part.ns, kvstore.Range{}) {
				copied, ok := carriedRow(part.ns, row)
				if (ok || err != nil) && (!yield(copied, err) || err != nil) {
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

// carriedRow returns a copy of a row of a namespace as a repair and a backup carry it; ok is false for one that they do not: a few settings and, of
// the state of the log, all but the signed checkpoint and which key signed it. A new store writes those itself. For a delta it returns the row that
// queues it to be made or fetched again.
func carriedRow(ns kvstore.Namespace, row kvstore.Item) (copied CarriedRow, ok bool) {
	switch ns {
	case kvstore.Deltas:
		h, dictionary, ok := kvstore.ParseDeltaRow(row.Key)
		return CarriedRow{kvstore.Queue, kvstore.QueuedDeltaKey(time.Time{}, h, dictionary), nil}, ok
	case kvstore.Meta:
		ok = !slices.Contains([]string{"format", "rows-in-tables", "stale"}, string(row.Key))
	case kvstore.LogState:
		ok = signing.IsSignatureRow(row.Key)
	default:
		ok = true
	}
	return CarriedRow{ns, bytes.Clone(row.Key), bytes.Clone(row.Value)}, ok
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
