package check

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// names are the namespaces of the views as an operator would write them, in the
// order in which they are compared.
var names = []struct {
	ns   kvstore.Namespace
	name string
}{
	{kvstore.Files, "files"},
	{kvstore.SRIs, "sris"},
	{kvstore.Versions, "versions"},
	{kvstore.Packages, "packages"},
	{kvstore.States, "states"},
	{kvstore.LogIndex, "index"},
	{kvstore.Named, "named"},
}

// derivedViews is a second set of views, which is built from the log alone in a store of
// its own, to compare those in use with.
type derivedViews struct {
	*rowWriter
	folder    string       // that close removes; "" if the set is in memory
	checkSize func() error // returns an error if the set takes more memory than it may
}

// minimumSpace is how much must be free for a second set of views to be built on the disk. Half of it must stay free, because the
// store of a process that serves may be on the same disk and refuses writes below that.
const minimumSpace = 512 << 20

// maxMemory bounds a second set of views in memory, because the process may be one that serves.
const maxMemory = 256 << 20

// newDerivedViews creates an empty second set of views in a new folder in temp, by default the system's. If the disk of temp is almost full or
// read-only, the set is in memory, and bounded. The caller closes it.
func newDerivedViews(temp string) (*derivedViews, error) {
	folder, err := makeFolder(cmp.Or(temp, os.TempDir()))
	if err != nil {
		return newViewsInMemory(maxMemory, err)
	}
	s := &derivedViews{folder: folder, checkSize: func() error { return nil }}
	return s.open(folder, kvstore.Options{MinFreeBytes: minimumSpace / 2})
}

// newViewsInMemory creates an empty second set of views in memory, whose files may have at most most bytes. The error of a larger set contains why,
// the reason that it is not on the disk.
func newViewsInMemory(most int64, why error) (*derivedViews, error) {
	const dir = "views"
	memory := vfs.NewMem()
	s := &derivedViews{checkSize: func() error {
		size, err := folderSize(memory, dir)
		if err == nil && size > most {
			err = fmt.Errorf("couldn't build the views a second time in memory: they take more than %d MiB, and the disk cannot be used: %w", most>>20, why)
		}
		return err
	}}
	return s.open(dir, kvstore.Options{MinFreeBytes: -1, FS: memory})
}

// open opens the store of the set in dir and returns the set. If that fails, it deletes the folder of the set.
func (s *derivedViews) open(dir string, o kvstore.Options) (_ *derivedViews, err error) {
	store, err := kvstore.Open(dir, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("couldn't open a second store to compare with: %w", err), s.removeFolder())
	}
	s.rowWriter = newRowWriter(store, rowsPerCommit)
	return s, nil
}

// makeFolder makes a new folder in temp, which it creates if it is missing. It returns an error if the disk of temp has less than minimumSpace.
func makeFolder(temp string) (folder string, err error) {
	if err := os.MkdirAll(temp, 0o700); err != nil {
		return "", err
	}
	if usage, err := vfs.Default.GetDiskUsage(temp); err == nil && usage.AvailBytes < minimumSpace {
		return "", fmt.Errorf("%w: %s has %d MiB left and %d are needed: free some space, then check again", kvstore.ErrDiskFull, temp, usage.AvailBytes>>20, minimumSpace>>20)
	}
	return os.MkdirTemp(temp, "fsck-")
}

// folderSize returns how many bytes the files directly in a folder have. A file that is deleted meanwhile does not count.
func folderSize(files vfs.FS, dir string) (size int64, err error) {
	names, err := files.List(dir)
	if err != nil {
		return 0, fmt.Errorf("couldn't list the files of a store: %w", err)
	}
	for _, name := range names {
		info, err := files.Stat(files.PathJoin(dir, name))
		switch {
		case err == nil:
			size += info.Size()
		case !errors.Is(err, fs.ErrNotExist):
			return size, fmt.Errorf("couldn't read the size of %s in a store: %w", name, err)
		}
	}
	return size, nil
}

// close closes the store of the set and deletes its folder.
func (s *derivedViews) close() error {
	return errors.Join(s.batch.Close(), s.store.Close(), s.removeFolder())
}

// removeFolder deletes the folder of the set, if it is on the disk.
func (s *derivedViews) removeFolder() error {
	if s.folder == "" {
		return nil
	}
	return os.RemoveAll(s.folder)
}

// apply adds to the batch the rows of the views that follow from an entry's change. They can be read after the next commit. The caller calls
// commitIfLarge.
func (s *derivedViews) apply(c views.Change) error {
	logs.AddToIndex(s.batch, c.Index, c.Entry)
	return s.rowWriter.apply(c)
}

// commitIfLarge commits the batch if it is large, and returns an error if a set in memory is too large.
func (s *derivedViews) commitIfLarge() error { return s.countAdded(0) }

// commit commits the batch, and returns an error if a set in memory is too large.
func (s *derivedViews) commit() error { return errors.Join(s.rowWriter.commit(), s.checkSize()) }

// countAdded counts rows that were added to the batch, and commits a large batch, with an error if a set in memory is too large.
func (s *derivedViews) countAdded(rows int) error {
	err := s.rowWriter.countAdded(rows)
	if s.rows == 0 { // it was committed
		err = errors.Join(err, s.checkSize())
	}
	return err
}

// compareViews compares all views in use with a second set that was derived from the log alone, and reports differences; after an earlier deep check
// only the rows that later entries change. A repair replaces rows that differ.
func (c *check) compareViews(ctx context.Context) error {
	for _, view := range names {
		rows := Rows{View: view.name}
		damage, err := c.compareView(ctx, view.ns, &rows)
		c.summary.Rows += rows.Rows
		c.summary.Views = append(c.summary.Views, rows)
		if err != nil {
			return err
		}
		if damage != nil {
			c.reportf(View, view.name, "%v", damage)
			if c.repair != nil {
				return fmt.Errorf("the view of %s cannot be read: %w", view.name, damage)
			}
		}
	}
	if c.repair != nil {
		return c.repair.commit()
	}
	return nil
}

// compareView compares the view in one namespace with a second one that was derived from the log alone, reports differences and counts its rows;
// after an earlier deep check only the rows that later entries change. damage is why the view in use cannot be read, err any other error.
func (c *check) compareView(ctx context.Context, ns kvstore.Namespace, rows *Rows) (damage, err error) {
	if c.summary.Since == 0 {
		return c.compareRange(ctx, ns, kvstore.Range{}, rows)
	}
	switch ns {
	case kvstore.Files, kvstore.SRIs, kvstore.Versions, kvstore.States: // the keys begin with a release
		for id := range c.recalled {
			key := kvstore.Key(id.pkg, id.version)
			if damage, err := c.compareRange(ctx, ns, kvstore.Range{From: key, To: append(bytes.Clone(key), 1)}, rows); damage != nil || err != nil {
				return damage, err
			}
		}
		return nil, nil
	}
	for want, err := range c.derived.store.Scan(ns, kvstore.Range{}) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return nil, err
		}
		var have *kvstore.Item
		switch value, err := c.snapshot.Get(ns, want.Key); {
		case err == nil:
			have = &kvstore.Item{Key: want.Key, Value: value}
		case !errors.Is(err, kvstore.ErrNotFound):
			return err, nil
		}
		if err := c.compareRow(ns, have, &want, rows); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// compareRange compares the rows of a view in a range with those that were derived from the log alone, reports differences and counts the rows.
// damage is why the view in use cannot be read, err any other error.
func (c *check) compareRange(ctx context.Context, ns kvstore.Namespace, r kvstore.Range, rows *Rows) (damage, err error) {
	nextInUse, stopInUse := iter.Pull2(c.snapshot.Scan(ns, r))
	defer stopInUse()
	nextDerived, stopDerived := iter.Pull2(c.derived.store.Scan(ns, r))
	defer stopDerived()
	inUse, damage, haveMore := nextInUse()
	derived, err, wantMore := nextDerived()
	for haveMore || wantMore {
		if err := errors.Join(err, ctx.Err()); damage != nil || err != nil {
			return damage, err
		}
		var have, want *kvstore.Item // the next row of both, nil where one has no row with that key
		order := bytes.Compare(inUse.Key, derived.Key)
		if haveMore && (!wantMore || order <= 0) {
			have = &inUse
		}
		if wantMore && (!haveMore || order >= 0) {
			want = &derived
		}
		if err := c.compareRow(ns, have, want, rows); err != nil {
			return nil, err
		}
		if have != nil {
			inUse, damage, haveMore = nextInUse()
		}
		if want != nil {
			derived, err, wantMore = nextDerived()
		}
	}
	return nil, nil
}

// compareRow compares have, a row in use, with want, the derived row of that key, counts it in rows, and reports a difference. A repair also replaces
// the row. A state that the bot may write by itself may have any
// value or be superfluous, but not be missing. A row that does not exist is nil; one of the two is not.
func (c *check) compareRow(ns kvstore.Namespace, have, want *kvstore.Item, rows *Rows) error {
	if want != nil {
		rows.Rows++
	}
	switch {
	case have == nil:
		rows.Missing++
		return c.reportRow(ns, *want, true, "the row is missing")
	case want != nil && bytes.Equal(have.Value, want.Value):
		return nil
	case ns == kvstore.States && isTransient(*have) && (want == nil || isTransient(*want)):
		return nil
	case want == nil:
		rows.Unexplained++
		return c.reportRow(ns, *have, false, "no entry of the log explains this row")
	}
	rows.Differing++
	return c.reportRow(ns, *want, true, describeDifference(ns, *have, *want))
}

// reportRow reports a wrong row. A repair also sets the row if wanted is true, and deletes it otherwise.
func (c *check) reportRow(ns kvstore.Namespace, row kvstore.Item, wanted bool, problem string) error {
	kind := View
	if ns == kvstore.States {
		kind = State
	}
	c.addFinding(Finding{Kind: kind, Where: rowName(ns, row.Key), Problem: problem, Repaired: c.repair != nil})
	if c.repair == nil {
		return nil
	}
	return c.repair.replace(ns, row, wanted)
}

// isTransient reports whether a row is a state of a version that the bot may write by itself. The log says of a version that is not published,
// refused or withdrawn only whether it was detected; later attempts, and the time of the next one, are the bot's.
func isTransient(row kvstore.Item) bool {
	s, err := views.DecodeState(row)
	if err != nil {
		return false
	}
	if s.Unlogged && s.Kind != views.Refused {
		return false
	}
	if s.Unlogged || s.Kind == views.Detected || s.Kind == views.Processing || s.Kind == views.Failed {
		return bytes.Equal(row.Key, kvstore.Key(s.Package, s.Version))
	}
	return false
}

// describeDifference returns how a row in use, have, differs from the derived one, want, for messages.
func describeDifference(ns kvstore.Namespace, have, want kvstore.Item) string {
	if ns == kvstore.States {
		h, herr := views.DecodeState(have)
		w, werr := views.DecodeState(want)
		if herr == nil && werr == nil && h.Kind != w.Kind {
			return fmt.Sprintf("the state is %q, the log says %q", h.Kind, w.Kind)
		}
	}
	return "the row differs from what the log says"
}

// rowName returns the key of a row in readable form, for messages: the view, and the key's parts separated by slashes.
func rowName(ns kvstore.Namespace, key []byte) string {
	if index := len(key) - 8; ns == kvstore.LogIndex && index >= 0 {
		key = fmt.Appendf(bytes.Clone(key[:index]), "%d", binary.BigEndian.Uint64(key[index:]))
	}
	if ns == kvstore.Named {
		return fmt.Sprintf("named/%x", key)
	}
	for _, n := range names {
		if n.ns == ns {
			return n.name + "/" + string(bytes.ReplaceAll(key, []byte{0}, []byte{'/'}))
		}
	}
	return string(key)
}
