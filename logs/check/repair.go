package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
)

// A Source may have what the store has lost. If it is a [replication.Log] too, it may have the end of the log.
type Source = replication.Contents

// RepairOptions say what is repaired, and with what.
type RepairOptions struct {
	// Data is the data folder, whose folder store is repaired. Required for [Repair].
	Data string
	// Keys is the key folder, which has the last signed checkpoint; "" for none.
	Keys string
	// Mark is that of [kvstore.Options], "" for none.
	Mark string
	// Sources are queried for lost data, in this order.
	Sources []Source
	// AcceptLoss has the log go on under a new origin, with a new key, where nothing has the
	// end of it that was signed. Of [Repair] only.
	AcceptLoss bool
	// Shared: the folder is that of a node of a cluster, whose bucket has the schedules and webhooks too.
	Shared bool
	// Temp is a folder for the views that are compared with. Default: the system's.
	Temp string
	// CacheBytes is that of [kvstore.Options].
	CacheBytes int64
	// Logger gets what goes wrong on the way. Default: none.
	Logger *slog.Logger
	// Built, if set, is called with a new store, which has what could be carried over of the
	// damaged one: that may be older than what others know.
	Built func(*kvstore.Store) error
	// Report, if set, is called for each thing that was wrong, one call at a time.
	Report func(Finding)
	// Progress, if set, is called now and then, one call at a time.
	Progress func(RepairProgress)
	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// setDefaults replaces a nil Logger, Report, Progress and Now by defaults.
func (o *RepairOptions) setDefaults() {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Report == nil {
		o.Report = func(Finding) {}
	}
	if o.Progress == nil {
		o.Progress = func(RepairProgress) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// RepairProgress is how far a repair is.
type RepairProgress struct {
	Step string `json:"step"`
	Done int64  `json:"done"`
	Of   int64  `json:"of"`
}

// A RepairResult says what was repaired, and what could not be.
type RepairResult struct {
	// Summary is that of the check at the end. It counts what was repaired before, too.
	Summary
	// Damage is why a new store was built, "" where the store was repaired in place.
	Damage string `json:"damage,omitempty"`
	// Kept is where the damaged store is now.
	Kept string `json:"kept,omitempty"`
	// Finished says that an earlier repair was interrupted, and what was done about it.
	Finished string `json:"finished,omitempty"`
	Carried  int64  `json:"carried,omitempty"`         // contents that the damaged store still had
	Damaged  int64  `json:"damagedContents,omitempty"` // contents of which some encodings were damaged
	Tail     int64  `json:"tail,omitempty"`            // entries that were not signed yet and that the damaged store still had
	// Sources says what each of the sources gave.
	Sources []Use `json:"sources,omitempty"`
	// Lost is the data that could not be repaired.
	Lost []Lost `json:"lost,omitempty"`
	// NotCarried are rows that are in no log, and that the damaged store has lost.
	NotCarried []string `json:"notCarried,omitempty"`
	// Succession is the log that goes on in the place of this one, whose end is lost.
	Succession *signing.Succession `json:"succession,omitempty"`
	Seconds    float64             `json:"seconds"`
}

// Use is how much data a source supplied.
type Use struct {
	Name     string `json:"name"`
	Entries  int64  `json:"entries"`
	Contents int64  `json:"contents"`
	Bytes    int64  `json:"bytes"`    // of the contents' identities
	Requests int64  `json:"requests"` // 0 for a folder
	Received int64  `json:"received"` // bytes of responses
}

// Lost is one thing that could not be repaired.
type Lost struct {
	Where   string `json:"where"` // the path of a file's URL, or an entry of the log
	Problem string `json:"problem"`
}

// Err returns an error that says how much could not be repaired and what would help; nil if everything that was found is repaired.
func (r *RepairResult) Err() error {
	n := int(r.Findings - r.Repaired)
	if n <= 0 {
		return nil
	}
	what := text.Count(n, "thing is", "things are") + " wrong and cannot be made again from the log"
	switch {
	case len(r.Lost) == 0:
		return errors.New(what)
	case len(r.Sources) > 0:
		return fmt.Errorf("%s, nor do these sources have it: %s; another source may have what these lack: another Larder, a backup, or upstream; what was imported by hand has to be imported from where it came", what, text.Count(len(r.Lost), "is lost", "are lost"))
	}
	return fmt.Errorf("%s: %s; name a source that has it: --from URL of another Larder, --from DIR of a backup, --from bucket of a cluster, --from upstream", what, text.Count(len(r.Lost), "is lost", "are lost"))
}

// useOf returns the counts of a source in the result, by its name, for the caller to increase. It adds them if they are missing. The pointer is valid
// until useOf adds another source.
func (r *RepairResult) useOf(s Source) *Use {
	for i := range r.Sources {
		if r.Sources[i].Name == s.Name() {
			return &r.Sources[i]
		}
	}
	r.Sources = append(r.Sources, Use{Name: s.Name()})
	return &r.Sources[len(r.Sources)-1]
}

// engine is one repair of one store.
type engine struct {
	RepairOptions
	start  time.Time
	store  *kvstore.Store
	log    *logs.Log
	signed logs.Checkpoint // zero if nothing was signed
	// accepting says that the end of what was signed, which former has, is lost for good.
	accepting bool
	former    logs.Checkpoint
	beside    bool          // a process reads the damaged store meanwhile, and swaps later
	damaged   *damagedStore // what a scan has found of the store while a new one is built, else nil
	sources   []Source      // all of them, damaged first

	// unsure is why it is not known whether a source has an entry.
	unsure error

	mu     sync.Mutex
	result RepairResult
	gone   map[kvstore.Hash]struct{} // contents in result.Lost
	shown  time.Time
}

// newEngine returns the engine of one repair with the options o, in which it sets defaults. It has no store yet.
func newEngine(o RepairOptions) *engine {
	o.setDefaults()
	return &engine{RepairOptions: o, start: o.Now(), sources: o.Sources, gone: make(map[kvstore.Hash]struct{})}
}

// restoreKeys reads into e.signed which checkpoint was signed last, from the key folder; not if the loss of signed entries was accepted. It restores
// a damaged verifier key in the folder, and a lost checkpoint from the newest of notes, which are signed checkpoints, and reports that as findings.
// Without a key folder it does nothing.
func (e *engine) restoreKeys(notes iter.Seq[[]byte]) error {
	if e.Keys == "" {
		return nil
	}
	restored, err := signing.RepairFolder(e.Keys, notes, e.beside)
	for _, what := range restored {
		e.addFinding(Finding{Kind: Key, Where: e.Keys, Problem: what, Repaired: true})
	}
	if err != nil {
		return fmt.Errorf("couldn't learn what was signed, without which nothing can be compared: %w", err)
	}
	signed, key, err := signing.ReadFolder(e.Keys)
	if err != nil && (key != "" || !errors.Is(err, fs.ErrNotExist)) {
		return fmt.Errorf("couldn't learn what was signed, without which nothing can be compared: %w", err)
	}
	if !e.accepting {
		e.signed = signed.Checkpoint
	}
	return nil
}

// finishResult completes the result of the repair by the traffic of each source and the duration, and returns it.
func (e *engine) finishResult() RepairResult {
	for _, s := range e.RepairOptions.Sources {
		u := e.result.useOf(s)
		if s, ok := s.(interface {
			Spent() (requests, bytes int64)
		}); ok {
			u.Requests, u.Received = s.Spent()
		}
	}
	e.result.Seconds = e.Now().Sub(e.start).Seconds()
	return e.result
}

// updateResult calls fn with the result under the lock.
func (e *engine) updateResult(fn func(*RepairResult)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fn(&e.result)
}

// addFinding counts a finding in the result and reports it. runFinalCheck adds the counts of the check at the end to these, so that check must not
// report the same finding again.
func (e *engine) addFinding(f Finding) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.result.Findings++
	if f.Repaired {
		e.result.Repaired++
	}
	e.Report(f)
}

// addLost lists a content as lost in the result, and reports it as a finding.
func (e *engine) addLost(h kvstore.Hash, l Lost) {
	e.gone[h] = struct{}{}
	e.result.Lost = append(e.result.Lost, l)
	e.addFinding(Finding{Kind: Content, Where: fmt.Sprintf("%s (%s)", h, l.Where), Problem: l.Problem})
}

// reportProgress calls [RepairOptions.Progress] with how far a step is: done of of, at most five times a second and at its end.
func (e *engine) reportProgress(step string, done, of int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := time.Now(); done == of || now.Sub(e.shown) > 200*time.Millisecond {
		e.shown = now
		e.Progress(RepairProgress{step, done, of})
	}
}

// runFinalCheck calls run, which checks the store, and adds its summary to the result. It leaves out findings about contents that are listed as lost,
// and about a loss that the operator accepts. It returns the findings that are not repaired.
func (e *engine) runFinalCheck(run func(report func(Finding)) (Summary, error)) ([]Finding, error) {
	var left []Finding
	before, repaired := e.result.Findings, e.result.Repaired
	var twice int64
	summary, err := run(func(f Finding) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if f.Kind == Content && e.isLostContent(f.Where) || e.accepting && f.Kind == Checkpoint {
			twice++
			return
		}
		if !f.Repaired {
			left = append(left, f)
		}
		e.Report(f)
	})
	summary.Findings += before - twice
	summary.Repaired += repaired
	e.result.Summary = summary
	return left, err
}

// isLostContent reports whether a finding's place, where, begins with the hash of a content that is listed as lost.
func (e *engine) isLostContent(where string) bool {
	hash, _, _ := strings.Cut(where, " ")
	h, err := kvstore.ParseHash(hash)
	if err != nil {
		return false
	}
	_, ok := e.gone[h]
	return ok
}

// checkOptions returns the options of the check at the end of a repair; deep has it decode all contents.
func (e *engine) checkOptions(deep bool) Options {
	return Options{Keys: e.Keys, Temp: e.Temp, Deep: deep, Progress: func(p Progress) { e.reportProgress("checking", p.Entries, p.Of) }}
}

// oneLine returns the text of an error on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// The folders in a data folder.
const (
	storeName    = "store"
	buildingName = "store.repairing" // a new store that is being built
	readyName    = "store.repaired"  // one that was checked and is about to take its place
	keptPattern  = "store.damaged-"  // what a new one has replaced, with the time in keptTime
)

// path returns the path of the file or folder with this name in the data folder.
func (o *RepairOptions) path(name string) string { return filepath.Join(o.Data, name) }

// storeOptions returns the options with which a repair opens the store in the folder with this name in the data folder. Only the present store has a
// mark file.
func (o *RepairOptions) storeOptions(name string, readOnly bool) kvstore.Options {
	options := kvstore.Options{CacheBytes: o.CacheBytes, Logger: o.Logger, ReadOnly: readOnly}
	if name == storeName {
		options.Mark = o.Mark
	}
	return options
}

// Repair repairs the store of a data folder that no process has open: in place, or by building a new one, which takes its place. It first completes a
// repair that was interrupted. With AcceptLoss it gives up signed entries that no source has, unless a source failed that may have them, and starts a
// new log that succeeds this one. It returns the result with an error too, as far as it got.
func Repair(ctx context.Context, o RepairOptions) (RepairResult, error) {
	e := newEngine(o)
	err := os.MkdirAll(o.Data, 0o700)
	if err == nil {
		e.result.Finished, err = FinishRepair(o.Data, o.Mark)
	}
	if err == nil {
		err = e.repair(ctx)
	}
	if e.AcceptLoss && errors.As(err, new(*LossError)) {
		if e.unsure != nil {
			return e.finishResult(), fmt.Errorf("nothing is given up while a source may have it: %w; run the repair again when the source responds, or without that source", e.unsure)
		}
		err = e.acceptLoss(ctx)
	}
	return e.finishResult(), err
}

// runSteps calls the steps of a check or a repair, up to the first that returns an error, and returns that.
func runSteps(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// repair repairs the store of the data folder in place if that is possible, and then deletes a new store that an interrupted repair has left.
// Otherwise it builds a new one.
func (e *engine) repair(ctx context.Context) error {
	why, err := e.findDamage(ctx)
	if why == nil && err == nil {
		why, err = e.openInPlace(ctx)
		if why == nil && err == nil {
			err = os.RemoveAll(e.path(buildingName)) // of an earlier repair, when more was damaged
		}
	}
	if why == nil || err != nil {
		return err
	}
	return e.rebuild(ctx, why)
}
