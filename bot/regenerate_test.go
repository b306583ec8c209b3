package bot_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
	"github.com/larder-cdn/larder/internal/testkit/sources"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/views"
)

// regenerator returns one that asks the rig's upstreams.
func (r *rig) regenerator() *bot.Regenerator {
	r.Helper()
	config, err := npm.LoadConfig(r.data)
	if err != nil {
		r.Fatal(err)
	}
	client, err := fetch.New(fetch.Options{Tries: 1})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(client.Close)
	strangers, err := fetch.New(fetch.Options{Tries: 1, Allow: []string{"127.0.0.1"}})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(strangers.Close)
	made, err := bot.NewRegenerator(bot.Options{
		Upstreams: bot.Upstreams{Npm: npm.NewClient(config, client, npm.Options{}), Git: git.New(git.Options{Fetch: strangers, GitHub: r.hub})},
		TempDir:   filepath.Join(r.data, "tmp"),
	})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := made.Close(); err != nil {
			r.Error(err)
		}
	})
	return made
}

// lose takes contents out of the store.
func (r *rig) lose(hashes ...kvstore.Hash) {
	r.Helper()
	b := r.store.NewBatch()
	defer b.Close()
	for i, h := range hashes {
		if i%2 == 0 {
			b.Delete(kvstore.Contents, h[:])
		}
		for _, c := range []coding.Coding{coding.Identity, coding.Brotli, coding.Gzip} {
			key := append(h[:len(h):len(h)], byte(c))
			if _, err := r.store.Get(kvstore.Blobs, key); err == nil {
				b.Set(kvstore.Blobs, key, []byte("other bytes"))
			}
		}
	}
	if err := b.Commit(); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) repair() check.RepairResult {
	r.Helper()
	result, err := check.RepairInPlace(r.Context(), r.store, r.log, check.RepairOptions{Sources: []check.Source{r.regenerator()}, Temp: r.TempDir()})
	if err != nil {
		r.Fatal(err)
	}
	return result
}

// Everything of a release is made again from what upstream has: the files, what was minified,
// and the manifest, which names them.
func TestRemakeFromNpm(t *testing.T) {
	r := newRig(t)
	r.registry.Add("up", "1.0.0", hour(1), map[string]string{"dist/a.js": library, "dist/a.css": "a {\n  color: red;\n}\n", "dist/unused.txt": "x"})
	r.registry.Add("up", "1.1.0", hour(2), map[string]string{"dist/a.js": library + "b();\n", "dist/a.css": "a { color: blue; }"})
	r.register("down", fromNpm("up", "dist/*.js", "dist/*.css"))
	r.open()
	r.once()
	m := r.manifest("down", "1.0.0")
	if paths(m) != "dist/a.css dist/a.js dist/a.min.css dist/a.min.js" {
		t.Fatal(paths(m))
	}
	var files []kvstore.Hash
	for _, f := range m.Files {
		files = append(files, f.SHA256)
	}
	for _, tt := range []struct {
		name     string
		manifest bool
	}{{"files", false}, {"the manifest too", true}} {
		t.Run(tt.name, func(t *testing.T) {
			r.T = t
			lost := files
			if tt.manifest {
				v, err := views.LookupVersion(r.store, "down", "1.0.0")
				if err != nil {
					t.Fatal(err)
				}
				lost = append(lost, v.Manifest)
			}
			r.lose(lost...)
			before := r.registry.Count("")
			result := r.repair()
			if len(result.Lost) > 0 || result.Sources[0].Contents != int64(len(lost)) || result.Sources[0].Requests != 1 {
				t.Errorf("%+v", result)
			}
			if asked := r.registry.Count("") - before; asked > 4 {
				t.Errorf("%d requests", asked)
			}
			r.sound()
		})
	}
}

// What is not as it was when it was published does not help, and is named.
func TestRemakeOfWhatUpstreamChanged(t *testing.T) {
	r := newRig(t)
	r.registry.Add("up", "1.0.0", hour(1), map[string]string{"a.js": library})
	r.registry.Add("up", "1.1.0", hour(1), map[string]string{"a.js": library + "// 1"})
	r.register("down", fromNpm("up", "*.js"))
	r.open()
	r.once()
	h, gone := r.manifest("down", "1.0.0").Files[0].SHA256, r.manifest("down", "1.1.0").Files[0].SHA256
	r.lose(h, gone)
	r.registry.Add("up", "1.0.0", hour(1), map[string]string{"a.js": "other();"})
	r.registry.Remove("up", "1.1.0")
	result := r.repair()
	if len(result.Lost) != 2 || result.Lost[0].Where != "/ajax/libs/down/1.0.0/a.js" && result.Lost[1].Where != "/ajax/libs/down/1.0.0/a.js" {
		t.Fatalf("lost %+v", result.Lost)
	}
	for _, l := range result.Lost {
		want := "upstream has another archive for it now"
		if strings.Contains(l.Where, "1.1.0") {
			want = "upstream has no such version any more"
		}
		if !strings.Contains(l.Problem, want) {
			t.Errorf("%+v, want %q", l, want)
		}
	}
	if _, err := r.store.Identity(h); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("the content: %v", err)
	}
}

// The manifest names the commit, and a tag that names another one by now is no help.
func TestRemakeFromGit(t *testing.T) {
	r := newRig(t)
	repository := gittest.New(t).Repository(t, "a.git")
	repository.Release("v1.0.0", hour(1), gittest.Files{"a.js": library})
	r.register("a", fromGit(repository.URL, "*.js"))
	r.open()
	r.once()
	r.lose(r.manifest("a", "1.0.0").Files[0].SHA256)
	result := r.repair()
	if len(result.Lost) > 0 {
		t.Errorf("lost %+v", result.Lost)
	}
	r.sound()
	r.lose(r.manifest("a", "1.0.0").Files[0].SHA256)
	repository.Release("v1.0.0", hour(2), gittest.Files{"a.js": "evil()"})
	result = r.repair()
	if len(result.Lost) != 1 || !strings.Contains(result.Lost[0].Problem, "it was at commit ") {
		t.Errorf("lost %+v", result.Lost)
	}
}

// Upstream passes the tests of all sources of contents.
func TestRegeneratorContents(t *testing.T) {
	sources.Contents(t, []byte(library), func(t *testing.T, sent []byte) (replication.Contents, replication.Wanted) {
		r := newRig(t)
		r.registry.Add("up", "1.0.0", hour(1), map[string]string{"a.js": library})
		r.register("down", fromNpm("up", "*.js"))
		r.open()
		r.once()
		manifest := r.manifest("down", "1.0.0")
		wanted := replication.Wanted{Manifest: manifest, File: &manifest.Files[0], Hash: manifest.Files[0].SHA256, Limit: manifest.Files[0].Size}
		for e, err := range logs.Entries(r.store, 0) {
			if err != nil {
				t.Fatal(err)
			}
			switch e.Kind {
			case logs.PackageAdded:
				wanted.PackageJSON = func() ([]byte, error) { return r.store.Identity(e.PackageJSON) }
			case logs.Published:
				wanted.Entry = e
			}
		}
		if r.registry.Remove("up", "1.0.0"); sent != nil {
			r.registry.Add("up", "1.0.0", hour(1), map[string]string{"a.js": string(sent)})
		}
		return r.regenerator(), wanted
	})
}
