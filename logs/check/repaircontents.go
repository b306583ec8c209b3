package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/views"
)

// contentsAtOnce is how many contents are repaired at the same time.
const contentsAtOnce = 8

// contentRepair has every content that the log names, and that was not erased, be there and be
// sound.
type contentRepair struct {
	*engine
	size   int64                   // of the log when the repair began
	pins   *kvstore.Pins           // what was lost: others must not erase or collect it before the end
	jsons  map[string]kvstore.Hash // the package JSON in force, by package
	memory replication.Budget
	group  *errgroup.Group

	mu sync.Mutex
	// tried has the contents that are there or are being repaired, with nil, and those that no source has, with the reason.
	tried map[kvstore.Hash]error
	// queue has the keys of [kvstore.Queue] that are written at the end: encodings and deltas to make or fetch again.
	queue [][]byte
}

// newContents returns a repair of the contents that the first size entries of the log name. The caller releases its pins at the end.
func (e *engine) newContents(size int64) *contentRepair {
	return &contentRepair{engine: e, size: size, pins: e.store.Pin(), memory: replication.NewBudget(), tried: make(map[kvstore.Hash]error)}
}

// repairDocuments repairs the contents that the log's entries name themselves, such as manifests and package JSONs. One that no source has is
// recorded as lost, and is no error.
func (c *contentRepair) repairDocuments(ctx context.Context) error {
	return c.forEachEntry(ctx, "documents", func(ctx context.Context, e logs.Indexed) {
		for _, h := range e.Contents() {
			c.startRepair(ctx, replication.Wanted{Hash: h, Limit: logs.MaxManifest, Entry: e})
		}
	})
}

// repairFiles repairs the files of all releases, except those that were erased and releases that a mirror leaves out. A file that no source has is
// recorded as lost, and is no error.
func (c *contentRepair) repairFiles(ctx context.Context) error {
	erased, err := readErasures(ctx, c.store, 0)
	if err != nil {
		return err
	}
	return c.forEachEntry(ctx, "files", func(ctx context.Context, e logs.Indexed) {
		if !e.Kind.Serves() {
			return
		}
		if absent, err := views.IsAbsent(c.store, e.Package, e.Version); absent && err == nil {
			return // a mirror leaves it out
		}
		m, err := logs.ReadManifest(c.store, e.Manifest)
		if err != nil {
			return // it is listed as lost
		}
		for i := range m.Files {
			file := &m.Files[i]
			if !erased.has(e, file.SHA256) {
				c.startRepair(ctx, replication.Wanted{Hash: file.SHA256, Limit: file.Size, Entry: e, Manifest: m, File: file})
			}
		}
	})
}

// forEachEntry calls fn for each entry of the log, and then waits until the repairs that fn has started are done. Before each call it updates
// c.jsons, the package JSONs in force. step is the name under which it reports progress.
func (c *contentRepair) forEachEntry(ctx context.Context, step string, fn func(context.Context, logs.Indexed)) error {
	c.jsons = make(map[string]kvstore.Hash)
	var inner context.Context
	c.group, inner = errgroup.WithContext(ctx)
	c.group.SetLimit(contentsAtOnce)
	var n int64
	for e, err := range logs.Entries(c.store, 0) {
		if err != nil {
			return errors.Join(c.group.Wait(), err)
		}
		if inner.Err() != nil {
			break
		}
		switch e.Kind {
		case logs.PackageAdded, logs.PackageChanged:
			c.jsons[e.Package] = e.PackageJSON
		}
		fn(inner, e)
		n++
		c.reportProgress(step, n, c.size)
	}
	if err := c.group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// startRepair starts the repair of a content in the background, unless one is running, has succeeded or found the content sound. One that found no
// source is repeated, since w may name another place of the content. It waits if too many are running.
func (c *contentRepair) startRepair(ctx context.Context, w replication.Wanted) {
	c.mu.Lock()
	why, tried := c.tried[w.Hash]
	c.tried[w.Hash] = nil
	c.mu.Unlock()
	if tried && why == nil {
		return
	}
	json := c.jsons[w.Entry.Package]
	w.PackageJSON = func() ([]byte, error) {
		if json == (kvstore.Hash{}) {
			return nil, fmt.Errorf("%s was never added to the log: %w", w.Entry.Package, fs.ErrNotExist)
		}
		return c.store.Identity(json)
	}
	c.group.Go(func() error {
		release, err := c.memory.Take(ctx, w)
		if err != nil {
			return err
		}
		defer release()
		return c.repairContent(ctx, w)
	})
}

// repairContent restores one content from its sound encodings or from a source, and counts that. It reports a content that has sound encodings, and
// in place also one that a source sent. It collects the rows that queue missing encodings and deltas. If no source has the content, it records why
// and returns no error. A content that was erased since the repair began stays erased.
func (c *contentRepair) repairContent(ctx context.Context, w replication.Wanted) error {
	dropped, err := c.store.RepairContent(w.Hash)
	switch {
	case err == nil && len(dropped) == 0:
		return nil
	case err == nil:
		c.updateResult(func(r *RepairResult) { r.Damaged++ })
		c.addFinding(Finding{Kind: Content, Where: describeContent(w), Problem: fmt.Sprintf("damaged in %v, and sound in another coding", dropped), Repaired: true})
		return nil
	case !errors.Is(err, kvstore.ErrCorrupt) && !errors.Is(err, kvstore.ErrNotFound):
		return err
	}
	problem := err
	_, _ = c.pins.Has(w.Hash) // from now on it is not erased
	if erased, err := readErasures(ctx, c.store, c.size); err != nil || erased.has(w.Entry, w.Hash) {
		return err // erased after the repair began, beside a process that runs
	}
	source, identity, found, err := c.fetchContent(ctx, w)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tried[w.Hash] = errors.Join(problem, err)
		return nil
	}
	if err := c.storeContent(w.Hash, identity, found, errors.Is(problem, kvstore.ErrNotFound)); err != nil {
		return err
	}
	c.mu.Lock()
	if !found.Squeezed {
		c.queue = append(c.queue, append(bytes.Clone(kvstore.Repaired), w.Hash[:]...))
	}
	for _, dictionary := range found.Dictionaries {
		c.queue = append(c.queue, kvstore.QueuedDeltaKey(w.Entry.Time, w.Hash, dictionary))
	}
	c.mu.Unlock()
	if c.isDamagedStore(source) {
		c.updateResult(func(r *RepairResult) { r.Carried++ })
		return nil
	}
	c.updateResult(func(r *RepairResult) { r.useOf(source).Contents++; r.useOf(source).Bytes += int64(len(identity)) })
	if c.result.Damage == "" { // else there would be a line for everything
		c.addFinding(Finding{Kind: Content, Where: describeContent(w), Problem: problem.Error() + "; fetched from " + source.Name(), Repaired: true})
	}
	return nil
}

// storeContent stores a content with the encodings that a source had. absent says that the store had nothing of it; then the write does not wait for
// the disk.
func (c *contentRepair) storeContent(h kvstore.Hash, identity []byte, found replication.Found, absent bool) error {
	size := int64(len(identity))
	if absent {
		return c.store.PutContent(h, size, found.Squeezed, found.Coded)
	}
	if err := c.store.RestoreContent(h, identity); err != nil {
		return err
	}
	return c.store.ImproveContent(h, size, found.Squeezed, found.Coded)
}

// fetchContent returns a content from the first source that has it: its own bytes, and its verified encodings. The error says why each source does
// not.
func (c *contentRepair) fetchContent(ctx context.Context, w replication.Wanted) (Source, []byte, replication.Found, error) {
	var failed []error
	for _, s := range c.sources {
		identity, found, err := replication.Fetch(ctx, s, w)
		if err == nil {
			return s, identity, found, nil
		}
		if ctx.Err() != nil {
			return nil, nil, replication.Found{}, ctx.Err()
		}
		if !c.isDamagedStore(s) {
			failed = append(failed, fmt.Errorf("%s: %w", s.Name(), err))
		}
	}
	if failed == nil {
		failed = append(failed, errNoSource)
	}
	return nil, nil, replication.Found{}, errors.Join(failed...)
}

var errNoSource = errors.New("no source was given")

// describeContent returns a content's hash and the place that needs it, for messages.
func describeContent(w replication.Wanted) string { return fmt.Sprintf("%s (%s)", w.Hash, placeOf(w)) }

// placeOf returns the place that needs a content, for messages: for a file the path of its URL (/ajax/libs/...), not encoded, and else the entry,
// with its index, kind, package and version.
func placeOf(w replication.Wanted) string {
	if w.File != nil {
		return "/ajax/libs/" + fileName(w.Entry, w.File)
	}
	return fmt.Sprintf("entry %d (%s %s %s)", w.Entry.Index, w.Entry.Kind, w.Entry.Package, w.Entry.Version)
}

// queueEncodings writes the queue rows for encodings and deltas that have to be made or fetched again, because the restored contents lack them.
func (c *contentRepair) queueEncodings() error {
	w := newRowWriter(c.store, rowsPerCommit)
	defer func() { w.batch.Close() }()
	for _, key := range c.queue {
		if err := w.replace(kvstore.Queue, kvstore.Item{Key: key}, true); err != nil {
			return err
		}
	}
	return w.commit()
}

// repairDeltas deletes the damaged deltas of an open store, also those that lack their content or dictionary, queues them to be made or fetched
// again, and reports each.
func (c *contentRepair) repairDeltas(ctx context.Context) error {
	return c.store.DamagedDeltas(ctx, true, func(d kvstore.DamagedDelta) error {
		c.addFinding(Finding{Kind: Content, Where: placeOfDelta(d), Problem: d.String(), Repaired: true})
		return c.store.RepairDelta(d)
	})
}

// listLost lists in the result every place that needs a content which no source has.
func (c *contentRepair) listLost(ctx context.Context) error {
	maps.DeleteFunc(c.tried, func(_ kvstore.Hash, why error) bool { return why == nil })
	if len(c.tried) == 0 {
		return nil
	}
	return forEachContent(ctx, c.store, c.store, func(e logs.Indexed, h kvstore.Hash, file *logs.File) {
		if why, lost := c.tried[h]; lost {
			c.addLost(h, Lost{Where: placeOf(replication.Wanted{Entry: e, File: file}), Problem: oneLine(why)})
		}
	})
}

// forEachContent calls fn for each content that an entry of the log names itself, without a file, and for each file of each publication. It reads
// manifests from store, and skips those that cannot be read.
func forEachContent(ctx context.Context, log kvstore.Reader, store *kvstore.Store, fn func(e logs.Indexed, h kvstore.Hash, file *logs.File)) error {
	for e, err := range logs.Entries(log, 0) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		for _, h := range e.Contents() {
			fn(e, h, nil)
		}
		if !e.Kind.Publishes() {
			continue
		}
		m, err := logs.ReadManifest(store, e.Manifest)
		if err != nil {
			continue
		}
		for i := range m.Files {
			fn(e, m.Files[i].SHA256, &m.Files[i])
		}
	}
	return nil
}

// erasures are the contents that were erased and not published again.
type erasures struct {
	contents map[kvstore.Hash]struct{}
	unknown  map[release]struct{} // releases whose lists of erased contents cannot be read
}

// has reports whether the content h, which the entry e names, was erased, or may have been because the list of erased contents is lost.
func (x erasures) has(e logs.Indexed, h kvstore.Hash) bool {
	_, gone := x.contents[h]
	_, unknown := x.unknown[release{e.Package, e.Version}]
	return gone || unknown
}

// readErasures returns which contents the entries from the index from on erase, without those that a later entry publishes again. A list of erased
// contents that cannot be read makes its release unknown, without an error.
func readErasures(ctx context.Context, store *kvstore.Store, from int64) (erasures, error) {
	x := erasures{unknown: make(map[release]struct{})}
	erased, err := views.ScanErasures(ctx, store, logs.Entries(store, from), func(e logs.Indexed, _ error) error {
		if e.Kind == logs.Erased {
			x.unknown[release{e.Package, e.Version}] = struct{}{}
		}
		return nil
	})
	x.contents = erased
	return x, err
}
