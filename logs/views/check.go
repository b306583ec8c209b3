package views

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
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
	// Progress, where set, is called after each entry of the log.
	Progress func(entries, of int64)
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
// and calls report for whatever disagrees. It works on a snapshot, so a process
// that serves and publishes meanwhile does not disturb it. The error is for what
// kept it from checking.
func Check(ctx context.Context, store *kvstore.Store, o CheckOptions, report func(Finding)) (CheckSummary, error) {
	snapshot := store.Snapshot()
	defer snapshot.Close()
	again, err := kvstore.Open(o.Scratch, kvstore.Options{})
	if err != nil {
		return CheckSummary{}, fmt.Errorf("views: couldn't open a second store to compare with: %w", err)
	}
	defer again.Close()
	c := &check{
		options: o, store: store, snapshot: snapshot, report: report,
		again: again, batch: again.NewBatch(), seen: make(map[kvstore.Hash]struct{}),
		live: make(map[[2]string]int64),
	}
	defer func() { c.batch.Close() }()
	err = c.run(ctx)
	return c.summary, err
}

// check is one run of Check.
type check struct {
	options  CheckOptions
	store    *kvstore.Store
	snapshot *kvstore.Snapshot
	again    *kvstore.Store // the views, built anew
	report   func(Finding)
	batch    *kvstore.Batch // for again; committed now and then, because each commit waits for the disk
	seen     map[kvstore.Hash]struct{}
	live     map[[2]string]int64 // published versions and the entry that did it
	pending  int                 // rows in batch, about
	summary  CheckSummary
}

// rowsPerCommit bounds the memory that the second set of views waits in.
const rowsPerCommit = 50_000

func (c *check) found(what, where, format string, args ...any) {
	c.summary.Findings++
	c.report(Finding{What: what, Where: where, Problem: fmt.Sprintf(format, args...)})
}

func (c *check) run(ctx context.Context) error {
	checkpoint, err := logs.Verify(c.snapshot)
	if err != nil {
		c.found("log", "tree", "%v", err)
	}
	for e, err := range logs.Entries(c.snapshot, 0) {
		if err != nil {
			c.found("log", "entries", "%v", err)
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		c.summary.Entries++
		if err := c.entry(e); err != nil {
			return err
		}
		if c.options.Progress != nil {
			c.options.Progress(c.summary.Entries, checkpoint.Size)
		}
	}
	if err := c.commit(); err != nil {
		return err
	}
	for _, ns := range []kvstore.Namespace{kvstore.Files, kvstore.SRIs, kvstore.Versions, kvstore.Packages} {
		if err := c.compare(ctx, ns); err != nil {
			return err
		}
	}
	if err := c.states(); err != nil {
		return err
	}
	return c.orphans()
}

// entry checks the contents that an entry names and adds its rows to the second
// set of views.
func (c *check) entry(e logs.Indexed) error {
	change, err := Load(c.store, e)
	if err != nil {
		c.found("content", fmt.Sprintf("entry %d", e.Index), "%v", err)
		return nil
	}
	for _, h := range []kvstore.Hash{e.PackageJSON, e.Manifest} {
		if h != (kvstore.Hash{}) {
			c.content(h, nil)
		}
	}
	id := [2]string{e.Package, e.Version}
	if e.Kind == logs.Withdrawn {
		delete(c.live, id)
	}
	if e.Kind == logs.Published {
		if first, ok := c.live[id]; ok {
			c.found("log", fmt.Sprintf("entry %d", e.Index), "%s %s was published already, by entry %d", e.Package, e.Version, first)
		}
		c.live[id] = e.Index
		c.pending += 2 * len(change.Manifest.Files)
		c.summary.Releases++
		for i := range change.Manifest.Files {
			c.summary.Files++
			c.content(change.Manifest.Files[i].SHA256, &change.Manifest.Files[i])
		}
	}
	if err := Apply(c.batch, change); err != nil {
		c.found("log", fmt.Sprintf("entry %d", e.Index), "%v", err)
	}
	if c.pending++; c.pending >= rowsPerCommit {
		return c.commit()
	}
	return nil
}

// commit makes the second set of views readable up to here.
func (c *check) commit() error {
	err := c.batch.Commit()
	c.batch.Close()
	c.pending = 0
	c.batch = c.again.NewBatch()
	return err
}

// content checks one content, once. file is a manifest's line about it, or nil.
func (c *check) content(h kvstore.Hash, file *logs.File) {
	if _, ok := c.seen[h]; ok {
		return
	}
	c.seen[h] = struct{}{}
	c.summary.Contents++
	where := h.String()
	if file != nil {
		where += " (" + file.Path + ")"
	}
	content, err := c.store.Content(h)
	if err != nil {
		c.found("content", where, "%v", err)
		return
	}
	if file != nil && content.Size != file.Size {
		c.found("content", where, "the manifest says %d bytes, the store %d", file.Size, content.Size)
	}
	if !c.options.Deep {
		return
	}
	for _, r := range content.Representations {
		_, coded, err := c.store.Coded(h, r.Coding)
		if err != nil {
			// A coding that was replaced meanwhile is read again as it is now.
			c.found("content", where, "%s: %v", r.Coding, err)
			continue
		}
		identity, err := coding.Decode(r.Coding, coded, content.Size)
		switch {
		case err != nil:
			c.found("content", where, "%s does not decode: %v", r.Coding, err)
		case kvstore.Sum(identity) != h:
			c.found("content", where, "%s decodes to other bytes, of hash %s", r.Coding, kvstore.Sum(identity))
		case file != nil && logs.SumSRI(identity) != file.SRI:
			c.found("content", where, "the integrity in the manifest is %s, that of the bytes %s", file.SRI, logs.SumSRI(identity))
		}
	}
}

// compare holds one namespace of the views against the second set.
func (c *check) compare(ctx context.Context, ns kvstore.Namespace) error {
	nextHave, stopHave := iter.Pull2(c.snapshot.Scan(ns, kvstore.Range{}))
	defer stopHave()
	nextWant, stopWant := iter.Pull2(c.again.Scan(ns, kvstore.Range{}))
	defer stopWant()
	have, haveErr, haveOK := nextHave()
	want, wantErr, wantOK := nextWant()
	for haveOK || wantOK {
		if err := errors.Join(wantErr, ctx.Err()); err != nil {
			return err
		}
		if haveErr != nil {
			c.found("view", string(ns), "%v", haveErr)
			return nil
		}
		order := 0
		switch {
		case !haveOK:
			order = 1
		case !wantOK:
			order = -1
		default:
			order = bytes.Compare(have.Key, want.Key)
		}
		switch {
		case order < 0:
			c.found("view", rowName(ns, have.Key), "no entry of the log explains this row")
		case order > 0:
			c.found("view", rowName(ns, want.Key), "the row is missing")
		case !bytes.Equal(have.Value, want.Value):
			c.found("view", rowName(ns, have.Key), "the row differs from what the log says")
		}
		if order <= 0 {
			have, haveErr, haveOK = nextHave()
		}
		if order >= 0 {
			want, wantErr, wantOK = nextWant()
		}
	}
	return nil
}

// states checks that a version is said to be published, refused or withdrawn
// exactly where the log says so.
func (c *check) states() error {
	want, err := States(c.again, "")
	if err != nil {
		return err
	}
	byVersion := make(map[[2]string]StateKind, len(want))
	for _, s := range want {
		byVersion[[2]string{s.Package, s.Version}] = s.Kind
	}
	have, err := States(c.snapshot, "")
	if err != nil {
		c.found("state", "all", "%v", err)
		return nil
	}
	for _, s := range have {
		id := [2]string{s.Package, s.Version}
		kind := byVersion[id]
		delete(byVersion, id)
		if (s.Kind.Final() || kind.Final()) && s.Kind != kind {
			c.found("state", s.Package+" "+s.Version, "the state is %q, the log says %q", s.Kind, kind)
		}
	}
	for id, kind := range byVersion {
		c.found("state", id[0]+" "+id[1], "the state is missing, the log says %q", kind)
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

// rowName is a row's key as an operator would write it.
func rowName(ns kvstore.Namespace, key []byte) string {
	names := map[kvstore.Namespace]string{
		kvstore.Files: "files", kvstore.SRIs: "sris", kvstore.Versions: "versions", kvstore.Packages: "packages",
	}
	return names[ns] + "/" + string(bytes.ReplaceAll(key, []byte{0}, []byte{'/'}))
}
