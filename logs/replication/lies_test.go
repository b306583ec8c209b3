package replication_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
)

// A source that lies is refused: what was verified before goes on being served, nothing of the lie is, and when the
// source is honest again the mirror goes on.
func TestLies(t *testing.T) {
	const news = "vue three point two"
	newHash := kvstore.Sum([]byte(news)).String()
	flip := func(body []byte) []byte {
		body = bytes.Clone(body)
		if len(body) > 0 {
			body[len(body)/2] ^= 1
		}
		return body
	}
	for _, test := range []struct {
		name string
		lie  func(u *upstream, path string, body []byte) []byte
		want string
	}{
		{"other bytes", func(_ *upstream, path string, body []byte) []byte {
			if strings.HasSuffix(path, newHash) {
				return []byte("vue three point bad")
			}
			return body
		}, "other bytes"},
		{"fewer bytes", func(_ *upstream, path string, body []byte) []byte {
			if strings.HasSuffix(path, newHash) {
				return body[:3]
			}
			return body
		}, "other bytes"},
		{"far more bytes", func(_ *upstream, path string, body []byte) []byte {
			if strings.HasSuffix(path, newHash) {
				return make([]byte, 1<<20)
			}
			return body
		}, "too long"},
		{"a manifest of 60 MB", func(_ *upstream, path string, body []byte) []byte {
			if bytes.Contains(body, []byte(`"files":`)) && strings.HasPrefix(path, "/content/") {
				return make([]byte, 60<<20)
			}
			return body
		}, "other bytes"},
		{"no such content", func(_ *upstream, path string, body []byte) []byte {
			if strings.HasSuffix(path, newHash) {
				return nil
			}
			return body
		}, "does not have it"},
		{"another entry", func(_ *upstream, path string, body []byte) []byte {
			if strings.Contains(path, "/tile/entries/") {
				return bytes.Replace(body, []byte("3.2.0"), []byte("3.2.9"), 1)
			}
			return body
		}, "not the one in the signed tree"},
		{"a gap", func(_ *upstream, path string, body []byte) []byte {
			if strings.Contains(path, "/tile/entries/") {
				return body[2+binary.BigEndian.Uint16(body):]
			}
			return body
		}, "not the one in the signed tree"},
		{"another tile", func(_ *upstream, path string, body []byte) []byte {
			if strings.HasPrefix(path, "/log/tile/0/") {
				return flip(body)
			}
			return body
		}, "do not belong to the tree"},
		{"no signature", func(_ *upstream, path string, body []byte) []byte {
			if path == "/log/checkpoint" {
				return bytes.Replace(body, []byte("\n"), []byte("\n1"), 1) // of a larger size
			}
			return body
		}, "signature"},
		{"a page", func(_ *upstream, path string, body []byte) []byte {
			if path == "/log/checkpoint" {
				return []byte("<!doctype html>")
			}
			return body
		}, "not a signed checkpoint"},
	} {
		t.Run(test.name, func(t *testing.T) {
			u := newUpstream(t)
			u.stock(t)
			m := newMirror(t, u.url)
			m.catchUp(t)
			before, _ := m.Checkpoint()
			u.Publish("vue", "3.2.0", "vue.js", map[string]string{"vue.js": news})
			u.signNow(t)
			u.lies(func(path string, body []byte) []byte { return test.lie(u, path, body) })
			err := m.CatchUp(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if test.name != "no such content" && test.name != "far more bytes" && test.name != "a page" && !errors.As(err, new(*replication.RefusedError)) {
				t.Errorf("it is no refusal: %v", err)
			}
			if after, err := m.Checkpoint(); err != nil || !bytes.Equal(after.Note, before.Note) || m.Log.Checkpoint() != before.Checkpoint {
				t.Errorf("it has %+v, shows %+v, %v", m.Log.Checkpoint(), after.Checkpoint, err)
			}
			h := handler(t, m.Store, m)
			if status, body := get(t, h, "vue three"); status != 200 || body != "vue three" {
				t.Errorf("what was verified before is %d %q", status, body)
			}
			if status, _ := get(t, h, news); status != 404 {
				t.Errorf("what was not is %d", status)
			}
			m.sound(t)
			u.lies(nil)
			m.catchUp(t)
			m.same(t, u)
		})
	}
}

// A source that shows an older checkpoint, as one restored from a backup, takes nothing away.
func TestShrunk(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	old, _ := u.signer.Checkpoint()
	u.Publish("vue", "3.2.0", "vue.js", map[string]string{"vue.js": "vue three point two"})
	u.signNow(t)
	m := newMirror(t, u.url)
	m.catchUp(t)
	u.lies(func(path string, body []byte) []byte {
		if path == "/log/checkpoint" {
			return old.Note
		}
		return body
	})
	err := m.CatchUp(t.Context())
	if !errors.As(err, new(*replication.RefusedError)) || !strings.Contains(err.Error(), "was signed and seen before") {
		t.Errorf("got %v", err)
	}
	// Nor does the next start forget, with an empty store.
	fresh := newMirror(t, u.url)
	fresh.Follower.Close()
	data, err := os.ReadFile(filepath.Join(m.keys, replication.KnownFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(fresh.keys, replication.KnownFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
	fresh.open(t, u.url)
	if err := fresh.CatchUp(t.Context()); !errors.As(err, new(*replication.RefusedError)) {
		t.Errorf("a new store: %v", err)
	}
	u.lies(nil)
	m.catchUp(t)
	m.same(t, u)
}

// A source whose key signs two logs is refused, and both notes are kept.
func TestFork(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	m := newMirror(t, u.url)
	m.catchUp(t)
	// Another process with the same key, and a log of its own.
	twin := &upstream{Shelf: testkit.NewShelf(t)}
	keys := t.TempDir()
	key, err := os.ReadFile(filepath.Join(u.signer.Folder(), "log.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(keys, "next.key"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	twin.sign(t, keys)
	if twin.signer.Key() != u.signer.Key() {
		t.Fatal("the key folder has another layout")
	}
	twin.Register("evil", `{"name":"evil"}`)
	for range 12 {
		twin.Register("evil", `{"name":"evil"}`)
	}
	twin.signNow(t)
	twin.serve(t, twin.signer)
	before := m.Log.Checkpoint()
	// The server answers with the twin from now on.
	m.again(t, u.url, func(o *replication.Options) {
		o.Source = renamed{replication.NewServer(serverOptions(twin.url)), u.url}
	})
	err = m.CatchUp(t.Context())
	if !errors.As(err, new(*replication.RefusedError)) || !strings.Contains(err.Error(), "forked") {
		t.Fatalf("got %v", err)
	}
	if m.Log.Checkpoint() != before {
		t.Error("it took something over")
	}
	evidence := m.State().Evidence
	found, err := verify.VerifyEvidence(evidence, u.signer.Key())
	if err != nil || found.Outcome != verify.Forked || len(found.Heads) != 2 {
		t.Errorf("the evidence in %q: %+v, %v", evidence, found, err)
	}
	m.sound(t)
	m.again(t, u.url)
	m.catchUp(t)
	m.same(t, u)
}

type renamed struct {
	replication.Source
	name string
}

func (r renamed) Name() string { return r.name }

// A log that is signed with another key than the pinned one is no log to follow.
func TestAnotherKey(t *testing.T) {
	u, other := newUpstream(t), newUpstream(t)
	u.stock(t)
	m := newMirror(t, u.url, func(o *replication.Options) { o.Trust.Key = other.signer.Key() })
	if err := m.CatchUp(t.Context()); !errors.As(err, new(*replication.RefusedError)) {
		t.Errorf("got %v", err)
	}
	if size := m.Log.Checkpoint().Size; size != 0 {
		t.Errorf("it has %d entries", size)
	}
}

// A source that stalls holds nothing but the follower, which ends when it is told to.
func TestStalls(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	ctx, cancel := context.WithCancel(t.Context())
	m := newMirror(t, u.url, func(o *replication.Options) {
		o.Source = memorySource{o.Source, func(ctx context.Context, _ replication.Wanted) (replication.Found, error) {
			cancel() // the first has begun
			<-ctx.Done()
			return replication.Found{}, ctx.Err()
		}}
	})
	if err := m.CatchUp(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	m.soundSoFar(t)
}

// A server that begins an answer and never ends it is given up, after a while that grows with what was asked for.
func TestStallingServer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		stalling := verify.Options{Server: "http://source.example", Client: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			asked.Add(1)
			return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{}, ContentLength: -1, Body: &stall{r.Context()}, Request: r}, nil
		})}}
		source := replication.NewServer(stalling)
		for name, ask := range map[string]func() error{
			"content": func() error { _, err := source.Content(t.Context(), replication.Wanted{Limit: 1 << 20}); return err },
			"log":     func() error { _, err := source.Get(t.Context(), "/log/checkpoint", 1000); return err },
		} {
			asked.Store(0)
			begin := time.Now()
			err := ask()
			if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took > 5*time.Minute || asked.Load() > 5 {
				t.Errorf("%s: %v after %s and %d requests", name, err, took, asked.Load())
			}
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// stall is a body of which nothing comes.
type stall struct{ ctx context.Context }

func (s *stall) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func (s *stall) Close() error { return nil }

// Whatever a content inflates to, no more is held than it may have.
func TestBombs(t *testing.T) {
	bomb, err := coding.Encode(coding.Brotli, coding.Quick, make([]byte, 100<<20))
	if err != nil {
		t.Fatal(err)
	}
	huge := bytes.Repeat([]byte("{"), 60<<20) // the hash is right
	for _, test := range []struct {
		name string
		sent kvstore.Coded
		of   func(u *upstream) kvstore.Hash
	}{
		{"a file", kvstore.Coded{Coding: coding.Brotli, Bytes: bomb}, func(*upstream) kvstore.Hash { return kvstore.Sum([]byte("vue three")) }},
		{"a manifest", kvstore.Coded{Coding: coding.Brotli, Bytes: bomb}, func(u *upstream) kvstore.Hash {
			v, err := views.LookupVersion(u.Store, "vue", "3.0.0")
			if err != nil {
				t.Fatal(err)
			}
			return v.Manifest
		}},
		{"a manifest of 60 MB that is signed", kvstore.Coded{Coding: coding.Identity, Bytes: huge}, func(u *upstream) kvstore.Hash {
			h := kvstore.Sum(huge)
			err := u.Log.Update(func(tx *logs.Tx) error {
				_, err := tx.Append(logs.Entry{Kind: logs.Published, Time: testTime, Actor: "bot", Package: "huge", Version: "1.0.0", Released: testTime, Manifest: h})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			u.signNow(t)
			return h
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			u := newUpstream(t)
			u.stock(t)
			of := test.of(u)
			m := newMirror(t, u.url, func(o *replication.Options) {
				honest := o.Source
				o.Source = memorySource{honest, func(ctx context.Context, w replication.Wanted) (replication.Found, error) {
					if w.Hash == of {
						return replication.Found{Coded: []kvstore.Coded{test.sent}}, nil
					}
					return honest.Content(ctx, w)
				}}
			})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := m.CatchUp(t.Context())
			runtime.ReadMemStats(&after)
			if !errors.As(err, new(*replication.RefusedError)) {
				t.Errorf("got %v", err)
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 300<<20 && !raceDetector { // the race detector empties pools
				t.Errorf("%d MB were allocated for it", grown>>20)
			}
			m.soundSoFar(t)
		})
	}
}
