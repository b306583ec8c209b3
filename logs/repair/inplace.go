package repair

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/fsck"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/views"
)

// A NotInPlaceError says why a store cannot be healed in place, and that nothing in its log
// and views was changed.
type NotInPlaceError struct{ Why error }

func (e *NotInPlaceError) Error() string {
	return fmt.Sprintf("this cannot be healed in place: %v; `larder repair` builds a new store while no process runs", e.Why)
}

func (e *NotInPlaceError) Unwrap() error { return e.Why }

// InPlace heals a store that is open, whose tables, MANIFEST and write-ahead log are sound.
// Others may use it meanwhile; those who have read views must read again what Report tells
// of. It returns a [*NotInPlaceError] where a new store is needed.
func InPlace(ctx context.Context, store *kvstore.Store, log *logs.Log, o Options) (Result, error) {
	e := newEngine(o)
	begun := e.Now()
	e.store, e.log, e.beside = store, log, true
	why, err := e.inPlace(ctx)
	if why != nil {
		err = errors.Join(err, &NotInPlaceError{why})
	}
	return e.end(begun), err
}

// look says why a new store has to be built, nil where it can be healed in place.
func (e *engine) look(ctx context.Context) (why, err error) {
	dir := e.path(storeName)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no store in %s", e.Data), nil
	}
	e.show("reading", 0, 1)
	o := e.storeOptions()
	o.Mark = e.Mark
	err = kvstore.Look(dir, o)
	if err == nil {
		err = kvstore.CheckTables(ctx, dir, o)
	}
	if errors.As(err, new(*kvstore.DamageError)) {
		return err, nil
	}
	if err != nil {
		return nil, err
	}
	o.ReadOnly = true
	store, err := kvstore.Open(dir, o)
	switch {
	case errors.Is(err, kvstore.ErrLocked), errors.Is(err, kvstore.ErrNewer):
		return nil, err
	case err != nil:
		return err, nil
	}
	why = readable(ctx, store)
	return why, errors.Join(ctx.Err(), store.Close())
}

// readable returns why a store cannot be read row by row, but for contents' bytes, or why
// its log is not whole.
func readable(ctx context.Context, store *kvstore.Store) error {
	for _, ns := range []kvstore.Namespace{
		kvstore.Contents, kvstore.Durable, kvstore.Files, kvstore.LogHashes, kvstore.LogIndex, kvstore.LogState, kvstore.LogEntries, kvstore.Meta,
		kvstore.Packages, kvstore.Queue, kvstore.SRIs, kvstore.States, kvstore.Upstreams, kvstore.Versions, kvstore.Usage,
	} {
		for _, err := range store.Scan(ns, kvstore.Range{}) {
			if err := errors.Join(err, ctx.Err()); err != nil {
				return err
			}
		}
	}
	_, err := logs.Verify(store)
	return err
}

// openInPlace opens the store to heal it in place.
func (e *engine) openInPlace(ctx context.Context) (why, err error) {
	o := e.storeOptions()
	o.Mark = e.Mark
	if e.store, err = kvstore.Open(e.path(storeName), o); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.store.Close()) }()
	if e.log, err = logs.Open(e.store); err != nil {
		return nil, err
	}
	return e.inPlace(ctx)
}

// inPlace heals the store. It returns why it can't, if that is so.
func (e *engine) inPlace(ctx context.Context) (why, err error) {
	if err := e.restoreKeys(signing.NoteOf(e.store)); err != nil {
		return nil, err
	}
	have := e.log.Checkpoint()
	if e.accepting && have.Size < e.former.Size {
		return errors.New("it lacks entries that were signed"), nil
	}
	if have.Size >= e.signed.Size && e.signed.Size > 0 {
		root, err := tlog.TreeHash(e.signed.Size, logs.Hashes(e.store))
		if err != nil {
			return err, nil
		}
		if root != e.signed.Root {
			return fmt.Errorf("the first %d entries are not those that were signed", e.signed.Size), nil
		}
	}
	var missing []logs.Indexed
	if have.Size < e.signed.Size {
		if missing, err = e.missing(ctx, have.Size); err != nil {
			return nil, err
		}
	}
	c := e.contents(inStore(e.store, have.Size, missing))
	defer c.pins.Release()
	if err := c.documents(ctx); err != nil {
		return nil, err
	}
	if err := c.files(ctx); err != nil {
		return nil, err
	}
	if err := e.append(missing); err != nil {
		return nil, err
	}
	if err := errors.Join(c.queue(), c.list(ctx)); err != nil {
		return nil, err
	}
	_, err = e.check(func(report func(fsck.Finding)) (summary fsck.Summary, err error) {
		// What is replaced follows from the log as the check has read it, so nothing may be appended meanwhile.
		err = e.log.Exclusive(func() error {
			summary, err = fsck.Repair(ctx, e.store, e.fsckOptions(false), report)
			return err
		})
		return summary, err
	})
	if errors.Is(err, fsck.ErrUnderivable) && len(e.result.Lost) > 0 {
		err = nil // the views cannot be compared without what is lost, and that is told
	}
	return nil, err
}

// errCompared ends an Update that only compares.
var errCompared = errors.New("compared")

// missing returns the entries from an index on to the signed end, from the sources. Together
// with those in the store they have the root that was signed.
func (e *engine) missing(ctx context.Context, from int64) ([]logs.Indexed, error) {
	var problems []error
	for _, order := range orders(nil, e.sources) {
		var found []logs.Indexed
		got := make(map[Source]int64)
		err := e.walk(ctx, order, from, func(s Source, batch []logs.Indexed) error {
			found = append(found, batch...)
			got[s] += int64(len(batch))
			return nil
		})
		if err == nil {
			err = e.log.Update(func(tx *logs.Tx) error {
				for _, entry := range found {
					if _, err := tx.AppendRaw(entry.Raw); err != nil {
						return err
					}
				}
				root, err := tlog.TreeHash(e.signed.Size, tx)
				if err == nil && root != e.signed.Root {
					err = errOtherLog
				}
				return errors.Join(err, errCompared)
			})
			if errors.Is(err, errOtherLog) {
				err = fmt.Errorf("%s: %w", namesOf(order), errOtherLog)
			} else if errors.Is(err, errCompared) {
				for s, n := range got {
					e.result.use(s).Entries += n
				}
				return found, nil
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		problems = append(problems, err)
	}
	return nil, &LossError{[]logs.Range{{From: from, To: e.signed.Size}}, e.signed.Size, errors.Join(problems...)}
}

// entriesPerWrite is how many entries one write to the store has.
const entriesPerWrite = 256

// append adds entries, whose contents are there as far as they could be had, with all that
// they cause. Where it is interrupted, the next repair goes on.
func (e *engine) append(missing []logs.Indexed) error {
	if len(missing) == 0 {
		return nil
	}
	for some := range slices.Chunk(missing, entriesPerWrite) {
		if err := e.appendSome(some); err != nil {
			return err
		}
	}
	return signing.Replay(e.store)
}

func (e *engine) appendSome(some []logs.Indexed) error {
	return e.log.Update(func(tx *logs.Tx) error {
		for _, entry := range some {
			appended, err := tx.AppendRaw(entry.Raw)
			if err == nil && appended.Index != entry.Index {
				err = errors.New("the log has grown while it was being repaired; run it again")
			}
			if err != nil {
				return err
			}
			change, err := views.Load(e.store, entry)
			if err != nil && entry.Kind == logs.Withdrawn {
				if err := e.takeAway(tx.Batch, entry); err != nil {
					return err
				}
			}
			if err != nil {
				continue // it is listed as lost
			}
			if err := views.Apply(tx.Batch, change); err != nil {
				return err
			}
		}
		return nil
	})
}

// takeAway ends that a withdrawn release is served whose manifest is lost.
func (e *engine) takeAway(b *kvstore.Batch, withdrawn logs.Indexed) error {
	for _, ns := range []kvstore.Namespace{kvstore.Files, kvstore.SRIs} {
		for row, err := range e.store.Scan(ns, kvstore.Range{Prefix: kvstore.Prefix(withdrawn.Package, withdrawn.Version)}) {
			if err != nil {
				return err
			}
			b.Delete(ns, bytes.Clone(row.Key))
		}
	}
	return nil
}
