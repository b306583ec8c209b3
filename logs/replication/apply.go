package replication

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/livemap"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
)

// Bounds of what is worked on at the same time.
const (
	entriesAtOnce  = 16
	filesAtOnce    = 8 // of one entry
	manifestMemory = 256 << 20
	contentMemory  = 192 << 20 // bytes of contents, of which one may be larger, alone
	maxFile        = 512 << 20 // a file that a batch has room for

	manifestCost = 8 // a decoded manifest's memory, in bytes of its text
)

// fates are the releases that are withdrawn at the end of what is taken over, by the entry
// that says so.
type fates map[[16]byte]int64

func fateOf(e logs.Indexed) (key [16]byte) {
	full := livemap.Key(e.Package, e.Version)
	copy(key[:], full[:])
	return key
}

func (t fates) hear(e logs.Indexed) {
	switch {
	case e.Kind.Serves(): // so that its files are needed
		delete(t, fateOf(e))
	case e.Kind == logs.Withdrawn:
		t[fateOf(e)] = e.Index
	}
}

// absent reports whether an entry serves a release that is withdrawn at the end.
func (t fates) absent(e logs.Indexed) bool {
	if !e.Kind.Serves() {
		return false
	}
	at, ok := t[fateOf(e)]
	return ok && at > e.Index
}

// take takes over the entries that are not here yet. It reads them twice, because what is
// withdrawn at the end must not appear on the way there.
func (f *Follower) take(ctx context.Context, log *verify.Log) error {
	withdrawn := fates{}
	begin := f.Log.Checkpoint().Size
	var first []logs.Indexed
	for index := begin; index < log.Size(); {
		entries, err := f.entries(ctx, log, index)
		if err != nil {
			return err
		}
		if index == begin {
			first = entries
		}
		for _, e := range entries {
			withdrawn.hear(e)
		}
		index += int64(len(entries))
	}
	for index := begin; index < log.Size(); {
		entries := first
		if index != begin {
			var err error
			if entries, err = f.entries(ctx, log, index); err != nil {
				return err
			}
		}
		if err := f.apply(ctx, entries, withdrawn); err != nil {
			return err
		}
		index += int64(len(entries))
	}
	return nil
}

func (f *Follower) entries(ctx context.Context, log *verify.Log, index int64) ([]logs.Indexed, error) {
	entries, err := log.Entries(ctx, index)
	if verify.OutcomeOf(err) == verify.Differs || errors.Is(err, ErrOther) {
		err = &RefusedError{err}
	}
	if err == nil && len(entries) == 0 {
		err = fmt.Errorf("entry %d: %w", index, fs.ErrNotExist)
	}
	return entries, err
}

// A coming is an entry whose contents are being fetched.
type coming struct {
	entry  logs.Indexed
	absent bool // its release is taken over without its files
	pins   *kvstore.Pins
	done   chan error
}

func (f *Follower) coming(e logs.Indexed, absent bool) *coming {
	return &coming{entry: e, absent: absent, pins: f.Store.Pin(), done: make(chan error, 1)}
}

// apply fetches what entries name, several at once, and takes them over one by one, in their
// order.
func (f *Follower) apply(ctx context.Context, entries []logs.Indexed, withdrawn fates) error {
	ctx, cancel := context.WithCancel(ctx)
	queue := make(chan *coming, entriesAtOnce)
	// erased says that something was erased, so that what follows may be fetched. Its buffer is for a goroutine below that has ended
	// with ctx; it waits for one erasure before it queues the next, so there is never a second message.
	erased := make(chan struct{}, 1)
	var fetching errgroup.Group
	defer func() {
		cancel()
		var left []*coming
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
			c := f.coming(e, f.absent(e, withdrawn))
			select {
			case queue <- c:
			case <-ctx.Done():
				return
			}
			fetching.Go(func() error {
				c.done <- f.fetch(ctx, c)
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
			err = f.commit(c)
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

// absent reports whether a release that an entry has served is taken over without its files.
func (f *Follower) absent(e logs.Indexed, withdrawn fates) bool {
	return withdrawn.absent(e) || e.Kind.Serves() && !f.wanted(e.Package, e.Version)
}

// A partialSource may lack the files of releases that are served.
type partialSource interface {
	Has(pkg, version string) bool
}

// wanted reports whether the files of a release are applied.
func (f *Follower) wanted(pkg, version string) bool {
	p, partial := f.Source.(partialSource)
	return (f.Only == nil || f.Only(pkg, version)) && (!partial || p.Has(pkg, version))
}

// fetch has all be in the store that an entry needs.
func (f *Follower) fetch(ctx context.Context, c *coming) error {
	for _, h := range c.entry.Contents() {
		if err := f.document(ctx, c, h); err != nil {
			return fmt.Errorf("entry %d (%s %s %s): %w", c.entry.Index, c.entry.Kind, c.entry.Package, c.entry.Version, err)
		}
	}
	if !c.entry.Kind.Serves() {
		return nil
	}
	if err := f.release(ctx, c); err != nil {
		return fmt.Errorf("%s %s, entry %d: %w", c.entry.Package, c.entry.Version, c.entry.Index, err)
	}
	return nil
}

// release has the files of a release be in the store.
func (f *Follower) release(ctx context.Context, c *coming) error {
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
	return f.allFiles(ctx, c, m.Files)
}

func (f *Follower) allFiles(ctx context.Context, c *coming, files []logs.File) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(filesAtOnce)
	for i := range files {
		if ctx.Err() != nil {
			break
		}
		file := &files[i]
		there, err := c.pins.Has(file.SHA256)
		if err != nil {
			return errors.Join(err, group.Wait())
		}
		if there {
			continue
		}
		group.Go(func() error {
			err := f.once(file.SHA256, func() error { return f.file(ctx, c, file) })
			if err != nil {
				err = fmt.Errorf("%s: %w", file.Path, err)
			}
			return err
		})
	}
	return group.Wait()
}

// once has one of those that want the same content fetch it.
func (f *Follower) once(h kvstore.Hash, fetch func() error) error {
	_, err, _ := f.flights.Do(string(h[:]), func() (any, error) { return nil, fetch() })
	return err
}

// document has a content be in the store that an entry names itself.
func (f *Follower) document(ctx context.Context, c *coming, h kvstore.Hash) error {
	there, err := c.pins.Has(h)
	if there || err != nil {
		return err
	}
	return f.once(h, func() error {
		const usual = 4 << 20 // nearly all are far smaller
		if err := f.memory.Acquire(ctx, usual); err != nil {
			return err
		}
		defer f.memory.Release(usual)
		data, found, err := f.fetchContent(ctx, Wanted{Hash: h, Limit: logs.MaxManifest, Entry: c.entry})
		if err == nil {
			err = f.store(h, data, found)
		}
		if err != nil {
			return fmt.Errorf("content %s: %w", h, err)
		}
		return nil
	})
}

// fetchContent fetches a content and verifies it.
func (f *Follower) fetchContent(ctx context.Context, w Wanted) ([]byte, Found, error) {
	data, found, err := Fetch(ctx, f.Source, w)
	if errors.Is(err, ErrOther) {
		err = &RefusedError{err}
	}
	return data, found, err
}

// file has a file's content be in the store.
func (f *Follower) file(ctx context.Context, c *coming, file *logs.File) error {
	if file.Size < 0 || file.Size > maxFile {
		return &RefusedError{fmt.Errorf("a file of %d bytes, and %d are the most", file.Size, int64(maxFile))}
	}
	err := f.receive(ctx, Wanted{Hash: file.SHA256, Limit: file.Size, Entry: c.entry, File: file}, func(data []byte, found Found) error {
		if logs.SumSRI(data) != file.SRI {
			return &RefusedError{errors.New("its manifest says another integrity than its bytes have")}
		}
		return f.store(file.SHA256, data, found)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the source does not have it: it was withdrawn a moment ago, or the source leaves the release out (--only leaves it out here too): %w", err)
	}
	return err
}

// receive fetches a content whose size is known, and calls use with it.
func (f *Follower) receive(ctx context.Context, w Wanted, use func(data []byte, found Found) error) error {
	weight := min(contentMemory, 3*w.Limit+1<<16)
	if err := f.memory.Acquire(ctx, weight); err != nil {
		return err
	}
	defer f.memory.Release(weight)
	data, found, err := f.fetchContent(ctx, w)
	switch {
	case err != nil:
		return err
	case int64(len(data)) != w.Limit:
		return &RefusedError{ErrOther}
	}
	return use(data, found)
}

// store stores a content in the encodings in which it came. Others are made when clients request them.
func (f *Follower) store(h kvstore.Hash, data []byte, found Found) error {
	if err := f.Store.PutContent(h, int64(len(data)), found.Squeezed, found.Coded); err != nil {
		return err
	}
	f.files.Add(1)
	f.bytes.Add(int64(len(data)))
	return nil
}

// commit takes over an entry with all that it causes, in one write.
func (f *Follower) commit(c *coming) error {
	err := f.Log.Update(func(tx *logs.Tx) error {
		e, err := tx.AppendRaw(c.entry.Raw)
		if err != nil {
			return &RefusedError{err}
		}
		if e.Index != c.entry.Index {
			return fmt.Errorf("the log has grown by itself to entry %d, beside what is followed", e.Index)
		}
		if e.Kind == logs.KeyChanged {
			if err := signing.NoteChange(tx.Batch, f.Store, e.Index); err != nil {
				return err
			}
		}
		return f.views(tx.Batch, c)
	})
	if err != nil {
		return err
	}
	f.progress(c.entry.Index + 1)
	return nil
}

// views adds the rows that an entry causes.
func (f *Follower) views(b *kvstore.Batch, c *coming) error {
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
			f.later(b, c.entry, change.Manifest)
		}
	case c.entry.Kind == logs.Erased:
		for _, h := range change.Erasure.Contents {
			b.Remove(h)
		}
	}
	return views.Apply(b, change)
}

func (f *Follower) progress(entries int64) {
	f.change(func(s *State) { s.Entries, s.Files, s.Bytes = entries, f.files.Load(), f.bytes.Load() })
}

// fill fetches the files of the live releases that were left out, and are wanted now.
func (f *Follower) fill(ctx context.Context) error {
	for item, err := range f.Store.Scan(kvstore.Absent, kvstore.Range{}) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		pkg, version, _ := strings.Cut(string(item.Key), "\x00")
		if !f.wanted(pkg, version) {
			continue
		}
		page, err := logs.Read(f.Store, logs.Query{Package: pkg, Version: version, Kinds: append([]logs.Kind{logs.Restored, logs.Withdrawn}, logs.Publications...), Limit: 1})
		if err != nil {
			return err
		}
		if len(page.Entries) == 0 || page.Entries[0].Kind == logs.Withdrawn {
			continue
		}
		err = f.fillOne(ctx, f.coming(page.Entries[0], false))
		if _, partial := f.Source.(partialSource); partial && errors.Is(err, fs.ErrNotExist) {
			continue // a bundle of newer releases
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *Follower) fillOne(ctx context.Context, c *coming) error {
	defer c.pins.Release()
	if err := f.fetch(ctx, c); err != nil {
		return err
	}
	if err := f.Store.RemoveVerified(); err != nil { // the files are new, and their entry is not
		return fmt.Errorf("couldn't remove the record of the last deep check: %w", err)
	}
	if err := f.Log.Update(func(tx *logs.Tx) error { return f.views(tx.Batch, c) }); err != nil {
		return err
	}
	f.progress(f.Log.Checkpoint().Size)
	return nil
}
