package replication

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
)

// Bounds of what is worked on at the same time.
const (
	entriesAtOnce  = 16
	filesAtOnce    = 8 // of one entry
	manifestMemory = 256 << 20
	maxFile        = 512 << 20 // a file that a batch has room for

	manifestCost = 8 // a decoded manifest's memory, in bytes of its text
)

// withdrawals are the releases that are withdrawn at the end of what is taken over, by their keys in the map of live releases, with the entry that
// says so.
type withdrawals map[kvstore.Hash]int64

// add updates the set by an entry: if it withdraws a release, the release is added with the entry's index; if it publishes or restores one, the
// release is removed. Entries come in the order of the log.
func (t withdrawals) add(e logs.Indexed) {
	switch {
	case e.Kind.Serves(): // so that its files are needed
		delete(t, logs.LiveKey(e.Package, e.Version))
	case e.Kind == logs.Withdrawn:
		t[logs.LiveKey(e.Package, e.Version)] = e.Index
	}
}

// leavesOut reports whether an entry publishes or restores a release that a later entry in the set withdraws, so that its files are not fetched.
func (t withdrawals) leavesOut(e logs.Indexed) bool {
	return e.Kind.Serves() && t[logs.LiveKey(e.Package, e.Version)] > e.Index
}

// applyNew applies the entries of the source's verified log that the store lacks. It reads them twice, because a release that is withdrawn in the end
// must not be served in between. At an error, the entries before that one stay applied.
func (f *Follower) applyNew(ctx context.Context, log *verify.Log) error {
	withdrawn := withdrawals{}
	begin := f.Log.Checkpoint().Size
	var first []logs.Indexed
	for entries, err := range f.batches(ctx, log, begin) {
		if err != nil {
			return err
		}
		for _, e := range entries {
			withdrawn.add(e)
		}
		if first == nil {
			first = entries
		}
	}
	if err := f.apply(ctx, first, withdrawn); err != nil {
		return err
	}
	for entries, err := range f.batches(ctx, log, begin+int64(len(first))) {
		if err == nil {
			err = f.apply(ctx, entries, withdrawn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// batches iterates over the verified entries of the source's log from an index on, some at a time. If the source sends none, the error is
// [fs.ErrNotExist]. If the source contradicts itself, the error is a [RefusedError]. It ends after an error.
func (f *Follower) batches(ctx context.Context, log *verify.Log, index int64) iter.Seq2[[]logs.Indexed, error] {
	return func(yield func([]logs.Indexed, error) bool) {
		for index < log.Size() {
			entries, err := log.Entries(ctx, index)
			if err == nil && len(entries) == 0 {
				err = fmt.Errorf("entry %d: %w", index, fs.ErrNotExist)
			}
			if !yield(entries, refuseContradiction(err)) || err != nil {
				return
			}
			index += int64(len(entries))
		}
	}
}

// refuseContradiction returns a [RefusedError] for an error that says that the source contradicts itself or has sent other bytes, and any other error
// as it is.
func refuseContradiction(err error) error {
	if verify.OutcomeOf(err) == verify.Differs || errors.Is(err, ErrOther) {
		return &RefusedError{err}
	}
	return err
}

// A pendingEntry is an entry whose contents are being fetched.
type pendingEntry struct {
	entry  logs.Indexed
	absent bool // its release is taken over without its files
	pins   *kvstore.Pins
	done   chan error

	mu           sync.Mutex
	dictionaries map[kvstore.Hash][]kvstore.Hash // of the source's deltas, by content
}

// newPending returns an entry whose contents are to be fetched, with a set of pins for them, which the caller releases. absent says that the files of
// its release are left out.
func (f *Follower) newPending(e logs.Indexed, absent bool) *pendingEntry {
	return &pendingEntry{entry: e, absent: absent, pins: f.Store.Pin(), done: make(chan error, 1), dictionaries: make(map[kvstore.Hash][]kvstore.Hash)}
}

// apply fetches the contents of several entries at the same time, and commits the entries in their order, each when its contents are stored. It
// fetches nothing beyond an entry that erases contents until that is committed. At an error it ends; the entries before stay committed, and contents
// of later ones may be stored. When it returns, no fetch is running.
func (f *Follower) apply(ctx context.Context, entries []logs.Indexed, withdrawn withdrawals) error {
	ctx, cancel := context.WithCancel(ctx)
	queue := make(chan *pendingEntry, entriesAtOnce)
	// erased says that something was erased, so that what follows may be fetched. Its buffer is for a goroutine below that has ended
	// with ctx; it waits for one erasure before it queues the next, so there is never a second message.
	erased := make(chan struct{}, 1)
	var fetching errgroup.Group
	defer func() {
		cancel()
		var left []*pendingEntry
		for c := range queue {
			left = append(left, c)
		}
		fetching.Wait()
		for _, c := range left {
			c.pins.Release()
		}
	}()
	go func() {
		defer close(queue)
		for _, e := range entries {
			c := f.newPending(e, withdrawn.leavesOut(e) || e.Kind.Serves() && !f.wants(e.Package, e.Version))
			select {
			case queue <- c:
			case <-ctx.Done():
				return
			}
			fetching.Go(func() error {
				c.done <- f.fetchEntry(ctx, c)
				return nil
			})
			if e.Kind == logs.Erased {
				select {
				case <-erased:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	for c := range queue {
		err := <-c.done
		if err == nil {
			err = f.commitEntry(c)
		}
		c.pins.Release()
		if err == nil && c.entry.Kind == logs.Erased {
			erased <- struct{}{}
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// A partialSource may lack the files of releases that are served.
type partialSource interface {
	// Has reports whether the source has the files of a release.
	Has(pkg, version string) bool
}

// wants reports whether the patterns select a release: those of [Options.Only], and those that the source was made with, if it is a bundle.
// It does not say that the release is live, or that the source still has its files.
func (f *Follower) wants(pkg, version string) bool {
	p, partial := f.Source.(partialSource)
	return (f.Only == nil || f.Only(pkg, version)) && (!partial || p.Has(pkg, version))
}

// fetchEntry pins all contents that a pending entry needs, and fetches and stores those that the store lacks: the contents that the entry names
// itself, and the files of its release unless they are left out. It returns a [RefusedError] if the manifest does not belong to the entry. Its errors
// name the entry.
func (f *Follower) fetchEntry(ctx context.Context, c *pendingEntry) error {
	for _, h := range c.entry.Contents() {
		if err := f.fetchMissing(ctx, c, Wanted{Hash: h, Limit: logs.MaxManifest, Entry: c.entry}); err != nil {
			return fmt.Errorf("entry %d (%s %s %s): %w", c.entry.Index, c.entry.Kind, c.entry.Package, c.entry.Version, err)
		}
	}
	if !c.entry.Kind.Serves() {
		return nil
	}
	if err := f.fetchRelease(ctx, c); err != nil {
		return fmt.Errorf("%s %s, entry %d: %w", c.entry.Package, c.entry.Version, c.entry.Index, err)
	}
	return nil
}

// fetchRelease verifies that the manifest of a pending entry, which the store has, belongs to the entry, and stores the files of the release unless
// they are left out. The error is a [RefusedError] if the manifest does not belong to it or cannot be decoded.
func (f *Follower) fetchRelease(ctx context.Context, c *pendingEntry) error {
	content, err := f.Store.Content(c.entry.Manifest)
	if err != nil {
		return err
	}
	weight := min(manifestMemory, manifestCost*content.Size+1<<10)
	if err := f.manifests.Acquire(ctx, weight); err != nil {
		return err
	}
	defer f.manifests.Release(weight)
	m, err := logs.ReadManifest(f.Store, c.entry.Manifest)
	if err != nil {
		return &RefusedError{err}
	}
	switch {
	case m.Package != c.entry.Package || m.Version != c.entry.Version:
		return &RefusedError{fmt.Errorf("its manifest is that of %s %s", m.Package, m.Version)}
	case c.entry.Kind.Publishes() && m.Root() != c.entry.Files:
		return &RefusedError{errors.New("its manifest does not have the files of which the entry says the root")}
	case c.absent:
		return nil
	}
	return f.fetchFiles(ctx, c, m.Files)
}

// fetchFiles pins the contents of the files of a pending entry's release, and fetches and stores those that the store lacks, several at the same
// time. The error of a file over maxFile bytes is a [RefusedError]; a file that the source lacks is an error that wraps [fs.ErrNotExist].
func (f *Follower) fetchFiles(ctx context.Context, c *pendingEntry, files []logs.File) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(filesAtOnce)
	for i := range files {
		if ctx.Err() != nil {
			break
		}
		file := &files[i]
		if file.Size < 0 || file.Size > maxFile {
			return errors.Join(&RefusedError{fmt.Errorf("%s: a file of %d bytes, and %d are the most", file.Path, file.Size, int64(maxFile))}, group.Wait())
		}
		group.Go(func() error {
			err := f.fetchMissing(ctx, c, Wanted{Hash: file.SHA256, Limit: file.Size, Entry: c.entry, File: file})
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("the source does not have it: it was withdrawn a moment ago, or the source leaves the release out (--only leaves it out here too): %w", err)
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", file.Path, err)
			}
			return err
		})
	}
	return group.Wait()
}

// fetchMissing pins a content that a pending entry needs. If the store does not list the content, it also fetches, verifies and stores it, and
// records the dictionaries of its deltas. If another goroutine is fetching the same content, it waits for that and returns its error, or
// fetches the content itself if that goroutine's entry failed meanwhile.
func (f *Follower) fetchMissing(ctx context.Context, c *pendingEntry, w Wanted) error {
	if there, err := c.pins.Has(w.Hash); there || err != nil {
		return err
	}
	for {
		_, err, _ := f.flights.Do(string(w.Hash[:]), func() (any, error) {
			err := f.fetch(ctx, w, func(data []byte, found Found) error {
				if len(found.Dictionaries) > 0 {
					c.mu.Lock()
					c.dictionaries[w.Hash] = found.Dictionaries
					c.mu.Unlock()
				}
				if err := f.Store.PutContent(w.Hash, int64(len(data)), found.Squeezed, found.Coded); err != nil {
					return err
				}
				f.files.Add(1)
				f.bytes.Add(int64(len(data)))
				return nil
			})
			if err != nil && ctx.Err() != nil {
				err = ctx.Err() // net/http returns the cause, which is about another file
			}
			return nil, err
		})
		if ctx.Err() != nil || !errors.Is(err, context.Canceled) {
			return err
		}
	}
}

// fetch waits for memory, fetches and verifies a content, and calls use with its decoded bytes and its encodings. If all that the source sends is
// damaged or other bytes, the error is a [RefusedError]. An error of use is returned as it is.
func (f *Follower) fetch(ctx context.Context, w Wanted, use func(data []byte, found Found) error) error {
	release, err := f.memory.Take(ctx, w)
	if err != nil {
		return err
	}
	defer release()
	data, found, err := Fetch(ctx, f.Source, w)
	if err != nil {
		return refuseContradiction(fmt.Errorf("content %s: %w", w.Hash, err))
	}
	return use(data, found)
}

// commitEntry appends a pending entry to the log in the store, with the rows of the views that follow from it, in one synced batch, and reports the
// progress. Its contents are stored already. An entry that the log does not accept is a [RefusedError].
func (f *Follower) commitEntry(c *pendingEntry) error {
	err := f.Log.Update(func(tx *logs.Tx) error {
		e, err := tx.AppendRaw(c.entry.Raw)
		if err != nil {
			return &RefusedError{err}
		}
		if e.Index != c.entry.Index {
			return fmt.Errorf("the log has grown by itself to entry %d, beside what is followed", e.Index)
		}
		if e.Kind == logs.KeyChanged {
			if err := signing.AddKeyChanges(tx.Batch, f.Store, e.Index); err != nil {
				return err
			}
		}
		return f.addViews(tx.Batch, c)
	})
	if err != nil {
		return err
	}
	f.reportProgress(c.entry.Index + 1)
	return nil
}

// addViews adds to a batch the rows of the views that follow from a pending entry, and queue rows for better encodings and deltas. It also adds or
// deletes the row that says that the release is here without its files. If the entry erases contents, it adds their removal. It commits nothing.
func (f *Follower) addViews(b *kvstore.Batch, c *pendingEntry) error {
	change, err := views.Load(f.Store, c.entry)
	if err != nil {
		return err
	}
	switch {
	case c.entry.Kind.Serves():
		if change.Absent = c.absent; c.absent {
			views.SetAbsent(b, change.Package, change.Version)
		} else {
			views.ClearAbsent(b, change.Package, change.Version)
			f.queueImprovements(b, c.entry, change.Manifest)
			for h, dictionaries := range c.dictionaries {
				f.queueDeltas(b, c.entry.Time, h, dictionaries)
			}
		}
	case c.entry.Kind == logs.Erased:
		for _, h := range change.Erasure.Contents {
			b.Remove(h)
		}
	}
	return views.Apply(b, change)
}

// reportProgress puts into the state how many entries are applied, and how many contents and bytes were fetched so far.
func (f *Follower) reportProgress(entries int64) {
	f.updateState(func(s *State) { s.Entries, s.Files, s.Bytes = entries, f.files.Load(), f.bytes.Load() })
}

// fillAbsent fetches the files of live releases that were left out before and that [Options.Only] and the source now allow. It skips withdrawn
// releases, and those of which a bundle lacks a file.
func (f *Follower) fillAbsent(ctx context.Context) error {
	for item, err := range f.Store.Scan(kvstore.Absent, kvstore.Range{}) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		pkg, version, _ := strings.Cut(string(item.Key), "\x00")
		if !f.wants(pkg, version) {
			continue
		}
		page, err := logs.Read(f.Store, logs.Query{Package: pkg, Version: version, Kinds: append([]logs.Kind{logs.Restored, logs.Withdrawn}, logs.Publications...), Limit: 1})
		if err != nil {
			return err
		}
		if len(page.Entries) == 0 || page.Entries[0].Kind == logs.Withdrawn {
			continue
		}
		err = f.fillRelease(ctx, f.newPending(page.Entries[0], false))
		if _, partial := f.Source.(partialSource); partial && errors.Is(err, fs.ErrNotExist) {
			continue // a bundle of newer releases
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fillRelease fetches the files of a release that was left out, and adds it to the views, so that it is served. c is the entry that publishes or
// restores it; its pins are released. Before it adds the release, it removes the store's record of the last deep check, which has not seen
// these files; after an error that may be gone already.
func (f *Follower) fillRelease(ctx context.Context, c *pendingEntry) error {
	defer c.pins.Release()
	if err := f.fetchEntry(ctx, c); err != nil {
		return err
	}
	if err := f.Store.RemoveVerified(); err != nil { // the files are new, and their entry is not
		return fmt.Errorf("couldn't remove the record of the last deep check: %w", err)
	}
	if err := f.Log.Update(func(tx *logs.Tx) error { return f.addViews(tx.Batch, c) }); err != nil {
		return err
	}
	f.reportProgress(f.Log.Checkpoint().Size)
	return nil
}
