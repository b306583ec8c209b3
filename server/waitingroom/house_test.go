package waitingroom

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// A clock stands still until a test moves it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock {
	return &clock{now: time.Date(2027, 5, 26, 19, 51, 5, 0, time.UTC)}
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// A house is a server with rooms in front of an origin.
type house struct {
	*testing.T
	*clock
	rooms  *Rooms
	url    string
	origin http.HandlerFunc
	close  func()
	log    *bytes.Buffer
}

type houseOptions struct {
	yaml    string
	dir     string // of the store; default a fresh one
	known   bool   // the rooms had state before
	frozen  bool   // over a store that is only read
	clock   *clock
	keys    *Keyring
	now     func() time.Time // default: the clock's
	cluster *Cluster         // default: none, the global objects are in the same house
	notify  func(context.Context, Notification) error
	version func() Revision // of the settings; default: none
	memory  int64           // for event streams; default: not bounded
}

func testKeys(t testing.TB) *Keyring {
	t.Helper()
	keys, err := newKeyring(bytes.Repeat([]byte{7}, keySize))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// open makes a house of rooms in YAML, without what surrounds them.
func open(t *testing.T, yaml string) *house { return openWith(t, houseOptions{yaml: yaml}) }

func openWith(t *testing.T, o houseOptions) *house {
	t.Helper()
	if o.dir == "" {
		o.dir = t.TempDir()
	}
	if o.clock == nil {
		o.clock = newClock()
	}
	if o.now == nil {
		o.now = o.clock.Now
	}
	if o.keys == nil {
		o.keys = testKeys(t)
	}
	configured, err := config.Parse("rooms.yaml", []byte(o.yaml))
	if err != nil {
		t.Fatal(err)
	}
	h := &house{T: t, clock: o.clock, log: &bytes.Buffer{}}
	logger := slog.New(slog.NewTextHandler(&locked{w: h.log}, nil))
	store, err := kvstore.Open(o.dir, kvstore.Options{ReadOnly: o.frozen, FS: unsynced.FS})
	if err != nil {
		t.Fatal(err)
	}
	runtime := durable.New(store, durable.Options{Now: o.now, Quiet: o.frozen})
	h.rooms, err = New(Options{
		Rooms: configured, Keys: o.keys, Runtime: runtime, Cluster: o.cluster, Now: o.now, Logger: logger,
		Known: func(string) bool { return o.known }, Frozen: o.frozen, Notify: o.notify, Revision: o.version, StreamMemory: o.memory,
	})
	if err != nil {
		t.Fatal(err)
	}
	h.origin = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		w.Header().Set("CDN-Cache-Control", "max-age=60")
		io.WriteString(w, "origin")
	}
	inFront := h.rooms.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.origin(w, r) }))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if from := r.Header.Get("Test-From"); from != "" { // a client elsewhere
			r.RemoteAddr = net.JoinHostPort(from, "1234")
		}
		inFront.ServeHTTP(w, r)
	}))
	h.url = server.URL
	h.close = sync.OnceFunc(func() {
		server.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := runtime.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(h.close)
	return h
}

// locked keeps a log's lines apart.
type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// pass moves the clock and has reports sent as they become due.
func (h *house) pass(d time.Duration) {
	h.Helper()
	const step = 2 * time.Second
	for d > 0 {
		h.add(min(d, step))
		d -= step
		for _, room := range h.rooms.currentRooms().rooms {
			if _, err := room.report(h.Context()); err != nil {
				h.Fatal(err)
			}
		}
	}
}

// A user is a client that keeps cookies.
type user struct {
	*house
	client *http.Client
	accept string
	header http.Header
}

const browserAccept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

func (h *house) user() *user {
	jar, _ := cookiejar.New(nil)
	return &user{house: h, accept: browserAccept, header: http.Header{}, client: &http.Client{
		Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// A reply is an answer, read.
type reply struct {
	*http.Response
	body string
}

func (r *reply) in() bool { return r.body == "origin" }

func (r *reply) refresh() time.Duration {
	n, _ := strconv.Atoi(r.Header.Get("Refresh"))
	return time.Duration(n) * time.Second
}

func (u *user) get(path string) *reply { u.Helper(); return u.do(http.MethodGet, path) }

func (u *user) do(method, path string) *reply {
	u.Helper()
	req, err := http.NewRequest(method, u.url+path, nil)
	if err != nil {
		u.Fatal(err)
	}
	for name, values := range u.header {
		req.Header[name] = values
	}
	req.Header.Set("Accept", u.accept)
	return u.send(req)
}

func (u *user) send(req *http.Request) *reply {
	u.Helper()
	res, err := u.client.Do(req)
	if err != nil {
		u.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		u.Fatal(err)
	}
	return &reply{res, string(body)}
}

// cookie is the user's ticket as it is sent.
func (u *user) cookie() string {
	u.Helper()
	at, _ := url.Parse(u.url)
	for _, c := range u.client.Jar.Cookies(at) {
		if c.Name == cookieName("") {
			return c.Value
		}
	}
	return ""
}

func (u *user) set(value string) {
	at, _ := url.Parse(u.url)
	u.client.Jar.SetCookies(at, []*http.Cookie{{Name: cookieName(""), Value: value, Path: "/"}})
}

// small is a room with so many users at once.
func small(users int, more ...string) string {
	return fmt.Sprintf("- name: shop\n  total_active_users: %d\n  new_users_per_minute: %d\n  session_duration: 1\n%s", users, users, strings.Join(more, ""))
}
