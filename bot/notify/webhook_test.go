package notify

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
)

// A receiver takes messages and verifies them, in a test's virtual time.
type receiver struct {
	mu      sync.Mutex
	secrets map[string]string // by the URL's path
	fail    bool
	got     []string // what was verified
	bad     []string
}

func (r *receiver) RoundTrip(request *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	body, err := io.ReadAll(request.Body)
	if err == nil {
		err = verify(r.secrets[request.URL.Path], request.Header, body, time.Now())
	}
	var m struct {
		Type string `json:"type"`
		Data struct {
			Release
			Name string `json:"name"`
		} `json:"data"`
	}
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	if m.Data.Package == "" { // about a room
		m.Data.Package, m.Data.Version = m.Type, m.Data.Name
	}
	status := 200
	switch {
	case err != nil:
		r.bad = append(r.bad, err.Error())
	case r.fail:
		status = 503
	default:
		got := request.URL.Path + " " + m.Data.Package + " " + m.Data.Version
		if m.Data.Text != "" {
			got = request.URL.Path + " " + m.Type + " " + m.Data.Text + " " + m.Data.Path
		}
		r.got = append(r.got, got)
	}
	return &http.Response{StatusCode: status, Body: http.NoBody, Request: request}, nil
}

func (r *receiver) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.got)
	slices.Sort(want)
	if !slices.Equal(r.got, want) || r.bad != nil {
		t.Errorf("got %q, bad %q; want %q", r.got, r.bad, want)
	}
	r.got = nil
}

// A rig is a store with a log, and a process at work on it.
type rig struct {
	*testing.T
	store    *kvstore.Store
	log      *logs.Log
	receiver *receiver
	runtime  *durable.Runtime
	hooks    *Webhooks
	end      func()
}

func newRig(t *testing.T) *rig {
	store, err := kvstore.Open("store", kvstore.Options{FS: vfs.NewMem(), MinFreeBytes: -1, CacheBytes: 1 << 20, MemTableBytes: 1 << 20, VirtualTime: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	log, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, store: store, log: log, receiver: &receiver{secrets: make(map[string]string)}}
	r.begin()
	return r
}

func (r *rig) begin() {
	r.Helper()
	r.runtime = durable.New(r.store, durable.Options{})
	var err error
	r.hooks, err = OpenWebhooks(WebhookOptions{Runtime: r.runtime, Store: r.store, Log: r.log, Transport: r.receiver})
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.hooks.Run(ctx) })
	r.end = func() {
		cancel()
		running.Wait()
		if err := r.runtime.Close(context.Background()); err != nil {
			r.Error(err)
		}
	}
}

func (r *rig) publish(pkg, version string) {
	r.Helper()
	err := r.log.Update(func(tx *logs.Tx) error {
		for _, kind := range []logs.Kind{logs.Detected, logs.Published} {
			if _, err := tx.Append(logs.Entry{Kind: kind, Time: time.Now().UTC(), Actor: "bot", Package: pkg, Version: version}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) add(path, pkg string) Webhook {
	r.Helper()
	h, secret, err := r.hooks.Add(r.Context(), "http://127.0.0.1:1"+path, Subject{Package: pkg, Watch: strings.HasPrefix(path, "/watch")})
	if err != nil {
		r.Fatal(err)
	}
	r.receiver.mu.Lock()
	r.receiver.secrets[path] = secret
	r.receiver.mu.Unlock()
	return h
}

func (r *rig) hook(id string) Webhook {
	r.Helper()
	hooks, err := r.hooks.List(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	for _, h := range hooks {
		if h.ID == id {
			return h
		}
	}
	r.Fatalf("no webhook %s", id)
	return Webhook{}
}

func TestWebhooksAreToldWhatIsPublished(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer func() { r.end() }()
		r.publish("vue", "0.9.0") // before any webhook was added
		all, vue := r.add("/all", ""), r.add("/vue", "vue")
		r.publish("vue", "1.0.0")
		r.publish("react", "2.0.0")
		r.receiver.want(t, "/all vue 1.0.0", "/vue vue 1.0.0", "/all react 2.0.0")
		late := r.add("/late", "")
		r.publish("vue", "1.1.0")
		r.receiver.want(t, "/all vue 1.1.0", "/vue vue 1.1.0", "/late vue 1.1.0")
		if h := r.hook(all.ID); h.Delivered != 3 || h.Pending != 0 || h.Failures != 0 || h.Answer != 200 {
			t.Errorf("got %+v", h)
		}
		if err := r.hooks.Remove(t.Context(), late.ID); err != nil {
			t.Error(err)
		}
		if err := r.hooks.Remove(t.Context(), late.ID); !errors.Is(err, ErrNoWebhook) {
			t.Errorf("got %v", err)
		}
		r.publish("vue", "1.2.0")
		r.receiver.want(t, "/all vue 1.2.0", "/vue vue 1.2.0")
		if h := r.hook(vue.ID); h.Delivered != 3 || h.Package != "vue" {
			t.Errorf("got %+v", h)
		}
		if _, _, err := r.hooks.Add(t.Context(), "ftp://example.com", Subject{}); err == nil {
			t.Error("a URL that nothing can be sent to was accepted")
		}
	})
}

// Those who watch are told what becomes of releases, and of the log.
func TestWatching(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer func() { r.end() }()
		r.publish("vue", "1.0.0")
		r.add("/plain", "vue")
		r.add("/watch", "vue")
		r.add("/watch-all", "")
		r.publish("react", "2.0.0")
		r.receiver.want(t, "/watch-all release.published react 2.0.0 was published /ajax/libs/react/2.0.0/")
		err := r.log.Update(func(tx *logs.Tx) error {
			for _, e := range []logs.Entry{
				{Kind: logs.UpstreamChanged, Package: "vue", Version: "1.0.0", Reason: "upstream has another archive"},
				{Kind: logs.Withdrawn, Package: "vue", Version: "1.0.0", Reason: "it steals"},
				{Kind: logs.Refused, Package: "vue", Version: "1.0.1", Reason: "too large"},
				{Kind: logs.PackageRemoved, Package: "vue"},
				{Kind: logs.KeyChanged, Key: "k"},
			} {
				e.Time, e.Actor = time.Now().UTC(), "bot"
				if _, err := tx.Append(e); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, path := range []string{"/watch", "/watch-all"} {
			want = append(want, path+" release.upstream-changed vue 1.0.0: upstream has another archive ", path+" release.withdrawn vue 1.0.0 was withdrawn: it steals ",
				path+" package.removed vue left the catalogue: what is published stays, and nothing follows ",
				path+" log.key-changed the log is signed with another key from here on, which the one before has named: k ")
		}
		r.receiver.want(t, want...)
	})
}

func TestFailedMessagesAreTriedAgainAndGivenUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer func() { r.end() }()
		h, gone := r.add("/a", ""), r.add("/gone", "")
		r.receiver.fail = true
		r.publish("vue", "1.0.0")
		time.Sleep(time.Minute)
		if h := r.hook(h.ID); h.Pending != 1 || h.Failures < 4 || h.Answer != 503 || h.Problem != "127.0.0.1:1 answered 503 Service Unavailable" {
			t.Errorf("got %+v", h)
		}
		if err := r.hooks.Remove(t.Context(), gone.ID); err != nil {
			t.Error(err)
		}
		r.receiver.mu.Lock()
		r.receiver.fail = false
		r.receiver.mu.Unlock()
		time.Sleep(10 * time.Minute)
		r.receiver.want(t, "/a vue 1.0.0")
		if h := r.hook(h.ID); h.Pending != 0 || h.Failures != 0 || h.Delivered != 1 {
			t.Errorf("got %+v", h)
		}
		r.receiver.mu.Lock()
		r.receiver.fail = true
		r.receiver.mu.Unlock()
		r.publish("vue", "1.1.0")
		time.Sleep(4 * 24 * time.Hour)
		if h := r.hook(h.ID); h.Pending != 0 || h.GivenUp != 1 || h.Delivered != 1 {
			t.Errorf("got %+v", h)
		}
	})
}

func TestWebhooksOfRooms(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer func() { r.end() }()
		releases := r.add("/releases", "")
		rooms := map[string]Webhook{}
		for path, room := range map[string]string{"/shop": "shop", "/all": "*"} {
			h, secret, err := r.hooks.Add(t.Context(), "http://127.0.0.1:1"+path, Subject{Room: room})
			if err != nil {
				t.Fatal(err)
			}
			rooms[path], r.receiver.secrets[path] = h, secret
		}
		status := func(name string) any { return map[string]string{"name": name} }
		for _, happened := range []struct{ room, kind string }{{"shop", "room.queue_began"}, {"shop", "room.full"}, {"gallery", "room.full"}} {
			if err := r.hooks.NotifyRoom(t.Context(), happened.room, happened.kind, time.Now(), status(happened.room)); err != nil {
				t.Fatal(err)
			}
		}
		r.publish("vue", "1.0.0")
		r.receiver.want(t, "/releases vue 1.0.0", "/shop room.queue_began shop", "/shop room.full shop",
			"/all room.queue_began shop", "/all room.full shop", "/all room.full gallery")
		at := time.Now()
		r.receiver.fail = true
		for range 2 { // told again, as after a crash
			if err := r.hooks.NotifyRoom(t.Context(), "shop", "room.changed", at, status("shop")); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		r.receiver.mu.Lock()
		r.receiver.fail = false
		r.receiver.mu.Unlock()
		time.Sleep(10 * time.Minute)
		r.receiver.want(t, "/shop room.changed shop", "/all room.changed shop")
		if h := r.hook(rooms["/shop"].ID); h.Delivered != 3 || h.Pending != 0 || h.Room != "shop" {
			t.Errorf("got %+v", h)
		}
		if h := r.hook(releases.ID); h.Delivered != 1 {
			t.Errorf("got %+v", h)
		}
		if _, _, err := r.hooks.Add(t.Context(), "http://127.0.0.1:1/both", Subject{Package: "vue", Room: "shop"}); err == nil {
			t.Error("a webhook for a package and a room was accepted")
		}
	})
}

// Whatever was published while no process ran is told afterwards, and nothing twice.
func TestFollowingResumesWhereItWas(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		h := r.add("/a", "")
		r.publish("vue", "1.0.0")
		r.receiver.want(t, "/a vue 1.0.0")
		r.end()
		r.publish("vue", "1.1.0")
		r.begin()
		r.receiver.want(t, "/a vue 1.1.0")
		// It ended after the messages were posted, and before that was noted.
		a, err := r.hooks.send(t.Context(), countPending)
		if err != nil {
			t.Fatal(err)
		}
		r.end()
		r.publish("vue", "1.2.0")
		r.begin()
		r.receiver.want(t, "/a vue 1.2.0")
		if _, err := r.hooks.send(t.Context(), setCursor(a.cursor, a.version)); err != nil {
			t.Fatal(err)
		}
		r.end()
		r.begin()
		r.receiver.want(t)
		if h := r.hook(h.ID); h.Delivered != 3 || h.Pending != 0 {
			t.Errorf("got %+v", h)
		}
		r.end()
	})
}

// The vector is from the reference libraries of Standard Webhooks.
func TestSign(t *testing.T) {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	body := []byte(`{"test": 2432232314}`)
	at := time.Unix(1614265330, 0)
	got, err := sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", at, body)
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want || err != nil {
		t.Fatalf("got %s, %v, want %s", got, err, want)
	}
	header := func(id, timestamp, signature string) http.Header {
		h := http.Header{}
		h.Set(headerID, id)
		h.Set(headerTimestamp, timestamp)
		h.Set(headerSignature, signature)
		return h
	}
	good := header("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", "v1,bm9uc2Vuc2U= "+got)
	if err := verify(secret, good, body, at.Add(4*time.Minute)); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"late":           verify(secret, good, body, at.Add(6*time.Minute)),
		"early":          verify(secret, good, body, at.Add(-6*time.Minute)),
		"other body":     verify(secret, good, body[1:], at),
		"other secret":   verify(newSecret(), good, body, at),
		"other id":       verify(secret, header("msg", "1614265330", got), body, at),
		"other time":     verify(secret, header("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265331", got), body, at),
		"no time":        verify(secret, header("msg_p5jXN8AQM9LWM0D4loKWxJek", "", got), body, at),
		"no signature":   verify(secret, header("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", ""), body, at),
		"no such secret": verify("whsec_?", good, body, at),
	} {
		if err == nil {
			t.Errorf("%s: it was taken for good", name)
		}
	}
	if a, b := newSecret(), newSecret(); a == b || !strings.HasPrefix(a, secretPrefix) || len(a) < 40 {
		t.Errorf("secrets %s and %s", a, b)
	}
}

// tolerance is how far a message's time may be from the receiver's.
const tolerance = 5 * time.Minute

// verify reports whether a message was signed with a secret, five minutes ago at most, as a receiver does.
func verify(secret string, header http.Header, body []byte, now time.Time) error {
	seconds, err := strconv.ParseInt(header.Get(headerTimestamp), 10, 64)
	if err != nil {
		return fmt.Errorf("the header %s is missing or no number", headerTimestamp)
	}
	at := time.Unix(seconds, 0)
	if age := now.Sub(at); age > tolerance || age < -tolerance {
		return fmt.Errorf("the message is from %s: it may be a recording", at.UTC().Format(time.RFC3339))
	}
	want, err := sign(secret, header.Get(headerID), at, body)
	if err != nil {
		return err
	}
	for given := range strings.FieldsSeq(header.Get(headerSignature)) {
		if subtle.ConstantTimeCompare([]byte(given), []byte(want)) == 1 {
			return nil
		}
	}
	return fmt.Errorf("no signature in the header %s is right", headerSignature)
}
