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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/npm/npmtest"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == worker.Argument {
		worker.Main()
	}
	os.Exit(m.Run())
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
	bot       *bot.Bot
	now       time.Time

	mu     sync.Mutex
	events []bot.Event
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, registry: npmtest.New(t), catalogue: t.TempDir(), data: t.TempDir(), now: hour(1000)}
	r.registry.Setenv(t)
	t.Cleanup(r.close)
	return r
}

// enrol writes a package JSON into the catalogue.
func (r *rig) enrol(name, autoupdate string) {
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
	r.close()
	catalogue, err := packages.Open(r.catalogue)
	if err != nil {
		r.Fatal(err)
	}
	for _, p := range catalogue.Problems() {
		r.Fatal(p)
	}
	config, err := npm.LoadConfig(r.data)
	if err != nil {
		r.Fatal(err)
	}
	client, err := fetch.New(fetch.Options{Tries: 1})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(client.Close)
	if r.store, err = kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{}); err != nil {
		r.Fatal(err)
	}
	log, err := logs.Open(r.store)
	if err != nil {
		r.Fatal(err)
	}
	r.bot, err = bot.New(bot.Options{
		Store: r.store, Log: log, Catalogue: catalogue,
		Npm:     npm.NewClient(config, client, npm.Options{}),
		TempDir: filepath.Join(r.data, "tmp"),
		Now:     func() time.Time { return r.now },
		Events: func(e bot.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e)
		},
	})
	if err != nil {
		r.Fatal(err)
	}
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

func (r *rig) once() bot.Summary {
	r.Helper()
	sum, err := r.bot.Once(context.Background())
	if err != nil {
		r.Fatal(err)
	}
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

// sound fails the test unless store, log and views agree.
func (r *rig) sound() views.CheckSummary {
	r.Helper()
	sum, err := views.Check(context.Background(), r.store, views.CheckOptions{Deep: true, Scratch: r.TempDir()}, func(f views.Finding) {
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

func TestPackageIsPublished(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("@scope/a", "*.js", "*.css", "*.png"))
	noise := string(noiseOf(50_000))
	r.registry.Add("@scope/a", "1.0.0", hour(1), map[string]string{"a.js": library, "secret.txt": "no", "sub/b.js": "no"})
	r.registry.Add("@scope/a", "1.1.0", hour(2), map[string]string{"a.js": library, "a.css": "b { color: #ff0000 }\n", "b.js": "b", "b.min.js": "upstream's", "i.png": noise, "broken.js": "var ="})
	r.open()
	sum := r.once()
	if want := (bot.Summary{Packages: 1, Published: 2, Files: 10, Bytes: sum.Bytes}); sum != want {
		t.Errorf("summary %+v, want %+v", sum, want)
	}
	m := r.manifest("a", "1.1.0")
	if got, want := paths(m), "a.css a.js a.min.css a.min.js b.js b.min.js broken.js i.png"; got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	for path, want := range map[string]string{
		"a.js":      library,
		"a.min.js":  "/*! a (c) its authors */function a(n){return n+1}\n",
		"a.min.css": "b{color:red}\n",
		"b.min.js":  "upstream's",
		"broken.js": "var =",
		"i.png":     noise,
	} {
		if got := r.file("a", "1.1.0", path); got != want {
			t.Errorf("%s is %.80q, want %.80q", path, got, want)
		}
	}
	for _, f := range m.Files {
		data := []byte(r.file("a", "1.1.0", f.Path))
		minified := f.Path == "a.min.js" || f.Path == "a.min.css"
		if f.SRI != logs.SumSRI(data) || f.Size != int64(len(data)) || (f.Origin == logs.Minified) != minified || (f.From != "") != minified {
			t.Errorf("manifest says %+v", f)
		}
	}
	if len(m.Notes) != 1 || !strings.Contains(m.Notes[0], "broken.js was not minified: line 1") {
		t.Errorf("notes %q", m.Notes)
	}
	if !m.Released.Equal(hour(2)) || m.Default != "a.js" || m.Source.Name != "@scope/a" || !strings.HasPrefix(m.Source.Integrity, "sha512-") {
		t.Errorf("manifest %+v", m)
	}
	if got, want := r.kinds(), "package-added a\ndetected a 1.1.0\ndetected a 1.0.0\npublished a 1."; !strings.HasPrefix(got, want) {
		t.Errorf("the log is\n%s\nwant it to begin\n%s", got, want)
	}
	r.sound()

	// Asking again costs one conditional request and changes nothing.
	before := r.registry.Count("/")
	if sum := r.once(); sum != (bot.Summary{Packages: 1}) {
		t.Errorf("second pass: %+v", sum)
	}
	requests := r.registry.Requests()[before:]
	if len(requests) != 1 || requests[0].Status != 304 {
		t.Errorf("second pass sent %+v", requests)
	}

	r.registry.Add("@scope/a", "1.0.1", hour(3), map[string]string{"a.js": "1.0.1"})
	if sum := r.once(); sum.Published != 1 {
		t.Errorf("after a new release: %+v", sum)
	}
	r.sound()
}

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

func TestNewPackageStartsWithItsNewestReleases(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "*.js"))
	for i := range 15 {
		r.registry.Add("a", fmt.Sprintf("1.%d.0", i), hour(i), map[string]string{"a.js": fmt.Sprint(i)})
	}
	r.open()
	if sum := r.once(); sum.Published != 10 {
		t.Errorf("%+v", sum)
	}
	if _, err := views.LookupVersion(r.store, "a", "1.4.0"); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("1.4.0: %v", err)
	}
	// A gap is filled on demand, once.
	if err := r.bot.Add(context.Background(), "a", "1.3.0"); err != nil {
		t.Error(err)
	}
	if got := r.file("a", "1.3.0", "a.js"); got != "3" {
		t.Errorf("1.3.0 is %q", got)
	}
	for version, want := range map[string]string{"1.3.0": "never rewritten", "1.3.1": `did you mean "1.`, "..": "not a version"} {
		if err := r.bot.Add(context.Background(), "a", version); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("add %s: %v, want %q", version, err, want)
		}
	}
	if err := r.bot.Add(context.Background(), "aa", ""); err == nil || !strings.Contains(err.Error(), `did you mean "a"?`) {
		t.Errorf("add of an unknown package: %v", err)
	}
	r.sound()
}

func TestFailureIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "*.js"))
	r.enrol("b", fromNpm("b", "*.js"))
	r.enrol("c", fromNpm("c", "*.js")) // upstream has none
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"})
	r.registry.Add("b", "1.0.0", hour(1), map[string]string{"b.js": "b"})
	r.registry.Fail(npmtest.Fault{Path: "/a/-/", Status: 503, Times: 1})
	r.open()
	if sum := r.once(); sum.Published != 1 || sum.Failed != 2 {
		t.Errorf("first pass: %+v", sum)
	}
	s := r.state("a", "1.0.0")
	if s.Kind != views.Failed || s.Attempts != 1 || !s.Next.After(r.now) || !strings.Contains(s.Reason, "503") {
		t.Errorf("state %+v", s)
	}
	u, err := bot.LookupUpstream(r.store, "c")
	if err != nil || u.Attempts != 1 || u.Reason == "" || !u.Next.After(r.now) {
		t.Errorf("upstream %+v, %v", u, err)
	}
	if sum := r.once(); sum.Published != 0 {
		t.Errorf("before its time: %+v", sum)
	}
	r.open() // the state survives
	r.now = s.Next
	if sum := r.once(); sum.Published != 1 {
		t.Errorf("at its time: %+v", sum)
	}
	if got, want := r.states(""), "1.0.0 published, 1.0.0 published"; got != want {
		t.Errorf("states %s, want %s", got, want)
	}
	r.sound()
}

func TestReleaseIsRefused(t *testing.T) {
	tests := []struct {
		name   string
		add    func(*npmtest.Registry)
		reason string
	}{
		{"wrong integrity", func(g *npmtest.Registry) {
			g.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"}, npmtest.Dist("integrity", "sha512-"+strings.Repeat("A", 86)+"=="))
		}, "integrity mismatch"},
		{"no integrity", func(g *npmtest.Registry) {
			g.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"}, npmtest.Dist("integrity", nil), npmtest.Dist("shasum", nil))
		}, "integrity unknown"},
		{"no tarball", func(g *npmtest.Registry) {
			g.Add("a", "1.0.0", hour(1), nil, npmtest.Dist("tarball", nil))
		}, "dist.tarball"},
		{"a tarball inside the network", func(g *npmtest.Registry) {
			g.Add("a", "1.0.0", hour(1), nil, npmtest.Dist("tarball", "https://127.0.0.2/a.tgz"))
		}, "forbidden address"},
		{"a path that escapes", func(g *npmtest.Registry) {
			g.Add("a", "1.0.0", hour(1), nil, npmtest.Tarball(tarball(entry{"package/../../etc/a.js", "x"})))
		}, `".."`},
		{"the same name twice", func(g *npmtest.Registry) {
			g.Add("a", "1.0.0", hour(1), nil, npmtest.Tarball(tarball(entry{"package/a.js", "x"}, entry{"package/a.js", "y"})))
		}, "twice"},
		{"not an archive", func(g *npmtest.Registry) {
			g.Add("a", "1.0.0", hour(1), nil, npmtest.Tarball([]byte("hello")))
		}, "archive"},
		{"nothing selected", func(g *npmtest.Registry) {
			g.Add("a", "1.0.0", hour(1), map[string]string{"readme.md": "a"})
		}, "selects none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.enrol("a", fromNpm("a", "**/*.js"))
			r.enrol("good", fromNpm("good", "*.js"))
			tt.add(r.registry)
			r.registry.Add("good", "1.0.0", hour(1), map[string]string{"good.js": "good"})
			r.open()
			if sum := r.once(); sum.Refused != 1 || sum.Published != 1 {
				t.Errorf("summary %+v", sum)
			}
			s := r.state("a", "1.0.0")
			if s.Kind != views.Refused || !strings.Contains(s.Reason, tt.reason) {
				t.Errorf("state %+v, want a reason with %q", s, tt.reason)
			}
			if strings.Contains(s.Reason, r.data) {
				t.Errorf("the public reason %q has a path of this machine", s.Reason)
			}
			if sum := r.once(); sum.Refused != 0 {
				t.Errorf("refused again: %+v", sum)
			}
			if !strings.Contains(r.kinds(), "refused a 1.0.0") {
				t.Errorf("the log is\n%s", r.kinds())
			}
			r.sound()
		})
	}
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

func TestLinksAndLargeFilesAreLeftOut(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "**"))
	r.registry.Add("a", "1.0.0", hour(1), nil, npmtest.Tarball(tarball(
		entry{"package/a.js", "a"}, entry{"package/link.js", "-> /etc/passwd"}, entry{"package/big.bin", string(noiseOf(26 << 20))},
	)))
	r.open()
	r.once()
	m := r.manifest("a", "1.0.0")
	if got, want := paths(m), "a.js a.min.js"; got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	if len(m.LeftOut) != 2 || m.LeftOut[0].Path != "big.bin" || !strings.Contains(m.LeftOut[0].Reason, "over the limit") ||
		m.LeftOut[1].Path != "link.js" || m.LeftOut[1].Reason != "symbolic link" {
		t.Errorf("left out %+v", m.LeftOut)
	}
}

func TestImport(t *testing.T) {
	r := newRig(t)
	r.enrol("a", "")
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "a.js"), []byte(library), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(folder, "b.js")); err != nil {
		t.Fatal(err)
	}
	r.open()
	if sum := r.once(); sum.Failed+sum.Refused+sum.Published > 0 {
		t.Errorf("a package without autoupdate: %+v", sum)
	}
	if err := r.bot.Import(context.Background(), "a", "2.0", folder); err != nil {
		t.Fatal(err)
	}
	if got, want := paths(r.manifest("a", "2.0")), "a.js a.min.js"; got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	if err := r.bot.Import(context.Background(), "a", "2.0", folder); err == nil || !strings.Contains(err.Error(), "never rewritten") {
		t.Errorf("imported twice: %v", err)
	}
	if err := r.bot.Import(context.Background(), "a", "3.0", filepath.Join(folder, "nope")); err == nil {
		t.Error("imported what is not there")
	}
	if err := r.bot.Add(context.Background(), "a", ""); err == nil || !strings.Contains(err.Error(), "larder import a") {
		t.Errorf("add: %v", err)
	}
	r.sound()
}

func TestChangedPackageJSONIsAnEntry(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a", "a.css": "a"})
	r.open()
	r.once()
	r.enrol("a", fromNpm("a", "*.css"))
	r.registry.Add("a", "1.1.0", hour(2), map[string]string{"a.js": "a", "a.css": "a"})
	r.open()
	r.once()
	if got, want := paths(r.manifest("a", "1.0.0")), "a.js a.min.js"; got != want {
		t.Errorf("1.0.0 has %s, want %s", got, want)
	}
	m := r.manifest("a", "1.1.0")
	if got, want := paths(m), "a.css a.min.css"; got != want {
		t.Errorf("1.1.0 has %s, want %s", got, want)
	}
	if m.Default != "" || len(m.Notes) != 1 || !strings.Contains(m.Notes[0], `"a.js"`) {
		t.Errorf("default %q, notes %q", m.Default, m.Notes)
	}
	if !strings.Contains(r.kinds(), "package-changed a") {
		t.Errorf("the log is\n%s", r.kinds())
	}
	r.sound()
}

func TestSqueezeSurvivesARestart(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "*"))
	text := strings.Repeat("All that is compressible is compressed, sooner or later.\n", 200)
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.txt": text + "1", "same.txt": text + "1", "noise.bin": string(noiseOf(100_000))})
	r.registry.Add("a", "1.1.0", hour(2), map[string]string{"a.txt": text + "1", "other.txt": text + "2"})
	r.open()
	r.once()
	waiting := r.bot.Backlog()
	if waiting == 0 {
		t.Fatal("nothing waits to be squeezed")
	}
	r.open()
	if got := r.bot.Backlog(); got != waiting {
		t.Errorf("%d wait after the restart, %d before", got, waiting)
	}
	sum, err := r.bot.Squeeze(context.Background())
	if err != nil || sum.Contents == 0 || sum.After > sum.Before {
		t.Errorf("%+v, %v", sum, err)
	}
	if got := r.bot.Backlog(); got != 0 {
		t.Errorf("%d still wait", got)
	}
	for path, codings := range map[string][]coding.Coding{"a.txt": {coding.Brotli, coding.Gzip}, "noise.bin": {coding.Identity}} {
		f, err := views.LookupFile(r.store, "a", "1.0.0", path)
		if err != nil {
			t.Fatal(err)
		}
		c, err := r.store.Content(f.Hash)
		if err != nil || !c.Squeezed {
			t.Errorf("%s: %+v, %v", path, c, err)
		}
		var got []coding.Coding
		for _, rep := range c.Representations {
			got = append(got, rep.Coding)
		}
		if !slices.Equal(got, codings) {
			t.Errorf("%s is stored as %v, want %v", path, got, codings)
		}
	}
	if sum, err := r.bot.Squeeze(context.Background()); err != nil || sum.Contents != 0 {
		t.Errorf("again: %+v, %v", sum, err)
	}
	r.sound()
}

func TestRunPublishesSqueezesAndEnds(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": strings.Repeat(library, 50)})
	r.open()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	squeezed := make(chan struct{}, 100)
	ctx = bot.WithReport(ctx, func(e bot.Event) {
		if e.Kind == bot.Squeezed && e.Waiting == 0 {
			squeezed <- struct{}{}
		}
	})
	done := make(chan error)
	go func() { done <- r.bot.Run(ctx) }()
	<-squeezed
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if got, want := r.states("a"), "1.0.0 published"; got != want {
		t.Errorf("states %s, want %s", got, want)
	}
	r.sound()
}

func TestLeftoversAreCollected(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "*.js"))
	r.enrol("b", fromNpm("b", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"readme.md": "not selected"}) // so a release fails
	r.registry.Add("b", "1.0.0", hour(1), map[string]string{"b.js": "b"})
	r.open()
	data := []byte("left by a process that was killed")
	left := kvstore.Sum(data)
	if err := r.store.PutContent(left, int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}); err != nil {
		t.Fatal(err)
	}
	if sum := r.sound(); sum.Orphans != 1 {
		t.Fatalf("%d leftovers, want 1", sum.Orphans)
	}
	r.once()
	if sum := r.sound(); sum.Orphans != 0 {
		t.Errorf("%d leftovers are left", sum.Orphans)
	}
	if got := r.file("b", "1.0.0", "b.js"); got != "b" {
		t.Errorf("b.js is %q", got)
	}
}

// A release that takes long is neither asked for again nor in the way of others.
func TestSlowReleaseHoldsNobodyUp(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"slow", "b", "c", "d", "e", "f"} {
		r.enrol(name, fromNpm(name, "*.js"))
		r.registry.Add(name, "1.0.0", hour(1), map[string]string{name + ".js": name})
	}
	r.registry.Fail(npmtest.Fault{Path: "/slow/-/", Hang: true, Times: 1})
	r.open()
	ctx, cancel := context.WithCancel(context.Background())
	published := make(chan string, 10)
	ctx = bot.WithReport(ctx, func(e bot.Event) {
		if e.Kind == bot.Published {
			published <- e.Package
		}
	})
	done := make(chan error)
	go func() { done <- r.bot.Run(ctx) }()
	for range 5 {
		if name := <-published; name == "slow" {
			t.Error("the slow one was published")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if s := r.state("slow", "1.0.0"); s.Kind != views.Detected || s.Attempts != 0 {
		t.Errorf("after the stop: %+v", s)
	}
	if got := r.registry.Count("/slow"); got != 2 {
		t.Errorf("%d requests for the slow package, want 2", got)
	}
}

func TestOperatorAndScheduleMeet(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "*.js"))
	for i := range 6 {
		r.registry.Add("a", fmt.Sprintf("1.%d.0", i), hour(i), map[string]string{"a.js": fmt.Sprint("release ", i)})
	}
	r.open()
	var wg sync.WaitGroup
	wg.Go(func() { r.once() })
	for i := range 6 {
		wg.Go(func() {
			err := r.bot.Add(context.Background(), "a", fmt.Sprintf("1.%d.0", i))
			if err != nil && !strings.Contains(err.Error(), "published already") {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := strings.Count(r.kinds(), "published a"); got != 6 {
		t.Errorf("%d publications of 6 versions:\n%s", got, r.kinds())
	}
	r.sound()
}

func TestHostileVersionsStopNobody(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "*.js"))
	r.enrol("b", fromNpm("b", "*.js"))
	r.registry.Add("a", "1.0.0-"+strings.Repeat("a", 5_000), hour(1), map[string]string{"a.js": "a"})
	r.registry.Add("a", "1.0.0\x00", hour(1), map[string]string{"a.js": "a"})
	r.registry.Add("a", "0.9.0", hour(1), map[string]string{"a.js": "a"})
	r.registry.Add("b", "1.0.0", hour(1), map[string]string{"b.js": "b"})
	r.open()
	for pass, want := range []bot.Summary{{Packages: 2, Published: 2, Refused: 2}, {Packages: 2}} {
		sum := r.once()
		sum.Files, sum.Bytes = 0, 0
		if sum != want {
			t.Errorf("pass %d: %+v, want %+v", pass, sum, want)
		}
	}
	r.sound()
}

func TestMendedPackageJSONRevivesWhatItHadRefused(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "wrong/*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"})
	r.open()
	if sum := r.once(); sum.Refused != 1 {
		t.Errorf("%+v", sum)
	}
	r.enrol("a", fromNpm("a", "*.js"))
	r.open()
	if sum := r.once(); sum.Published != 1 {
		t.Errorf("after the mend: %+v", sum)
	}
	r.sound()
}

func TestImportedArchive(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "dist/*.js"))
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "a-1.0.0.tgz"), filepath.Join(dir, "bad.tgz")
	for name, data := range map[string][]byte{
		good: tarball(entry{"a-1.0.0/dist/a.js", "a"}, entry{"a-1.0.0/readme.md", "r"}),
		bad:  tarball(entry{"../a.js", "a"}),
	} {
		if err := os.WriteFile(name, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r.open()
	if err := r.bot.Import(context.Background(), "a", "1.0.0", good); err != nil {
		t.Error(err)
	} else if got, want := paths(r.manifest("a", "1.0.0")), "dist/a.js dist/a.min.js"; got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	if err := r.bot.Import(context.Background(), "a", "2.0.0", bad); err == nil || !strings.Contains(err.Error(), `".."`) {
		t.Errorf("import: %v", err)
	}
	if s := r.state("a", "2.0.0"); s.Kind != views.Refused || !strings.Contains(r.kinds(), "refused a 2.0.0") {
		t.Errorf("state %+v, log\n%s", s, r.kinds())
	}
	r.sound()
}

func TestMinifiedFormUpstreamHasIsNotMade(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "!(*.min).js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": library, "a.min.js": "upstream's, not selected", "b.js": strings.Repeat("f(1);\n", 1<<20)})
	r.open()
	r.once()
	m := r.manifest("a", "1.0.0")
	if got, want := paths(m), "a.js b.js"; got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	if len(m.Notes) != 1 || !strings.Contains(m.Notes[0], "b.js was not minified") || !strings.Contains(m.Notes[0], "over the limit") {
		t.Errorf("notes %q", m.Notes)
	}
}
