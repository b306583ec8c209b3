package waitingroom

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// listener records notifications, or fails.
type listener struct {
	received []string
	fails    bool
}

func (l *listener) notify(_ context.Context, h Notification) error {
	if l.fails {
		return errors.New("the outbox is closed")
	}
	l.received = append(l.received, h.Kind+" "+h.Status.Name)
	if h.Status.Settings != testRevision() {
		l.received = append(l.received, fmt.Sprintf("with the settings %+v", h.Status.Settings))
	}
	return nil
}

func testRevision() Revision { return Revision{Version: 7, Origin: "test"} }

func (l *listener) want(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(l.received, want) {
		t.Errorf("received %q, want %q", l.received, want)
	}
	l.received = nil
}

// TestNotifications has a room fill, queue, empty, and hold an event, with restarts in between.
func TestNotifications(t *testing.T) {
	dir := t.TempDir()
	l := &listener{}
	clock := newClock()
	begins := clock.Now().Add(time.Hour)
	yaml := small(2, fmt.Sprintf("  events: [{name: sale, event_start_time: %s, event_end_time: %s}]\n", begins.Format(time.RFC3339), begins.Add(time.Hour).Format(time.RFC3339)))
	h := openWith(t, houseOptions{yaml: yaml, dir: dir, clock: clock, notify: l.notify, version: testRevision})
	var known *notified
	look := func() {
		t.Helper()
		h.add(2 * time.Second)
		room := h.rooms.currentRooms().rooms[0]
		if _, err := room.report(t.Context()); err != nil {
			t.Fatal(err)
		}
		var err error
		if known, err = h.rooms.notify(t.Context(), room, known); err != nil && !l.fails {
			t.Fatal(err)
		}
	}
	again := func() {
		t.Helper()
		h.close()
		h, known = openWith(t, houseOptions{yaml: yaml, dir: dir, clock: clock, notify: l.notify, version: testRevision}), nil
		look()
		look()
	}
	look()
	look()
	l.want(t)
	h.user().get("/")
	look()
	l.want(t)
	h.user().get("/")
	look()
	l.want(t, "room.full shop")
	h.user().get("/") // waits
	l.fails = true
	look()
	l.fails = false
	look()
	look()
	l.want(t, "room.queue_began shop")
	again()
	l.want(t)
	for range 30 { // until the last one has been in and gone, and for a minute more
		h.pass(10 * time.Second)
		look()
	}
	l.want(t, "room.queue_ended shop")
	again()
	l.want(t)
	h.add(begins.Sub(h.Now()))
	look()
	l.want(t, "room.event_began shop")
	again()
	h.add(time.Hour)
	look()
	look()
	l.want(t, "room.event_ended shop")
	for range 2 {
		h.user().get("/")
	}
	look()
	l.want(t, "room.full shop")
	h.change(small(3))
	l.want(t, "room.changed shop")
	h.change(small(3))
	l.want(t)
}
