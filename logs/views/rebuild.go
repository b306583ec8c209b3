package views

import (
	"context"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// RebuildOptions says how Rebuild works.
type RebuildOptions struct {
	// Check tells what differs and replaces nothing.
	Check bool
	// Scratch is an empty folder in which the views are built. It takes about as
	// much space as they do.
	Scratch string
	// Progress, where set, is called after each entry of the log.
	Progress func(entries, of int64)
}

// A RebuildSummary counts what Rebuild compared.
type RebuildSummary struct {
	Entries     int64         `json:"entries"`
	Rows        int64         `json:"rows"`        // that follow from the log
	Differences int64         `json:"differences"` // in all views
	Views       []RebuiltView `json:"views"`
}

// A RebuiltView counts the rows of one view.
type RebuiltView struct {
	View        string `json:"view"`
	Rows        int64  `json:"rows"`        // that follow from the log
	Missing     int64  `json:"missing"`     // of those, rows that were not there
	Differing   int64  `json:"differing"`   // and rows that said something else
	Unexplained int64  `json:"unexplained"` // rows that were there and do not follow from the log
}

// A batch of replaced rows is bounded by both.
const (
	rowsPerReplacement  = 1_000
	bytesPerReplacement = 4 << 20
)

// Rebuild makes the views again from the log and the contents that it names,
// calls report for each row that differs from those in use, and replaces it. What
// the log does not know stays: states of releases that are being made, that failed
// or that wait to be tried again.
//
// It reads all of the log first, and replaces nothing where that is damaged or a
// content is missing that the views follow from. Rows are replaced in batches, each
// all or nothing, so what a crash leaves is partly the old views and partly the
// right ones, and another Rebuild completes it. Unless o.Check is set, nobody else
// may write to the store meanwhile, and who has read from the views before has to
// read again.
func Rebuild(ctx context.Context, store *kvstore.Store, o RebuildOptions, report func(Finding)) (summary RebuildSummary, err error) {
	snapshot := store.Snapshot()
	defer snapshot.Close()
	again, err := newSecond(o.Scratch)
	if err != nil {
		return summary, err
	}
	defer again.close()
	if summary.Entries, err = build(ctx, store, snapshot, again, o.Progress); err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("the views cannot be made again, and nothing was changed: %w", err)
		}
		return summary, err
	}
	r := &replacement{store: store, batch: store.NewBatch()}
	defer func() { r.batch.Close() }()
	for _, view := range names {
		counts := RebuiltView{View: view.name}
		counts.Rows, err = compare(ctx, snapshot, again, view.ns, func(d difference) error {
			counts.add(d.verdict)
			report(d.finding())
			if o.Check {
				return nil
			}
			return r.replace(d)
		})
		summary.Rows += counts.Rows
		summary.Differences += counts.Missing + counts.Differing + counts.Unexplained
		summary.Views = append(summary.Views, counts)
		if damaged := (unreadable{}); errors.As(err, &damaged) {
			err = fmt.Errorf("views: the %s cannot be read: %w", view.name, err)
		}
		if err != nil {
			return summary, err
		}
	}
	return summary, r.commit()
}

func (v *RebuiltView) add(d verdict) {
	switch d {
	case missing:
		v.Missing++
	case differing:
		v.Differing++
	case unexplained:
		v.Unexplained++
	}
}

// build makes the views that the log in snapshot says, and returns how many
// entries that has.
func build(ctx context.Context, store *kvstore.Store, snapshot *kvstore.Snapshot, into *second, progress func(entries, of int64)) (int64, error) {
	checkpoint, err := logs.Verify(snapshot)
	if err != nil {
		return 0, err
	}
	for e, err := range logs.Entries(snapshot, 0) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return e.Index, err
		}
		change, err := Load(store, e)
		if err != nil {
			return e.Index, err
		}
		if err := errors.Join(into.apply(change), into.relieve()); err != nil {
			return e.Index, err
		}
		if progress != nil {
			progress(e.Index+1, checkpoint.Size)
		}
	}
	return checkpoint.Size, into.commit()
}

// replacement puts rows right, a batch at a time.
type replacement struct {
	store *kvstore.Store
	batch *kvstore.Batch
	rows  int
	bytes int
}

func (r *replacement) replace(d difference) error {
	if d.verdict == unexplained {
		r.batch.Delete(d.ns, d.key)
	} else {
		r.batch.Set(d.ns, d.key, d.want)
	}
	r.rows++
	r.bytes += len(d.key) + len(d.want)
	if r.rows < rowsPerReplacement && r.bytes < bytesPerReplacement {
		return nil
	}
	return r.commit()
}

func (r *replacement) commit() error {
	if r.rows == 0 {
		return nil
	}
	err := r.batch.Commit()
	r.batch.Close()
	r.rows, r.bytes = 0, 0
	r.batch = r.store.NewBatch()
	return err
}
