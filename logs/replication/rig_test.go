package replication_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
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

// An upstream is a Larder that is followed, behind a server that a test can make lie.
type upstream struct {
	*testkit.Shelf
	signer *signing.Signer
	url    string
	ahead  atomic.Int64 // of the clock by which the log is cosigned

	mu       sync.Mutex
	lie      func(path string, body []byte) []byte // nil: what is there
	requests int
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{Shelf: testkit.NewShelf(t)}
	u.sign(t, t.TempDir())
	u.serve(t, u.signer)
	return u
}

func (u *upstream) sign(t *testing.T, keys string) {
	t.Helper()
	var err error
	u.signer, err = signing.Open(signing.Options{Dir: keys, Origin: origin, Store: u.Store, Log: u.Log, Now: u.now, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.signer.Close() })
}

func (u *upstream) now() time.Time { return time.Now().Add(time.Duration(u.ahead.Load())) }

var quiet = slog.New(slog.DiscardHandler)

// handler serves a store and its log as a larder process does.
func handler(t *testing.T, store *kvstore.Store, signer tiles.Signer) http.Handler {
	t.Helper()
	log, err := tiles.New(tiles.Options{Store: store, Signer: signer, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	contents, err := server.NewContents(server.ContentOptions{Store: store, Dictionaries: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return server.RouteContents(contents, tiles.Route(log, http.NotFoundHandler()))
}

func (u *upstream) serve(t *testing.T, signer tiles.Signer) {
	t.Helper()
	honest := handler(t, u.Store, signer)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		lie := u.lie
		u.requests++
		u.mu.Unlock()
		if lie == nil {
			honest.ServeHTTP(w, r)
			return
		}
		r.Header.Set("Accept-Encoding", "identity")
		answer := httptest.NewRecorder()
		honest.ServeHTTP(answer, r)
		body := lie(r.URL.Path, answer.Body.Bytes())
		if body == nil {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(answer.Code)
		w.Write(body)
	}))
	t.Cleanup(s.Close)
	u.url = s.URL
}

func (u *upstream) lies(lie func(path string, body []byte) []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lie = lie
}

// stock publishes, withdraws, restores and erases.
func (u *upstream) stock(t *testing.T) {
	t.Helper()
	u.Register("vue", `{"name":"vue"}`)
	u.Publish("vue", "3.0.0", "vue.js", map[string]string{"vue.js": "vue three", "LICENSE": "MIT", "big.js": strings.Repeat("let it = 1;\n", 1000)})
	u.Publish("vue", "3.1.0", "vue.js", map[string]string{"vue.js": "vue three point one", "LICENSE": "MIT"})
	u.Refuse("vue", "9.0.0", "a bomb")
	u.Publish("evil", "1.0.0", "evil.js", map[string]string{"evil.js": "steal()", "LICENSE": "MIT"})
	u.Withdraw("evil", "1.0.0", "malware")
	u.Publish("back", "1.0.0", "back.js", map[string]string{"back.js": "back"})
	u.Withdraw("back", "1.0.0", "a mistake")
	u.Restore("back", "1.0.0", "it was fine")
	u.signNow(t)
}

func (u *upstream) signNow(t *testing.T) {
	t.Helper()
	if err := u.signer.Sign(); err != nil {
		t.Fatal(err)
	}
}

// erase erases the files of a withdrawn release.
func (u *upstream) erase(t *testing.T, name, version string, files ...string) {
	t.Helper()
	v, err := views.LookupVersion(u.Store, name, version)
	if err != nil {
		t.Fatal(err)
	}
	erasure := &logs.Erasure{Package: name, Version: version}
	for _, f := range files {
		erasure.Contents = append(erasure.Contents, kvstore.Sum([]byte(f)))
	}
	data, err := erasure.Encode()
	if err != nil {
		t.Fatal(err)
	}
	h := kvstore.Sum(data)
	if err := u.Store.PutContent(h, int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}); err != nil {
		t.Fatal(err)
	}
	err = u.Log.Update(func(tx *logs.Tx) error {
		for _, h := range erasure.Contents {
			tx.Batch.Remove(h)
		}
		return views.Record(tx, views.Change{
			Entry:   logs.Entry{Kind: logs.Erased, Time: testkit.Released, Actor: "operator", Package: name, Version: version, Manifest: v.Manifest, Erasure: h, Reason: "by order"},
			Erasure: erasure,
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A mirror is a store that follows an upstream.
type mirror struct {
	*testkit.Shelf
	keys string
	*replication.Follower
}

func newMirror(t *testing.T, url string, change ...func(*replication.Options)) *mirror {
	t.Helper()
	m := &mirror{Shelf: testkit.NewShelf(t), keys: filepath.Join(t.TempDir(), "keys")}
	m.open(t, url, change...)
	return m
}

func (m *mirror) open(t *testing.T, url string, change ...func(*replication.Options)) {
	t.Helper()
	o := replication.Options{Source: replication.NewServer(verify.Options{Server: url}), Store: m.Store, Log: m.Log, Keys: m.keys, Logger: quiet}
	for _, c := range change {
		c(&o)
	}
	var err error
	if m.Follower, err = replication.Open(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Follower.Close() })
}

// again is the next start.
func (m *mirror) again(t *testing.T, url string, change ...func(*replication.Options)) {
	t.Helper()
	if err := m.Follower.Close(); err != nil {
		t.Fatal(err)
	}
	m.open(t, url, change...)
}

func (m *mirror) catchUp(t *testing.T) {
	t.Helper()
	if err := m.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// same fails the test unless the mirror has what the upstream has, and is sound.
func (m *mirror) same(t *testing.T, u *upstream) {
	t.Helper()
	if got, want := m.Log.Checkpoint(), u.Log.Checkpoint(); got != want {
		t.Fatalf("the log is %+v, want %+v", got, want)
	}
	got, err := m.Checkpoint()
	want, _ := u.signer.Checkpoint()
	if err != nil || !bytes.Equal(got.Note, want.Note) {
		t.Errorf("it shows %q, %v, want %q", got.Note, err, want.Note)
	}
	for _, ns := range []kvstore.Namespace{kvstore.Files, kvstore.SRIs, kvstore.Versions, kvstore.Packages, kvstore.States, kvstore.Named, kvstore.LogIndex} {
		if a, b := rows(t, m.Store, ns), rows(t, u.Store, ns); a != b {
			t.Errorf("namespace %c is\n%q\nwant\n%q", ns, a, b)
		}
	}
	m.sound(t)
}

// sound fails the test unless fsck finds nothing.
func (m *mirror) sound(t *testing.T) {
	t.Helper()
	summary, err := check.Run(t.Context(), m.Store, check.Options{Deep: true, Keys: m.keys, Temp: t.TempDir()}, func(f check.Finding) { t.Errorf("fsck: %+v", f) })
	if err != nil {
		t.Fatal(err)
	}
	if summary.Signed != m.SignedInStore().Size {
		t.Errorf("%d entries are signed as the key folder says, want %d", summary.Signed, m.SignedInStore().Size)
	}
}

func rows(t *testing.T, store *kvstore.Store, ns kvstore.Namespace) string {
	t.Helper()
	var all strings.Builder
	for item, err := range store.Scan(ns, kvstore.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		all.Write(item.Key)
		all.WriteString("=")
		all.Write(item.Value)
		all.WriteString("\n")
	}
	return all.String()
}

// get asks for a content by the bytes that it has, or had.
func get(t *testing.T, h http.Handler, data string) (status int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/content/"+kvstore.Sum([]byte(data)).String(), nil))
	return w.Code, w.Body.String()
}

// memorySource is a source without a network.
type memorySource struct {
	replication.Source
	content func(context.Context, replication.Wanted) (replication.Found, error)
}

func (s memorySource) Content(ctx context.Context, w replication.Wanted) (replication.Found, error) {
	if s.content == nil {
		return replication.Found{}, fs.ErrNotExist
	}
	return s.content(ctx, w)
}

var errStop = errors.New("stopped by the test")

var testTime = testkit.Released

func serverOptions(url string) verify.Options { return verify.Options{Server: url} }

// soundSoFar is sound for a mirror that has yet to show anything.
func (m *mirror) soundSoFar(t *testing.T) {
	t.Helper()
	_, err := check.Run(t.Context(), m.Store, check.Options{Deep: true, Temp: t.TempDir()}, func(f check.Finding) { t.Errorf("fsck: %+v", f) })
	if err != nil {
		t.Fatal(err)
	}
}
