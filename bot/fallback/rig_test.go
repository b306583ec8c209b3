package fallback

import (
	"encoding/json"
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
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/server"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == worker.Argument {
		worker.RunChild()
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
	r.bot, err = bot.New(bot.Options{Store: r.Store, Log: r.Log, Catalogue: catalogue, Upstreams: bot.Upstreams{Npm: npm.NewClient(config, getter, npm.Options{})}, TempDir: t.TempDir(), Clock: bot.Clock{Now: r.clock}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.bot.Close)
	r.open(Options{Bot: r.bot, Store: r.Store, Origins: origins, Known: filepath.Join(t.TempDir(), "known"), Quota: 1 << 20, Now: r.clock})
	return r
}

func (r *rig) open(o Options) {
	r.Helper()
	var err error
	if r.fallback, err = New(o); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(r.fallback.Close)
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

// waitIdle waits until nothing is under way.
func (r *rig) waitIdle() {
	for r.fallback.State().UnderWay > 0 {
		time.Sleep(time.Millisecond)
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
	_, err := check.Run(r.Context(), r.Store, check.Options{Deep: true, Temp: r.TempDir(), Keys: r.keys}, func(f check.Finding) { r.Errorf("found %+v", f) })
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
