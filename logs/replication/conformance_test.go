package replication_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/sources"
	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/verify"
)

// exposed is what a source has: bytes by their paths, contents by their hash and not encoded.
type exposed map[string][]byte

// expose returns what an upstream has for a follower that has nothing.
func expose(t *testing.T, u *upstream) exposed {
	t.Helper()
	all := exposed{}
	for name, data := range members(t, bundleOf(t, u, 0)) {
		hash, encoding, _ := strings.Cut(name, ".")
		for _, c := range []coding.Coding{coding.Brotli, coding.Gzip} {
			if encoding == map[coding.Coding]string{coding.Brotli: "br", coding.Gzip: "gz"}[c] {
				plain, err := coding.DecodeUpTo(c, data, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				name, data = hash, plain
			}
		}
		if name != "larder-bundle.json" {
			all[name] = data
		}
	}
	return all
}

// bundleOf writes a bundle of an upstream.
func bundleOf(t *testing.T, u *upstream, since int64, packages ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.tar")
	writeBundle(t, u, path, since, packages...)
	return path
}

func writeBundle(t *testing.T, u *upstream, path string, since int64, packages ...string) replication.BundleResult {
	t.Helper()
	result, err := replication.WriteBundle(t.Context(), path, replication.BundleOptions{
		Source: replication.FromStore(u.Store, "upstream"), Trust: verify.Trust{Key: u.signer.Key()}, Since: since, Packages: packages,
	})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// members reads a bundle as any program would that reads tar archives.
func members(t *testing.T, path string) map[string][]byte {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all := map[string][]byte{}
	for archive := tar.NewReader(file); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if all[h.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

// A medium is a kind of source. open returns one that has what is exposed, of which honest is what the upstream has.
type medium struct {
	name string
	open func(t *testing.T, u *upstream, honest, x exposed) replication.Source
}

var media = []medium{
	{"server", func(t *testing.T, _ *upstream, _, x exposed) replication.Source {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if data, ok := x[r.URL.Path[1:]]; ok {
				w.Write(data)
				return
			}
			http.NotFound(w, r)
		}))
		t.Cleanup(s.Close)
		return replication.NewServer(serverOptions(s.URL))
	}},
	{"bucket", func(t *testing.T, _ *upstream, _, x exposed) replication.Source {
		b, err := bucket.Open("file://"+t.TempDir(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		for path, data := range x {
			if err := b.Put(t.Context(), tiles.PublicPrefix+"/"+path, data); err != nil {
				t.Fatal(err)
			}
		}
		return &replication.Bucket{Bucket: b}
	}},
	{"folder", openFolder},
	{"bundle", func(t *testing.T, u *upstream, _, x exposed) replication.Source {
		b, err := replication.OpenBundle(tarOf(t, x))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}},
}

// openFolder copies the upstream's store and changes the rows of what is not as it is there.
func openFolder(t *testing.T, u *upstream, honest, x exposed) replication.Source {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "store")
	testkit.CopyStore(t, u.Store, path)
	store, err := kvstore.Open(path, kvstore.Options{FS: unsynced.FS})
	if err != nil {
		t.Fatal(err)
	}
	b := store.NewBatch()
	for name, data := range honest {
		changed, there := x[name]
		hash, isContent := strings.CutPrefix(name, "content/")
		switch {
		case there && bytes.Equal(changed, data):
		case name == "log/checkpoint":
			b.Set(kvstore.LogState, kvstore.Key("signed"), changed)
		case isContent:
			h, err := kvstore.ParseHash(hash)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []coding.Coding{coding.Brotli, coding.Gzip, coding.Identity} {
				b.Delete(kvstore.Blobs, append(h[:], byte(c)))
			}
			b.Delete(kvstore.Contents, h[:])
			if there {
				b.Set(kvstore.Blobs, append(h[:], byte(coding.Identity)), changed)
			}
		case strings.HasPrefix(name, "log/tile/entries/"):
			for i := uint64(0); len(data) > 0; i++ {
				n, m := 2+int(binary.BigEndian.Uint16(data)), min(len(changed), 2+int(binary.BigEndian.Uint16(append(bytes.Clone(changed), 0, 0))))
				if !bytes.Equal(data[:n], changed[:m]) {
					b.Set(kvstore.LogEntries, binary.BigEndian.AppendUint64(nil, i), changed[min(2, m):m])
				}
				data, changed = data[n:], changed[m:]
			}
		default:
			t.Fatalf("nothing is known of how %s is changed", name)
		}
	}
	if err := errors.Join(b.Commit(), b.Close(), store.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := replication.OpenFolder(dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// tarOf writes a bundle of what is exposed.
func tarOf(t *testing.T, x exposed) string {
	t.Helper()
	header, err := replication.EncodeBundleHeader(0, 0, nil, x["log/checkpoint"], x["log/key"], x["log/keys"])
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	add := func(name string, data []byte) {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o644, Uname: replication.SumOf(data), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR})
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	add("larder-bundle.json", header)
	for _, name := range slices.Sorted(maps.Keys(x)) {
		add(name, x[name])
	}
	path := filepath.Join(t.TempDir(), "bundle.tar")
	if err := errors.Join(w.Close(), os.WriteFile(path, all.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

// Every kind of source passes these: what it has arrives; what it has wrong is refused, and nothing of it is here; and
// once it is right, the mirror goes on.
func TestConformance(t *testing.T) {
	const news = "vue three point two"
	u := newUpstream(t)
	u.stock(t)
	before := expose(t, u)
	mirrorOf := func(t *testing.T, s replication.Source) *mirror {
		m := newMirror(t, "", func(o *replication.Options) { o.Source = s })
		m.catchUp(t)
		return m
	}
	oldMirrors := map[string]*mirror{} // caught up before the news, by medium
	for _, medium := range media {
		t.Run(medium.name+" honest", func(t *testing.T) {
			m := mirrorOf(t, medium.open(t, u, before, before))
			m.same(t, u)
		})
		source := medium.open(t, u, before, before)
		oldMirrors[medium.name] = mirrorOf(t, source)
	}
	u.Publish("vue", "3.2.0", "vue.js", map[string]string{"vue.js": news, "LICENSE": "MIT"})
	u.signNow(t)
	after := expose(t, u)
	content := "content/" + kvstore.Sum([]byte(news)).String()
	entries := slices.DeleteFunc(slices.Sorted(maps.Keys(after)), func(name string) bool { return !strings.HasPrefix(name, "log/tile/entries/") })[0]
	lies := []struct {
		name    string
		change  func(x exposed)
		refused bool // always, as what cannot be true
	}{
		{"other bytes", func(x exposed) { x[content] = []byte("vue three point bad") }, false},
		{"a truncated content", func(x exposed) { x[content] = x[content][:5] }, false},
		{"a content that is missing", func(x exposed) { delete(x, content) }, false},
		{"another entry", func(x exposed) { x[entries] = bytes.Replace(x[entries], []byte("3.2.0"), []byte("3.2.9"), 1) }, true},
		{"a truncated log", func(x exposed) { x[entries] = x[entries][:len(x[entries])-9] }, true},
		{"a stale checkpoint", func(x exposed) { x["log/checkpoint"] = before["log/checkpoint"] }, true},
		{"a checkpoint of others", func(x exposed) {
			x["log/checkpoint"] = bytes.Replace(x["log/checkpoint"], []byte("\n"), []byte("\n1"), 1)
		}, true},
	}
	for _, medium := range media {
		t.Run(medium.name, func(t *testing.T) {
			m := oldMirrors[medium.name]
			old := m.Log.Checkpoint()
			for _, lie := range lies {
				x := maps.Clone(after)
				lie.change(x)
				if lie.name == "a stale checkpoint" { // the mirror has seen the newer one, and not its contents
					_ = m.CatchUp(t.Context())
				}
				m.again(t, "", func(o *replication.Options) { o.Source = medium.open(t, u, after, x) })
				err := m.CatchUp(t.Context())
				if err == nil || lie.refused && !errors.As(err, new(*replication.RefusedError)) {
					t.Errorf("%s: %v", lie.name, err)
				}
				if m.Log.Checkpoint() != old {
					t.Fatalf("%s: it has taken something", lie.name)
				}
				m.sound(t)
			}
			cancelled, cancel := context.WithCancel(t.Context())
			cancel()
			m.again(t, "", func(o *replication.Options) { o.Source = medium.open(t, u, after, after) })
			if err := m.CatchUp(cancelled); err == nil || m.Log.Checkpoint() != old {
				t.Errorf("cancelled: %v, and it has %+v", err, m.Log.Checkpoint())
			}
			m.catchUp(t)
			m.same(t, u)
		})
		t.Run(medium.name+" resumed", func(t *testing.T) {
			m := newMirror(t, u.url)
			for allowed := int64(3); ; allowed += 3 {
				var left atomic.Int64
				left.Store(allowed)
				honest := medium.open(t, u, after, after)
				m.again(t, "", func(o *replication.Options) {
					o.Source = memorySource{honest, func(ctx context.Context, w replication.Wanted) (replication.Found, error) {
						if left.Add(-1) < 0 {
							return replication.Found{}, errStop
						}
						return honest.Content(ctx, w)
					}}
				})
				if err := m.CatchUp(t.Context()); err == nil {
					break
				} else if !strings.Contains(err.Error(), errStop.Error()) {
					t.Fatal(err)
				}
			}
			m.same(t, u)
		})
	}
	fork := &upstream{Shelf: testkit.NewShelf(t)}
	keys := t.TempDir()
	key, err := os.ReadFile(filepath.Join(u.signer.Folder(), "log.key"))
	if err == nil {
		err = os.WriteFile(filepath.Join(keys, "next.key"), key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	fork.sign(t, keys)
	for range 30 {
		fork.Register("evil", `{"name":"evil"}`)
	}
	fork.signNow(t)
	forked := expose(t, fork)
	for _, medium := range media {
		t.Run(medium.name+" forked", func(t *testing.T) {
			m := oldMirrors[medium.name]
			m.again(t, "", func(o *replication.Options) { o.Source = medium.open(t, fork, forked, forked) })
			if err := m.CatchUp(t.Context()); !errors.As(err, new(*replication.RefusedError)) || !strings.Contains(err.Error(), "forked") {
				t.Errorf("got %v", err)
			}
			found, err := verify.VerifyEvidence(m.State().Evidence, u.signer.Key())
			if err != nil || found.Outcome != verify.Forked {
				t.Errorf("the evidence: %+v, %v", found, err)
			}
			m.same(t, u)
		})
	}
}

// The contents of every kind of source that has a log pass the tests of all sources of contents.
func TestContents(t *testing.T) {
	const body = "vue three point two"
	u := newUpstream(t)
	u.Publish("vue", "3.2.0", "vue.js", map[string]string{"vue.js": body})
	u.signNow(t)
	honest, hash := expose(t, u), kvstore.Sum([]byte(body))
	for _, medium := range media {
		t.Run(medium.name, func(t *testing.T) {
			sources.Contents(t, []byte(body), func(t *testing.T, sent []byte) (replication.Contents, replication.Wanted) {
				x := maps.Clone(honest)
				if x["content/"+hash.String()] = sent; sent == nil {
					delete(x, "content/"+hash.String())
				}
				return medium.open(t, u, honest, x), replication.Wanted{Hash: hash, Limit: int64(len(body))}
			})
		})
	}
}
