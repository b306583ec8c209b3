package waitingroom

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// script is a client that loads a part of a page and sends no cookie.
func (h *house) script(from string) *user {
	u := h.user()
	u.accept = "*/*"
	u.header.Set("Sec-Fetch-Dest", "script")
	u.header.Set("Origin", "https://page.example")
	u.header.Set("Test-From", from)
	return u
}

func (h *house) at(from string) *user {
	u := h.user()
	u.header.Set("Test-From", from)
	return u
}

// TestSubresources holds parts of pages to passing only on behalf of users whom the limits count.
func TestSubresources(t *testing.T) {
	h := open(t, small(3, "  subresources: {per_minute: 8, paths: /static/}\n"))
	const inside, outside, other = "192.0.2.1", "192.0.2.2", "192.0.2.3"
	user := h.at(inside)
	user.get("/")
	held := func(name string, r *reply) {
		t.Helper()
		if r.in() || r.StatusCode != 429 || r.Header.Get("Retry-After") == "" || r.Header.Get("Access-Control-Allow-Origin") != "https://page.example" || strings.Contains(r.body, "<") || r.Header["Set-Cookie"] != nil {
			t.Errorf("%s: %d %v %s", name, r.StatusCode, r.Header, r.body)
		}
	}
	passes := func(name string, r *reply) {
		t.Helper()
		if !r.in() && r.StatusCode != 200 || r.Header["Set-Cookie"] != nil {
			t.Errorf("%s: %d %v %s", name, r.StatusCode, r.Header, r.body)
		}
	}
	passes("of a user who is in", h.script(inside).get("/a.js"))
	passes("HEAD", h.script(inside).do(http.MethodHead, "/a.js"))
	held("of a stranger", h.script(outside).get("/a.js"))
	held("of a stranger, at a path that only looks listed", h.script(outside).get("/static/%2e%2e/a.js"))
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "QUERY"} {
		held(method, h.script(inside).do(method, "/a.js"))
	}
	if s, _ := h.rooms.Status("shop"); s.Active != 1 {
		t.Errorf("%d are in before a stranger takes a slot", s.Active)
	}
	passes("listed", h.script(outside).get("/static/a.js"))
	passes("listed, again", h.script(outside).get("/static/b.js"))
	if s, _ := h.rooms.Status("shop"); s.Active != 2 {
		t.Errorf("%d are in after a stranger took a slot", s.Active)
	}
	if !h.at("198.51.100.1").get("/").in() {
		t.Error("the last slot is not free")
	}
	held("listed, when all slots are taken", h.script(other).get("/static/a.js"))
	if s, _ := h.rooms.Status("shop"); s.Queued != 0 {
		t.Error("a part of a page waits in line")
	}
	h.pass(30 * time.Second)
	user.get("/") // renews
	h.pass(150 * time.Second)
	held("after the session", h.script(inside).get("/a.js"))
	passes("listed, after all sessions", h.script(other).get("/static/a.js"))
	passes("listed, of an address that was in before", h.script(outside).get("/static/a.js"))
}

// TestSubresourceRate has one client ask for more than its share.
func TestSubresourceRate(t *testing.T) {
	h := open(t, small(5, "  subresources: 8\n"))
	count := func(from string) (n int) {
		for range 10 {
			if h.script(from).get("/a.js").in() {
				n++
			}
		}
		return n
	}
	a, b := h.at("2001:db8::1"), h.at("192.0.2.2")
	a.get("/")
	b.get("/")
	if first, second, same := count("2001:db8::9"), count("192.0.2.2"), count("2001:db8::1"); first != 4 || second != 2 || same != 0 {
		t.Errorf("%d, %d and %d pass of 8", first, second, same)
	}
	h.pass(time.Minute)
	if !h.script("192.0.2.2").get("/a.js").in() {
		t.Error("in the next minute no part passes")
	}
}

// TestSubresourcesPassNothing holds rooms that let nobody in to letting no part in either.
func TestSubresourcesPassNothing(t *testing.T) {
	const events = "  events:\n    - {name: sale, prequeue_start_time: 2027-05-26T19:52:00Z, event_start_time: 2027-05-26T20:05:00Z, event_end_time: 2027-05-26T20:20:00Z}\n"
	for _, more := range []string{"  queueing_method: reject\n", "  queue_all: true\n", events} {
		for _, setting := range []string{"", "  subresources: pass\n", "  subresources: {paths: /}\n"} {
			h := open(t, small(5, more+setting))
			h.at("192.0.2.1").get("/") // before the event's pre-queue
			h.pass(time.Minute)
			for _, dest := range []string{"image", "script", "style", "font", "worker", "nonsense"} {
				u := h.script("192.0.2.1")
				u.header.Set("Sec-Fetch-Dest", dest)
				if r := u.get("/static/a.js"); r.StatusCode != 429 {
					t.Errorf("%q %q: %s: %d", more, setting, dest, r.StatusCode)
				}
			}
		}
	}
}

// TestSubresourceSettings has operators allow more.
func TestSubresourceSettings(t *testing.T) {
	h := open(t, small(1, "  subresources: {per_minute: pass, methods: [GET, OPTIONS]}\n"))
	h.user().get("/")
	for range 5 {
		if !h.script("192.0.2.7").get("/a.js").in() {
			t.Error("a part does not pass")
		}
	}
	preflight := h.script("192.0.2.7")
	preflight.header.Set("Access-Control-Request-Method", "PUT")
	preflight.header.Set("Sec-Fetch-Dest", "empty")
	if r := preflight.do(http.MethodOptions, "/api"); r.StatusCode != 200 {
		t.Errorf("a preflight: %d", r.StatusCode)
	}
	if r := h.script("192.0.2.7").do(http.MethodPost, "/a.js"); r.in() {
		t.Error("POST passes")
	}
	if r := h.user().get("/"); r.in() {
		t.Error("a page passes as its parts do")
	}
	all := open(t, small(1, "  queueing_method: passthrough\n  subresources: 0\n"))
	if !all.script("192.0.2.7").get("/a.js").in() {
		t.Error("a part waits where all users go in")
	}
}

// TestSubresourcesOfRevoked has the origin end the session that a part would pass by.
func TestSubresourcesOfRevoked(t *testing.T) {
	h := open(t, small(5, "  enabled_origin_commands: [revoke]\n"))
	u := h.at("192.0.2.1")
	u.get("/")
	if !h.script("192.0.2.1").get("/a.js").in() {
		t.Fatal("a part of a user who is in does not pass")
	}
	h.origin = func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Cf-Waiting-Room-Command", "revoke") }
	u.get("/leave")
	if r := h.script("192.0.2.1").get("/a.js"); r.StatusCode != 429 {
		t.Errorf("a part of a user who is out: %d", r.StatusCode)
	}
}

// TestAddressSessions bounds the memory of sessions by address.
func TestAddressSessions(t *testing.T) {
	var p parts
	now := time.Date(2027, 5, 26, 19, 51, 5, 0, time.UTC)
	for i := range 5000 {
		p.recordAddress(&http.Request{RemoteAddr: fmt.Sprintf("10.0.%d.%d:1", i/256, i%256)}, &queue.Ticket{Ends: now.Add(time.Minute)}, now)
		now = now.Add(time.Second)
	}
	if len(p.sessions) > 1100 {
		t.Errorf("%d addresses are kept, of which 60 have a session", len(p.sessions))
	}
}
