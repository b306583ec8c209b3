package bot_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

func TestPackageIsPublished(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("@scope/a", "*.js", "*.css", "*.png"))
	noise := string(noiseOf(50_000))
	r.registry.Add("@scope/a", "1.0.0", hour(1), map[string]string{"a.js": library, "secret.txt": "no", "sub/b.js": "no"})
	r.registry.Add("@scope/a", "1.1.0", hour(2), map[string]string{"a.js": library, "a.css": "b { color: #ff0000 }\n", "b.js": "b", "b.min.js": "upstream's", "i.png": noise, "broken.js": "var ="})
	r.open()
	sum := r.once()
	if want := (sources.Summary{Packages: 1, Published: 2, Files: 10, Bytes: sum.Bytes}); sum != want {
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
	if got, want := r.kinds(), "package-added a\ndetected a 1.1.0\ndetected a 1.0.0\nprocessed a 1."; !strings.HasPrefix(got, want) {
		t.Errorf("the log is\n%s\nwant it to begin\n%s", got, want)
	}
	r.sound()

	// Asking again costs one conditional request and changes nothing.
	before := r.registry.Count("/")
	if sum := r.once(); sum != (sources.Summary{Packages: 1}) {
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

func TestFailureIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.register("b", fromNpm("b", "*.js"))
	r.register("c", fromNpm("c", "*.js")) // upstream has none
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
	u, err := sources.LookupUpstream(r.store, "c")
	if err != nil || u.Attempts != 1 || u.Reason == "" || !u.Next.After(r.now) {
		t.Errorf("upstream %+v, %v", u, err)
	}
	if sum := r.once(); sum.Published != 0 {
		t.Errorf("before its time: %+v", sum)
	}
	r.open() // the state survives
	r.setNow(s.Next)
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
			r.register("a", fromNpm("a", "**/*.js"))
			r.register("good", fromNpm("good", "*.js"))
			tt.add(r.registry)
			r.registry.Add("good", "1.0.0", hour(1), map[string]string{"good.js": "good"})
			r.open()
			if sum := r.settle(); sum.Refused != 1 || sum.Published != 1 {
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

func TestLinksAndLargeFilesAreLeftOut(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "**"))
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

// Files whose paths some file systems take for one are published, and told of.
func TestAlikePaths(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.css"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.css": "a{}", "A.css": "b{}", "caf\u00e9.css": "c{}", "cafe\u0301.css": "d{}"})
	r.registry.Add("a", "1.1.0", hour(2), map[string]string{"a.css": "a{}", "b.css": "b{}"})
	r.open()
	r.once()
	m := r.manifest("a", "1.0.0")
	want := [][]string{{"A.css", "a.css"}, {"A.min.css", "a.min.css"}, {"cafe\u0301.css", "caf\u00e9.css"}, {"cafe\u0301.min.css", "caf\u00e9.min.css"}}
	if len(m.Files) != 8 || !reflect.DeepEqual(m.Alike, want) {
		t.Errorf("%d files, alike %q", len(m.Files), m.Alike)
	}
	if len(m.Notes) == 0 || !strings.HasPrefix(m.Notes[0], `4 groups of files with paths that differ only in case or in Unicode form, such as "A.css" and "a.css"`) {
		t.Errorf("notes %q", m.Notes)
	}
	if m := r.manifest("a", "1.1.0"); m.Alike != nil || slices.ContainsFunc(m.Notes, func(n string) bool { return strings.Contains(n, "Unicode") }) {
		t.Errorf("1.1.0: %q, %q", m.Alike, m.Notes)
	}
	r.sound()
}

func TestChangedPackageJSONIsAnEntry(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a", "a.css": "a"})
	r.open()
	r.once()
	r.register("a", fromNpm("a", "*.css"))
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
	r.register("a", fromNpm("a", "*"))
	text := strings.Repeat("All that is compressible is compressed, sooner or later.\n", 200)
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.txt": text + "1", "same.txt": text + "1", "noise.bin": string(noiseOf(100_000))})
	r.registry.Add("a", "1.1.0", hour(2), map[string]string{"a.txt": text + "1", "other.txt": text + "2"})
	r.open()
	r.once()
	waiting := r.bot.Backlog()
	if waiting != 4 { // two texts and two package.json, once each
		t.Fatalf("%d contents wait to be squeezed, want 4", waiting)
	}
	r.open()
	if got := r.bot.Backlog(); got != waiting {
		t.Errorf("%d wait after the restart, %d before", got, waiting)
	}
	var mu sync.Mutex
	var told []string
	sum, err := r.bot.RecompressAll(sources.WithReport(context.Background(), func(e sources.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind == sources.Note {
			r.setNow(r.clock().Add(time.Minute)) // before the first content is done
			told = append(told, e.Reason)
		}
	}))
	if err != nil || sum.Contents == 0 || sum.After > sum.Before {
		t.Errorf("%+v, %v", sum, err)
	}
	if len(told) < 2 || !strings.Contains(told[0], "4 file contents of ") || !strings.Contains(told[1], " to be squeezed") {
		t.Errorf("it told what is left: %q", told)
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
	if sum, err := r.bot.RecompressAll(context.Background()); err != nil || sum.Contents != 0 {
		t.Errorf("again: %+v, %v", sum, err)
	}
	r.sound()
}

// Run returns nil when its context ends while the catalogue is still being recorded.
func TestRunEndsWhileItRecordsTheCatalogue(t *testing.T) {
	r := newRig(t)
	r.register("demo", "")
	r.open()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.bot.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// What lost a coding to damage is squeezed before all else, by the bot of a later process too.
func TestMendedContentsAreSqueezedFirst(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*"))
	text := strings.Repeat("All that is compressible is compressed, sooner or later.\n", 200)
	files := map[string]string{}
	for i := range 5 {
		files[fmt.Sprintf("%d.txt", i)] = text + fmt.Sprint(i)
	}
	r.registry.Add("a", "1.0.0", hour(1), files)
	r.open()
	r.once()
	if _, err := r.bot.RecompressAll(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.registry.Add("a", "1.1.0", hour(2), map[string]string{"new.txt": text + "new"})
	r.setNow(hour(2000))
	r.once()
	before := r.bot.Backlog()
	for _, path := range []string{"0.txt", "3.txt"} {
		f, err := views.LookupFile(r.store, "a", "1.0.0", path)
		if err != nil {
			t.Fatal(err)
		}
		b := r.store.NewBatch()
		b.Set(kvstore.Blobs, append(f.Hash[:], byte(coding.Brotli)), []byte("damaged"))
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		if dropped, err := r.store.RepairContent(f.Hash); err != nil || !slices.Equal(dropped, []coding.Coding{coding.Brotli}) {
			t.Fatalf("Mend: %v, %v", dropped, err)
		}
	}
	if got := r.bot.Backlog(); got != before+2 {
		t.Errorf("%d contents wait to be squeezed, want %d", got, before+2)
	}
	r.open()
	if got := r.bot.Backlog(); got != before+2 {
		t.Errorf("after a restart %d contents wait to be squeezed, want %d", got, before+2)
	}
	r.mu.Lock()
	r.events = nil
	r.mu.Unlock()
	if sum, err := r.bot.RecompressAll(context.Background()); err != nil || sum.Contents != before+2 {
		t.Errorf("%+v, %v", sum, err)
	}
	if first := r.events[0]; first.Kind != sources.Recompressed || first.Bytes >= 0 { // a coding came back
		t.Errorf("squeezed first: %+v", first)
	}
	r.sound()
	for _, path := range []string{"0.txt", "3.txt"} {
		f, err := views.LookupFile(r.store, "a", "1.0.0", path)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := r.store.Content(f.Hash); err != nil || !c.Squeezed || len(c.Representations) != 2 {
			t.Errorf("%s: %+v, %v", path, c, err)
		}
	}
	for item, err := range r.store.Scan(kvstore.Queue, kvstore.Range{}) {
		t.Errorf("left in the queue: %q, %v", item.Key, err)
	}
}

func TestRunPublishesSqueezesAndEnds(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": strings.Repeat(library, 50)})
	r.open()
	squeezed := make(chan struct{}, 100)
	r.during = func(e sources.Event) {
		if e.Kind == sources.Recompressed && e.Waiting == 0 {
			squeezed <- struct{}{}
		}
	}
	stop := r.run()
	<-squeezed
	stop()
	if got, want := r.states("a"), "1.0.0 published"; got != want {
		t.Errorf("states %s, want %s", got, want)
	}
	r.sound()
}

func TestLeftoversAreCollected(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.register("b", fromNpm("b", "*.js"))
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
		r.register(name, fromNpm(name, "*.js"))
		r.registry.Add(name, "1.0.0", hour(1), map[string]string{name + ".js": name})
	}
	r.registry.Fail(npmtest.Fault{Path: "/slow/-/", Hang: true, Times: 1})
	r.open()
	published := make(chan string, 10)
	r.during = func(e sources.Event) {
		if e.Kind == sources.Published {
			published <- e.Package
		}
	}
	stop := r.run()
	for range 5 {
		if name := <-published; name == "slow" {
			t.Error("the slow one was published")
		}
	}
	stop()
	if s := r.state("slow", "1.0.0"); s.Kind != views.Detected || s.Attempts != 0 {
		t.Errorf("after the stop: %+v", s)
	}
	if got := r.registry.Count("/slow"); got != 2 {
		t.Errorf("%d requests for the slow package, want 2", got)
	}
}

func TestHostileVersionsStopNobody(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.register("b", fromNpm("b", "*.js"))
	r.registry.Add("a", "1.0.0-"+strings.Repeat("a", 5_000), hour(1), map[string]string{"a.js": "a"})
	r.registry.Add("a", "1.0.0\x00", hour(1), map[string]string{"a.js": "a"})
	r.registry.Add("a", "0.9.0", hour(1), map[string]string{"a.js": "a"})
	r.registry.Add("b", "1.0.0", hour(1), map[string]string{"b.js": "b"})
	r.open()
	for pass, want := range []sources.Summary{{Packages: 2, Published: 2, Refused: 2}, {Packages: 2}} {
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
	r.register("a", fromNpm("a", "wrong/*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"})
	r.open()
	if sum := r.once(); sum.Refused != 1 {
		t.Errorf("%+v", sum)
	}
	r.register("a", fromNpm("a", "*.js"))
	r.open()
	if sum := r.once(); sum.Published != 1 {
		t.Errorf("after the mend: %+v", sum)
	}
	r.sound()
}

func TestMinifiedFormUpstreamHasIsNotMade(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "!(*.min).js"))
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

func TestModulesAreToldApart(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.*js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{
		"classic.js": library, "core.js": "export const a = 1;\n", "prose.js": "/*\nexport this\n*/\nvar a = 1;\n", "broken.js": "export export",
	})
	r.open()
	r.once()
	modules := map[string]bool{}
	for _, f := range r.manifest("a", "1.0.0").Files {
		modules[f.Path] = f.Module
	}
	want := map[string]bool{
		"classic.js": false, "classic.min.js": false, "core.js": true, "core.min.js": true, "prose.js": false, "prose.min.js": false, "broken.js": false,
	}
	if !maps.Equal(modules, want) {
		t.Errorf("modules %v, want %v", modules, want)
	}
	if f, err := views.LookupFile(r.store, "a", "1.0.0", "core.min.js"); err != nil || !f.Module {
		t.Errorf("the file's row is %+v, %v", f, err)
	}
}

func TestAPackageThatUpstreamLacksIsMissing(t *testing.T) {
	r := newRig(t)
	r.register("lost", fromNpm("lost", "**"))
	r.open()
	r.once()
	s, err := bot.ReadStatus(r.store, "")
	if err != nil || len(s.Problems) != 1 || s.Problems[0].Kind != bot.MissingProblem || !strings.Contains(s.Problems[0].Cause, "404") {
		t.Errorf("got %+v, %v", s.Problems, err)
	}
}
