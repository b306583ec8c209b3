package verify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
)

// The kinds of an [WatchEvent] that no entry has.
const (
	EventUnexpected = "unexpected" // a release that its authors may not have expected, in the place of its entry's kind
	EventSilent     = "silent"     // the log has not grown for a long time
	EventExpired    = "expired"    // nothing says that the log's checkpoint is the newest, or it was said too long ago
)

// An WatchEvent is something that a watcher tells, once.
type WatchEvent struct {
	// Kind is the entry's, such as "published" or "withdrawn", or one of "unexpected", "silent", "expired", "forked", "differs" and "stale".
	Kind string `json:"kind"`
	// Alarm tells that something may be wrong.
	Alarm   bool      `json:"alarm"`
	Server  string    `json:"server"`
	Time    time.Time `json:"time"`            // of the entry, or of the look
	Entry   *int64    `json:"entry,omitempty"` // its index, nil where it is about none
	Package string    `json:"package,omitempty"`
	Version string    `json:"version,omitempty"`
	Text    string    `json:"text"` // says it in a sentence
	// Evidence is the file that proves a fork.
	Evidence string `json:"evidence,omitempty"`
}

// WatchOptions say what a [Watcher] watches. Server, Known, State and Tell are required.
type WatchOptions struct {
	Server string
	// Packages are those whose releases count; none for all.
	Packages []string
	// Repository, where it is not "", is the URL of the one that all releases have to be built from.
	Repository string
	// Known is the file of known logs, and State the one that keeps where the last look ended.
	Known, State string
	// Verify has the trust, and what asks the server.
	Verify Options
	// Timeout bounds a look; default a minute. Silence is how long a log may not grow before that is told; default a week.
	Timeout, Silence time.Duration
	// Tell is called with each event; an error ends the watch.
	Tell func(WatchEvent) error
	// Note, where set, is told what is no event, but worth knowing: whose key is trusted, and that the server cannot be
	// asked, or can be again. A look that takes long has it called from another goroutine.
	Note func(string)
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// A Watcher watches one log. It is for one goroutine.
type Watcher struct {
	o     WatchOptions
	state watchState
	bytes int    // of state.Last in the file
	away  string // why the last look proved nothing
}

// slowCheck is how long a look takes before the watcher notes that it waits.
const slowCheck = 2 * time.Second

// A watchState is what is kept between looks.
type watchState struct {
	Format   int       `json:"format"`
	Server   string    `json:"server"`
	Packages []string  `json:"packages,omitempty"`
	Next     int64     `json:"next"`             // the first entry that is not told yet
	Grown    time.Time `json:"grown"`            // when the log was last seen to have grown
	Silent   bool      `json:"silent,omitempty"` // that it has not is told
	Told     string    `json:"told,omitempty"`   // what is wrong with the log itself, as it was told last
	// Cosigned is as of when the last checkpoint was vouched to be the newest, and Expired that it is reported to be too long ago.
	Cosigned time.Time `json:"cosigned,omitzero"`
	Expired  bool      `json:"expired,omitempty"`
	// Last is the newest publication of each package, with what [logs.Entry.Unexpected] looks at.
	Last map[string]logs.Entry `json:"last,omitempty"`
}

const (
	stateFormat  = 1
	maxState     = 64 << 20 // bytes
	mostPackages = 100_000  // of which the newest publication is kept
	mostLast     = 32 << 20 // bytes of those in the file
	// lookedBack is how many entries before the first look are read for what the packages' releases were like before.
	lookedBack = 4096
)

// WatchStateFile is where the state is kept of watching these packages of a server, unless the user says where.
func WatchStateFile(folder, server string, packages []string) string {
	sum := sha256.Sum256([]byte(server + "\n" + strings.Join(distinct(packages), "\n")))
	return filepath.Join(folder, fmt.Sprintf("watch-%x.json", sum[:8]))
}

// distinct returns names in order, each once.
func distinct(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

// OpenWatcher reads where the last look ended.
func OpenWatcher(o WatchOptions) (*Watcher, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Verify.Trust.Now = o.Now
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if o.Silence == 0 {
		o.Silence = 7 * 24 * time.Hour
	}
	if o.Note == nil {
		o.Note = func(string) {}
	}
	o.Packages, o.Repository = distinct(o.Packages), address(o.Repository)
	w := &Watcher{o: o}
	info, err := os.Stat(o.State)
	if errors.Is(err, fs.ErrNotExist) {
		w.state = watchState{Server: o.Server, Packages: o.Packages, Next: -1, Grown: o.Now(), Last: map[string]logs.Entry{}}
		return w, nil
	}
	if err == nil && info.Size() > maxState {
		err = fmt.Errorf("it has over %d bytes", maxState)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(o.State)
	}
	if err == nil {
		err = json.Unmarshal(data, &w.state)
	}
	switch {
	case err != nil:
	case w.state.Format != stateFormat:
		err = fmt.Errorf("its format is %d, and this larder knows %d", w.state.Format, stateFormat)
	case w.state.Server != o.Server || !slices.Equal(w.state.Packages, o.Packages):
		err = fmt.Errorf("it is for watching %s of %s", cmp.Or(strings.Join(w.state.Packages, ", "), "everything"), w.state.Server)
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't read where the last look ended, in %s: %w; restore it from a backup, or move it away to start watching from now on", o.State, err)
	}
	if w.state.Last == nil {
		w.state.Last = map[string]logs.Entry{}
	}
	for name, e := range w.state.Last {
		w.bytes += sizeOf(name, e)
	}
	return w, nil
}

// A WatchResult is what a look came to.
type WatchResult struct {
	Outcome Outcome // of the log: proven, or why nothing new is known of it
	Problem string
	Alarms  int // events that tell of something that may be wrong
}

// Run looks again and again until ctx ends, and returns nil then.
func (w *Watcher) Run(ctx context.Context, every time.Duration) error {
	for {
		found, err := w.Look(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		w.noteAway(found)
		if retry.Sleep(ctx, every) != nil {
			return nil // it is ctx that ended
		}
	}
}

// Look tells what happened since the last look. The error is for what cannot be told or kept, or that the caller has ended it.
func (w *Watcher) Look(ctx context.Context) (WatchResult, error) {
	known, err := ReadKnown(w.o.Known)
	if err != nil {
		return WatchResult{}, err
	}
	session := Session{Options: w.o.Verify, Known: known, Timeout: w.o.Timeout}
	waiting := time.AfterFunc(slowCheck, func() {
		w.o.Note(fmt.Sprintf("%s has not shown its log yet; a look takes up to %v", w.o.Server, w.o.Timeout))
	})
	seen, log, err := session.Log(ctx, w.o.Server)
	waiting.Stop()
	if err != nil {
		return WatchResult{}, err
	}
	if seen.FirstUse && log != nil {
		w.o.Note(fmt.Sprintf("trusting the key %s from now on, because it is the first that %s has shown; compare it with the one that the operator publishes, or give that with --key", seen.Key, w.o.Server))
	}
	found := WatchResult{Outcome: Proven}
	if seen.Outcome != "" {
		found.Outcome, found.Problem = seen.Outcome, seen.Problem
	}
	if log != nil && log.Unverified() == nil {
		w.state.Cosigned = log.Cosigned()
		limited, cancel := context.WithTimeout(ctx, w.o.Timeout)
		defer cancel()
		err := w.read(limited, log, &found)
		if ctx.Err() != nil || errors.As(err, new(*endError)) {
			return found, err
		}
		if err != nil {
			found.Outcome, found.Problem = OutcomeOf(err), err.Error()
		}
	}
	if err := w.judge(&found, seen.Evidence); err != nil {
		return found, err
	}
	return found, w.keep()
}

// noteAway tells that looks have begun, or ceased, to prove nothing.
func (w *Watcher) noteAway(found WatchResult) {
	away := ""
	if found.Outcome == Unproven {
		away = found.Problem
	}
	switch {
	case away != "" && w.away == "":
		w.o.Note("this look proves nothing: " + away)
	case away == "" && w.away != "":
		w.o.Note(w.o.Server + " shows its log again")
	}
	w.away = away
}

// judge tells what is wrong with the log itself, once.
func (w *Watcher) judge(found *WatchResult, evidence string) error {
	now := w.o.Now()
	wrong := ""
	switch found.Outcome {
	case Forked, Differs, Stale:
		wrong = string(found.Outcome)
	}
	if wrong != "" {
		found.Alarms++
	}
	if wrong != "" && wrong != w.state.Told {
		e := WatchEvent{Kind: wrong, Alarm: true, Time: now, Text: found.Problem, Evidence: evidence}
		if err := w.tell(e); err != nil {
			return err
		}
	}
	if found.Outcome != Unproven { // which says nothing of it
		w.state.Told = wrong
	}
	if err := w.judgeAge(found, now); err != nil {
		return err
	}
	quiet := now.Sub(w.state.Grown)
	if quiet < w.o.Silence {
		return nil
	}
	found.Alarms++
	if w.state.Silent {
		return nil
	}
	said := fmt.Sprintf("the log has had no new entry since %s", w.state.Grown.UTC().Format(time.RFC3339))
	if found.Problem != "" {
		said += "; the last look: " + found.Problem
	}
	w.state.Silent = true
	return w.tell(WatchEvent{Kind: EventSilent, Alarm: true, Time: now, Text: said})
}

// judgeAge reports once that the last checkpoint of the log may not be its newest: because the server replays an old one, because
// nothing signs the log, or because it cannot be reached.
func (w *Watcher) judgeAge(found *WatchResult, now time.Time) error {
	if w.state.Next < 0 { // no checkpoint was seen yet
		return nil
	}
	err := CheckAge(w.state.Cosigned, now, AlertAge)
	reported := w.state.Expired
	if w.state.Expired = err != nil; err == nil {
		return nil
	}
	found.Alarms++
	if reported {
		return nil
	}
	return w.tell(WatchEvent{Kind: EventExpired, Alarm: true, Time: now, Text: err.Error()})
}

// An endError ends the watch.
type endError struct{ error }

func (e *endError) Unwrap() error { return e.error }

// read tells of the entries that are new.
func (w *Watcher) read(ctx context.Context, log *Log, found *WatchResult) error {
	if w.state.Next < 0 { // the first look: what was before is only what later ones are compared with
		w.state.Next = log.Size()
		for at := max(0, log.Size()-lookedBack); at < log.Size(); {
			entries, err := log.Entries(ctx, at)
			if err != nil {
				w.state.Next = -1
				return err
			}
			for _, e := range entries {
				w.remember(e.Entry)
			}
			at = entries[len(entries)-1].Index + 1
		}
		w.state.Grown = w.o.Now()
	}
	for w.state.Next < log.Size() {
		entries, err := log.Entries(ctx, w.state.Next)
		if err != nil {
			return err
		}
		for _, e := range entries {
			event, ok := w.event(e)
			w.remember(e.Entry)
			if !ok {
				continue
			}
			if event.Alarm {
				found.Alarms++
			}
			if err := w.tell(event); err != nil {
				return err
			}
		}
		w.state.Next = entries[len(entries)-1].Index + 1
		w.state.Grown, w.state.Silent = w.o.Now(), false
		if err := w.keep(); err != nil {
			return err
		}
	}
	return nil
}

// watches reports whether an entry is about what is watched.
func (w *Watcher) watches(e logs.Entry) bool {
	return len(w.o.Packages) == 0 || e.Package == "" || slices.Contains(w.o.Packages, e.Package)
}

// event is what is told of an entry, which need not be of interest.
func (w *Watcher) event(e logs.Indexed) (WatchEvent, bool) {
	if !slices.Contains(logs.News, e.Kind) && !e.Policy.Weakens() || !w.watches(e.Entry) {
		return WatchEvent{}, false
	}
	event := WatchEvent{
		Kind: string(e.Kind), Alarm: e.Kind.Alarming(), Time: e.Time, Entry: &e.Index, Package: e.Package, Version: e.Version,
		Text: e.News(),
	}
	if why := w.unexpected(e.Entry); why != "" {
		event.Kind, event.Alarm = EventUnexpected, true
		event.Text += "; its authors may not have expected it: " + why
	}
	return event, true
}

// address returns a repository's URL as it is in a browser, however npm's or git's spelling of it is.
func address(repository string) string {
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(repository, "git+"), "/"), ".git")
}

// unexpected says why a release may not be one that its authors expect, or "".
func (w *Watcher) unexpected(e logs.Entry) string {
	if !e.Kind.Publishes() {
		return ""
	}
	if want := w.o.Repository; want != "" && (e.Provenance == nil || e.Provenance.Outcome != logs.AttestationVerified || !strings.EqualFold(address(e.Provenance.Repository), want)) {
		return "nothing proves that it was built from " + want
	}
	before, ok := w.state.Last[e.Package]
	if !ok {
		return ""
	}
	return e.Unexpected(before)
}

// remember keeps what later releases are compared with.
func (w *Watcher) remember(e logs.Entry) {
	if !e.Kind.Publishes() || !w.watches(e) {
		return
	}
	before, ok := w.state.Last[e.Package]
	if !ok && len(w.state.Last) >= mostPackages {
		return
	}
	kept := logs.Entry{Kind: e.Kind, Package: e.Package, Version: e.Version, Signature: e.Signature.Short()}
	if e.Provenance != nil {
		kept.Provenance = &logs.Provenance{Outcome: e.Provenance.Outcome, Repository: text.Short(e.Provenance.Repository, 300)}
	}
	bytes := w.bytes + sizeOf(e.Package, kept)
	if ok {
		bytes -= sizeOf(e.Package, before)
	}
	if bytes > mostLast {
		return
	}
	w.bytes, w.state.Last[e.Package] = bytes, kept
}

// sizeOf is how many bytes the newest publication of a package has in the file. The names in it are the server's, as long
// as that likes.
func sizeOf(name string, e logs.Entry) int {
	data, err := json.Marshal(map[string]logs.Entry{name: e})
	if err != nil {
		return mostLast + 1 // it could not be kept
	}
	return len(data)
}

func (w *Watcher) tell(e WatchEvent) error {
	e.Server = w.o.Server
	if err := w.o.Tell(e); err != nil {
		return &endError{fmt.Errorf("couldn't tell what happened: %w", err)}
	}
	return nil
}

// keep writes where the look ended.
func (w *Watcher) keep() error {
	w.state.Format = stateFormat
	data, err := json.Marshal(w.state)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(w.o.State), 0o700)
	}
	if err == nil {
		err = disk.Replace(w.o.State, data, 0o600)
	}
	if err != nil {
		return &endError{fmt.Errorf("couldn't keep where the look ended: %w", err)}
	}
	return nil
}
