package waitingroom

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// change has the house's rooms be others, in YAML.
func (h *house) change(yaml string) {
	h.Helper()
	rooms, err := config.Parse("rooms.yaml", []byte(yaml))
	if err == nil {
		err = h.rooms.Change(rooms)
	}
	if err != nil {
		h.Fatal(err)
	}
}

// TestEachNodeStays has a node asked to have a room by itself that was the cluster's, or the other way round: it refuses, and all
// stays as it is, because the sessions that it let in are counted elsewhere.
func TestEachNodeStays(t *testing.T) {
	const own = "  each_node: true\n"
	for before, after := range map[string]string{crowded: crowded + own, crowded + own: crowded} {
		w := newWorld(t, worldOptions{yaml: before, centres: 1})
		rooms, err := config.Parse("rooms.yaml", []byte(after))
		if err != nil {
			t.Fatal(err)
		}
		h := w.centres[0]
		if err := h.rooms.Change(rooms); err == nil || !strings.Contains(err.Error(), "restart it") {
			t.Errorf("each_node changes: %v", err)
		}
		if got, want := len(h.rooms.SharedRooms()), strings.Count(after, own); got != want {
			t.Errorf("%d rooms are shared, want %d", got, want)
		}
	}
}

// TestChange changes a room with a thousand waiting: fifo, random, fifo; suspended; another
// template; an event; limits up and down. All keep their places and sessions.
func TestChange(t *testing.T) {
	const room = "- name: shop\n  total_active_users: %d\n  new_users_per_minute: %d\n  session_duration: 1\n  cookie_suffix: s\n"
	h := open(t, fmt.Sprintf(room, 5, 5))
	var inside []*user
	for range 5 {
		inside = append(inside, h.user())
		inside[len(inside)-1].get("/")
	}
	keys := testKeys(t).codec("shop", "s")
	type waiter struct {
		ticket string
		since  time.Time
		in     bool
	}
	var line []*waiter
	check := func(w *waiter) {
		t.Helper()
		req, _ := http.NewRequest(http.MethodGet, h.url+"/", nil)
		req.Header.Set("Accept", browserAccept)
		if w.ticket != "" {
			req.Header.Set("Cookie", cookieName("s")+"="+w.ticket)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", res.StatusCode, body)
		}
		for _, c := range res.Cookies() {
			w.ticket = c.Value
		}
		w.in = string(body) == "origin"
		ticket, ok := keys.open(w.ticket)
		if w.since.IsZero() {
			w.since = ticket.Since
		}
		if !ok || !ticket.Since.Equal(w.since) {
			t.Fatalf("the place is lost: since %v, then %v", w.since, ticket.Since)
		}
	}
	for i := range 1000 {
		if i%100 == 99 {
			h.add(300 * time.Millisecond)
		}
		w := &waiter{}
		check(w)
		line = append(line, w)
	}
	each := func() (in int) {
		h.pass(24 * time.Second)
		for _, u := range inside {
			if !u.get("/").in() {
				t.Fatal("a user who is in is thrown out")
			}
		}
		for _, w := range line {
			if w.in {
				in++
				continue
			}
			check(w)
			if w.in {
				in++
			}
		}
		return in
	}
	if n := each(); n != 0 {
		t.Fatalf("%d came into a full room", n)
	}
	h.change(fmt.Sprintf(room, 5, 5) + "  queueing_method: random\n  custom_page_html: '<p>{{queueingMethod}}</p>'\n")
	if body := h.user().get("/").body; body != "<p>random</p>" {
		t.Errorf("the page is %s", body)
	}
	each()
	h.change(fmt.Sprintf(room, 5, 5))
	each()
	h.change(fmt.Sprintf(room, 25, 25)) // back under fifo, with 20 slots
	n := 0
	for range 4 {
		n = each()
	}
	if n != 20 {
		t.Errorf("%d of the 20 slots are used", n)
	}
	for i, w := range line {
		if w.in != (i < 20) && line[19].since.Sub(w.since).Abs() > 100*time.Millisecond {
			t.Errorf("visitor %d is in: %v", i, w.in)
		}
	}
	h.change(fmt.Sprintf(room, 1, 1)) // the limit is for new users
	if m := each(); m != n {
		t.Errorf("%d are in, then %d", n, m)
	}
	h.change(fmt.Sprintf(room, 1000, 1000) + "  events:\n    - {name: sale, prequeue_start_time: 2027-05-26T19:00:00Z, event_start_time: 2027-05-26T23:00:00Z, event_end_time: 2027-05-27T01:00:00Z}\n")
	if s, _ := h.rooms.Status("shop"); s.Status != EventPrequeueing || s.EventID != "sale" {
		t.Errorf("%+v", s)
	}
	if m := each(); m != n {
		t.Errorf("in a pre-queue %d are in, then %d", n, m)
	}
	h.change(fmt.Sprintf(room, 5, 5) + "  suspended: true\n")
	if r := h.user().get("/"); !r.in() {
		t.Error("a suspended room has a visitor wait")
	}
	h.change("[]")
	if r := h.user().get("/"); !r.in() || r.Header.Get("Cdn-Cache-Control") == "" {
		t.Error("a room that is gone has a visitor wait")
	}
	h.change(fmt.Sprintf(room, 5, 5))
	if r := h.user().get("/"); r.in() {
		t.Error("a room that is back has forgotten who is in")
	}
	if s, _ := h.rooms.Status("shop"); s.Active < 5 || strings.Contains(h.log.String(), "level=ERROR") {
		t.Errorf("%+v\n%s", s, h.log)
	}
	for _, line := range []string{"has other settings", "is gone", "is new"} {
		if !strings.Contains(h.log.String(), line) {
			t.Errorf("the log does not say %q", line)
		}
	}
}

// TestChangeUnderLoad changes rooms while requests come and Run reports: no request fails.
func TestChangeUnderLoad(t *testing.T) {
	upstream := newMirror(t)
	const room = "- name: shop\n  total_active_users: 50\n  new_users_per_minute: 50\n"
	h := openWith(t, houseOptions{yaml: room, now: time.Now})
	ctx, end := context.WithCancel(t.Context())
	stop := make(chan struct{})
	var all, running sync.WaitGroup
	running.Go(func() { h.rooms.Run(ctx) })
	for range 8 {
		all.Go(func() {
			u := h.user()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if r := u.get("/"); r.StatusCode != http.StatusOK {
					t.Errorf("%d %s", r.StatusCode, r.body)
				}
			}
		})
	}
	for i := range 60 {
		h.change([]string{
			room, room + "  queue_all: true\n", room + "  upstream: " + upstream.URL + "\n", room + "  upstream: " + upstream.URL + "\n  upstream_health: /x\n", "[]",
			room + "  suspended: true\n- {name: other, path: /other, cookie_suffix: x, total_active_users: 1, new_users_per_minute: 1}\n",
		}[i%6])
	}
	close(stop)
	all.Wait()
	h.change(room)
	end()
	running.Wait()
}

// TestUpstreamHasNewSettings tests that a room whose upstream stays, with its connections, shows visitors of a site that is away the page in the
// language of its new settings.
func TestUpstreamHasNewSettings(t *testing.T) {
	const room = "- name: shop\n  total_active_users: 5\n  new_users_per_minute: 5\n  upstream: http://127.0.0.1:9\n  default_template_language: %s\n"
	h := open(t, fmt.Sprintf(room, "en"))
	before := h.rooms.currentRooms().byName["shop"].upstream
	h.change(fmt.Sprintf(room, "de"))
	after := h.rooms.currentRooms().byName["shop"].upstream
	if before != after || after.room.Load().Language.String() != "de" {
		t.Errorf("the upstream is another one: %v; its room has the language %q", before != after, after.room.Load().Language)
	}
}
