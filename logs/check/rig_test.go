package check_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server"
)

const origin = "cdn.example.com/log"

// A rig is a data folder, its key folder, and a copy of both that another Larder serves.
type rig struct {
	testing.TB
	data, keys, copied string
	urls               map[string]string // of what was served: path and identity
	findings           []check.Finding

	mu     sync.Mutex
	lies   map[string]http.HandlerFunc // by path prefix, in the place of the honest neighbour
	asked  int
	next   int
	origin string

	memTable int64 // bytes; 0 for the default

	url      string       // of the neighbour
	copyOpen check.Source // the copy
}

// newRig publishes releases, signs, and copies the store.
func newRig(t testing.TB, releases int) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{TB: t, origin: origin, data: filepath.Join(dir, "data"), keys: filepath.Join(dir, "keys"), copied: filepath.Join(dir, "copy"), lies: map[string]http.HandlerFunc{}}
	for _, d := range []string{r.data, r.copied} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.write(func(s *shelf) {
		s.check(testkit.Publish(s.store, testkit.Releases()[1:]))
		s.check(testkit.Publish(s.store, []testkit.Release{{Package: "odd", Version: "1.0.0-a.1+b", Files: map[string][]byte{
			"a b.js": []byte("space"), "a+b@c~d!$&'.js": []byte("signs"), "ünïcødé-文.js": []byte("unicode"), "100%.js": []byte("percent"),
			"%41.js": []byte("percent 41"), "who?what#1.js": []byte("question"), "...dots...js": []byte("dots"), "semi;colon.js": []byte("semicolon"), "empty.txt": nil,
		}}}))
		s.publish(0, releases)
		s.carry()
	})
	r.write(func(s *shelf) { testkit.CopyStore(t, s.store, filepath.Join(r.copied, "store")) })
	return r
}

// A shelf is the store while it is open to be written.
type shelf struct {
	testing.TB
	store  *kvstore.Store
	log    *logs.Log
	signer *signing.Signer
}

func (s *shelf) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// publish publishes releases of many files, of which some are shared.
func (s *shelf) publish(from, to int) {
	s.Helper()
	for v := from; v < to; v++ {
		files := map[string][]byte{"shared.js": bytes.Repeat([]byte("shared(); "), 500)}
		random := make([]byte, 8<<10)
		rand.NewChaCha8([32]byte{byte(v), byte(v >> 8)}).Read(random)
		files["noise.bin"] = random
		for f := range 10 {
			files[fmt.Sprintf("dist/part%d.js", f)] = fmt.Appendf(nil, "%s// release %d, file %d", strings.Repeat("part(); ", 400), v, f)
		}
		s.check(testkit.Publish(s.store, []testkit.Release{{Package: "many", Version: fmt.Sprintf("1.%d.0", v), Files: files}}))
	}
	var err error
	s.log, err = logs.Open(s.store)
	s.check(err)
}

// carry writes rows that do not follow from the log.
func (s *shelf) carry() {
	s.Helper()
	b := s.store.NewBatch()
	defer b.Close()
	b.Set(kvstore.Durable, []byte("a schedule"), []byte("tomorrow"))
	b.Set(kvstore.Meta, []byte("setting"), []byte("on"))
	b.Set(kvstore.Upstreams, []byte("many"), []byte("{}"))
	b.Set(kvstore.Queue, []byte("work"), []byte("waits"))
	s.check(views.SetState(b, views.State{Package: "many", Version: "9.9.9", Kind: views.Failed, Reason: "a timeout", Updated: testkit.Released}))
	s.check(b.Commit())
}

// write opens the store, and signs what fn has done.
func (r *rig) write(fn func(*shelf)) {
	r.Helper()
	store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{FS: unsynced.FS, MemTableBytes: r.memTable})
	if err != nil {
		r.Fatal(err)
	}
	s := &shelf{TB: r.TB, store: store}
	s.log, err = logs.Open(store)
	s.check(err)
	fn(s)
	s.log, err = logs.Open(store)
	s.check(err)
	s.signer, err = signing.Open(signing.Options{Dir: r.keys, Origin: r.origin, Store: store, Log: s.log, Logger: slog.New(slog.DiscardHandler)})
	s.check(err)
	s.check(s.signer.Sign())
	r.urls = r.served(store)
	s.check(errors.Join(s.signer.Close(), store.Close()))
}

// served is every file that a store serves.
func (r *rig) served(store *kvstore.Store) map[string]string {
	r.Helper()
	all := map[string]string{}
	for f, err := range views.AllFiles(store) {
		if err != nil {
			r.Fatal(err)
		}
		data, err := store.Identity(f.Hash)
		if err != nil {
			r.Fatal(err)
		}
		all[f.Package+"/"+f.Version+"/"+f.Path] = string(data)
	}
	return all
}

// neighbour serves the copy, with its log, and tells lies where there are any.
func (r *rig) neighbour() string {
	r.Helper()
	served := r.TempDir()
	if err := os.CopyFS(served, os.DirFS(filepath.Join(r.copied, "store"))); err != nil {
		r.Fatal(err)
	}
	store, err := kvstore.Open(served, kvstore.Options{FS: unsynced.FS})
	if err != nil {
		r.Fatal(err)
	}
	log, err := logs.Open(store)
	if err != nil {
		r.Fatal(err)
	}
	keys := r.TempDir()
	for _, name := range []string{"log.key", "log.pub", "checkpoint"} {
		data, err := os.ReadFile(filepath.Join(r.keys, name))
		if err != nil {
			r.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(keys, name), data, 0o600); err != nil {
			r.Fatal(err)
		}
	}
	logger := slog.New(slog.DiscardHandler)
	signer, err := signing.Open(signing.Options{Dir: keys, Origin: origin, Store: store, Log: log, Logger: logger})
	if err != nil {
		r.Fatal(err)
	}
	logTiles, err := tiles.New(tiles.Options{Store: store, Signer: signer, Logger: logger})
	if err != nil {
		r.Fatal(err)
	}
	assets, err := server.New(server.Options{Store: store})
	if err != nil {
		r.Fatal(err)
	}
	contents, err := server.NewContents(server.ContentOptions{Store: store, Dictionaries: true, Logger: logger})
	if err != nil {
		r.Fatal(err)
	}
	honest := server.RouteContents(contents, tiles.Route(logTiles, server.Route(assets, http.NotFoundHandler())))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.mu.Lock()
		r.asked++
		r.mu.Unlock()
		for prefix, lie := range r.lies {
			if strings.HasPrefix(request.URL.Path, prefix) {
				lie(w, request)
				return
			}
		}
		honest.ServeHTTP(w, request)
	}))
	r.Cleanup(func() {
		web.Close()
		signer.Close()
		store.Close()
	})
	return web.URL
}

func (r *rig) peer() check.Source {
	r.Helper()
	r.url = r.neighbour()
	return peer(r.url)
}

func peer(url string) check.Source {
	server := replication.NewServer(verify.Options{Server: url})
	server.MaxFailures = 64
	return server
}

func (r *rig) folder() check.Source {
	r.Helper()
	s, err := replication.OpenFolder(r.copied, nil)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { s.Close() })
	return s
}

func (r *rig) options(sources ...check.Source) check.RepairOptions {
	r.findings = nil
	return check.RepairOptions{Data: r.data, Keys: r.keys, Temp: r.TempDir(), Sources: sources, Report: func(f check.Finding) { r.findings = append(r.findings, f) }}
}

func (r *rig) repair(sources ...check.Source) check.RepairResult {
	r.Helper()
	result, err := check.Repair(r.Context(), r.options(sources...))
	if err != nil {
		r.Fatalf("%v\n%+v", err, r.findings)
	}
	return result
}

// healed fails the test unless all is as it was: the same bytes under the same URLs, a log
// that is sound and goes on, and a store that can be compacted as a whole.
func (r *rig) healed() {
	r.Helper()
	dir := filepath.Join(r.data, "store")
	store, err := kvstore.Open(dir, kvstore.Options{FS: unsynced.FS})
	if err != nil {
		r.Fatal(err)
	}
	_, err = check.Run(r.Context(), store, check.Options{Deep: true, Keys: r.keys, Temp: r.TempDir()}, func(f check.Finding) { r.Errorf("fsck finds %+v", f) })
	if err != nil {
		r.Fatal(err)
	}
	got := r.served(store)
	for path, data := range r.urls {
		if got[path] != data {
			r.Errorf("%s has %d bytes, want %d", path, len(got[path]), len(data))
		}
	}
	if len(got) != len(r.urls) {
		r.Errorf("%d files are served, want %d", len(got), len(r.urls))
	}
	if err := store.Close(); err != nil {
		r.Fatal(err)
	}
	r.compact(dir)
	r.next++
	r.write(func(s *shelf) { s.publish(1000+r.next, 1001+r.next) })
	store, err = kvstore.Open(dir, kvstore.Options{ReadOnly: true})
	if err != nil {
		r.Fatal(err)
	}
	defer store.Close()
	_, err = check.Run(r.Context(), store, check.Options{Keys: r.keys, Temp: r.TempDir()}, func(f check.Finding) { r.Errorf("after the next publication, fsck finds %+v", f) })
	if err != nil {
		r.Error(err)
	}
}

// compact compacts the whole store, which fails for ever where a table is damaged.
func (r *rig) compact(dir string) {
	r.Helper()
	db, err := pebble.Open(dir, &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}})
	if err != nil {
		r.Fatal(err)
	}
	if err := errors.Join(db.Compact(r.Context(), []byte{0}, []byte{0xff}, false), db.Close()); err != nil {
		r.Errorf("a full compaction: %v", err)
	}
}

type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// files are those of the store whose names end so, the largest first.
func (r *rig) files(suffix string) []string {
	r.Helper()
	entries, err := os.ReadDir(filepath.Join(r.data, "store"))
	if err != nil {
		r.Fatal(err)
	}
	size := map[string]int64{}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) || strings.HasPrefix(e.Name(), suffix) {
			info, err := e.Info()
			if err != nil {
				r.Fatal(err)
			}
			path := filepath.Join(r.data, "store", e.Name())
			names, size[path] = append(names, path), info.Size()
		}
	}
	slices.SortFunc(names, func(a, b string) int { return int(size[b] - size[a]) })
	if len(names) == 0 {
		r.Fatalf("the store has no %s", suffix)
	}
	return names
}

// flip changes a bit at a part of a file.
func (r *rig) flip(path string, part float64) {
	r.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		r.Fatal(err)
	}
	data[int(part*float64(len(data)))] ^= 4
	r.replace(path, data)
}

// replace takes the place of a file, which may be a link that a copy shares.
func (r *rig) replace(path string, data []byte) {
	r.Helper()
	if err := errors.Join(os.Remove(path), os.WriteFile(path, data, 0o600)); err != nil {
		r.Fatal(err)
	}
}
