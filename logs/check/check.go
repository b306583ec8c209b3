// Package check checks everything in a data folder, and repairs it: the rows of the store, the log against its tree and
// against what was signed, the contents that the log names, and the views.
//
// [Run] reports everything that it finds wrong, so that one run reports all. It works on a snapshot, so a process may
// publish meanwhile, and writes nothing but the record of a deep check. It trusts neither the store nor the key folder: a
// log that was rewritten from its first entry on agrees with itself, and only a [Seen] checkpoint that is stored elsewhere
// reveals it.
//
// A repair stores a content only if it has its hash, and an entry only if the tree over all of them has the root that was
// signed, whatever a [Source] sends. If the store's tables, MANIFEST and write-ahead log are sound, it works in place,
// beside a process too ([RepairInPlace]). Otherwise it scans the bytes of all files, builds a new store beside the damaged
// one, checks that deeply and swaps the two ([Repair]). The damaged store is kept. Erased contents do not come back, the
// same log continues with the same key, and what cannot be repaired is listed. An interrupted repair is completed by the
// next.
//
// The package must not know how a process runs, how the log is served, nor how results are shown.
package check

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// Options say what is checked, and against what.
type Options struct {
	// Deep decodes every coding of every content and hashes the bytes again. Without
	// it, only the rows that describe a content are checked.
	Deep bool
	// Record has a deep check that finds nothing wrong record in the store's folder up to which signed checkpoint it has
	// verified everything. The next one starts there. Any check that finds something wrong removes the record.
	Record bool
	// All has a deep check start at the first entry, whatever was recorded.
	All bool
	// Keys is the key folder, "" for none.
	Keys string
	// Seen is the checkpoint of an earlier run, the zero value for none.
	Seen logs.Checkpoint
	// Temp is the folder in which the views are built a second time, for as long as
	// the run takes. They need about as much space there as in the store. It is made
	// if it is missing. If nothing can be written to it, or its disk is almost full, they are built in memory,
	// and a run that needs more than 256 MiB of it returns an error. Default: the system's.
	Temp string
	// Workers is how many contents a deep check decodes at once. Default: one for
	// each processor.
	Workers int
	// Progress, if set, is called now and then, one call at a time.
	Progress func(Progress)
}

// Progress is how far a run is.
type Progress struct {
	Entries int64 `json:"entries"` // of the log
	Of      int64 `json:"of"`
	Decoded int64 `json:"decoded,omitempty"` // bytes of contents
}

// Options.Progress is called after so many entries, and after so many decoded bytes.
const (
	entriesPerProgress = 256
	bytesPerProgress   = 16 << 20
)

// A Kind says what a finding is about.
type Kind string

// The kinds of findings.
const (
	Store      Kind = "store"      // rows of the store that cannot be read
	Log        Kind = "log"        // entries, the tree over them, and what they say of releases
	Checkpoint Kind = "checkpoint" // what was signed, or seen by an earlier run
	Key        Kind = "key"        // a file of the key folder
	Content    Kind = "content"    // a content that the log names
	View       Kind = "view"       // a row that has to follow from the log
	State      Kind = "state"      // such a row that says how far a version has come
)

// A Finding is one thing that is wrong.
type Finding struct {
	Kind     Kind   `json:"kind"`
	Where    string `json:"where"` // which entry, content, row or checkpoint
	Problem  string `json:"problem"`
	Repaired bool   `json:"repaired,omitempty"` // by a repair
}

// A Summary counts what was checked, and names what it was checked against.
type Summary struct {
	Entries  int64  `json:"entries"`
	Releases int64  `json:"releases"`
	Files    int64  `json:"files"`
	Contents int64  `json:"contents"` // distinct
	Orphans  int64  `json:"orphans"`  // contents that nothing names: harmless leftovers of interrupted releases
	Rows     int64  `json:"rows"`     // of the views, that follow from the log
	Views    []Rows `json:"views"`
	Findings int64  `json:"findings"`
	Repaired int64  `json:"repaired"` // of the findings
	// Sound says that tree and entries are as they were hashed, and continue what was
	// signed and seen.
	Sound bool `json:"sound"`
	// Checkpoint is that of the log, to be kept as Seen if Sound is true.
	Checkpoint logs.Checkpoint `json:"checkpoint"`
	// KeyMissing says that the log was signed and the key folder has no key: what was
	// signed is not known, so the log is not sound, whatever else is right.
	KeyMissing bool `json:"keyMissing,omitempty"`
	// Signed is the size of the last signed checkpoint, 0 without one.
	Signed int64  `json:"signed"`
	Origin string `json:"origin,omitempty"` // the log's name in the signature
	// Seen is the size of Options.Seen.
	Seen int64 `json:"seen"`
	// Since is how many entries an earlier deep check has verified, with everything that follows from them. This one did not
	// check them again.
	Since int64 `json:"since,omitempty"`
	// Verified is how many signed entries the next deep check may skip, and Unrecorded why that could not be recorded.
	Verified   int64  `json:"verified,omitempty"`
	Unrecorded string `json:"unrecorded,omitempty"`
}

// Rows counts the rows of one view.
type Rows struct {
	View        string `json:"view"`
	Rows        int64  `json:"rows"`        // that follow from the log
	Missing     int64  `json:"missing"`     // of those, rows that are not there
	Differing   int64  `json:"differing"`   // and rows that say something else
	Unexplained int64  `json:"unexplained"` // rows that are there and do not follow from the log
}

// Run checks everything in store, on a snapshot, and calls report for each thing that is wrong, one call at a time. The error says what kept it from
// checking. It changes only the record of a deep check, with Options.Record.
func Run(ctx context.Context, store *kvstore.Store, o Options, report func(Finding)) (Summary, error) {
	return run(ctx, store, o, false, report)
}

// ReplaceViews checks as [Run] does and replaces each row of the views that differs from
// the log. Rows that the log does not determine stay: states of releases that are
// being made, that failed or that wait for another attempt.
//
// If the log is damaged, or a content is missing that the views follow from, it
// replaces nothing and returns an error. Rows are replaced in batches, each all or
// nothing, so after a crash some are replaced, and another call completes it.
// The caller must be the only user of the store, and readers must read again.
func ReplaceViews(ctx context.Context, store *kvstore.Store, o Options, report func(Finding)) (Summary, error) {
	return run(ctx, store, o, true, report)
}

// ErrUnderivable is that of [ReplaceViews] where the log is damaged, or a content that the views follow from.
var ErrUnderivable = errors.New("the views cannot be made again, and nothing was changed")

// run checks a store, as [Run] does, and if repair is true also replaces its views, as [ReplaceViews] does. It returns the summary so far with an
// error, too.
func run(ctx context.Context, store *kvstore.Store, o Options, repair bool, report func(Finding)) (_ Summary, err error) {
	derived, err := newDerivedViews(o.Temp)
	if err != nil {
		return Summary{}, err
	}
	defer func() { err = errors.Join(err, derived.close()) }()
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	c := &check{
		options: o, store: store, derived: derived, report: report,
		seen: make(map[kvstore.Hash]struct{}), live: make(map[release]standing), recalled: make(map[release]struct{}),
		gone: make(map[kvstore.Hash]string), damaged: make(map[kvstore.Hash]string),
		summary:  Summary{Sound: true, Seen: o.Seen.Size},
		replayed: replayed{live: logs.NewLiveMap(), last: -1},
	}
	if repair {
		c.repair = newRowWriter(store, rowsPerReplacement)
		defer func() { c.repair.batch.Close() }()
	}
	// The checkpoint is read before the snapshot is taken, so the snapshot has all
	// that was signed.
	signed := c.readSigned()
	c.snapshot = store.Snapshot()
	defer c.snapshot.Close()
	c.decoding.SetLimit(o.Workers)
	c.summary.Since = c.verifiedEntries(signed)
	err = c.run(ctx, signed, c.summary.Since)
	c.decoding.Wait() // returns at once unless the check failed
	if err == nil && o.Record {
		c.writeRecord(signed)
	}
	return c.summary, err
}

// check is one run.
type check struct {
	options  Options
	store    *kvstore.Store
	snapshot *kvstore.Snapshot
	derived  *derivedViews
	repair   *rowWriter // nil for Run
	seen     map[kvstore.Hash]struct{}
	live     map[release]standing
	recalled map[release]struct{} // the releases that changed since an earlier check
	decoding errgroup.Group
	// underivable is why the views cannot be made from the log, nil if they can.
	underivable error
	replayed    replayed

	mu       sync.Mutex // of what follows, while there is decoding
	report   func(Finding)
	gone     map[kvstore.Hash]string // files' contents that are not in the store, and which they are
	damaged  map[kvstore.Hash]string // contents that were reported, and which they are
	progress Progress
	summary  Summary
}

type release struct{ pkg, version string }

// A standing is the last entry that made a release served or not.
type standing struct {
	index       int64
	withdrawn   bool
	actor       string       // of that entry
	published   int64        // the entry that published it first
	manifest    kvstore.Hash // of that entry; a later one must have the same
	provisional bool         // only another origin vouched for it
}

// reportf counts and reports a finding; format and args are its problem.
func (c *check) reportf(kind Kind, where, format string, args ...any) {
	c.addFinding(Finding{Kind: kind, Where: where, Problem: fmt.Sprintf(format, args...)})
}

// addFinding counts a finding, and reports it by calling c.report under the lock. A finding about the log or a checkpoint makes the log unsound.
func (c *check) addFinding(f Finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.summary.Findings++
	if f.Repaired {
		c.summary.Repaired++
	}
	if f.Kind == Log || f.Kind == Checkpoint {
		c.summary.Sound = false
	}
	c.report(f)
}

// reportUnderivable reports a finding because of which the views cannot be made from the log, so that a repair does not replace them.
func (c *check) reportUnderivable(kind Kind, where string, err error) {
	c.reportf(kind, where, "%v", err)
	if c.underivable == nil {
		c.underivable = err
	}
}

// run checks the entries from the index from on and everything that they change: contents, views, and the map of live releases; with 0 also deltas,
// contents that nothing names, and the rows that no other check reads. With an index above 0, what it reads does not depend on how many entries there
// are before. signed is the last signed checkpoint, which the log must continue. Findings are no error. A repair returns [ErrUnderivable] before it
// replaces anything if the views cannot be made.
func (c *check) run(ctx context.Context, signed logs.Checkpoint, from int64) error {
	c.reportDamagedFiles()
	if from == 0 {
		if err := c.readOtherRows(ctx); err != nil {
			return err
		}
	}
	if err := c.checkEntries(ctx, from); err != nil {
		return err
	}
	c.checkContinues("signed", "the last signed checkpoint", signed)
	c.checkContinues("seen", "the checkpoint that was seen before", c.options.Seen)
	if c.repair != nil && c.underivable != nil {
		return fmt.Errorf("%w: %w", ErrUnderivable, c.underivable)
	}
	if err := runSteps(ctx, c.reportSharedFiles, c.compareViews); err != nil {
		return err
	}
	if from > 0 {
		return runSteps(ctx, c.compareChangedLive, c.reportMissing)
	}
	return runSteps(ctx, c.compareLive, c.reportMissing, c.checkDeltas, c.countOrphans)
}

// reportDamagedFiles reports what is wrong with the store's files, if it was opened read-only although it is damaged.
func (c *check) reportDamagedFiles() {
	if damage := c.store.Damage(); damage != nil {
		for _, f := range damage.Findings {
			c.reportf(Store, f.File, "%s", f)
		}
	}
}

// readOtherRows reads the namespaces that no other check reads, except kvstore.Renderings, which is a cache, and reports those that cannot be read.
func (c *check) readOtherRows(ctx context.Context) error {
	for _, part := range []struct {
		ns   kvstore.Namespace
		name string
	}{{kvstore.Absent, "absent releases"}, {kvstore.Durable, "durable objects"}, {kvstore.LogState, "state of the log"}, {kvstore.Meta, "settings"}, {kvstore.Queue, "queue"}, {kvstore.Upstreams, "upstreams"}, {kvstore.Usage, "usage"}} {
		for _, err := range c.snapshot.Scan(part.ns, kvstore.Range{}) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				c.reportf(Store, part.name, "%v", err)
				break
			}
		}
	}
	return nil
}

// checkEntries checks the tree over the log, the entries from the index from on and the contents that they name, and builds the second set of views
// from them. It waits until all contents are decoded.
func (c *check) checkEntries(ctx context.Context, from int64) error {
	var err error
	if c.summary.Checkpoint, err = logs.ReadCheckpoint(c.snapshot); err != nil {
		c.reportf(Checkpoint, "state", "%v", err)
	}
	verified, err := logs.VerifyFrom(c.snapshot, from)
	if err != nil {
		c.reportUnderivable(Log, "tree", err)
	}
	for e, err := range logs.Entries(c.snapshot, from) {
		if err := ctx.Err(); err != nil {
			return err
		}
		c.summary.Entries++
		if err != nil { // the entries behind it may be readable; if not, this is the last
			c.reportUnderivable(Log, "entries", err)
			continue
		}
		if from > 0 {
			err = c.replayEarlier(ctx, e, from)
		} else {
			err = c.checkLiveRoot(e)
		}
		if err = errors.Join(err, c.checkEntry(ctx, e)); err != nil {
			return err
		}
		c.mu.Lock()
		c.progress.Entries, c.progress.Of = c.summary.Entries, verified.Size-from
		c.mu.Unlock()
		if c.progress.Entries%entriesPerProgress == 1 || c.progress.Entries == c.progress.Of {
			c.reportProgress()
		}
	}
	c.decoding.Wait()
	if c.options.Deep {
		c.reportProgress()
	}
	return errors.Join(ctx.Err(), c.derived.commit())
}

// reportProgress calls [Options.Progress], if it is set, with the present progress.
func (c *check) reportProgress() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.options.Progress != nil {
		c.options.Progress(c.progress)
	}
}

// checkEntry checks an entry: whether its change was possible at that point, the contents that it names and, if it publishes a release, its files and
// their root. It counts releases and files, and adds the entry's rows to the second set of views. If a content that the views need cannot be read, it
// reports that, and only adds the entry's rows of the index.
func (c *check) checkEntry(ctx context.Context, e logs.Indexed) error {
	where := fmt.Sprintf("entry %d", e.Index)
	change, err := views.Load(c.store, e)
	if err != nil {
		c.reportUnderivable(Content, where, err)
		logs.AddToIndex(c.derived.batch, e.Index, e.Entry) // which needs no content
		return c.derived.countAdded(4)
	}
	for _, h := range e.Contents() {
		c.checkContent(ctx, h, fmt.Sprintf("named by entry %d, %s", e.Index, describeEntry(e)), nil)
	}
	c.checkOrder(e)
	if e.Kind.Publishes() {
		if root := change.Manifest.Root(); root != e.Files {
			c.reportf(Log, where, "the root of the files is %s, and those of its manifest make %s", e.Files, root)
		}
		c.summary.Releases++
	}
	// A mirror may have had none of the files when the publication was verified.
	if e.Kind.Publishes() || c.summary.Since > 0 && e.Kind.Serves() {
		for i := range change.Manifest.Files {
			if change.Absent {
				break
			}
			c.summary.Files++
			file := &change.Manifest.Files[i]
			c.checkContent(ctx, file.SHA256, fileName(e, file), file)
		}
	}
	if err := c.derived.apply(change); err != nil {
		c.reportUnderivable(Log, where, err)
	}
	return c.derived.commitIfLarge()
}

// checkOrder checks that the entry's change was possible at that point, and reports it if not: only a served release is withdrawn, or one that
// another actor withdrew, only a withdrawn one restored or erased, and a release that comes back has the files that it had. It then records whether
// the release is served.
func (c *check) checkOrder(e logs.Indexed) {
	id := release{e.Package, e.Version}
	before, known := c.live[id]
	served := known && !before.withdrawn
	wrong := func(format string, args ...any) {
		c.reportf(Log, fmt.Sprintf("entry %d", e.Index), "%s %s "+format, append([]any{e.Package, e.Version}, args...)...)
	}
	switch e.Kind {
	case logs.Replaced:
		if served || !before.provisional {
			wrong("takes the place of files that were not withdrawn, or not those of an origin that alone vouched for them")
		}
	case logs.Confirmed:
		if !served || !before.provisional || e.Manifest != before.manifest {
			wrong("is confirmed without being served as only another origin had it")
		}
	case logs.Published, logs.Mirrored:
		if served {
			wrong("was published already, by entry %d", before.index)
		}
		if known && !served && e.Manifest != before.manifest {
			wrong("was published with other files, by entry %d", before.published)
		}
	case logs.Withdrawn:
		if !served && (!known || e.Actor == before.actor) {
			wrong("is withdrawn without being served")
		}
	case logs.Restored, logs.Erased:
		if served || !known {
			wrong("is %s without being withdrawn before", e.Kind)
		}
		if known && e.Kind == logs.Restored && e.Manifest != before.manifest {
			wrong("is restored with other files than entry %d published", before.published)
		}
	}
	c.updateStanding(e)
}

// updateStanding records in c.live whether the entry's release is served after it.
func (c *check) updateStanding(e logs.Indexed) {
	id := release{e.Package, e.Version}
	before, known := c.live[id]
	switch e.Kind {
	case logs.Published, logs.Mirrored, logs.Confirmed, logs.Replaced, logs.Withdrawn, logs.Restored:
		if !known || e.Kind == logs.Replaced {
			before.published, before.manifest = e.Index, e.Manifest
		}
		before.index, before.withdrawn, before.actor, before.provisional = e.Index, e.Kind == logs.Withdrawn, e.Actor, e.Mirror.Provisional()
		c.live[id] = before
	}
}
