package fallback

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
)

func TestSelfAssertedThenConfirmed(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"] = map[string]string{"a.js": "alert(1)", "a.min.js": "its own", "css/a.css": "b{}"}
	r := newRig(t, c.origin())
	if got, failure := r.ask("1.0.0", "a.js"); got != "alert(1)" || failure != nil {
		t.Fatalf("got %q, %+v", got, failure)
	}
	r.waitIdle()
	r.wantKinds(logs.PackageAdded, logs.Mirrored)
	v, err := views.LookupVersion(r.Store, "a", "1.0.0")
	if err != nil || !v.Mirror.Provisional() || v.Files != 3 || v.Default != "a.js" {
		t.Errorf("version %+v, %v", v, err)
	}
	if s, err := views.LookupState(r.Store, "a", "1.0.0"); err != nil || s.Kind != views.Mirrored {
		t.Errorf("state %+v, %v", s, err)
	}
	r.wantCaching("public, max-age=600")
	if _, got := r.proven("1.0.0"); got.Outcome != verify.Proven || !got.Mirror.Provisional() || got.Confirmed != nil {
		t.Errorf("verified: %+v", got)
	}
	if got, failure := r.ask("1.0.0", "nothing.js"); got != "" || failure != nil { // the store has the version now
		t.Errorf("a missing path of a known version: %q, %+v", got, failure)
	}
	asked := c.count()

	r.fallback.CheckMirrored(t.Context()) // npm does not have it yet
	r.wantKinds(logs.PackageAdded, logs.Mirrored)
	r.registry.Add("a", "1.0.0", testkit.Released, map[string]string{"a.js": "alert(1)"})
	r.fallback.CheckMirrored(t.Context()) // too soon
	r.wantKinds(logs.PackageAdded, logs.Mirrored)
	r.pass(minBackoff)
	r.fallback.CheckMirrored(t.Context())
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Confirmed)
	r.wantCaching("public, max-age=30672000, immutable")
	if _, got := r.proven("1.0.0"); got.Outcome != verify.Proven || got.Confirmed == nil {
		t.Errorf("verified: %+v", got)
	}
	if c.count() != asked {
		t.Errorf("the origin was asked %d times more", c.count()-asked)
	}
}

func TestOtherBytesAtNpmTakeTheirPlace(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"] = map[string]string{"a.js": "a lie", "b.js": "b"}
	r := newRig(t, c.origin())
	if got, _ := r.ask("1.0.0", "a.js"); got != "a lie" {
		t.Fatalf("got %q", got)
	}
	r.waitIdle()
	r.registry.Add("a", "1.0.0", testkit.Released, map[string]string{"a.js": "the truth", "b.js": "b"})
	r.fallback.CheckMirrored(t.Context())
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Withdrawn, logs.Processed, logs.Replaced)
	if release, got := r.proven("1.0.0"); got.Outcome != verify.Proven || release.Published.Kind != logs.Replaced || got.Mirror != nil {
		t.Errorf("verified: %+v", got)
	}
	f, err := views.LookupFile(r.Store, "a", "1.0.0", "a.js")
	if err != nil || f.Provisional {
		t.Fatalf("%+v, %v", f, err)
	}
	if data, err := r.Store.Identity(f.Hash); err != nil || string(data) != "the truth" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestComparedAtOnceWhereNpmHasIt(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"], c.files["2.0.0"] = map[string]string{"a.js": "same", "a.min.js": "s"}, map[string]string{"a.js": "a lie"}
	r := newRig(t, c.origin())
	r.registry.Add("a", "1.0.0", testkit.Released, map[string]string{"a.js": "same"})
	r.registry.Add("a", "2.0.0", testkit.Released, map[string]string{"a.js": "the truth"})
	r.ask("1.0.0", "a.js")
	r.waitIdle()
	if v, err := views.LookupVersion(r.Store, "a", "1.0.0"); err != nil || v.Mirror == nil || v.Mirror.Proof != logs.ProofNpm {
		t.Errorf("%+v, %v", v, err)
	}
	r.ask("2.0.0", "a.js")
	r.waitIdle()
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Processed, logs.Published) // npm's
}

func TestWhatIsNotAsPromisedIsRefused(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"] = map[string]string{"a.js": "right", "b.js": "b"}
	c.lies["/ajax/libs/a/1.0.0/a.js"] = "wrong"
	r := newRig(t, c.origin())
	if got, failure := r.ask("1.0.0", "a.js"); got != "" || failure != mismatch {
		t.Errorf("got %q, %+v", got, failure)
	}
	r.waitIdle()
	r.wantKinds(logs.PackageAdded, logs.Mirrored) // without that file
	if _, err := views.LookupFile(r.Store, "a", "1.0.0", "a.js"); err == nil {
		t.Error("the wrong file is served")
	}
	for _, lie := range []string{"<html>", `{"name":"b","version":"2.0.0","sri":{}}`, `{"name":"a","version":"2.0.0","sri":{"../x":"` + logs.SumSRI(nil).String() + `","x":"md5-x"}}`} {
		c.mu.Lock()
		c.lies["/libraries/a/2.0.0"] = lie
		c.mu.Unlock()
		r.pass(longPause)
		if got, failure := r.ask("2.0.0", "a.js"); got != "" || failure != mismatch {
			t.Errorf("%s: got %q, %+v", lie, got, failure)
		}
		r.waitIdle()
	}
}

// What was withdrawn or refused here is not asked for elsewhere, nor what is of no package of the catalogue, nor what
// came through here before.
func TestStaysInTheHouse(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"], c.files["2.0.0"] = map[string]string{"a.js": "a"}, map[string]string{"a.js": "a"}
	r := newRig(t, c.origin())
	r.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "bad"})
	r.Withdraw("a", "1.0.0", "malware")
	r.Refuse("a", "2.0.0", "a bomb")
	q := httptest.NewRequest(http.MethodGet, "/", nil)
	if data, failure := r.fallback.Answer(q, "a", "1.0.0", "a.js"); data != nil || failure != nil {
		t.Errorf("withdrawn: %q, %+v", data, failure)
	}
	for _, of := range [][2]string{{"a", "2.0.0"}, {"b", "1.0.0"}, {"a", "../1"}} {
		if data, failure := r.fallback.Answer(q, of[0], of[1], "a.js"); data != nil || failure != notThere {
			t.Errorf("%v: %q, %+v", of, data, failure)
		}
	}
	for _, hops := range []string{r.fallback.id, "x, " + r.fallback.id, "a,b,c,d"} {
		if _, failure := r.ask("3.0.0", "a.js", HopsField+": "+hops); failure != notThere {
			t.Errorf("%s: %+v", hops, failure)
		}
	}
	if c.count() != 0 {
		t.Errorf("the origin was asked %d times", c.count())
	}
	c.front = func(_ http.ResponseWriter, q *http.Request) bool {
		if got := q.Header.Get(HopsField); got != "x, "+r.fallback.id {
			t.Errorf("the origin received the hops %q", got)
		}
		return false
	}
	r.ask("3.0.0", "a.js", HopsField+": x")
	r.waitIdle()
}

// A request that was about to begin with a release while another one brought it finds it here.
func TestPublishedMeanwhile(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"] = map[string]string{"a.js": "a();\n"}
	r := newRig(t, c.origin())
	if _, failure := r.ask("1.0.0", "a.js"); failure != nil {
		t.Fatal(failure)
	}
	r.waitIdle()
	data, err := r.fallback.fetchFile(httptest.NewRequest(http.MethodGet, "/", nil), release{"a", "1.0.0"}, "a.js", "")
	if data != nil || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	r.waitIdle()
	if err := r.fallback.failed.recentError(release{"a", "1.0.0"}, r.clock()); err != nil {
		t.Errorf("it is remembered that a release is not to be had which is here: %v", err)
	}
}

// However many ask, the origin is asked once; what it does not have is remembered, within bounds.
func TestFloods(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"] = map[string]string{"a.js": "a", "b.js": "b"}
	r := newRig(t, c.origin())
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			if got, failure := r.ask("1.0.0", []string{"a.js", "b.js"}[i%2]); failure != nil || got != "" && got != "a" && got != "b" {
				t.Errorf("got %q, %+v", got, failure)
			}
		})
	}
	all.Wait()
	r.waitIdle()
	if n := c.count(); n != 4 { // what there is of it, where files are, two files
		t.Errorf("the origin was asked %d times", n)
	}
	before := c.count()
	for i := range 1000 {
		r.ask(fmt.Sprintf("0.0.%d", i), "a.js")
	}
	if n := c.count() - before; n > clientBurst {
		t.Errorf("the origin was asked %d times for what does not exist", n)
	}
	before = c.count()
	for range 100 {
		if _, failure := r.ask("0.0.0", "a.js"); failure != notThere {
			t.Fatalf("%+v", failure)
		}
	}
	if c.count() != before {
		t.Error("what was not there is asked for again at once")
	}
	r.pass(briefPause)
	r.ask("0.0.0", "a.js")
	if c.count() != before+1 {
		t.Error("what was not there is never asked for again")
	}
	for i := range 3 * mostMemory {
		r.fallback.failed.record(release{"a", fmt.Sprint(i)}, fetch.ErrNotFound, r.clock())
	}
	if n := len(r.fallback.failed); n > mostMemory {
		t.Errorf("%d releases are remembered", n)
	}
	for i := range 3 * mostClients {
		r.fallback.clients.take(fmt.Sprintf("10.%d.%d.1:1", i>>8&255, i&255), r.clock())
	}
	if n := len(r.fallback.clients); n > mostClients {
		t.Errorf("%d clients are remembered", n)
	}
}

func TestQuota(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"], c.files["2.0.0"] = map[string]string{"a.js": strings.Repeat("a", 600<<10)}, map[string]string{"a.js": strings.Repeat("b", 600<<10)}
	r := newRig(t, c.origin())
	r.ask("1.0.0", "a.js")
	r.waitIdle()
	if _, failure := r.ask("2.0.0", "a.js"); failure != crowded {
		t.Errorf("%+v", failure)
	}
	r.waitIdle()
	r.wantKinds(logs.PackageAdded, logs.Mirrored)

	// Erased files free the quota at the next check.
	desk := bot.NewWithdrawalService(r.Store, r.Log, r.clock)
	if _, _, err := desk.WithdrawAndErase(t.Context(), "a", "1.0.0", "by order", true, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	r.fallback.CheckMirrored(t.Context())
	if got := r.fallback.State().Bytes; got != 0 {
		t.Errorf("%d bytes are counted of what was erased", got)
	}
	r.pass(longPause)
	if got, failure := r.ask("2.0.0", "a.js"); len(got) != 600<<10 || failure != nil {
		t.Errorf("%d bytes, %+v", len(got), failure)
	}
	r.waitIdle()
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Withdrawn, logs.Erased, logs.Mirrored)
	if got := r.fallback.State().Bytes; got != 600<<10 {
		t.Errorf("%d bytes are counted", got)
	}
}

// A mirrored release without a row, as a mirror has one that it leaves out, does not end the check.
func TestMirroredReleaseWithoutARow(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"], c.files["2.0.0"] = map[string]string{"a.js": "one"}, map[string]string{"a.js": "two"}
	r := newRig(t, c.origin())
	for _, version := range []string{"1.0.0", "2.0.0"} {
		r.ask(version, "a.js")
		r.waitIdle()
	}
	err := r.Log.Update(func(tx *logs.Tx) error {
		tx.Batch.Delete(kvstore.Versions, kvstore.Key("a", "2.0.0"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for v, err := range r.fallback.mirroredVersions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, v.Version)
	}
	if !slices.Equal(got, []string{"1.0.0"}) {
		t.Errorf("mirrored: %q", got)
	}
}

// TestUnreadableMirroredEntry tests that newer mirrored releases are found although an older entry cannot be read, and that an end of the context
// ends the search.
func TestUnreadableMirroredEntry(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"], c.files["2.0.0"] = map[string]string{"a.js": "one"}, map[string]string{"a.js": "two"}
	r := newRig(t, c.origin())
	for _, version := range []string{"1.0.0", "2.0.0"} {
		r.ask(version, "a.js")
		r.waitIdle()
	}
	var oldest int64
	for e, err := range (logs.Query{Kinds: []logs.Kind{logs.Mirrored}}).Newest(r.Store) {
		if err != nil {
			t.Fatal(err)
		}
		oldest = e.Index
	}
	err := r.Log.Update(func(tx *logs.Tx) error {
		tx.Batch.Set(kvstore.LogEntries, binary.BigEndian.AppendUint64(nil, uint64(oldest)), []byte("damaged"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for ctx, want := range map[context.Context][]string{t.Context(): {"2.0.0", "an error"}, canceled: {"an error"}} {
		var got []string
		for v, err := range r.fallback.mirroredVersions(ctx) {
			if err != nil {
				v.Version = "an error"
			}
			got = append(got, v.Version)
		}
		if !slices.Equal(got, want) {
			t.Errorf("mirrored: %q, want %q", got, want)
		}
	}
}

// For an origin that is slow, clients get a time to retry, and one that is dead or asks for mercy is left alone.
func TestSlowDeadAndLimiting(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"] = map[string]string{"a.js": "a"}
	held := make(chan struct{})
	c.front = func(_ http.ResponseWriter, q *http.Request) bool {
		if strings.HasPrefix(q.URL.Path, "/ajax/") {
			<-held
		}
		return false
	}
	r := newRig(t, c.origin())
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // as after two seconds
	q := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	if _, err := r.fallback.joinFlight(q, release{"a", "1.0.0"}, "a.js", ""); err != nil {
		t.Fatal(err)
	}
	if data, failure := r.fallback.Answer(q, "a", "1.0.0", "a.js"); data != nil || failure.Status != http.StatusServiceUnavailable || failure.Retry == 0 {
		t.Errorf("slow: %q, %+v", data, failure)
	}
	close(held)
	r.waitIdle() // it comes although no client waits
	r.wantKinds(logs.PackageAdded, logs.Mirrored)

	c.mu.Lock()
	c.front = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	c.mu.Unlock()
	before := c.count()
	for i := range 10 {
		if _, failure := r.ask(fmt.Sprintf("3.0.%d", i), "a.js"); failure == nil || failure.Status != http.StatusServiceUnavailable {
			t.Errorf("limiting: %+v", failure)
		}
		r.waitIdle()
	}
	if n := c.count() - before; n != 1 {
		t.Errorf("an origin that asks for mercy was asked %d times", n)
	}
	c.Close()
	r.pass(time.Hour)
	if _, failure := r.ask("4.0.0", "a.js"); failure != down {
		t.Errorf("dead: %+v", failure)
	}
}

func FuzzParseListing(f *testing.F) {
	f.Add([]byte(`{"name":"a","version":"1.0.0","files":["a.js"],"rawFiles":["a.js"],"sri":{"a.js":"` + logs.SumSRI(nil).String() + `"}}`))
	f.Add([]byte(`{"name":"a","version":"1.0.0","sri":{"../a":"sha512-x"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		files, err := parseListing(data, "a", "1.0.0")
		if err == nil && len(files) == 0 {
			t.Error("a release without files")
		}
		for _, f := range files {
			if !isFilePath(f.Path) || strings.Contains("/"+f.Path+"/", "/../") {
				t.Errorf("the path %q", f.Path)
			}
		}
	})
}

// To count what was mirrored before takes long in a large store. Clients, and the operator, are answered meanwhile.
func TestCountingKeepsNoClientWaiting(t *testing.T) {
	l := lardertest.New(t)
	l.Shelf.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "a"})
	r := newRig(t, "larder:"+l.URL)
	r.fallback.counting.Lock()
	if got, failure := r.ask("9.9.9", "a.js"); got != "" || failure != notThere {
		t.Errorf("%q, %+v", got, failure)
	}
	if s := r.fallback.State(); s.Bytes != 0 {
		t.Errorf("%+v", s)
	}
	r.fallback.counting.Unlock()
	if got, failure := r.ask("1.0.0", "a.js"); got != "a" || failure != nil {
		t.Errorf("%q, %+v", got, failure)
	}
}
