package verify_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/verify"
)

const watchedOrigin = "cdn.example.com/log"

// A rig is a log that is served, and watched from a folder.
type watchRig struct {
	*testing.T
	*testkit.Shelf
	keys   string
	signer *signing.Signer
	server *httptest.Server
	away   bool   // the server answers nothing
	lie    []byte // in the place of the checkpoint
	frozen bool   // nothing renews the log's cosignature
	now    time.Time
	folder string
	told   []string
	fails  error // telling does
	last   verify.WatchEvent
}

func newWatchRig(t *testing.T) *watchRig {
	r := &watchRig{T: t, Shelf: testkit.NewShelf(t), keys: t.TempDir(), folder: t.TempDir(), now: time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)}
	logger := slog.New(slog.DiscardHandler)
	var err error
	if r.signer, err = signing.Open(signing.Options{Dir: r.keys, Origin: watchedOrigin, Store: r.Store, Log: r.Log, Now: func() time.Time { return r.now }, Logger: logger}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.signer.Close() })
	served, err := tiles.New(tiles.Options{Store: r.Store, Signer: r.signer, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	honest := tiles.Route(served, http.NotFoundHandler())
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		switch {
		case r.away:
			http.Error(w, "away", http.StatusServiceUnavailable)
		case r.lie != nil && request.URL.Path == "/log/checkpoint":
			w.Write(r.lie)
		default:
			honest.ServeHTTP(w, request)
		}
	}))
	t.Cleanup(r.server.Close)
	r.Register("vue", `{"name":"vue"}`)
	r.Publish("vue", "1.0.0", "a.js", map[string]string{"a.js": "1"})
	r.sign()
	return r
}

func (r *watchRig) sign() {
	r.Helper()
	if err := r.signer.Sign(); err != nil {
		r.Fatal(err)
	}
}

// append adds an entry, signed.
func (r *watchRig) append(entries ...logs.Entry) {
	r.Helper()
	err := r.Log.Update(func(tx *logs.Tx) error {
		for _, e := range entries {
			e.Time, e.Actor = r.now, "bot"
			if _, err := tx.Append(e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	r.sign()
}

func (r *watchRig) options() verify.WatchOptions {
	return verify.WatchOptions{
		Server: r.server.URL, Known: filepath.Join(r.folder, "known-logs"), State: filepath.Join(r.folder, "state"),
		Now: func() time.Time { return r.now },
		OnEvent: func(e verify.WatchEvent) error {
			if r.fails != nil {
				return r.fails
			}
			entry := ""
			if e.Entry != nil {
				entry = fmt.Sprintf(" #%d", *e.Entry)
			}
			r.told, r.last = append(r.told, strings.TrimSpace(e.Kind+entry+" "+e.Package+" "+e.Version)), e
			return nil
		},
	}
}

// look has a new watcher look once, as one does after a restart.
func (r *watchRig) look(o verify.WatchOptions, outcome verify.Outcome, alarms int, want ...string) {
	r.Helper()
	if !r.frozen {
		r.sign()
	}
	w, err := verify.OpenWatcher(o)
	if err != nil {
		r.Fatal(err)
	}
	r.told = nil
	found, err := w.Poll(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	if got := strings.Join(r.told, ", "); got != strings.Join(want, ", ") || found.Outcome != outcome || found.Alarms != alarms {
		r.Errorf("told %q, %+v; want %q, %s, %d alarms", r.told, found, want, outcome, alarms)
	}
}

func built(repository string) *logs.Provenance {
	return &logs.Provenance{Outcome: logs.AttestationVerified, Repository: repository, Commit: "c", Workflow: repository + "/w"}
}

func TestWatch(t *testing.T) {
	r := newWatchRig(t)
	o := r.options()
	r.look(o, verify.Proven, 0) // what was before is not told
	r.look(o, verify.Proven, 0)
	r.append(logs.Entry{Kind: logs.Detected, Package: "vue", Version: "1.1.0"}, logs.Entry{Kind: logs.Published, Package: "vue", Version: "1.1.0", Provenance: built("https://github.com/vue/vue")})
	r.look(o, verify.Proven, 0, "published #3 vue 1.1.0")
	if !strings.Contains(r.last.Text, "built from https://github.com/vue/vue at commit c") || r.last.Alarm || r.last.Server != r.server.URL {
		t.Errorf("%+v", r.last)
	}
	r.look(o, verify.Proven, 0)
	r.append(
		logs.Entry{Kind: logs.Published, Package: "vue", Version: "1.2.0", Provenance: &logs.Provenance{Outcome: logs.AttestationMissing}},
		logs.Entry{Kind: logs.UpstreamChanged, Package: "vue", Version: "1.0.0", Reason: "upstream has another archive"},
		logs.Entry{Kind: logs.Withdrawn, Package: "vue", Version: "1.0.0", Reason: "it stole"},
		logs.Entry{Kind: logs.Published, Package: "d3", Version: "7.0.0", Provenance: built("https://github.com/d3/d3")},
	)
	r.look(o, verify.Proven, 3, "unexpected #4 vue 1.2.0", "upstream-changed #5 vue 1.0.0", "withdrawn #6 vue 1.0.0", "published #7 d3 7.0.0")

	// Those who watch a package hear of it, and of the log.
	of := r.options()
	of.Packages, of.State, of.Repository = []string{"d3"}, filepath.Join(r.folder, "d3"), "git+https://github.com/d3/d3.git/"
	r.look(of, verify.Proven, 0)
	if _, err := r.signer.Rotate(r.now); err != nil {
		t.Fatal(err)
	}
	r.sign()
	r.append(
		logs.Entry{Kind: logs.Published, Package: "vue", Version: "1.3.0"},
		logs.Entry{Kind: logs.Published, Package: "d3", Version: "7.0.1", Provenance: built("https://github.com/d3/d3")},
		logs.Entry{Kind: logs.Published, Package: "d3", Version: "7.0.2", Provenance: built("https://github.com/thief/d3")},
	)
	r.look(of, verify.Proven, 2, "key-changed #8", "published #10 d3 7.0.1", "unexpected #11 d3 7.0.2")
	if !strings.Contains(r.last.Text, "nothing proves that it was built from https://github.com/d3/d3") {
		t.Errorf("%+v", r.last)
	}
	if _, err := verify.OpenWatcher(verify.WatchOptions{Server: r.server.URL, State: of.State}); err == nil {
		t.Error("the state of watching one package is taken for that of all")
	}
}

// A policy that no longer protects a package is an alarm; one that is added is not told.
func TestWatchWeakenedPolicy(t *testing.T) {
	r := newWatchRig(t)
	r.look(r.options(), verify.Proven, 0)
	json := kvstore.Sum([]byte("{}"))
	for _, policy := range []logs.PolicyChange{{New: "https://github.com/vuejs/core"}, {Old: "https://github.com/vuejs/core"}, {}} {
		r.append(logs.Entry{Kind: logs.PackageChanged, Package: "vue", PackageJSON: json, Policy: policy})
	}
	r.look(r.options(), verify.Proven, 1, "package-changed #3 vue")
	if !r.last.Alarm || r.last.Text != "vue no longer requires that releases are built from https://github.com/vuejs/core, but from anywhere" {
		t.Errorf("%+v", r.last)
	}
}

// A watcher says whose key it trusts where it was given none, once, and that its server cannot be asked when that begins.
func TestWatchNotes(t *testing.T) {
	r := newWatchRig(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var notes []string
	o := r.options()
	o.Timeout = time.Minute
	o.OnNotice = func(note string) {
		notes = append(notes, note)
		switch len(notes) {
		case 3: // away
			r.away = false
		case 4:
			stop()
		}
	}
	w, err := verify.OpenWatcher(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	r.look(o, verify.Proven, 0)
	if len(notes) != 2 || !strings.Contains(notes[0], "trusting the key "+watchedOrigin+"+") || !strings.Contains(notes[0], "--key") ||
		!strings.HasPrefix(notes[1], "watching the log of ") || !strings.HasSuffix(notes[1], "begins with its entry 2; older ones are not reported") {
		t.Fatalf("noted %q", notes)
	}
	r.away = true
	if err := w.Run(ctx, time.Nanosecond); err != nil {
		t.Fatal(err)
	}
	if len(notes) != 4 || !strings.HasPrefix(notes[2], "this poll proves nothing: ") || !strings.Contains(notes[2], "503") || !strings.HasSuffix(notes[3], " has its log again") {
		t.Errorf("noted %q", notes)
	}
}

// A server that takes a connection and says nothing is told of while the look still waits for it.
func TestWatchNotesSilence(t *testing.T) {
	noted := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		select {
		case note := <-noted:
			noted <- note
		case <-request.Context().Done():
		}
	}))
	defer server.Close()
	folder := t.TempDir()
	w, err := verify.OpenWatcher(verify.WatchOptions{
		Server: server.URL, Known: filepath.Join(folder, "known-logs"), State: filepath.Join(folder, "state"),
		OnEvent: func(verify.WatchEvent) error { return nil }, OnNotice: func(note string) { noted <- note },
	})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := w.Poll(t.Context()); err != nil || found.Outcome != verify.Unproven {
		t.Fatalf("%+v, %v", found, err)
	}
	if note := <-noted; !strings.Contains(note, server.URL+" has not sent its log yet") {
		t.Errorf("noted %q", note)
	}
}

// Nothing is missed where telling or the process ends in the middle; what was not told is told again.
func TestWatchMissesNothing(t *testing.T) {
	r := newWatchRig(t)
	o := r.options()
	r.look(o, verify.Proven, 0)
	var entries []logs.Entry
	for i := range 600 { // over two bundles
		entries = append(entries, logs.Entry{Kind: logs.Published, Package: "vue", Version: fmt.Sprintf("2.0.%d", i)})
	}
	r.append(entries...)
	w, err := verify.OpenWatcher(o)
	if err != nil {
		t.Fatal(err)
	}
	r.fails = errors.New("the pipe is broken")
	if _, err := w.Poll(t.Context()); err == nil || !strings.Contains(err.Error(), "the pipe is broken") {
		t.Errorf("got %v", err)
	}
	r.fails = nil
	if w, err = verify.OpenWatcher(o); err != nil {
		t.Fatal(err)
	}
	if found, err := w.Poll(t.Context()); err != nil || found.Outcome != verify.Proven || len(r.told) != 600 || r.told[599] != "published #601 vue 2.0.599" {
		t.Errorf("%+v, %v, %d told", found, err, len(r.told))
	}
	if err := os.WriteFile(o.State, []byte(`{"format":9}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := verify.OpenWatcher(o); err == nil || !strings.Contains(err.Error(), "its format is 9") {
		t.Errorf("got %v", err)
	}
}

// What is wrong with the log itself is told once, until it is over.
func TestWatchOfABadLog(t *testing.T) {
	r := newWatchRig(t)
	o := r.options()
	o.Silence = 48 * time.Hour
	r.look(o, verify.Proven, 0)
	r.now = r.now.Add(24 * time.Hour)
	r.away = true
	r.look(o, verify.Unproven, 0)
	r.now = r.now.Add(25 * time.Hour)
	r.look(o, verify.Unproven, 2, "expired", "silent")
	if !strings.Contains(r.last.Text, "no new entry since 2026-01-02T12:00:00Z; the last poll: couldn't get") {
		t.Errorf("%+v", r.last)
	}
	r.look(o, verify.Unproven, 2)
	r.away = false
	r.look(o, verify.Proven, 1) // it is still silent
	r.append(logs.Entry{Kind: logs.Published, Package: "vue", Version: "2.0.0"})
	r.look(o, verify.Proven, 0, "published #2 vue 2.0.0")
	r.now = r.now.Add(48 * time.Hour)
	r.look(o, verify.Proven, 1, "silent")

	private, err := os.ReadFile(filepath.Join(r.keys, "log.key"))
	if err != nil {
		t.Fatal(err)
	}
	thief, err := note.NewSigner(strings.TrimSpace(string(private)))
	if err != nil {
		t.Fatal(err)
	}
	size := r.Log.Checkpoint().Size
	if r.lie, err = note.Sign(&note.Note{Text: fmt.Sprintf("%s\n%d\n%s\n", watchedOrigin, size, strings.Repeat("A", 43)+"=")}, thief); err != nil {
		t.Fatal(err)
	}
	r.look(o, verify.Forked, 2, "forked")
	if found, err := verify.VerifyEvidence(r.last.Evidence, r.signer.Key()); err != nil || found.Outcome != verify.Forked || !r.last.Alarm {
		t.Errorf("%+v: %+v, %v", r.last, found, err)
	}
	r.look(o, verify.Forked, 2)
	r.lie = nil
	r.append(logs.Entry{Kind: logs.Published, Package: "vue", Version: "3.0.0"})
	r.look(o, verify.Proven, 0, "published #3 vue 3.0.0")
}

// The order of the names does not matter, nor that one is given twice.
func TestStateFile(t *testing.T) {
	one := verify.WatchStateFile("folder", "https://cdn.example.com", []string{"a", "b"})
	if other := verify.WatchStateFile("folder", "https://cdn.example.com", []string{"b", "a", "b"}); other != one {
		t.Errorf("%s and %s", one, other)
	}
	if other := verify.WatchStateFile("folder", "https://cdn.example.com", []string{"a"}); other == one {
		t.Error("other packages have the same file")
	}
}

// TestWatchFreshness: a log whose newest cosignature is over a day old is reported once, whatever keeps it from being renewed.
func TestWatchFreshness(t *testing.T) {
	for name, freeze := range map[string]func(r *watchRig){
		"not signed any more": func(*watchRig) {},
		"replayed": func(r *watchRig) {
			signed, err := r.signer.Checkpoint()
			if err != nil {
				r.Fatal(err)
			}
			r.lie = signed.Note
			r.append(logs.Entry{Kind: logs.Withdrawn, Package: "vue", Version: "1.0.0", Reason: "malware"})
		},
		"out of reach": func(r *watchRig) { r.away = true },
	} {
		t.Run(name, func(t *testing.T) {
			r := newWatchRig(t)
			o := r.options()
			r.look(o, verify.Proven, 0)
			r.frozen = true
			freeze(r)
			outcome := verify.Proven
			if r.away {
				outcome = verify.Unproven
			}
			r.now = r.now.Add(24 * time.Hour)
			r.look(o, outcome, 0)
			r.now = r.now.Add(time.Second)
			r.look(o, outcome, 1, "expired")
			if !r.last.Alarm || !strings.Contains(r.last.Text, "24 hours old, and 24 hours is the limit") {
				t.Errorf("%+v", r.last)
			}
			r.look(o, outcome, 1) // it was reported
			r.frozen, r.away, r.lie = false, false, nil
			w, err := verify.OpenWatcher(o)
			if err != nil {
				t.Fatal(err)
			}
			r.sign()
			if found, err := w.Poll(t.Context()); err != nil || found.Outcome != verify.Proven {
				t.Errorf("%+v, %v", found, err)
			}
			r.frozen = true
			r.now = r.now.Add(25 * time.Hour)
			r.look(o, verify.Proven, 1, "expired") // and is again, after it was all right
		})
	}
}

// TestWatchAgeUnknown: a log without cosignatures, or with some from the future, is as little known to be the newest.
func TestWatchAgeUnknown(t *testing.T) {
	r := newWatchRig(t)
	signed, err := r.signer.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	r.lie = withoutCosignatures(signed.Note)
	r.look(r.options(), verify.Proven, 1, "expired")
	if !strings.Contains(r.last.Text, "unknown") {
		t.Errorf("%+v", r.last)
	}
	r = newWatchRig(t)
	r.frozen = true
	r.now = r.now.Add(-time.Hour)
	r.look(r.options(), verify.Proven, 1, "expired")
	if !strings.Contains(r.last.Text, "in the future") {
		t.Errorf("%+v", r.last)
	}
}
