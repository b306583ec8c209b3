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

// The kinds of a [WatchEvent] that no entry has.
const (
	EventUnexpected = "unexpected" // a release that its authors may not have expected; replaces its entry's kind
	EventSilent     = "silent"     // the log has not grown for a long time
	EventExpired    = "expired"    // the newest cosignature of the log's checkpoint is too old, or none has a time
)

// A WatchEvent is something that a watcher reports once.
type WatchEvent struct {
	// Kind is the entry's, such as "published" or "withdrawn", or one of "unexpected", "silent", "expired", "forked", "differs" and "stale".
	Kind string `json:"kind"`
	// Alarm says that something may be wrong.
	Alarm   bool      `json:"alarm"`
	Server  string    `json:"server"`
	Time    time.Time `json:"time"`            // of the entry, or of the poll
	Entry   *int64    `json:"entry,omitempty"` // its index; nil for an event about the log
	Package string    `json:"package,omitempty"`
	Version string    `json:"version,omitempty"`
	Text    string    `json:"text"` // a sentence that describes the event
	// Evidence is the path of the file that proves a fork.
	Evidence string `json:"evidence,omitempty"`
}

// WatchOptions say what a [Watcher] watches. Server, Known, State and OnEvent are required.
type WatchOptions struct {
	Server string
	// Packages are those whose releases are reported; none for all.
	Packages []string
	// Repository, if it is not "", is the URL of the repository that all releases have to be built from.
	Repository string
	// Known is the path of the file of known logs, and State that of the file with the position of the last poll.
	Known, State string
	// Verify has the trust, and the client for requests.
	Verify Options
	// Timeout bounds a poll; default a minute. Silence is how long a log may not grow before that is reported; default a week.
	Timeout, Silence time.Duration
	// OnEvent is called with each event; an error ends the watch.
	OnEvent func(WatchEvent) error
	// OnNotice, where set, is called with notices that are not events: which key is trusted, and that the log stops or starts being
	// verifiable. During a long poll, it is called from another goroutine.
	OnNotice func(string)
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// A Watcher watches one log. It is for one goroutine.
type Watcher struct {
	options WatchOptions
	state   watchState
	bytes   int    // of state.Last in the file
	away    string // why the last poll proved nothing
}

// slowPoll is how long a poll takes before the watcher sends a notice that it waits.
const slowPoll = 2 * time.Second

// A watchState is the state that is stored between polls.
type watchState struct {
	Format   int       `json:"format"`
	Server   string    `json:"server"`
	Packages []string  `json:"packages,omitempty"`
	Next     int64     `json:"next"`             // the first entry that is not reported yet
	Grown    time.Time `json:"grown"`            // when the log was last seen to have grown
	Silent   bool      `json:"silent,omitempty"` // silence is reported
	Reported string    `json:"told,omitempty"`   // the problem of the log itself that was reported last
	// Cosigned is the time as of which the last checkpoint is vouched to be the newest. Expired says that its age is reported.
	Cosigned time.Time `json:"cosigned,omitzero"`
	Expired  bool      `json:"expired,omitempty"`
	// Last is the newest publication of each package, with what [logs.Entry.Unexpected] compares.
	Last map[string]logs.Entry `json:"last,omitempty"`
}

const (
	stateFormat      = 1
	maxState         = 64 << 20 // bytes
	maxStatePackages = 100_000  // whose newest publication is stored
	maxStateBytes    = 32 << 20 // bytes of the publications in the file
	// firstPollEntries is how many entries the first poll reads, to compare later releases with those in them.
	firstPollEntries = 4096
)

// WatchStateFile returns the default path, in a folder, of the file with the state of watching these packages of a server;
// no packages stand for all. The order of the packages does not matter.
func WatchStateFile(folder, server string, packages []string) string {
	sum := sha256.Sum256([]byte(server + "\n" + strings.Join(sortUnique(packages), "\n")))
	return filepath.Join(folder, fmt.Sprintf("watch-%x.json", sum[:8]))
}

// sortUnique returns names in order, each once.
func sortUnique(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

// OpenWatcher returns a watcher with the state that the last poll has stored. Without a state file, its first poll starts
// at the end that the log then has. A state file that is malformed, or is for another server or other packages, is an
// error. It sends no request and writes nothing.
func OpenWatcher(o WatchOptions) (*Watcher, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Verify.Trust.Now = o.Now
	o.Timeout, o.Silence = cmp.Or(o.Timeout, time.Minute), cmp.Or(o.Silence, 7*24*time.Hour)
	if o.OnNotice == nil {
		o.OnNotice = func(string) {}
	}
	o.Packages, o.Repository = sortUnique(o.Packages), trimRepositoryURL(o.Repository)
	w := &Watcher{options: o}
	data, err := disk.ReadAtMost(o.State, maxState)
	if errors.Is(err, fs.ErrNotExist) {
		w.state = watchState{Server: o.Server, Packages: o.Packages, Next: -1, Grown: o.Now(), Last: map[string]logs.Entry{}}
		return w, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &w.state)
	}
	switch {
	case len(data) > maxState:
		err = fmt.Errorf("it has over %d bytes", maxState)
	case err != nil:
	case w.state.Format != stateFormat:
		err = fmt.Errorf("its format is %d, and this larder knows %d", w.state.Format, stateFormat)
	case w.state.Server != o.Server || !slices.Equal(w.state.Packages, o.Packages):
		err = fmt.Errorf("it is for watching %s of %s", cmp.Or(strings.Join(w.state.Packages, ", "), "everything"), w.state.Server)
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't read the position of the last poll in %s: %w; restore the file from a backup, or move it away to start watching from now on", o.State, err)
	}
	if w.state.Last == nil {
		w.state.Last = map[string]logs.Entry{}
	}
	for name, e := range w.state.Last {
		w.bytes += encodedSize(name, e)
	}
	return w, nil
}

// A WatchResult is the result of a poll.
type WatchResult struct {
	Outcome Outcome // of the log: proven, or why nothing new is known about it
	Problem string
	Alarms  int // number of alarms in the new entries, and of present problems of the log, also those that were reported before
}

// Run polls the log at once and then every time the interval has passed after a poll, until ctx ends, and then returns nil.
// It sends a notice when polls begin or cease to prove nothing. A log that cannot be verified does not end it; an error of
// [Watcher.Poll] does.
func (w *Watcher) Run(ctx context.Context, every time.Duration) error {
	for {
		found, err := w.Poll(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		w.notifyAvailability(found)
		if retry.Sleep(ctx, every) != nil {
			return nil // it is ctx that ended
		}
	}
}

// Poll reports what happened in the log since the last poll, and stores the position. A log that cannot be verified is no
// error: the WatchResult says so. The error says that the known logs, or the evidence of a fork, could not be read or
// written, that an event could not be reported, that the state could not be stored, or that the caller has ended ctx.
// Events after the stored position are reported again by a later Watcher.
func (w *Watcher) Poll(ctx context.Context) (WatchResult, error) {
	known, err := ReadKnown(w.options.Known)
	if err != nil {
		return WatchResult{}, err
	}
	session := Session{Options: w.options.Verify, Known: known, Timeout: w.options.Timeout}
	waiting := time.AfterFunc(slowPoll, func() {
		w.options.OnNotice(fmt.Sprintf("%s has not sent its log yet; a poll takes up to %v", w.options.Server, w.options.Timeout))
	})
	seen, log, err := session.OpenLog(ctx, w.options.Server)
	waiting.Stop()
	if err != nil {
		return WatchResult{}, err
	}
	if seen.FirstUse && log != nil {
		w.options.OnNotice(fmt.Sprintf("trusting the key %s from now on, because it is the first that %s has sent; compare it with the one that the operator publishes, or give that with --key", seen.Key, w.options.Server))
	}
	found := WatchResult{Outcome: Proven}
	if seen.Outcome != "" {
		found.Outcome, found.Problem = seen.Outcome, seen.Problem
	}
	if log != nil && log.Unverified() == nil {
		w.state.Cosigned = log.Cosigned()
		limited, cancel := context.WithTimeout(ctx, w.options.Timeout)
		defer cancel()
		err := w.readEntries(limited, log, &found)
		if ctx.Err() != nil || errors.As(err, new(*reportError)) {
			return found, err
		}
		if err != nil {
			found.Outcome, found.Problem = OutcomeOf(err), err.Error()
		}
	}
	if err := w.reportProblems(&found, seen.Evidence); err != nil {
		return found, err
	}
	return found, w.saveState()
}

// notifyAvailability sends a notice when polls begin to be [Unproven], and when they cease to. found is the result of a
// poll.
func (w *Watcher) notifyAvailability(found WatchResult) {
	away := ""
	if found.Outcome == Unproven {
		away = found.Problem
	}
	switch {
	case away != "" && w.away == "":
		w.options.OnNotice("this poll proves nothing: " + away)
	case away == "" && w.away != "":
		w.options.OnNotice(w.options.Server + " has its log again")
	}
	w.away = away
}

// reportProblems reports what is wrong with the log itself, each problem once until it ends: a fork, a difference, an old
// state, age (the checkpoint may not be the newest), and silence (no new entry for Options.Silence, whether or not the
// server answers). It counts every present one in found.Alarms. evidence is the path of the file that proves a fork, or "".
// The error says that an event could not be reported; it ends the watch.
func (w *Watcher) reportProblems(found *WatchResult, evidence string) error {
	now := w.options.Now()
	wrong := ""
	switch found.Outcome {
	case Forked, Differs, Stale:
		wrong = string(found.Outcome)
	}
	if wrong != "" {
		found.Alarms++
	}
	if wrong != "" && wrong != w.state.Reported {
		e := WatchEvent{Kind: wrong, Alarm: true, Time: now, Text: found.Problem, Evidence: evidence}
		if err := w.report(e); err != nil {
			return err
		}
	}
	if found.Outcome != Unproven { // which says nothing of it
		w.state.Reported = wrong
	}
	if err := w.reportAge(found, now); err != nil {
		return err
	}
	quiet := now.Sub(w.state.Grown)
	if quiet < w.options.Silence {
		return nil
	}
	said := fmt.Sprintf("the log has had no new entry since %s", w.state.Grown.UTC().Format(time.RFC3339))
	if found.Problem != "" {
		said += "; the last poll: " + found.Problem
	}
	return w.reportOnce(found, &w.state.Silent, WatchEvent{Kind: EventSilent, Time: now, Text: said})
}

// reportOnce counts an alarm in found, and reports the event, as one that needs attention, unless *reported says that this
// was done before. It sets *reported first, so this Watcher does not repeat a report that failed. It does not store the
// state.
func (w *Watcher) reportOnce(found *WatchResult, reported *bool, e WatchEvent) error {
	found.Alarms++
	if *reported {
		return nil
	}
	*reported, e.Alarm = true, true
	return w.report(e)
}

// reportAge reports once that the last checkpoint of the log may not be its newest: because the server replays an old one,
// because nothing signs the log, or because the server is unreachable. It counts that in found.Alarms at every poll. Once
// the age is in order, it may report again. It does nothing before the first checkpoint was seen. The error says that the
// event could not be reported.
func (w *Watcher) reportAge(found *WatchResult, now time.Time) error {
	if w.state.Next < 0 { // no checkpoint was seen yet
		return nil
	}
	err := CheckAge(w.state.Cosigned, now, AlertAge)
	if err == nil {
		w.state.Expired = false
		return nil
	}
	return w.reportOnce(found, &w.state.Expired, WatchEvent{Kind: EventExpired, Time: now, Text: err.Error()})
}

// A reportError ends the watch: an event or the state is lost.
type reportError struct{ error }

func (e *reportError) Unwrap() error { return e.error }

// readEntries reports the events in the log's new entries, counts the alarms in found, and stores the position after each
// 1,024 entries or fewer. The first poll reports no entry: it sets the position to the log's end, and only reads what later
// entries are compared with, from the last 4,096. A reportError ends the watch; any other error says that entries could not
// be read or verified.
func (w *Watcher) readEntries(ctx context.Context, log *Log, found *WatchResult) error {
	if w.state.Next < 0 {
		w.state.Next = log.Size()
		for e, err := range log.EntriesFrom(ctx, max(0, log.Size()-firstPollEntries)) {
			if err != nil {
				w.state.Next = -1
				return err
			}
			w.recordPublication(e.Entry)
		}
		w.state.Grown = w.options.Now()
		w.options.OnNotice(fmt.Sprintf("watching the log of %s begins with its entry %d; older ones are not reported", w.options.Server, w.state.Next))
	}
	for w.state.Next < log.Size() {
		entries, err := log.Entries(ctx, w.state.Next)
		if err != nil {
			return err
		}
		for _, e := range entries {
			event, ok := w.newEvent(e)
			w.recordPublication(e.Entry)
			if !ok {
				continue
			}
			if event.Alarm {
				found.Alarms++
			}
			if err := w.report(event); err != nil {
				return err
			}
		}
		w.state.Next = entries[len(entries)-1].Index + 1
		w.state.Grown, w.state.Silent = w.options.Now(), false
		if err := w.saveState(); err != nil {
			return err
		}
	}
	return nil
}

// isWatched reports whether the watcher reports entries about this entry's package: no packages were chosen, it is one of
// them, or the entry is about none.
func (w *Watcher) isWatched(e logs.Entry) bool {
	return len(w.options.Packages) == 0 || e.Package == "" || slices.Contains(w.options.Packages, e.Package)
}

// newEvent returns the event to report for an entry of the log, compared with the state before it. The result is false if
// the entry is neither news nor weakens the policy of a package, or if its package is not watched.
func (w *Watcher) newEvent(e logs.Indexed) (WatchEvent, bool) {
	if !slices.Contains(logs.News, e.Kind) && !e.Policy.Weakens() || !w.isWatched(e.Entry) {
		return WatchEvent{}, false
	}
	event := WatchEvent{
		Kind: string(e.Kind), Alarm: e.Kind.Alarming(), Time: e.Time, Entry: &e.Index, Package: e.Package, Version: e.Version,
		Text: e.News(),
	}
	if why := w.unexpectedReason(e.Entry); why != "" {
		event.Kind, event.Alarm = EventUnexpected, true
		event.Text += "; its authors may not have expected it: " + why
	}
	return event, true
}

// trimRepositoryURL returns the URL of a repository for comparing: without a leading "git+", and without "/" and then ".git"
// at its end. It leaves other spellings, such as git@github.com:a/b, as they are.
func trimRepositoryURL(repository string) string {
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(repository, "git+"), "/"), ".git")
}

// unexpectedReason says why the release of an entry may not be one that its authors expect: nothing proves that it was
// built from the repository in the options, or its provenance or signature is weaker than that of the publication that is
// in the state. It returns "" if nothing is suspicious, or the entry publishes nothing. [Watcher.recordPublication] is
// called after it.
func (w *Watcher) unexpectedReason(e logs.Entry) string {
	if !e.Kind.Publishes() {
		return ""
	}
	if want := w.options.Repository; want != "" && (e.Provenance == nil || e.Provenance.Outcome != logs.AttestationVerified || !strings.EqualFold(trimRepositoryURL(e.Provenance.Repository), want)) {
		return "nothing proves that it was built from " + want
	}
	before, ok := w.state.Last[e.Package]
	if !ok {
		return ""
	}
	return e.Unexpected(before)
}

// recordPublication puts into the watcher's state, in memory, what later releases of an entry's package are compared with,
// if the entry publishes a release of a watched package. Beyond the limits of the state it changes nothing.
func (w *Watcher) recordPublication(e logs.Entry) {
	if !e.Kind.Publishes() || !w.isWatched(e) {
		return
	}
	before, ok := w.state.Last[e.Package]
	if !ok && len(w.state.Last) >= maxStatePackages {
		return
	}
	stored := logs.Entry{Kind: e.Kind, Package: e.Package, Version: e.Version, Signature: e.Signature.WithoutText()}
	if e.Provenance != nil {
		stored.Provenance = &logs.Provenance{Outcome: e.Provenance.Outcome, Repository: text.Short(e.Provenance.Repository, 300)}
	}
	bytes := w.bytes + encodedSize(e.Package, stored)
	if ok {
		bytes -= encodedSize(e.Package, before)
	}
	if bytes > maxStateBytes {
		return
	}
	w.bytes, w.state.Last[e.Package] = bytes, stored
}

// encodedSize returns the number of bytes that the newest publication of a package takes in the state file, and more than
// the limit if it cannot be encoded. The server chooses the names in it, and so their length.
func encodedSize(name string, e logs.Entry) int {
	data, err := json.Marshal(map[string]logs.Entry{name: e})
	if err != nil {
		return maxStateBytes + 1 // it could not be stored
	}
	return len(data)
}

// report calls the caller's function for an event, with the server added. If that fails, the error is a reportError, which
// ends the watch.
func (w *Watcher) report(e WatchEvent) error {
	e.Server = w.options.Server
	if err := w.options.OnEvent(e); err != nil {
		return &reportError{fmt.Errorf("couldn't report an event: %w", err)}
	}
	return nil
}

// saveState replaces the state file with the watcher's state, and creates its folder. If that fails, the error is a
// reportError, which ends the watch.
func (w *Watcher) saveState() error {
	w.state.Format = stateFormat
	data, err := json.Marshal(w.state)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(w.options.State), 0o700)
	}
	if err == nil {
		err = disk.Replace(w.options.State, data, 0o600)
	}
	if err != nil {
		return &reportError{fmt.Errorf("couldn't store the position of the poll: %w", err)}
	}
	return nil
}
