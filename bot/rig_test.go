package bot_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/githubtest"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/internal/testkit/parallel"
	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == worker.Argument {
		dieIfTold()
		worker.RunChild()
	}
	isolateNpm()
	useMemory()
	parallel.Set(8)
	os.Exit(m.Run())
}

// useMemory has this process and its children collect garbage less often, which saves an eighth of the tests' processor time.
func useMemory() {
	const percent = 400
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
		os.Setenv("GOGC", strconv.Itoa(percent))
	}
}

// isolateNpm removes npm's configuration by the user and the machine from the environment. It has no effect where the
// registry that npm is configured with is to be asked.
func isolateNpm() {
	if os.Getenv(agreementFolder) != "" {
		return
	}
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(strings.ToLower(name), "npm_config_") {
			os.Unsetenv(name)
		}
	}
	os.Setenv("npm_config_userconfig", os.DevNull)
	os.Setenv("npm_config_globalconfig", os.DevNull)
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func hour(i int) time.Time { return noon.Add(time.Duration(i) * time.Hour) }

// A rig is a bot over a store of its own, with a registry on loopback.
type rig struct {
	*testing.T
	registry  *npmtest.Registry
	catalogue string
	data      string
	store     *kvstore.Store
	log       *logs.Log
	bot       *bot.Bot
	hub       *git.GitHubClient // where GitHub is asked
	now       time.Time
	newest    int           // releases that a package starts with; 0 is the default
	npm       *npm.Client   // the bot's
	slept     int           // times that a download was waited with
	stall     time.Duration // how long an upstream may say nothing; 0 is the default
	worker    string        // the program of worker processes; "" is this one
	feed      string        // the registry's change feed; "" for none
	// demand is what npm responds with about downloads; nil if it is not asked
	demand     func(context.Context, string) (int64, error)
	clockCheck time.Duration // between two checks of the clock; 0 is the default
	// dictionaries has the bot make deltas
	dictionaries bool

	during func(sources.Event) // called for each event as it happens; may be nil

	mu     sync.Mutex
	events []sources.Event
}

// newRig makes the test parallel: most of its time it waits for timeouts and for processes.
func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return newSequentialRig(t)
}

// newSequentialRig is for tests that measure what the process uses.
func newSequentialRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, registry: npmtest.New(t), catalogue: t.TempDir(), data: t.TempDir(), now: hour(1000)}
	r.useRegistry(r.registry.URL)
	t.Cleanup(r.close)
	return r
}

// useRegistry configures npm in the rig's folder. The environment would be every parallel test's.
func (r *rig) useRegistry(url string) {
	r.Helper()
	if err := os.WriteFile(filepath.Join(r.data, ".npmrc"), []byte("registry="+url+"/\n"), 0o600); err != nil {
		r.Fatal(err)
	}
}

// register writes a package JSON into the catalogue.
func (r *rig) register(name, autoupdate string) {
	r.Helper()
	json := fmt.Sprintf(`{
		"name": %q, "description": "A test.", "keywords": ["test"], "filename": "%s.js",
		"repository": {"type": "git", "url": "https://example.com/%s.git"}%s
	}`, name, name, name, autoupdate)
	dir := filepath.Join(r.catalogue, "packages", name[:1])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(json), 0o644); err != nil {
		r.Fatal(err)
	}
}

func fromNpm(target string, globs ...string) string {
	return fmt.Sprintf(`, "autoupdate": {"source": "npm", "target": %q, "fileMap": [{"basePath": "", "files": ["%s"]}]}`, target, strings.Join(globs, `", "`))
}

// open starts a bot, again where there was one.
func (r *rig) open() {
	r.Helper()
	catalogue, err := packages.Open(r.catalogue)
	if err != nil {
		r.Fatal(err)
	}
	for _, p := range catalogue.Problems() {
		r.Fatal(p)
	}
	r.openWith(catalogue)
}

func (r *rig) openWith(catalogue *packages.Catalogue) {
	r.Helper()
	r.close()
	config, err := npm.LoadConfig(r.data)
	if err != nil {
		r.Fatal(err)
	}
	client, err := fetch.New(fetch.Options{Tries: 1, Stall: r.stall, Now: r.clock})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(client.Close)
	strangers, err := fetch.New(fetch.Options{Tries: 1, Allow: []string{"127.0.0.1"}})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(strangers.Close)
	if r.store, err = kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{FS: unsynced.FS}); err != nil {
		r.Fatal(err)
	}
	if r.log, err = logs.Open(r.store); err != nil {
		r.Fatal(err)
	}
	var demand func(context.Context, string) (int64, error)
	if r.demand != nil {
		demand = func(ctx context.Context, name string) (int64, error) { return r.demand(ctx, name) }
	}
	r.npm = npm.NewClient(config, client, npm.Options{})
	r.bot, err = bot.New(bot.Options{
		Store: r.store, Log: r.log, Catalogue: catalogue,
		Upstreams: bot.Upstreams{Npm: r.npm, Git: git.New(git.Options{Fetch: strangers, GitHub: r.hub}), Feed: r.feed, CountDownloads: demand},
		Limits:    bot.Limits{Releases: r.newest},
		TempDir:   filepath.Join(r.data, "tmp"),
		Worker:    r.worker,

		Recompression: bot.Recompression{Dictionaries: r.dictionaries},
		Clock: bot.Clock{Now: r.clock, ClockCheck: r.clockCheck, Sleep: func(context.Context, time.Duration) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.slept++
			return nil
		}},
		Events: func(e sources.Event) {
			if r.during != nil {
				r.during(e)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e)
		},
	})
	if err != nil {
		r.Fatal(err)
	}
}

// gitHub starts a GitHub, which a bot that is opened from then on asks.
func (r *rig) gitHub() (hub *githubtest.Server, url string) {
	r.Helper()
	const token = "ghp_token"
	hub = githubtest.New(token)
	url, stop := hub.Start()
	r.Cleanup(stop)
	r.reopenGitHub(url)
	return hub, url
}

// reopenGitHub opens a client of GitHub that knows of no limit yet, for a bot that is opened from then on.
func (r *rig) reopenGitHub(url string) {
	r.Helper()
	var err error
	if r.hub, err = git.NewGitHubClient(git.GitHubOptions{URL: url, Token: "ghp_token"}); err != nil {
		r.Fatal(err)
	}
}

// clock is the bot's, and its agenda's, which looks at it whenever it likes.
func (r *rig) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *rig) setNow(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = at
}

func (r *rig) close() {
	if r.bot != nil {
		r.bot.Close()
		if err := r.store.Close(); err != nil {
			r.Error(err)
		}
		r.bot = nil
	}
}

func (r *rig) once() sources.Summary {
	r.Helper()
	sum, err := r.bot.Once(context.Background())
	if err != nil {
		r.Fatal(err)
	}
	return sum
}

// settle is once, and again for what may have been wrong for a moment only, until that is known.
func (r *rig) settle() sources.Summary {
	r.Helper()
	sum := r.once()
	for range 20 {
		var next time.Time
		states, err := views.States(r.store, "")
		if err != nil {
			r.Fatal(err)
		}
		for _, s := range states {
			if s.Kind == views.Failed && s.Wrong.Times > 0 {
				next = s.Next
			}
		}
		if next.IsZero() {
			return sum
		}
		r.setNow(next)
		more := r.once()
		sum.Published, sum.Refused = sum.Published+more.Published, sum.Refused+more.Refused
	}
	r.Fatal("still in doubt")
	return sum
}

// file returns a published file's bytes.
func (r *rig) file(pkg, version, path string) string {
	r.Helper()
	f, err := views.LookupFile(r.store, pkg, version, path)
	if err != nil {
		r.Fatalf("%s %s %s: %v", pkg, version, path, err)
	}
	data, err := r.store.Identity(f.Hash)
	if err != nil {
		r.Fatal(err)
	}
	return string(data)
}

func (r *rig) manifest(pkg, version string) *logs.Manifest {
	r.Helper()
	v, err := views.LookupVersion(r.store, pkg, version)
	if err != nil {
		r.Fatal(err)
	}
	m, err := logs.ReadManifest(r.store, v.Manifest)
	if err != nil {
		r.Fatal(err)
	}
	return m
}

func (r *rig) states(pkg string) string {
	r.Helper()
	states, err := views.States(r.store, pkg)
	if err != nil {
		r.Fatal(err)
	}
	var all []string
	for _, s := range states {
		all = append(all, s.Version+" "+string(s.Kind))
	}
	return strings.Join(all, ", ")
}

func (r *rig) state(pkg, version string) views.State {
	r.Helper()
	s, err := views.LookupState(r.store, pkg, version)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// sound fails the test unless store, log and views agree, and the log is as its
// schema has it.
func (r *rig) sound() check.Summary {
	r.Helper()
	testkit.CheckEntries(r, r.store)
	sum, err := check.Run(context.Background(), r.store, check.Options{Deep: true, Keys: filepath.Join(r.data, "keys"), Temp: r.TempDir()}, func(f check.Finding) {
		r.Errorf("%+v", f)
	})
	if err != nil {
		r.Fatal(err)
	}
	return sum
}

// kinds returns the log as text.
func (r *rig) kinds() string {
	r.Helper()
	var all []string
	for e, err := range logs.Entries(r.store, 0) {
		if err != nil {
			r.Fatal(err)
		}
		all = append(all, strings.TrimSpace(string(e.Kind)+" "+e.Package+" "+e.Version))
	}
	return strings.Join(all, "\n")
}

func paths(m *logs.Manifest) string {
	var all []string
	for _, f := range m.Files {
		all = append(all, f.Path)
	}
	return strings.Join(all, " ")
}

const library = "/*! a (c) its authors */\nfunction a(argument) {\n  return argument + 1;\n}\n"

// noiseOf returns bytes that no coding shrinks.
func noiseOf(n int) []byte {
	out := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range out {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		out[i] = byte(x)
	}
	return out
}

type entry struct{ name, data string }

func tarball(entries ...entry) []byte {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Size: int64(len(e.data)), Mode: 0o644, Typeflag: tar.TypeReg}
		if to, ok := strings.CutPrefix(e.data, "-> "); ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, to, 0
		}
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(e.data)); err != nil {
				panic(err)
			}
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		panic(err)
	}
	return out.Bytes()
}
