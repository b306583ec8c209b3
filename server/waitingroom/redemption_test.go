package waitingroom

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore/durable"
)

// TestRedeemElsewhere has visitors hold event streams at one node and come to another one when they are called: they enter at once, each
// with one slot.
func TestRedeemElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{yaml: small(1), centres: 3, apart: 10 * time.Second})
	w.pass(4 * time.Second)
	if r := w.centres[0].user().get("/"); !r.in() {
		t.Fatal(r.body)
	}
	for i := range 3 {
		home, away := w.centres[i], w.centres[(i+1)%3]
		u, stream, value := w.callVisitor(home)
		for name := ""; name != "called"; {
			name, _ = stream.next()
		}
		end := home.keepReporting()
		elsewhere := away.user()
		elsewhere.set(value)
		for range 2 {
			if r := elsewhere.get("/"); !r.in() {
				t.Fatalf("visitor %d waits where another node has called it", i)
			}
		}
		u.set(value) // a copy of the waiting ticket has the same session
		if r := u.get("/"); !r.in() {
			t.Errorf("visitor %d waits at the node that has called it", i)
		}
		end()
		for h, want := range map[*house]int{home: 1, away: 0} { // the other node counts the session once it renews that
			h.inRoom(func(c *centre) {
				if n := c.machine.Active(w.Now()); n != want {
					t.Errorf("visitor %d has %d sessions at %s", i, n, c.room.name)
				}
			})
		}
		if r := away.user().get("/"); r.in() {
			t.Error("a visitor who was not called enters")
		}
	}
}

// TestRedeemRevoked has the origin revoke the session of a visitor who was called by one node and came to another one: the waiting
// ticket from before does not bring the visitor to the origin again.
func TestRedeemRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{yaml: "- {name: shop, total_active_users: 1, new_users_per_minute: 1, session_duration: 1, enabled_origin_commands: [revoke]}\n", centres: 2})
	w.pass(4 * time.Second)
	home, away := w.centres[0], w.centres[1]
	if r := home.user().get("/"); !r.in() {
		t.Fatal(r.body)
	}
	_, _, value := w.callVisitor(home)
	defer home.keepReporting()()
	requests := 0
	away.origin = func(h http.ResponseWriter, _ *http.Request) {
		requests++
		h.Header().Set("Cf-Waiting-Room-Command", "revoke")
	}
	elsewhere := away.user()
	for i := range 3 {
		elsewhere.set(value)
		if elsewhere.get("/"); requests != 1 {
			t.Fatalf("after %d requests with the waiting ticket, %d have reached the origin", i+1, requests)
		}
	}
}

// inRoom calls f with the data centre of the room shop.
func (h *house) inRoom(f func(*centre)) {
	h.Helper()
	if err := h.rooms.currentRooms().byName["shop"].do(h.Context(), func(_ context.Context, _ *durable.State, c *centre) error {
		f(c)
		return nil
	}); err != nil {
		h.Fatal(err)
	}
}

// callVisitor has a visitor wait with an event stream at a node until that node calls it. It returns the visitor, its stream, and the
// cookie with its waiting ticket.
func (w *world) callVisitor(home *house) (u *user, stream *eventStream, ticket string) {
	home.Helper()
	u = home.user()
	w.pass(4 * time.Second)
	u.get("/")
	_, stream = u.stream()
	stream.next()
	ticket = mustCookie(home.T, u, home)
	for called, n := false, 0; !called; n++ { // until the visitor who is in has left
		if w.pass(2 * time.Second); n == 200 {
			home.Fatal("the visitor is not called")
		}
		home.inRoom(func(c *centre) { called = c.machine.HasCalled(w.Now()) })
	}
	return u, stream, ticket
}

// keepReporting has the node report to the leader, as [Rooms.reportRegularly] does, until end is called.
func (h *house) keepReporting() (end func()) {
	ctx, cancel := context.WithCancel(h.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		room := h.rooms.currentRooms().byName["shop"]
		for ctx.Err() == nil {
			next, err := room.report(ctx)
			if err != nil && ctx.Err() == nil {
				h.Error(err)
			}
			_ = retry.SleepUnless(ctx, next.Sub(room.now()), room.urgent)
		}
	}()
	return func() { cancel(); <-done }
}
