package check

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/views"
)

// rebuild builds a new store beside the damaged one, from its files and from the sources, checks it deeply, and swaps the two; it does not swap them
// if this process reads the damaged one. It also restores a damaged key folder. why is the damage, for the result.
func (e *engine) rebuild(ctx context.Context, why error) (err error) {
	e.result.Damage = oneLine(why)
	if err := e.checkSpace(e.sizeOf(storeName) - e.sizeOf(buildingName)); err != nil {
		return err
	}
	damaged, err := e.scanStore(ctx)
	if err != nil {
		return err
	}
	if damaged != nil {
		defer func() { err = errors.Join(err, damaged.scan.Close()) }()
		e.damaged, e.sources = damaged, append([]Source{damaged}, e.RepairOptions.Sources...)
		for _, gap := range damaged.scan.Gaps() {
			e.addFinding(Finding{Kind: Store, Where: gap.File, Problem: gap.String(), Repaired: true})
		}
	}
	if err := e.restoreKeys(e.signedNotes(ctx)); err != nil {
		return err
	}
	if err := runSteps(ctx, e.readLog, e.buildLog); err != nil {
		return err
	}
	built := e.store
	defer func() { err = errors.Join(err, built.Close()) }()
	if err := e.buildRest(ctx); err != nil {
		return err
	}
	if damaged != nil && damaged.scan.Err() != nil {
		return damaged.scan.Err()
	}
	if err := built.Close(); err != nil {
		return err
	}
	if err := e.checkBuilt(ctx); err != nil || e.beside {
		return err
	}
	e.result.Kept, err = e.swap()
	return err
}

// readLog finds the signed entries and the later ones that the files of the damaged store have, not those of the sources. Entries that are missing
// there are no error, and without a damaged store it finds none. It returns an error if nothing says which entries the log had, unless their loss is
// accepted.
func (e *engine) readLog(ctx context.Context) error {
	signed := e.signed
	if e.accepting {
		signed = e.former
	} else if err := e.checkComparable(); err != nil {
		return err
	}
	if e.damaged == nil {
		return nil
	}
	return e.damaged.readLog(ctx, signed)
}

// signedNotes yields the signed checkpoints that were found in the files of the damaged store, and those of the sources. None is verified.
func (e *engine) signedNotes(ctx context.Context) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if e.damaged != nil {
			for note := range signing.StoredNotes(e.damaged.scan) {
				if !yield(note) {
					return
				}
			}
		}
		e.sourceNotes(ctx)(yield)
	}
}

// sourceNotes yields the checkpoints of those sources that have the log, unverified, with their signatures. It skips sources that fail to send one.
func (e *engine) sourceNotes(ctx context.Context) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, source := range e.RepairOptions.Sources {
			log, ok := source.(replication.Log)
			if !ok {
				continue
			}
			if note, err := log.Get(ctx, tiles.Prefix+"checkpoint", 64<<10); err == nil && !yield(note) {
				return
			}
		}
	}
}

// checkComparable returns an error if nothing says which entries the log has: no signed checkpoint is known, and there is no damaged store, or one
// whose log was signed. The damaged store's own tree counts only if its log was never signed.
func (e *engine) checkComparable() error {
	switch {
	case e.signed.Size > 0:
		return nil
	case e.damaged == nil:
		return fmt.Errorf("%s, and the key folder %s has no signed checkpoint that tells what was in it: name the right one with --keys; where there never was one, begin with `larder up`", e.result.Damage, e.Keys)
	}
	key, err := signing.SignedBy(e.damaged.scan)
	if err != nil || key == "" {
		return nil // it is compared with its own tree, entry by entry
	}
	return fmt.Errorf("the log was signed with %s, and the key folder %s has no checkpoint signed with it, without which nothing can be compared: name the right one with --keys", key, e.Keys)
}

// buildLog opens the new store, which the caller closes, and writes its log: the signed entries, and the later ones of the damaged store. It
// continues the new store of an interrupted repair. It tries the sources in several orders, each with a new store, because one of them may lie. If
// none gives the signed entries, the error is a [*LossError]. With an error, e.store is nil; most errors also delete the new store.
func (e *engine) buildLog(ctx context.Context) error {
	var problems []error
	base, entries := e.chooseBaseLog()
	if e.accepting {
		if remaining := e.signedAtSources(ctx); remaining.Size > entries {
			base, e.signed = nil, remaining
		} else if base == nil {
			return fmt.Errorf("nothing of the log of %d signed entries is left, neither in %s nor at a source: begin with `larder up`, another data folder and another key folder", e.former.Size, e.Data)
		}
	}
	attempts := e.sourceOrders()
	if e.signed.Size == 0 { // nothing would prove what an earlier repair has left there
		if err := os.RemoveAll(e.path(buildingName)); err != nil {
			return err
		}
	}
	if _, err := os.Stat(e.path(buildingName)); err == nil && len(attempts) > 0 {
		attempts = append(attempts[:1:1], attempts...) // the first one continues the interrupted build
	} else if err := os.RemoveAll(e.path(buildingName)); err != nil {
		return err
	}
	for _, order := range attempts {
		err := e.openBuilding()
		if err == nil {
			err = e.appendSigned(ctx, order)
		}
		if err == nil {
			err = e.appendUnsigned(ctx, base)
		}
		if err == nil {
			return nil
		}
		if e.store != nil {
			err = errors.Join(err, e.store.Close())
			e.store = nil
		}
		var loss *LossError
		if ctx.Err() != nil || errors.Is(err, kvstore.ErrDiskFull) || errors.Is(err, kvstore.ErrLocked) || errors.As(err, &loss) {
			return err // another repair's new store stays, too
		}
		if err := os.RemoveAll(e.path(buildingName)); err != nil {
			return err
		}
		e.result.Sources = nil
		problems = append(problems, err)
	}
	if e.signed.Size == 0 {
		return errors.Join(problems...)
	}
	return e.lossError(problems)
}

// openBuilding opens the new store, which it creates or which an interrupted repair has begun, and its log. If only the log cannot be opened,
// e.store is open, and the caller closes it.
func (e *engine) openBuilding() (err error) {
	dir := e.path(buildingName)
	if e.store, err = kvstore.Open(dir, e.storeOptions(buildingName, false)); err != nil {
		e.store = nil
		return err
	}
	e.log, err = logs.Open(e.store)
	return err
}

// appendSigned appends the signed entries that the new store lacks, from the sources in the given order, and compares the result with the signed
// root.
func (e *engine) appendSigned(ctx context.Context, order []Source) error {
	if e.signed.Size == 0 {
		return nil
	}
	for index := e.log.Checkpoint().Size; index < e.signed.Size; index = e.log.Checkpoint().Size {
		source, batch, err := e.nextEntries(ctx, order, index, e.signed.Size)
		if err == nil {
			err = e.appendEntries(source, batch)
		}
		if err != nil {
			return err
		}
		e.reportProgress("log", index+int64(len(batch)), e.signed.Size)
	}
	root, err := tlog.TreeHash(e.signed.Size, logs.Hashes(e.store))
	if err == nil && root != e.signed.Root {
		err = fmt.Errorf("%s: %w", namesOf(order), errOtherLog)
	}
	return err
}

// appendEntries appends entries from a source to the log of the new store, in one batch, and counts them.
func (e *engine) appendEntries(source Source, batch []logs.Indexed) error {
	if !e.isDamagedStore(source) {
		e.result.useOf(source).Entries += int64(len(batch))
	}
	return e.log.Update(func(tx *logs.Tx) error {
		for _, entry := range batch {
			if _, err := tx.AppendRaw(entry.Raw); err != nil {
				return err
			}
		}
		return nil
	})
}

// isDamagedStore reports whether a source is the scan of the damaged store.
func (e *engine) isDamagedStore(s Source) bool { return e.damaged != nil && s == Source(e.damaged) }

// appendUnsigned appends the entries after the signed ones that belong to the tree of base, from any source. It lists in the result those that are
// lost. If nothing was signed and entries are lost, it returns a [*LossError] instead. If the loss is accepted, it ends at the first lost entry and
// returns nil. It does nothing if base is nil.
func (e *engine) appendUnsigned(ctx context.Context, base *ownLog) error {
	if base == nil {
		return nil
	}
	size := base.size
	if size == 0 && e.signed.Size == 0 && !e.accepting {
		return errors.New("nothing says how many entries the log had")
	}
	for index := e.log.Checkpoint().Size; index < size; {
		source, batch, err := e.nextEntries(ctx, e.sources, index, size)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n := 0
		for n < len(batch) && base.has(batch[n].Index, batch[n].Raw) {
			n++
		}
		if n == 0 && e.accepting {
			return nil // the entry that follows says so
		}
		if n == 0 && e.signed.Size == 0 {
			return &LossError{Entries: []logs.Range{{From: index, To: size}}, Problem: err}
		}
		if n == 0 {
			e.addLostEntries(index, size, err)
			return nil
		}
		if err := e.appendEntries(source, batch[:n]); err != nil {
			return err
		}
		index += int64(n)
		if e.signed.Size > 0 {
			e.result.Tail += int64(n)
		}
	}
	return nil
}

// addLostEntries lists the unsigned entries between two indexes as lost, one by one, and reports them. err is why the first cannot be read.
func (e *engine) addLostEntries(from, to int64, err error) {
	unreadable := "it was not signed yet, and cannot be read"
	if err != nil {
		unreadable += ": " + oneLine(err)
	}
	for index := from; index < to; index++ {
		where, problem := fmt.Sprintf("entry %d", index), unreadable
		if e.damaged.tree.entry(index) != nil {
			problem = "it was not signed yet, and an entry before it cannot be read"
		}
		e.result.Lost = append(e.result.Lost, Lost{Where: where, Problem: problem})
		e.addFinding(Finding{Kind: Log, Where: where, Problem: problem})
	}
}

// buildRest writes everything but the log into the new store: contents, views, rows that do not follow from the log, and queue rows for missing
// encodings. It calls [RepairOptions.Built], and lists in the result what is lost.
func (e *engine) buildRest(ctx context.Context) error {
	c := e.newContents(e.log.Checkpoint().Size)
	defer c.pins.Release()
	if err := runSteps(ctx, e.carryAbsent, c.repairDocuments, e.checkSpaceForFiles, c.repairFiles, e.deriveViews, e.carryAll); err != nil {
		return err
	}
	if err := signing.RebuildKeyChanges(e.store); err != nil {
		return err
	}
	if e.Built != nil {
		if err := e.Built(e.store); err != nil {
			return err
		}
	}
	return errors.Join(c.queueEncodings(), c.listLost(ctx))
}

// deriveViews writes the views that follow from the log into the new store. It skips entries whose contents are lost.
func (e *engine) deriveViews(ctx context.Context) error {
	w := newRowWriter(e.store, rowsPerCommit)
	defer func() { w.batch.Close() }()
	of := e.log.Checkpoint().Size
	for entry, err := range logs.Entries(e.store, 0) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		change, err := views.Load(e.store, entry)
		if err != nil {
			continue // it is listed as lost
		}
		if err := w.apply(change); err != nil {
			return err
		}
		if err := w.countAdded(0); err != nil {
			return err
		}
		e.reportProgress("views", entry.Index+1, of)
	}
	return w.commit()
}

// checkBuilt checks the new store deeply. It returns an error if anything is wrong but the key folder and contents that are listed as lost.
func (e *engine) checkBuilt(ctx context.Context) error {
	store, err := kvstore.Open(e.path(buildingName), e.storeOptions(buildingName, true))
	if err != nil {
		return err
	}
	left, err := e.runFinalCheck(func(report func(Finding)) (Summary, error) {
		return Run(ctx, store, e.checkOptions(true), report)
	})
	if err := errors.Join(err, store.Close()); err != nil {
		return err
	}
	for _, f := range left {
		if f.Kind != Key && (f.Kind != Content || len(e.result.Lost) == 0) {
			return fmt.Errorf("the new store is not right either, and nothing was replaced: %s %s: %s", f.Kind, f.Where, f.Problem)
		}
	}
	return nil
}

// reserve is what has to be left on the disk beside the new store.
const reserve = 256 << 20

// checkSpace returns [kvstore.ErrDiskFull] if the disk does not have need bytes free beside a reserve.
func (e *engine) checkSpace(need int64) error {
	usage, err := vfs.Default.GetDiskUsage(e.Data)
	if err != nil {
		return fmt.Errorf("couldn't learn how much space %s has left: %w", e.Data, err)
	}
	if need = max(0, need) + reserve; int64(min(usage.AvailBytes, 1<<62)) < need {
		return fmt.Errorf("%w: a new store is built beside the damaged one, which takes %d MiB, and the disk of %s has %d MiB left: free some space; nothing was changed",
			kvstore.ErrDiskFull, need>>20, e.Data, usage.AvailBytes>>20)
	}
	return nil
}

// checkSpaceForFiles returns [kvstore.ErrDiskFull] if the disk has no room for the files of all manifests in the new store. If there is a damaged
// store, its size was compared before, and checkSpaceForFiles does nothing.
func (e *engine) checkSpaceForFiles(ctx context.Context) error {
	if e.damaged != nil {
		return nil
	}
	var need int64
	seen := make(map[kvstore.Hash]struct{})
	err := forEachContent(ctx, e.store, e.store, func(_ logs.Indexed, h kvstore.Hash, file *logs.File) {
		if _, ok := seen[h]; !ok && file != nil {
			seen[h] = struct{}{}
			need += file.Size
		}
	})
	if err != nil {
		return err
	}
	return e.checkSpace(need - e.sizeOf(buildingName))
}

// sizeOf returns how many bytes the files directly in a folder of the data folder have, as far as that can be read.
func (e *engine) sizeOf(name string) int64 {
	size, _ := folderSize(vfs.Default, e.path(name))
	return size
}
