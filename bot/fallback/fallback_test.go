package fallback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/withdrawal"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/fsck"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/server"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == worker.Argument {
		worker.Main()
	}
	os.Exit(m.Run())
}

// A rig is a bot with a registry, and what asks other origins.
type rig struct {
	*testing.T
	*testkit.Shelf
	registry *npmtest.Registry
	bot      *bot.Bot
	fallback *Fallback
	shop     *lardertest.Larder // that serves the rig's own store, once it is verified
	keys     string             // of the shop

	mu  sync.Mutex
	now time.Time
}

func (r *rig) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

func newRig(t *testing.T, origins ...string) *rig {
	t.Helper()
	r := &rig{T: t, Shelf: testkit.NewShelf(t), registry: npmtest.New(t), now: testkit.Released}
	r.registry.Setenv(t)
	folder := t.TempDir()
	dir := filepath.Join(folder, "packages", "a")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const a = `{"name": "a", "description": "A test.", "keywords": ["test"], "filename": "a.js", "optimization": {"js": false, "css": false},
		"repository": {"type": "git", "url": "https://example.com/a.git"},
		"autoupdate": {"source": "npm", "target": "a", "fileMap": [{"basePath": "", "files": ["*.js"]}]}}`
	if err := os.WriteFile(filepath.Join(dir, "a.json"), []byte(a), 0o644); err != nil {
		t.Fatal(err)
	}
	catalogue, err := packages.Open(folder)
	if err != nil || len(catalogue.Problems()) > 0 {
		t.Fatal(err, catalogue.Problems())
	}
	config, err := npm.LoadConfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	getter, err := fetch.New(fetch.Options{Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(getter.Close)
	r.bot, err = bot.New(bot.Options{Store: r.Store, Log: r.Log, Catalogue: catalogue, Npm: npm.NewClient(config, getter, npm.Options{}), TempDir: t.TempDir(), Now: r.clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.bot.Close)
	r.fallback, err = New(Options{Bot: r.bot, Store: r.Store, Origins: origins, Known: filepath.Join(t.TempDir(), "known"), Quota: 1 << 20, Now: r.clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.fallback.Close)
	return r
}

// ask asks for a file of package a until the answer is no "in a moment", so that a busy machine changes nothing.
func (r *rig) ask(version, path string, fields ...string) (string, *answers.Failure) {
	r.Helper()
	for {
		q := httptest.NewRequest(http.MethodGet, "/", nil)
		for _, f := range fields {
			name, value, _ := strings.Cut(f, ": ")
			q.Header.Set(name, value)
		}
		data, failure := r.fallback.Answer(q, "a", version, path)
		if failure == later {
			continue
		}
		return string(data), failure
	}
}

// settle waits until nothing is under way.
func (r *rig) settle() {
	r.fallback.mu.Lock()
	under := slices.Collect(maps.Values(r.fallback.flights))
	r.fallback.mu.Unlock()
	for _, fl := range under {
		<-fl.done
	}
}

func (r *rig) kinds() (kinds []logs.Kind) {
	for e, err := range logs.Entries(r.Store, 0) {
		if err != nil {
			r.Fatal(err)
		}
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func (r *rig) wantKinds(want ...logs.Kind) {
	r.Helper()
	if got := r.kinds(); !slices.Equal(got, want) {
		r.Errorf("the log has %v, want %v", got, want)
	}
	testkit.CheckEntries(r.T, r.Store)
	_, err := fsck.Run(r.Context(), r.Store, fsck.Options{Deep: true, Temp: r.TempDir(), Keys: r.keys}, func(f fsck.Finding) { r.Errorf("found %+v", f) })
	if err != nil {
		r.Fatal(err)
	}
}

// A cdn is an origin with cdnjs's API: files by version and path, all of package a.
type cdn struct {
	*httptest.Server
	mu    sync.Mutex
	files map[string]map[string]string
	lies  map[string]string // what is sent instead, by path of the request
	asked int
	front func(w http.ResponseWriter, r *http.Request) bool // answers first
}

func newCDN(t *testing.T) *cdn {
	c := &cdn{files: map[string]map[string]string{}, lies: map[string]string{}}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *cdn) origin() string { return "cdnjs:" + c.URL }

func (c *cdn) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

func (c *cdn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.asked++
	front := c.front
	c.mu.Unlock()
	if front != nil && front(w, r) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case c.lies[r.URL.Path] != "":
		fmt.Fprint(w, c.lies[r.URL.Path])
	case len(parts) == 2 && parts[0] == "libraries":
		json.NewEncoder(w).Encode(map[string]string{"latest": c.URL + "/ajax/libs/a/1.0.0/a.js"})
	case len(parts) == 3 && parts[0] == "libraries" && c.files[parts[2]] != nil:
		sri := map[string]string{}
		for path, text := range c.files[parts[2]] {
			sri[path] = logs.SumSRI([]byte(text)).String()
		}
		names := slices.Sorted(maps.Keys(sri))
		json.NewEncoder(w).Encode(map[string]any{"name": parts[1], "version": parts[2], "files": names, "rawFiles": names, "sri": sri})
	case len(parts) >= 5 && parts[0] == "ajax" && c.files[parts[3]][strings.Join(parts[4:], "/")] != "":
		fmt.Fprint(w, c.files[parts[3]][strings.Join(parts[4:], "/")])
	default:
		http.NotFound(w, r)
	}
}

func TestSelfAssertedThenConfirmed(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"] = map[string]string{"a.js": "alert(1)", "a.min.js": "its own", "css/a.css": "b{}"}
	r := newRig(t, c.origin())
	if got, failure := r.ask("1.0.0", "a.js"); got != "alert(1)" || failure != nil {
		t.Fatalf("got %q, %+v", got, failure)
	}
	r.settle()
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

	r.fallback.Look(t.Context()) // npm does not have it yet
	r.wantKinds(logs.PackageAdded, logs.Mirrored)
	r.registry.Add("a", "1.0.0", testkit.Released, map[string]string{"a.js": "alert(1)"})
	r.fallback.Look(t.Context()) // too soon
	r.wantKinds(logs.PackageAdded, logs.Mirrored)
	r.pass(firstPause)
	r.fallback.Look(t.Context())
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Confirmed)
	r.wantCaching("public, max-age=30672000, immutable")
	if _, got := r.proven("1.0.0"); got.Outcome != verify.Proven || got.Confirmed == nil {
		t.Errorf("verified: %+v", got)
	}
	if c.count() != asked {
		t.Errorf("the origin was asked %d times more", c.count()-asked)
	}
}

// wantCaching compares the caching of a.js in 1.0.0.
func (r *rig) wantCaching(want string) {
	r.Helper()
	assets, err := server.New(server.Options{Store: r.Store})
	if err != nil {
		r.Fatal(err)
	}
	w := httptest.NewRecorder()
	assets.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/ajax/libs/a/1.0.0/a.js", nil))
	got := w.Header().Get("Cache-Control")
	if strings.Contains(want, "immutable") != strings.Contains(got, "immutable") || !strings.HasPrefix(got, want[:min(len(want), 15)]) || w.Code != http.StatusOK {
		r.Errorf("%d, Cache-Control: %s, want %s", w.Code, got, want)
	}
}

func TestOtherBytesAtNpmTakeTheirPlace(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"] = map[string]string{"a.js": "a lie", "b.js": "b"}
	r := newRig(t, c.origin())
	if got, _ := r.ask("1.0.0", "a.js"); got != "a lie" {
		t.Fatalf("got %q", got)
	}
	r.settle()
	r.registry.Add("a", "1.0.0", testkit.Released, map[string]string{"a.js": "the truth", "b.js": "b"})
	r.fallback.Look(t.Context())
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
	r.settle()
	if v, err := views.LookupVersion(r.Store, "a", "1.0.0"); err != nil || v.Mirror == nil || v.Mirror.Proof != logs.ProofNpm {
		t.Errorf("%+v, %v", v, err)
	}
	r.ask("2.0.0", "a.js")
	r.settle()
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
	r.settle()
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
		r.settle()
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
			t.Errorf("the origin was told of the hops %q", got)
		}
		return false
	}
	r.ask("3.0.0", "a.js", HopsField+": x")
	r.settle()
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
	r.settle()
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
		r.fallback.memory.remember(release{"a", fmt.Sprint(i)}, fetch.ErrNotFound)
	}
	if n := len(r.fallback.memory.all); n > mostMemory {
		t.Errorf("%d releases are remembered", n)
	}
	for i := range 3 * mostClients {
		r.fallback.clients.take(fmt.Sprintf("10.%d.%d.1:1", i>>8&255, i&255))
	}
	if n := len(r.fallback.clients.all); n > mostClients {
		t.Errorf("%d clients are remembered", n)
	}
}

func TestQuota(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"], c.files["2.0.0"] = map[string]string{"a.js": strings.Repeat("a", 600<<10)}, map[string]string{"a.js": strings.Repeat("b", 600<<10)}
	r := newRig(t, c.origin())
	r.ask("1.0.0", "a.js")
	r.settle()
	if _, failure := r.ask("2.0.0", "a.js"); failure != crowded {
		t.Errorf("%+v", failure)
	}
	r.settle()
	r.wantKinds(logs.PackageAdded, logs.Mirrored)

	// What is erased makes room, at the next look.
	desk := withdrawal.New(r.Store, r.Log, r.clock)
	if _, _, err := desk.End(t.Context(), "a", "1.0.0", "by order", true, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	r.fallback.Look(t.Context())
	if got := r.fallback.State().Bytes; got != 0 {
		t.Errorf("%d bytes are counted of what was erased", got)
	}
	r.pass(longPause)
	if got, failure := r.ask("2.0.0", "a.js"); len(got) != 600<<10 || failure != nil {
		t.Errorf("%d bytes, %+v", len(got), failure)
	}
	r.settle()
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Withdrawn, logs.Erased, logs.Mirrored)
	if got := r.fallback.State().Bytes; got != 600<<10 {
		t.Errorf("%d bytes are counted", got)
	}
}

// A mirrored release without a row, as a mirror has one that it leaves out, does not end the look.
func TestMirroredReleaseWithoutARow(t *testing.T) {
	c := newCDN(t)
	c.files["1.0.0"], c.files["2.0.0"] = map[string]string{"a.js": "one"}, map[string]string{"a.js": "two"}
	r := newRig(t, c.origin())
	for _, version := range []string{"1.0.0", "2.0.0"} {
		r.ask(version, "a.js")
		r.settle()
	}
	err := r.Log.Update(func(tx *logs.Tx) error {
		tx.Batch.Delete(kvstore.Versions, kvstore.Key("a", "2.0.0"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for v, err := range r.fallback.mirrored() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, v.Version)
	}
	if !slices.Equal(got, []string{"1.0.0"}) {
		t.Errorf("mirrored: %q", got)
	}
}

// An origin that is slow has clients told to come again, and one that is dead or asks for mercy is left alone.
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
	if _, err := r.fallback.join(q, release{"a", "1.0.0"}, "a.js", ""); err != nil {
		t.Fatal(err)
	}
	if data, failure := r.fallback.Answer(q, "a", "1.0.0", "a.js"); data != nil || failure.Status != http.StatusServiceUnavailable || failure.Retry == 0 {
		t.Errorf("slow: %q, %+v", data, failure)
	}
	close(held)
	r.settle() // it comes although no client waits
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
		r.settle()
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

// proven is what a verifier of the rig's log finds of a.js in a version of package a.
func (r *rig) proven(version string) (*verify.Release, verify.Result) {
	t, shelf := r.T, r.Shelf
	t.Helper()
	if r.shop == nil {
		r.keys = t.TempDir()
		r.shop = lardertest.Serve(t, shelf, r.keys)
	}
	s := r.shop
	for {
		key, err := verify.FetchKey(t.Context(), verify.Options{Server: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		log, err := verify.Open(t.Context(), verify.Options{Server: s.URL, Trust: verify.Trust{Key: key}})
		if err != nil || log.Size() < shelf.Log.Checkpoint().Size {
			continue // it is about to be signed
		}
		release, err := log.Release(t.Context(), "a", version)
		if err != nil {
			t.Fatal(err)
		}
		return release, log.URL(t.Context(), s.URL+"/ajax/libs/a/"+version+"/a.js", verify.Name{Package: "a", Version: version, Path: "a.js"})
	}
}

func TestLarderIsProvenByItsLog(t *testing.T) {
	s := lardertest.New(t)
	s.Shelf.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "a", "b.js": "b"})
	s.Shelf.Publish("a", "2.0.0", "a.js", map[string]string{"a.js": "two"})
	s.Lie("/ajax/libs/a/2.0.0/a.js", "owt")
	r := newRig(t, "larder:"+s.URL)
	if got, failure := r.ask("1.0.0", "a.js"); got != "a" || failure != nil {
		t.Fatalf("got %q, %+v", got, failure)
	}
	r.settle()
	v, err := views.LookupVersion(r.Store, "a", "1.0.0")
	if err != nil || v.Mirror == nil || v.Mirror.Proof != logs.ProofLog || v.Mirror.Entry != 0 || v.Mirror.Size < 1 || !strings.HasPrefix(v.Mirror.Key, "cdn.example.com/log+") {
		t.Fatalf("%+v, %v", v.Mirror, err)
	}
	if theirs, err := views.LookupVersion(s.Store, "a", "1.0.0"); err != nil || theirs.Manifest != v.Manifest {
		t.Errorf("another manifest: %v", err)
	}
	if got, failure := r.ask("2.0.0", "a.js"); got != "" || failure != mismatch {
		t.Errorf("a lie: %q, %+v", got, failure)
	}
	r.settle()
	r.wantKinds(logs.PackageAdded, logs.Mirrored)

	// What is withdrawn there is withdrawn here.
	s.Shelf.Withdraw("a", "1.0.0", "malware")
	for !slices.Contains(r.kinds(), logs.Withdrawn) { // the checkpoint has to be signed
		r.fallback.Look(t.Context())
	}
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Withdrawn)
	v, err = views.LookupVersion(r.Store, "a", "1.0.0")
	if err != nil || v.Withdrawn == nil || !strings.Contains(v.Withdrawn.Reason, "malware") {
		t.Errorf("%+v, %v", v, err)
	}
}

// follows looks after what was mirrored until the log has n entries; what the origin did has to be signed first.
func (r *rig) follows(n int) {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); len(r.kinds()) < n; {
		if time.Now().After(deadline) {
			r.Fatalf("the log has %v, want %d entries", r.kinds(), n)
		}
		r.fallback.Look(r.Context())
	}
}

// What the operator withdraws or erases here, the origin does not undo, even where it had withdrawn that first.
func TestOriginDoesNotUndoTheOperator(t *testing.T) {
	s := lardertest.New(t)
	for _, version := range []string{"1.0.0", "2.0.0", "3.0.0"} {
		s.Shelf.Publish("a", version, "a.js", map[string]string{"a.js": version})
	}
	r := newRig(t, "larder:"+s.URL)
	for _, version := range []string{"1.0.0", "2.0.0", "3.0.0"} {
		if got, failure := r.ask(version, "a.js"); got != version || failure != nil {
			t.Fatalf("got %q, %+v", got, failure)
		}
		r.settle()
		s.Shelf.Withdraw("a", version, "a mistake")
	}
	r.follows(7)
	desk := withdrawal.New(r.Store, r.Log, r.clock)
	if _, err := desk.Withdraw(t.Context(), "a", "1.0.0", "malware"); err != nil {
		t.Error(err)
	}
	if _, err := desk.Withdraw(t.Context(), "a", "1.0.0", "malware"); !errors.Is(err, withdrawal.ErrAlready) {
		t.Errorf("withdrawn twice: %v", err)
	}
	if e, err := desk.Erase(t.Context(), "a", "2.0.0", "by order"); err != nil || e.Erased != 1 {
		t.Errorf("%+v, %v", e, err)
	}
	r.Publish("c", "1.0.0", "c.js", map[string]string{"c.js": "2.0.0"}) // the same bytes are here again
	for _, version := range []string{"1.0.0", "2.0.0", "3.0.0"} {
		s.Shelf.Restore("a", version, "it was none") // the last of them is restored here too
	}
	before := len(r.kinds())
	r.follows(before + 1)
	r.fallback.Look(t.Context())
	if got := r.kinds()[before:]; !slices.Equal(got, []logs.Kind{logs.Restored}) {
		t.Errorf("after the origin restored all: %v", got)
	}
	for version, withdrawn := range map[string]bool{"1.0.0": true, "2.0.0": true, "3.0.0": false} {
		if v, err := views.LookupVersion(r.Store, "a", version); err != nil || (v.Withdrawn != nil) != withdrawn {
			t.Errorf("%s: %+v, %v", version, v.Withdrawn, err)
		}
	}
	r.wantKinds(r.kinds()...)
}

// A withdrawal that the origin's log did not have at the last look is new, whatever the origin's clock says.
func TestOriginWithASlowClock(t *testing.T) {
	s := lardertest.New(t)
	s.Shelf.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "a"})
	r := newRig(t, "larder:"+s.URL)
	r.ask("1.0.0", "a.js")
	r.settle()
	s.Shelf.Withdraw("a", "1.0.0", "a mistake")
	r.follows(3)
	r.pass(time.Hour) // the origin's clock stands
	if _, err := withdrawal.New(r.Store, r.Log, r.clock).Restore(t.Context(), "a", "1.0.0", "we need it"); err != nil {
		t.Fatal(err)
	}
	r.pass(time.Minute)
	r.fallback.Look(t.Context())
	r.fallback.follow.cursors, r.fallback.follow.heard = map[*larder]int64{}, map[release]bool{} // as after a restart
	r.fallback.Look(t.Context())
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Withdrawn, logs.Restored)
	s.Shelf.Restore("a", "1.0.0", "it was none")
	s.Shelf.Withdraw("a", "1.0.0", "malware")
	r.follows(5)
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Withdrawn, logs.Restored, logs.Withdrawn)
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
			if !validPath(f.Path) || strings.Contains("/"+f.Path+"/", "/../") {
				t.Errorf("the path %q", f.Path)
			}
		}
	})
}
