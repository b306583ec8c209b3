package fallback

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server"
)

// What an origin with a log withdraws and restores is withdrawn and restored here; what an operator has decided here stays.
func TestWithdrawalsAndRestorationsAreFollowed(t *testing.T) {
	s := lardertest.New(t)
	r := newRig(t, "larder:"+s.URL)
	for _, version := range []string{"1.0.0", "2.0.0", "3.0.0", "4.0.0"} {
		s.Shelf.Publish("a", version, "a.js", map[string]string{"a.js": "a " + version})
		if got, failure := r.ask(version, "a.js"); got != "a "+version || failure != nil {
			t.Fatalf("got %q, %+v", got, failure)
		}
		r.waitIdle()
	}
	withdrawn := func(version string) bool {
		t.Helper()
		v, err := views.LookupVersion(r.Store, "a", version)
		if err != nil {
			t.Fatal(err)
		}
		return v.Withdrawn != nil
	}
	// caughtUp returns when the rig has followed all that the shop's log has now.
	caughtUp := func() {
		t.Helper()
		for read := int64(-1); read < s.Log.Checkpoint().Size; { // the checkpoint has to be signed
			r.fallback.CheckMirrored(t.Context())
			read, _ = r.fallback.follow.readCursor(r.fallback.origins[0].origin.(*larder)) // none before the first check
		}
	}
	desk := bot.NewWithdrawalService(r.Store, r.Log, r.clock)
	decide := func(do func() (bot.WithdrawalOutcome, error)) {
		t.Helper()
		if _, err := do(); err != nil {
			t.Fatal(err)
		}
	}

	for _, version := range []string{"1.0.0", "2.0.0", "3.0.0"} {
		s.Shelf.Withdraw("a", version, "malware")
	}
	decide(func() (bot.WithdrawalOutcome, error) { return desk.Withdraw(t.Context(), "a", "4.0.0", "not here") })
	caughtUp()
	for _, version := range []string{"1.0.0", "2.0.0", "3.0.0", "4.0.0"} {
		if !withdrawn(version) {
			t.Errorf("%s is served", version)
		}
	}
	// The operator knows better of one, before the origin restores another.
	r.pass(time.Hour)
	decide(func() (bot.WithdrawalOutcome, error) {
		return desk.Restore(t.Context(), "a", "2.0.0", "it is none", nil)
	})
	s.Shelf.Restore("a", "1.0.0", "it was none")
	s.Shelf.Withdraw("a", "4.0.0", "malware")
	s.Shelf.Restore("a", "4.0.0", "it was none")
	caughtUp()
	// The next start reads what the origin has said since the beginning.
	for range 2 {
		if withdrawn("1.0.0") || withdrawn("2.0.0") || !withdrawn("3.0.0") || !withdrawn("4.0.0") {
			t.Errorf("withdrawn: %v, %v, %v, %v", withdrawn("1.0.0"), withdrawn("2.0.0"), withdrawn("3.0.0"), withdrawn("4.0.0"))
		}
		r.open(r.fallback.o)
		caughtUp()
	}
	if f, err := views.LookupFile(r.Store, "a", "1.0.0", "a.js"); err != nil {
		t.Errorf("the restored file: %+v, %v", f, err)
	}
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Mirrored, logs.Mirrored, logs.Mirrored,
		logs.Withdrawn, logs.Withdrawn, logs.Withdrawn, logs.Withdrawn, logs.Restored, logs.Restored)

	// What was erased here stays away.
	decide(func() (bot.WithdrawalOutcome, error) {
		_, err := desk.Erase(t.Context(), "a", "3.0.0", "by order")
		return bot.WithdrawalOutcome{}, err
	})
	s.Shelf.Restore("a", "3.0.0", "it was none")
	caughtUp()
	if !withdrawn("3.0.0") {
		t.Error("what was erased is served")
	}
}

// An origin with cdnjs's API does not say which scripts are modules. Their tags do.
func TestModulesAreFound(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"] = map[string]string{"a.js": "export const a = 1;\n", "b.js": "var b = 'export me';\n", "c.css": "c{}"}
	r := newRig(t, c.origin())
	if _, failure := r.ask("1.0.0", "a.js"); failure != nil {
		t.Fatalf("%+v", failure)
	}
	r.waitIdle()
	for path, want := range map[string]string{"a.js": `<script type="module" `, "b.js": `<script src=`, "c.css": `<link rel="stylesheet" `} {
		f, err := views.LookupFile(r.Store, "a", "1.0.0", path)
		if err != nil {
			t.Fatal(err)
		}
		if got := library.NewSnippet("", "a", "1.0.0", views.PublishedFile{Path: path, File: f}).HTML; !strings.HasPrefix(got, want) {
			t.Errorf("the tag of %s is %s", path, got)
		}
	}
	r.wantKinds(logs.PackageAdded, logs.Mirrored)
}

// Two Larders that ask each other for what neither has answer at once, after one request to each.
func TestTwoThatAskEachOther(t *testing.T) {
	var fronts [2]atomic.Pointer[http.Handler]
	var asked [2]atomic.Int32
	var urls [2]string
	for i := range fronts {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			asked[i].Add(1)
			(*fronts[i].Load()).ServeHTTP(w, q)
		}))
		t.Cleanup(s.Close)
		urls[i] = s.URL
	}
	var rigs [2]*rig
	for i := range fronts {
		rigs[i] = newRig(t, "larder:"+urls[1-i])
		assets, err := server.New(server.Options{Store: rigs[i].Store, Elsewhere: rigs[i].fallback.Answer})
		if err != nil {
			t.Fatal(err)
		}
		h := server.Route(assets, http.NotFoundHandler())
		fronts[i].Store(&h)
	}
	if data, failure := rigs[0].ask("1.0.0", "a.js"); data != "" || failure != notThere {
		t.Errorf("%q, %+v", data, failure)
	}
	for i := range rigs {
		rigs[i].waitIdle()
		if n := asked[i].Load(); n != 1 {
			t.Errorf("the Larder %d was asked %d times", i, n)
		}
	}
	if n := rigs[0].fallback.State().Requests[Looped]; n != 1 {
		t.Errorf("%d requests went round in circles", n)
	}
}

// An origin that never stops sending is cut off, and left alone for a while.
func TestEndlessAnswers(t *testing.T) {
	c := newCDN(t)
	endless := func(w http.ResponseWriter, _ *http.Request) bool {
		for chunk := bytes.Repeat([]byte(" "), 1<<16); ; {
			if _, err := w.Write(chunk); err != nil {
				return true
			}
		}
	}
	c.front = endless
	r := newRig(t, c.origin())
	if data, failure := r.ask("1.0.0", "a.js"); data != "" || failure != down {
		t.Errorf("an endless list: %d bytes, %+v", len(data), failure)
	}
	r.waitIdle()
	// A file is left out of its release.
	c.mu.Lock()
	c.files["1.0.0"] = map[string]string{"a.js": "a", "b.js": "b"}
	c.front = func(w http.ResponseWriter, q *http.Request) bool {
		return strings.HasSuffix(q.URL.Path, "/b.js") && endless(w, q)
	}
	c.mu.Unlock()
	r.pass(longPause)
	if data, failure := r.ask("1.0.0", "a.js"); data != "a" || failure != nil {
		t.Errorf("%q, %+v", data, failure)
	}
	r.waitIdle()
	r.wantKinds(logs.PackageAdded, logs.Mirrored)
	if _, err := views.LookupFile(r.Store, "a", "1.0.0", "b.js"); err == nil {
		t.Error("the endless file is served")
	}
}

// Many clients together have an origin asked no more than it may be for what does not exist.
func TestFloodOfManyClients(t *testing.T) {
	c := newCDN(t)
	r := newRig(t, c.origin())
	for i := range 5 * originBurst {
		q := httptest.NewRequest(http.MethodGet, "/", nil)
		q.RemoteAddr = fmt.Sprintf("10.0.%d.1:1", i)
		if _, failure := r.fallback.Answer(q, "a", fmt.Sprintf("0.0.%d", i), "a.js"); failure != notThere && failure != crowded && failure != later {
			t.Fatalf("%+v", failure)
		}
		r.waitIdle()
	}
	if n := c.count(); n != originBurst {
		t.Errorf("the origin was asked %d times", n)
	}
	s := r.fallback.State()
	if s.Releases[Absent] != originBurst || s.Releases[Budget] != 4*originBurst || s.UnderWay != 0 || s.Waiting != 0 || s.Origins[0].Budget != 0 {
		t.Errorf("%+v", s)
	}
	if description := s.Describe(); !strings.Contains(description, "0 of 200 releases that clients asked for") || !strings.Contains(description, "as many releases as it may be") {
		t.Errorf("the state is\n%s", description)
	}
	r.pass(time.Second)
	if n := r.fallback.State().Origins[0].Budget; n != originRate {
		t.Errorf("a second later %d releases may be asked for", n)
	}
}

func TestState(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"] = map[string]string{"a.js": "alert(1)"}
	c.files["2.0.0"] = map[string]string{"a.js": "right"}
	c.lies["/ajax/libs/a/2.0.0/a.js"] = "wrong"
	r := newRig(t, c.origin())
	if s := r.fallback.State(); s.Bytes != 0 || s.Quota != 1<<20 || len(s.Origins) != 1 || s.Origins[0].Budget != originBurst {
		t.Errorf("at first: %+v", s)
	}
	r.ask("1.0.0", "a.js")
	r.ask("2.0.0", "a.js")
	r.ask("3.0.0", "a.js")
	r.ask("4.0.0", "a.js", HopsField+": "+r.fallback.id)
	r.waitIdle()
	c.Close()
	r.ask("5.0.0", "a.js")
	r.waitIdle()
	s := r.fallback.State()
	if s.Releases[Filled] != 1 || s.Releases[Mismatch] != 1 || s.Releases[Absent] != 1 || s.Releases[Failed] != 1 || s.Requests[Looped] != 1 || s.Bytes != int64(len("alert(1)")) {
		t.Errorf("%+v", s)
	}
	o := s.Origins[0]
	if !o.Rests.After(r.clock()) || o.Problem == "" || o.Budget != originBurst-4 {
		t.Errorf("%+v", o)
	}
	description := s.Describe()
	for _, want := range []string{"taken from " + c.origin(), "1 of 4 releases", "8 B of 1.0 MiB", "mismatch 1", "is left alone until"} {
		if !strings.Contains(description, want) {
			t.Errorf("the state lacks %q:\n%s", want, description)
		}
	}
	if got := (*State)(nil).Describe(); got != "" {
		t.Errorf("without: %q", got)
	}
}

func TestOriginsAreGivenOnce(t *testing.T) {
	for _, test := range []struct {
		origins []string
		want    string
	}{
		{nil, ""},
		{[]string{"larder:https://a.example", "cdnjs:https://a.example"}, ""},
		{[]string{"larder:https://a.example", "larder:https://a.example/"}, "given twice"},
		{[]string{"npm:https://a.example"}, "of the kind"},
		{[]string{"https://a.example"}, "must be larder:URL"},
		{[]string{"larder:https://user@a.example"}, "must be larder:URL"},
	} {
		err := CheckOrigins(test.origins)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want %q", test.origins, err, test.want)
		}
	}
}

// Of an origin whose log is signed with another key, or has forked, nothing is taken; the fork can be proven.
func TestLogsThatLie(t *testing.T) {
	// What is published before a log is served is signed by then, also on a busy machine.
	serve := func(keys string, versions ...string) *lardertest.Larder {
		shelf := testkit.NewShelf(t)
		for _, version := range versions {
			shelf.Publish("a", version, "a.js", map[string]string{"a.js": "a " + version})
		}
		return lardertest.Serve(t, shelf, keys)
	}
	keys := t.TempDir()
	honest, other := serve(keys, "1.0.0", "2.0.0"), serve(t.TempDir(), "1.0.0", "2.0.0")
	// A twin signs another log with the same key.
	key, err := os.ReadFile(filepath.Join(keys, "log.key"))
	if err != nil {
		t.Fatal(err)
	}
	twins := t.TempDir()
	if err := os.WriteFile(filepath.Join(twins, "next.key"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	twin := serve(twins, "0.1.0", "1.0.0", "2.0.0", "3.0.0", "4.0.0")

	var behind atomic.Pointer[lardertest.Larder]
	behind.Store(honest)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		behind.Load().Config.Handler.ServeHTTP(w, q)
	}))
	t.Cleanup(front.Close)
	r := newRig(t, "larder:"+front.URL)
	if got, failure := r.ask("1.0.0", "a.js"); got != "a 1.0.0" || failure != nil {
		t.Fatalf("got %q, %+v", got, failure)
	}
	r.waitIdle()
	for name, s := range map[string]*lardertest.Larder{"another key": other, "a fork": twin} {
		behind.Store(s)
		r.pass(longPause)
		if got, failure := r.ask("2.0.0", "a.js"); got != "" || failure == nil || failure == notThere {
			t.Errorf("%s: got %q, %+v", name, got, failure)
		}
		r.waitIdle()
	}
	r.wantKinds(logs.PackageAdded, logs.Mirrored)
	evidence, err := filepath.Glob(filepath.Join(filepath.Dir(r.fallback.o.Known), "fork-*.json"))
	if err != nil || len(evidence) != 1 {
		t.Fatalf("evidence %q, %v", evidence, err)
	}
	if found, err := verify.VerifyEvidence(evidence[0], ""); err != nil || found.Outcome != verify.Forked {
		t.Errorf("%+v, %v", found, err)
	}
	behind.Store(honest)
	r.pass(longPause)
	if got, failure := r.ask("2.0.0", "a.js"); got != "a 2.0.0" || failure != nil {
		t.Errorf("got %q, %+v", got, failure)
	}
	r.waitIdle()
}
