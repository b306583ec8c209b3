package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/views"
)

// rebuild builds a new store from the files of the damaged one and from the sources, checks it, and swaps the two unless a process reads
// the damaged one. why is the damage.
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
	if err := e.readLog(ctx); err != nil {
		return err
	}
	if err := e.buildLog(ctx); err != nil {
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
	return e.swap()
}

// readLog finds the entries that the damaged store has.
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

// signedNotes yields the signed checkpoints that were found in the files of the damaged store, and those of the sources.
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

// sourceNotes yields the signed checkpoints of the sources that have the log, unverified.
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

// checkComparable returns an error if neither a signed checkpoint nor the damaged store says which entries the log has.
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

// buildLog writes the log of the new store: the signed entries, and the later ones of the damaged store. It tries the sources in several
// orders, because one of them may lie.
func (e *engine) buildLog(ctx context.Context) error {
	var problems []error
	var first Source
	if e.damaged != nil {
		first = e.damaged
	}
	base, entries := e.chooseBaseLog()
	if e.accepting {
		if remaining := e.signedAtSources(ctx); remaining.Size > entries {
			base, e.signed = nil, remaining
		} else if base == nil {
			return e.errNothingLeft()
		}
	}
	attempts := sourceOrders(first, e.RepairOptions.Sources)
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

// openBuilding opens the new store.
func (e *engine) openBuilding() (err error) {
	dir := e.path(buildingName)
	if e.store, err = kvstore.Open(dir, e.storeOptions()); err != nil {
		e.store = nil
		return err
	}
	e.log, err = logs.Open(e.store)
	return err
}

// appendSigned appends the signed entries from the sources in order, and compares the result with the signed root.
func (e *engine) appendSigned(ctx context.Context, order []Source) error {
	if e.signed.Size == 0 {
		return nil
	}
	err := e.forEachSigned(ctx, order, e.log.Checkpoint().Size, func(s Source, batch []logs.Indexed) error {
		if !e.isDamagedStore(s) {
			e.result.useOf(s).Entries += int64(len(batch))
		}
		return e.appendRaw(batch)
	})
	if err != nil {
		return err
	}
	root, err := tlog.TreeHash(e.signed.Size, logs.Hashes(e.store))
	if err == nil && root != e.signed.Root {
		err = fmt.Errorf("%s: %w", namesOf(order), errOtherLog)
	}
	return err
}

// appendRaw appends entries to the log of the new store.
func (e *engine) appendRaw(batch []logs.Indexed) error {
	return e.log.Update(func(tx *logs.Tx) error {
		for _, entry := range batch {
			if _, err := tx.AppendRaw(entry.Raw); err != nil {
				return err
			}
		}
		return nil
	})
}

// isDamagedStore reports whether a source is the damaged store.
func (e *engine) isDamagedStore(s Source) bool { return e.damaged != nil && s == Source(e.damaged) }

// appendUnsigned appends the entries after the signed ones that belong to the tree of base. It lists those that are lost.
func (e *engine) appendUnsigned(ctx context.Context, base ownLog) error {
	if base == nil {
		return nil
	}
	size := base.size()
	if size == 0 && e.signed.Size == 0 && !e.accepting {
		return errors.New("nothing says how many entries the log had")
	}
	for index := e.log.Checkpoint().Size; index < size; {
		source, batch, err := e.nextEntries(ctx, e.sources, index, size)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n := 0
		for n < len(batch) && base.hasEntryAt(batch[n].Index, batch[n].Raw) {
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
		if err := e.appendRaw(batch[:n]); err != nil {
			return err
		}
		if !e.isDamagedStore(source) {
			e.result.useOf(source).Entries += int64(n)
		}
		index += int64(n)
		if e.signed.Size > 0 {
			e.result.Tail += int64(n)
		}
	}
	return nil
}

// addLostEntries lists unsigned entries as lost, one by one. err is why the first cannot be read.
func (e *engine) addLostEntries(from, to int64, err error) {
	problem := "it was not signed yet, and cannot be read"
	if err != nil {
		problem += ": " + oneLine(err)
	}
	for index := from; index < to; index++ {
		where := fmt.Sprintf("entry %d", index)
		if e.damaged.entry(index) != nil {
			problem = "it was not signed yet, and an entry before it cannot be read"
		}
		e.result.Lost = append(e.result.Lost, Lost{Where: where, Problem: problem})
		e.addFinding(Finding{Kind: Log, Where: where, Problem: problem})
	}
}

// buildRest writes everything but the log into the new store: contents, views, and rows that do not follow from the log.
func (e *engine) buildRest(ctx context.Context) error {
	c := e.newContents(e.log.Checkpoint().Size)
	defer c.pins.Release()
	if err := e.deleteCarried(ctx); err != nil {
		return err
	}
	if err := errors.Join(e.carryAbsent(ctx), c.repairDocuments(ctx)); err != nil {
		return err
	}
	if e.damaged == nil {
		if err := e.checkSpaceForFiles(); err != nil {
			return err
		}
	}
	if err := c.repairFiles(ctx); err != nil {
		return err
	}
	if err := e.deriveViews(ctx); err != nil {
		return err
	}
	if err := e.carryAll(ctx); err != nil {
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

// deriveViews derives all views from the log of the new store.
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
		if err := views.Apply(w.batch, change); err != nil {
			return err
		}
		rows := 3
		if change.Manifest != nil {
			rows += 3 * len(change.Manifest.Files)
		}
		if err := w.countAdded(rows); err != nil {
			return err
		}
		e.reportProgress("views", entry.Index+1, of)
	}
	return w.commit()
}

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

// deleteCarried deletes from the new store what an interrupted repair has carried over, because the damaged store may have lost rows
// since, which carryRows only adds. Without a damaged store nothing is deleted: then the new store may have the only copy.
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

// deleteRows deletes from the new store the rows of a namespace that are carried over.
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

// carryAll copies the rows that do not follow from the log from the damaged store, and lists what is lost of them.
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
	return nil
}

// carryRows copies the newest version of each row of a namespace from the damaged store. It lists rows that cannot be read or decided; name
// describes the namespace.
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

// CarriedRows yields the rows of a store that do not follow from its log, such as schedules and counts: what a backup has beside the log. Deltas are rows that
// queue them, to be made again.
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
	CarriedRows(ctx context.Context) ([]CarriedRow, error)
}

// restoreRows writes the rows of a namespace that the first backup among the sources has. It returns false if none is a backup.
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

// carryAbsent copies the rows about releases that are in the log without their files. The views depend on them.
func (e *engine) carryAbsent(ctx context.Context) error {
	if e.damaged == nil {
		return nil
	}
	return e.carryRows(ctx, kvstore.Absent, "which releases a mirror leaves out")
}

// keepsRow reports whether the new store gets a row of the damaged one.
func (e *engine) keepsRow(ns kvstore.Namespace, row kvstore.Item) bool {
	return isCarried(ns, row.Key) && (ns != kvstore.States || e.wantsState(row))
}

// isCarried reports whether rows with a key are carried over. A new store writes the others itself.
func isCarried(ns kvstore.Namespace, key []byte) bool {
	switch ns {
	case kvstore.Meta:
		return !slices.Contains([]string{"format", "rows-in-tables", "stale"}, string(key))
	case kvstore.LogState:
		return signing.IsSignatureRow(key)
	}
	return true
}

// wantsState reports whether the new store gets a row with the state of a version: only if the log says only that the version was
// detected.
func (e *engine) wantsState(row kvstore.Item) bool {
	s, err := views.DecodeState(row)
	if err != nil || s.Kind.Final() || !bytes.Equal(row.Key, kvstore.Key(s.Package, s.Version)) {
		return false
	}
	now, err := views.LookupState(e.store, s.Package, s.Version)
	return errors.Is(err, kvstore.ErrNotFound) || err == nil && !now.Kind.Final()
}

// checkBuilt checks the new store deeply. It returns an error if anything is wrong but contents that are listed as lost.
func (e *engine) checkBuilt(ctx context.Context) error {
	o := e.storeOptions()
	o.ReadOnly = true
	store, err := kvstore.Open(e.path(buildingName), o)
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

// checkSpace returns an error if the disk has no room for need bytes.
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

// checkSpaceForFiles returns an error if the disk has no room for the files of all manifests in the new store.
func (e *engine) checkSpaceForFiles() error {
	var need int64
	seen := make(map[kvstore.Hash]struct{})
	for entry, err := range logs.Entries(e.store, 0) {
		if err != nil {
			return err
		}
		if !entry.Kind.Publishes() {
			continue
		}
		m, err := logs.ReadManifest(e.store, entry.Manifest)
		if err != nil {
			continue
		}
		for _, f := range m.Files {
			if _, ok := seen[f.SHA256]; !ok {
				seen[f.SHA256] = struct{}{}
				need += f.Size
			}
		}
	}
	return e.checkSpace(need - e.sizeOf(buildingName))
}

// sizeOf returns how many bytes the files of a folder in the data folder have, as far as that can be read.
func (e *engine) sizeOf(name string) int64 {
	size, _ := folderSize(vfs.Default, e.path(name))
	return size
}
