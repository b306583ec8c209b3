package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// RepairInPlace repairs a store that is open, whose tables, MANIFEST and write-ahead log are sound: contents from other encodings or the sources,
// then the views from the log. Others may use the store meanwhile; readers of views must read the rows again that Report is called with. If a new
// store is needed, it changes nothing in the log and the views, and returns an error. It returns the result with an error, too.
func RepairInPlace(ctx context.Context, store *kvstore.Store, log *logs.Log, o RepairOptions) (RepairResult, error) {
	e := newEngine(o)
	e.store, e.log, e.beside = store, log, true
	why, err := e.repairInPlace(ctx)
	if why != nil {
		err = errors.Join(err, fmt.Errorf("this cannot be repaired in place: %w; stop the process and run `larder repair`, which builds a new store", why))
	}
	return e.finishResult(), err
}

// findDamage reads the store in the data folder, without changing it. why is the reason why a new store has to be built: it is
// missing or damaged, or has fewer entries than were signed; nil if the store can be repaired in place. err says that this could
// not be determined. If the store can be read, findDamage also reads the signed checkpoint into e.signed, and
// restores a damaged or lost verifier key and checkpoint in the key folder, which it reports.
func (e *engine) findDamage(ctx context.Context) (why, err error) {
	dir := e.path(storeName)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no store in %s", e.Data), nil
	}
	e.reportProgress("reading", 0, 1)
	err = kvstore.CheckTables(ctx, dir, e.storeOptions(storeName, false))
	if errors.As(err, new(*kvstore.DamageError)) {
		return err, nil
	}
	if err != nil {
		return nil, err
	}
	store, err := kvstore.Open(dir, e.storeOptions(storeName, true))
	switch {
	case errors.Is(err, kvstore.ErrLocked), errors.Is(err, kvstore.ErrNewer):
		return nil, err
	case err != nil:
		return err, nil
	}
	if why = checkReadable(ctx, store); why == nil {
		why, err = e.findMissingEntries(store)
	}
	return why, errors.Join(err, ctx.Err(), store.Close())
}

// findMissingEntries returns as why that the store has fewer entries than were signed, nil if it has all. Opening such a store for writing would
// delete files in which they may be. It reads the last signed checkpoint from the key folder, and restores the folder from the store if it lost it.
func (e *engine) findMissingEntries(store *kvstore.Store) (why, err error) {
	if err := e.restoreKeys(signing.StoredNoteSeq(store)); err != nil {
		return nil, err
	}
	have, err := logs.ReadCheckpoint(store)
	if signed := max(e.signed.Size, e.former.Size); err == nil && have.Size < signed {
		why = fmt.Errorf("it has %d log entries, and %d were signed", have.Size, signed)
	}
	return why, err
}

// checkReadable reads all rows of a store, but for the bytes of contents, the map of live releases and kvstore.Renderings, and verifies its log. It
// returns why that fails, nil if it does not.
func checkReadable(ctx context.Context, store *kvstore.Store) error {
	namespaces := append([]kvstore.Namespace{kvstore.Contents}, scannedRows...)
	for _, view := range names {
		if !slices.Contains(namespaces, view.ns) {
			namespaces = append(namespaces, view.ns)
		}
	}
	for _, ns := range namespaces {
		for _, err := range store.Scan(ns, kvstore.Range{}) {
			if err := errors.Join(err, ctx.Err()); err != nil {
				return err
			}
		}
	}
	_, err := logs.Verify(store)
	return err
}

// openInPlace opens the store of the data folder for writing, repairs it in place and closes it. why is the reason if a new store is needed instead.
func (e *engine) openInPlace(ctx context.Context) (why, err error) {
	if e.store, err = kvstore.Open(e.path(storeName), e.storeOptions(storeName, false)); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.store.Close()) }()
	if e.log, err = logs.Open(e.store); err != nil {
		return nil, err
	}
	return e.repairInPlace(ctx)
}

// repairInPlace repairs the open store: contents, deltas and then, by a check that replaces them, the views. It lists in the result what is lost. why
// is the reason if a new store is needed instead: the log is not the one that was signed, or lacks some of it. Then only the key folder may have
// changed.
func (e *engine) repairInPlace(ctx context.Context) (why, err error) {
	if why, err := e.findMissingEntries(e.store); why != nil || err != nil {
		return why, err
	}
	have := e.log.Checkpoint()
	if e.signed.Size > 0 {
		root, err := tlog.TreeHash(e.signed.Size, logs.Hashes(e.store))
		if err != nil {
			return err, nil
		}
		if root != e.signed.Root {
			return fmt.Errorf("the first %d entries are not those that were signed", e.signed.Size), nil
		}
	}
	c := e.newContents(have.Size)
	defer c.pins.Release()
	err = runSteps(ctx, c.repairDocuments, c.repairFiles)
	if err == nil {
		err = errors.Join(c.queueEncodings(), c.repairDeltas(ctx), c.listLost(ctx))
	}
	if err != nil {
		return nil, err
	}
	_, err = e.runFinalCheck(func(report func(Finding)) (summary Summary, err error) {
		// The new rows follow from the log as the check has read it, so no entry may be appended meanwhile.
		err = e.log.Exclusive(func() error {
			summary, err = ReplaceViews(ctx, e.store, e.checkOptions(false), report)
			return err
		})
		return summary, err
	})
	if errors.Is(err, ErrUnderivable) && len(e.result.Lost) > 0 {
		err = nil // the views cannot be compared without what is lost, which is reported
	}
	return nil, err
}
