package repair

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/fsck"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/views"
)

// rebuild builds a new store from the log, takes over what the damaged one still has, which
// may be nil, and swaps the two.
func (e *engine) rebuild(ctx context.Context, damaged *kvstore.Store, why error) (err error) {
	e.result.Damage = oneLine(why)
	if damaged != nil {
		if !e.beside {
			defer func() { err = errors.Join(err, damaged.Close()) }()
		}
		e.damaged = replication.OfStore(damaged, "the damaged store")
		e.sources = append([]Source{e.damaged}, e.Options.Sources...)
	}
	base := damaged // has the log
	if e.accepting {
		if base = e.base(damaged); base == nil {
			return e.errNothingLeft()
		}
	} else if err := e.comparable(damaged); err != nil {
		return err
	}
	if err := e.space(dirSize(e.path(storeName)) - dirSize(e.path(buildingName))); err != nil {
		return err
	}
	if err := e.buildLog(ctx, base); err != nil {
		return err
	}
	built := e.store
	defer func() { err = errors.Join(err, built.Close()) }()
	if err := e.buildRest(ctx, damaged); err != nil {
		return err
	}
	if err := built.Close(); err != nil {
		return err
	}
	if err := e.checkBuilt(ctx); err != nil {
		return err
	}
	if e.beside {
		return nil
	}
	if damaged != nil {
		if err := damaged.Close(); err != nil {
			e.Logger.Warn("couldn't close the damaged store", "err", err)
		}
	}
	return e.swap()
}

// comparable returns an error where nothing says which entries the log has.
func (e *engine) comparable(damaged *kvstore.Store) error {
	switch {
	case e.signed.Size > 0:
		return nil
	case damaged == nil:
		return fmt.Errorf("%s, and the key folder %s has no signed checkpoint that tells what was in it: name the right one with --keys; where there never was one, begin with `larder up`", e.result.Damage, e.Keys)
	}
	key, err := signing.SignedBy(damaged)
	if err != nil || key == "" {
		return nil // it is compared with its own tree, entry by entry
	}
	return fmt.Errorf("the log was signed with %s, and the key folder %s has no checkpoint signed with it, without which nothing can be compared: name the right one with --keys", key, e.Keys)
}

// buildLog begins the new store with the log, up to what was signed and what the damaged
// store has besides.
func (e *engine) buildLog(ctx context.Context, base *kvstore.Store) error {
	var problems []error
	attempts := orders(e.damaged, e.Options.Sources)
	if e.signed.Size == 0 { // nothing would tell what an earlier repair has left there
		if err := os.RemoveAll(e.path(buildingName)); err != nil {
			return err
		}
	}
	if _, err := os.Stat(e.path(buildingName)); err == nil && len(attempts) > 0 {
		attempts = append(attempts[:1:1], attempts...) // the first one goes on with what is there
	} else if err := os.RemoveAll(e.path(buildingName)); err != nil {
		return err
	}
	for _, order := range attempts {
		err := e.openBuilding()
		if err == nil {
			err = e.replay(ctx, order)
		}
		if err == nil {
			err = e.tail(ctx, base)
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
	return &LossError{readableEnd(base, e.signed.Size), e.signed.Size, errors.Join(problems...)}
}

// readableEnd is up to where a store has the log, no further than most.
func readableEnd(damaged *kvstore.Store, most int64) int64 {
	var n int64
	for damaged != nil && n < most && logs.Belongs(damaged, n, entryOf(damaged, n)) {
		n++
	}
	return n
}

func (e *engine) openBuilding() (err error) {
	dir := e.path(buildingName)
	if e.store, err = kvstore.Open(dir, e.storeOptions()); err != nil {
		e.store = nil
		return err
	}
	e.log, err = logs.Open(e.store)
	return err
}

// replay appends the entries that were signed, and compares them with that.
func (e *engine) replay(ctx context.Context, order []Source) error {
	if e.signed.Size == 0 {
		return nil
	}
	err := e.walk(ctx, order, e.log.Checkpoint().Size, func(s Source, batch []logs.Indexed) error {
		if s != e.damaged {
			e.result.use(s).Entries += int64(len(batch))
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

// tail appends the entries after the signed ones that belong to the tree of base, the
// damaged store for nearly all.
func (e *engine) tail(ctx context.Context, base *kvstore.Store) error {
	if base == nil {
		return nil
	}
	had, err := logs.ReadCheckpoint(base)
	if err != nil && e.signed.Size == 0 && !e.accepting {
		return fmt.Errorf("nothing says how many entries the log had: %w", err)
	}
	if err != nil { // then those count that are there
		for had.Size = e.signed.Size; logs.Belongs(base, had.Size, entryOf(base, had.Size)); had.Size++ {
		}
	}
	for index := e.log.Checkpoint().Size; index < had.Size; {
		source, batch, err := e.next(ctx, e.sources, index, had.Size)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n := 0
		for n < len(batch) && logs.Belongs(base, batch[n].Index, batch[n].Raw) {
			n++
		}
		if n == 0 && e.accepting {
			return nil // the entry that follows says so
		}
		if n == 0 && e.signed.Size == 0 {
			return &LossError{index, had.Size, err}
		}
		if n == 0 {
			e.lostTail(fmt.Sprintf("entries %d to %d", index, had.Size-1), err)
			return nil
		}
		if err := e.appendRaw(batch[:n]); err != nil {
			return err
		}
		if source != e.damaged {
			e.result.use(source).Entries += int64(n)
		}
		index += int64(n)
		if e.signed.Size > 0 {
			e.result.Tail += int64(n)
		}
	}
	return nil
}

// entryOf is an entry's bytes, nil where they cannot be read.
func entryOf(store *kvstore.Store, index int64) []byte {
	raw, _ := logs.RawEntry(store, index)
	return raw
}

func (e *engine) lostTail(where string, err error) {
	problem := "they were not signed yet, and cannot be read"
	if err != nil {
		problem += ": " + oneLine(err)
	}
	e.result.Lost = append(e.result.Lost, Lost{Where: where, Problem: problem})
	e.found(fsck.Finding{Kind: fsck.Log, Where: where, Problem: problem})
}

// buildRest fills the new store with all that is not the log.
func (e *engine) buildRest(ctx context.Context, damaged *kvstore.Store) error {
	c := e.contents(inStore(e.store, e.log.Checkpoint().Size, nil))
	defer c.pins.Release()
	if err := errors.Join(e.carryAbsent(ctx, damaged), c.documents(ctx)); err != nil {
		return err
	}
	if damaged == nil {
		if err := e.spaceForFiles(); err != nil {
			return err
		}
	}
	if err := c.files(ctx); err != nil {
		return err
	}
	if err := e.makeViews(ctx); err != nil {
		return err
	}
	if err := e.carry(ctx, damaged); err != nil {
		return err
	}
	if err := signing.Replay(e.store); err != nil {
		return err
	}
	if e.Built != nil {
		if err := e.Built(e.store); err != nil {
			return err
		}
	}
	return errors.Join(c.queue(), c.list(ctx))
}

// makeViews makes all views from the log.
func (e *engine) makeViews(ctx context.Context) error {
	w := newWriter(e.store)
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
		if err := w.added(rows); err != nil {
			return err
		}
		e.show("views", entry.Index+1, of)
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

// carry takes over what can be read of the rows that do not follow from the log.
func (e *engine) carry(ctx context.Context, damaged *kvstore.Store) error {
	w := newWriter(e.store)
	defer func() { w.batch.Close() }()
	for _, part := range carried {
		if part.ns == kvstore.Durable && e.Shared {
			part.name = "waiting rooms"
		}
		if damaged == nil {
			e.result.NotCarried = append(e.result.NotCarried, part.name)
			continue
		}
		failed, err := rows(ctx, damaged, part.ns, func(row kvstore.Item) error {
			if !e.wants(part.ns, row) {
				return nil
			}
			w.batch.Set(part.ns, row.Key, row.Value)
			return w.added(1)
		})
		if err != nil {
			return err
		}
		if failed != nil {
			e.result.NotCarried = append(e.result.NotCarried, fmt.Sprintf("some of %s: %s", part.name, oneLine(failed)))
		}
	}
	return w.commit()
}

// carryAbsent takes over which releases are in the log without their files. The views depend on
// it.
func (e *engine) carryAbsent(ctx context.Context, damaged *kvstore.Store) error {
	if damaged == nil {
		return nil
	}
	w := newWriter(e.store)
	defer func() { w.batch.Close() }()
	failed, err := rows(ctx, damaged, kvstore.Absent, func(row kvstore.Item) error {
		w.batch.Set(kvstore.Absent, row.Key, row.Value)
		return w.added(1)
	})
	if failed != nil {
		e.result.NotCarried = append(e.result.NotCarried, "some of which releases a mirror leaves out: "+oneLine(failed))
	}
	return errors.Join(err, w.commit())
}

// wants reports whether the new store takes a row over.
func (e *engine) wants(ns kvstore.Namespace, row kvstore.Item) bool {
	switch ns {
	case kvstore.Meta:
		return !bytes.Equal(row.Key, kvstore.Key("format")) && !bytes.Equal(row.Key, kvstore.Key("stale"))
	case kvstore.LogState:
		return signing.Carries(row.Key)
	case kvstore.States:
		return e.wantsState(row)
	}
	return true
}

// wantsState reports whether a state is one of which the log says no more than that the
// version was detected.
func (e *engine) wantsState(row kvstore.Item) bool {
	s, err := views.DecodeState(row)
	if err != nil || s.Kind.Final() || !bytes.Equal(row.Key, kvstore.Key(s.Package, s.Version)) {
		return false
	}
	now, err := views.LookupState(e.store, s.Package, s.Version)
	return errors.Is(err, kvstore.ErrNotFound) || err == nil && !now.Kind.Final()
}

// rows calls fn for every row that can be read: those before the first damage, and those
// after the last.
func rows(ctx context.Context, from kvstore.Reader, ns kvstore.Namespace, fn func(kvstore.Item) error) (failed, err error) {
	for _, reverse := range []bool{false, true} {
		failed = nil
		for row, err := range from.Scan(ns, kvstore.Range{Reverse: reverse}) {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				failed = err
				break
			}
			if err := fn(row); err != nil {
				return nil, err
			}
		}
		if failed == nil {
			return nil, nil
		}
	}
	return failed, nil
}

// writer commits a batch now and then.
type writer struct {
	store *kvstore.Store
	batch *kvstore.Batch
	rows  int
}

const rowsPerCommit = 10_000

func newWriter(store *kvstore.Store) *writer { return &writer{store: store, batch: store.NewBatch()} }

func (w *writer) added(rows int) error {
	if w.rows += rows; w.rows < rowsPerCommit {
		return nil
	}
	return w.commit()
}

func (w *writer) commit() error {
	err := w.batch.Commit()
	w.batch.Close()
	w.batch, w.rows = w.store.NewBatch(), 0
	return err
}

// checkBuilt checks the new store deeply. What is listed as lost may be missing, and nothing
// else.
func (e *engine) checkBuilt(ctx context.Context) error {
	o := e.storeOptions()
	o.ReadOnly = true
	store, err := kvstore.Open(e.path(buildingName), o)
	if err != nil {
		return err
	}
	left, err := e.check(func(report func(fsck.Finding)) (fsck.Summary, error) {
		return fsck.Run(ctx, store, e.fsckOptions(true), report)
	})
	if err := errors.Join(err, store.Close()); err != nil {
		return err
	}
	for _, f := range left {
		if f.Kind != fsck.Content || len(e.result.Lost) == 0 {
			return fmt.Errorf("the new store is not right either, and nothing was replaced: %s %s: %s", f.Kind, f.Where, f.Problem)
		}
	}
	return nil
}

// reserve is what has to be left on the disk beside the new store.
const reserve = 256 << 20

// space returns an error where the disk has no room for so many bytes.
func (e *engine) space(need int64) error {
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

// spaceForFiles is space for the files in all manifests that are there.
func (e *engine) spaceForFiles() error {
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
	return e.space(need - dirSize(e.path(buildingName)))
}

func dirSize(dir string) (size int64) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil {
			size += info.Size()
		}
	}
	return size
}
