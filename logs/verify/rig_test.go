package verify_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server"
)

const origin = "cdn.example.com/log"

// A rig is a server with files and their log, which may be made to lie.
type rig struct {
	*testing.T
	*testkit.Shelf
	keys   string
	signer *signing.Signer
	server *httptest.Server
	lies   map[string]lie              // by path, whatever the query
	raw    map[string]http.HandlerFunc // by path, in the place of the honest server
	mu     sync.Mutex
	asked  map[string]int // requests, by path
	sent   atomic.Int64   // bytes of bodies
}

// counting counts the bytes of bodies that a rig sends.
type counting struct {
	http.ResponseWriter
	rig *rig
}

func (c *counting) Write(data []byte) (int, error) {
	c.rig.sent.Add(int64(len(data)))
	return c.ResponseWriter.Write(data)
}

// Unwrap is for [http.ResponseController].
func (c *counting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// A lie changes what an honest server answers.
type lie func(status int, header http.Header, body []byte) (int, []byte)

var alert = strings.Repeat("alert('a file that compresses well');\n", 40)

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOf(t, testkit.NewShelf(t))
}

func newRigOf(t *testing.T, shelf *testkit.Shelf) *rig {
	t.Helper()
	r := &rig{T: t, Shelf: shelf, keys: t.TempDir(), lies: map[string]lie{}, raw: map[string]http.HandlerFunc{}, asked: map[string]int{}}
	logger := slog.New(slog.DiscardHandler)
	var err error
	if r.signer, err = signing.Open(signing.Options{Dir: r.keys, Origin: origin, Store: r.Store, Log: r.Log, Logger: logger}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.signer.Close() })
	log, err := tiles.New(tiles.Options{Store: r.Store, Signer: r.signer, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	assets, err := server.New(server.Options{Store: r.Store})
	if err != nil {
		t.Fatal(err)
	}
	honest := tiles.Route(log, server.Route(assets, http.NotFoundHandler()))
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.mu.Lock()
		r.asked[request.URL.Path]++
		r.mu.Unlock()
		w = &counting{w, r}
		if handle, ok := r.raw[request.URL.Path]; ok {
			handle(w, request)
			return
		}
		change, ok := r.lies[request.URL.Path]
		if !ok {
			honest.ServeHTTP(w, request)
			return
		}
		if strings.HasPrefix(request.URL.Path, tiles.Prefix) {
			request.Header.Del("Accept-Encoding") // the lie is about what is in the answer
		}
		recorded := httptest.NewRecorder()
		honest.ServeHTTP(recorded, request)
		status, body := change(recorded.Code, recorded.Header(), recorded.Body.Bytes())
		for name, values := range recorded.Header() {
			if name != "Content-Length" {
				w.Header()[name] = values
			}
		}
		w.WriteHeader(status)
		w.Write(body)
	}))
	t.Cleanup(r.server.Close)
	return r
}

// stocked is a rig with a library, two releases and one of another library.
func stocked(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	stock(r.Shelf)
	r.sign()
	return r
}

func stock(s *testkit.Shelf) {
	s.Register("vue", `{"name":"vue"}`)
	s.Publish("vue", "3.0.0", "vue.js", map[string]string{"vue.js": alert, "dist/a b.min.js": "alert(2)"})
	s.Publish("vue", "3.1.0", "vue.js", map[string]string{"vue.js": alert + "//"})
	s.Register("d3", `{"name":"d3"}`)
	s.Publish("d3", "7.0.0", "d3.js", map[string]string{"d3.js": "d3"})
}

func (r *rig) sign() {
	r.Helper()
	if err := r.signer.Sign(); err != nil {
		r.Fatal(err)
	}
}

// append adds entries that say nothing about what is served.
func (r *rig) append(n int, e logs.Entry) {
	r.Helper()
	appendTo(r.T, r.Shelf, n, e)
}

func appendTo(t *testing.T, s *testkit.Shelf, n int, e logs.Entry) {
	t.Helper()
	err := s.Log.Update(func(tx *logs.Tx) error {
		for range n {
			if _, err := tx.Append(e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// restore records a withdrawn release's restoration.
func (r *rig) restore(pkg, version string) {
	r.Helper()
	v, err := views.LookupVersion(r.Store, pkg, version)
	if err != nil {
		r.Fatal(err)
	}
	m, err := logs.ReadManifest(r.Store, v.Manifest)
	if err != nil {
		r.Fatal(err)
	}
	change := views.Change{Entry: logs.Entry{Kind: logs.Restored, Time: testkit.Released, Actor: "operator", Package: pkg, Version: version, Manifest: v.Manifest, Reason: "it was all right"}, Manifest: m}
	if err := r.Log.Update(func(tx *logs.Tx) error { return views.Record(tx, change) }); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) options() verify.Options {
	return verify.Options{Server: r.server.URL, Trust: verify.Trust{Key: r.signer.Key()}}
}

// seen remembers a signed checkpoint of the log of any key.
func seen(signed []byte) func(string) (verify.KnownLog, bool) {
	return func(string) (verify.KnownLog, bool) { return verify.KnownLog{Checkpoint: string(signed)}, true }
}

func (r *rig) open(o verify.Options) *verify.Log {
	r.Helper()
	l, err := verify.Open(r.Context(), o)
	if err != nil {
		r.Fatal(err)
	}
	return l
}

// url verifies what the server has under /ajax/libs/ and a name.
func (r *rig) url(o verify.Options, name string) verify.Result {
	r.Helper()
	address := r.server.URL + "/ajax/libs/" + name
	_, n, err := verify.ParseURL(address)
	if err != nil {
		r.Fatal(err)
	}
	l, err := verify.Open(r.Context(), o)
	if err != nil {
		return verify.Result{Outcome: verify.OutcomeOf(err), Problem: err.Error()}
	}
	return l.VerifyURL(r.Context(), address, n)
}

// key is a signer with the log's key, which somebody has stolen.
func (r *rig) key() note.Signer {
	r.Helper()
	data, err := os.ReadFile(filepath.Join(r.keys, "log.key"))
	if err != nil {
		r.Fatal(err)
	}
	s, err := note.NewSigner(strings.TrimSpace(string(data)))
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// checkpoint is a checkpoint's text, signed.
func (r *rig) checkpoint(name string, c logs.Checkpoint, signers ...note.Signer) []byte {
	r.Helper()
	text := name + "\n" + itoa(c.Size) + "\n" + c.Root.String() + "\n"
	signed, err := note.Sign(&note.Note{Text: text}, signers...)
	if err != nil {
		r.Fatal(err)
	}
	return signed
}

// newSigner makes a key of somebody.
func (r *rig) newSigner(name string) (note.Signer, string) {
	r.Helper()
	private, public, err := note.GenerateKey(nil, name)
	if err != nil {
		r.Fatal(err)
	}
	s, err := note.NewSigner(private)
	if err != nil {
		r.Fatal(err)
	}
	return s, public
}

// flip changes the bit in the middle of a body.
func flip(status int, _ http.Header, body []byte) (int, []byte) {
	body = bytes.Clone(body)
	body[len(body)/2] ^= 1
	return status, body
}

func cut(status int, _ http.Header, body []byte) (int, []byte) { return status, body[:len(body)-1] }

func instead(body []byte) lie {
	return func(int, http.Header, []byte) (int, []byte) { return http.StatusOK, body }
}

func gone(int, http.Header, []byte) (int, []byte) { return http.StatusNotFound, nil }

// in tells a lie in one coding only.
func in(coding string, l lie) lie {
	return func(status int, header http.Header, body []byte) (int, []byte) {
		if header.Get("Content-Encoding") != coding {
			return status, body
		}
		return l(status, header, body)
	}
}

func (r *rig) manifestPath(index int64) string {
	r.Helper()
	e, err := logs.ReadEntry(r.Store, index)
	if err != nil {
		r.Fatal(err)
	}
	return tiles.ContentPath(index, e.Manifest)
}

var now = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
