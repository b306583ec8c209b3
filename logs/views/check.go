package views

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// CheckOptions says how Check works.
type CheckOptions struct {
	// Deep decodes every stored coding of every content and hashes the bytes
	// again; without it, Check sees that each content is there.
	Deep bool
	// Scratch is an empty folder in which the views are built a second time. It
	// takes about as much space as they do.
	Scratch string
	// Workers is how many contents a deep check decodes at once. Default: one for
	// each processor.
	Workers int
	// Progress, where set, is called after each entry of the log.
	Progress func(entries, of int64)
	// Decoded, where set, is called after each content that a deep check has
	// decoded, with its size. Calls may overlap.
	Decoded func(bytes int64)
}

// A Finding is one thing that Check found wrong.
type Finding struct {
	What    string `json:"what"`  // "log", "content", "view" or "state"
	Where   string `json:"where"` // which entry, content or row
	Problem string `json:"problem"`
}

// A CheckSummary counts what Check looked at.
type CheckSummary struct {
	Entries  int64 `json:"entries"`
	Releases int64 `json:"releases"`
	Files    int64 `json:"files"`
	Contents int64 `json:"contents"` // distinct
	Orphans  int64 `json:"orphans"`  // contents that nothing names: harmless leftovers of interrupted releases
	Findings int64 `json:"findings"`
}

// Check holds the log, the contents and the views in store against each other
// and calls report for whatever disagrees, once at a time. It works on a snapshot,
// so a process that serves and publishes meanwhile does not disturb it. The error
// is for what kept it from checking.
func Check(ctx context.Context, store *kvstore.Store, o CheckOptions, report func(Finding)) (CheckSummary, error) {
	snapshot := store.Snapshot()
	defer snapshot.Close()
	again, err := newSecond(o.Scratch)
	if err != nil {
		return CheckSummary{}, err
	}
	defer again.close()
	c := &check{
		options: o, store: store, snapshot: snapshot, report: report, again: again, seen: make(map[kvstore.Hash]struct{}),
		live: make(map[release]standingEntry), gone: make(map[kvstore.Hash]string), damaged: make(map[kvstore.Hash]string),
	}
	if c.options.Workers <= 0 {
		c.options.Workers = runtime.GOMAXPROCS(0)
	}
	c.decoding.SetLimit(c.options.Workers)
	err = c.run(ctx)
	c.decoding.Wait() // harmless where it was waited for
	return c.summary, err
}

// check is one run of Check.
type check struct {
	options  CheckOptions
	store    *kvstore.Store
	snapshot *kvstore.Snapshot
	again    *second
	seen     map[kvstore.Hash]struct{}
	live     map[release]standingEntry
	decoding errgroup.Group

	mu      sync.Mutex // of what follows, while there is decoding
	report  func(Finding)
	gone    map[kvstore.Hash]string // files' contents that are not in the store, and which they are
	damaged map[kvstore.Hash]string // contents of which something was told, and which they are
	summary CheckSummary
}

// A standingEntry is the last entry that made a release served or not.
type standingEntry struct {
	index     int64
	withdrawn bool
}

func (c *check) found(what, where, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.summary.Findings++
	c.report(Finding{What: what, Where: where, Problem: fmt.Sprintf(format, args...)})
}

func (c *check) run(ctx context.Context) error {
	checkpoint, err := logs.Verify(c.snapshot)
	if err != nil {
		c.found("log", "tree", "%v", err)
	}
	for e, err := range logs.Entries(c.snapshot, 0) {
		if err := ctx.Err(); err != nil {
			return err
		}
		c.summary.Entries++
		if err != nil { // the others may be as they were; where none can be read any more, this is the last
			c.found("log", "entries", "%v", err)
			continue
		}
		if err := c.entry(ctx, e); err != nil {
			return err
		}
		if c.options.Progress != nil {
			c.options.Progress(c.summary.Entries, checkpoint.Size)
		}
	}
	c.decoding.Wait()
	if err := errors.Join(ctx.Err(), c.again.commit()); err != nil {
		return err
	}
	if err := c.sharers(ctx); err != nil {
		return err
	}
	for _, view := range names {
		if err := c.compare(ctx, view.ns); err != nil {
			return err
		}
	}
	if err := c.missing(ctx); err != nil {
		return err
	}
	return c.orphans()
}

// entry checks the contents that an entry names and adds its rows to the second
// set of views.
func (c *check) entry(ctx context.Context, e logs.Indexed) error {
	change, err := Load(c.store, e)
	if err != nil {
		c.found("content", fmt.Sprintf("entry %d", e.Index), "%v", err)
		return nil
	}
	for _, h := range e.Contents() {
		c.content(ctx, h, fmt.Sprintf("named by entry %d, %s", e.Index, label(e)), nil)
	}
	c.order(e)
	if e.Kind == logs.Published {
		c.summary.Releases++
		for i := range change.Manifest.Files {
			c.summary.Files++
			file := &change.Manifest.Files[i]
			c.content(ctx, file.SHA256, fileName(e, file), file)
		}
	}
	if err := c.again.apply(change); err != nil {
		c.found("log", fmt.Sprintf("entry %d", e.Index), "%v", err)
	}
	return c.again.relieve()
}

// order checks that what an entry does to a release could be done to it then.
func (c *check) order(e logs.Indexed) {
	id := release{e.Package, e.Version}
	before, known := c.live[id]
	served := known && !before.withdrawn
	wrong := func(format string, args ...any) {
		c.found("log", fmt.Sprintf("entry %d", e.Index), "%s %s "+format, append([]any{e.Package, e.Version}, args...)...)
	}
	switch e.Kind {
	case logs.Published:
		if served {
			wrong("was published already, by entry %d", before.index)
		}
	case logs.Withdrawn:
		if !served {
			wrong("is withdrawn without being served")
		}
	case logs.Restored, logs.Erased:
		if served || !known {
			wrong("is %s without being withdrawn before", e.Kind)
		}
	}
	switch e.Kind {
	case logs.Published, logs.Restored:
		c.live[id] = standingEntry{index: e.Index}
	case logs.Withdrawn:
		c.live[id] = standingEntry{index: e.Index, withdrawn: true}
	}
}

// compare holds one namespace of the views against the second set.
func (c *check) compare(ctx context.Context, ns kvstore.Namespace) error {
	_, err := compare(ctx, c.snapshot, c.again, ns, func(d difference) error {
		f := d.finding()
		c.found(f.What, f.Where, "%s", f.Problem)
		return nil
	})
	if damaged := (unreadable{}); errors.As(err, &damaged) {
		c.found("view", viewName(ns), "%v", damaged)
		return nil
	}
	return err
}

// missing tells of files' contents that are not in the store, unless they were
// erased and nothing that is served needs them. Contents are read as they are now
// and not from the snapshot, so the log is too.
func (c *check) missing(ctx context.Context) error {
	if len(c.gone) == 0 {
		return nil
	}
	erased, _, err := standing(ctx, c.store, c.store)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err != nil {
		erased = nil // which entry is wrong has been told
	}
	for _, h := range slices.SortedFunc(maps.Keys(c.gone), func(a, b kvstore.Hash) int { return bytes.Compare(a[:], b[:]) }) {
		if _, ok := erased[h]; !ok {
			c.found("content", c.gone[h], "it is not in the store, and no entry says that it was erased")
			delete(c.gone, h)
		}
	}
	if len(c.gone) == 0 {
		return nil
	}
	for item, err := range c.store.Scan(kvstore.Files, kvstore.Range{}) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		f, err := decodeFile(item.Value)
		if err != nil {
			continue // told by compare
		}
		if _, gone := c.gone[f.Hash]; gone {
			c.found("content", f.Hash.String(), "%s is served, and its content was erased", rowName(kvstore.Files, item.Key))
			delete(c.gone, f.Hash)
		}
	}
	return nil
}

// orphans counts the contents that no entry names.
func (c *check) orphans() error {
	for item, err := range c.snapshot.Scan(kvstore.Contents, kvstore.Range{}) {
		if err != nil {
			c.found("content", "all", "%v", err)
			return nil
		}
		if len(item.Key) != len(kvstore.Hash{}) {
			c.found("content", fmt.Sprintf("%x", item.Key), "the key is not a hash")
			continue
		}
		if _, ok := c.seen[kvstore.Hash(item.Key)]; !ok {
			c.summary.Orphans++
		}
	}
	return nil
}
