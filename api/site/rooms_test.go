package site

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// house has one room, in which people wait.
type house struct{}

func (house) Statuses() []waitingroom.Status {
	s, _ := house{}.Status("shop")
	return []waitingroom.Status{s}
}

func (house) Status(name string) (waitingroom.Status, bool) {
	return waitingroom.Status{
		Name: "shop", Status: waitingroom.Queueing, EventID: "sale", Queued: 1234, Active: 300, MaxMinutes: 12,
		TotalActiveUsers: 300, NewUsersPerMinute: 100, Method: "fifo", Routes: []string{"shop.example/<b>"},
	}, name == "shop"
}

func (house) Analytics(name string, minutes int) ([]waitingroom.Minute, bool) {
	all := make([]waitingroom.Minute, minutes)
	for i := range all {
		all[i] = waitingroom.Minute{Time: time.Unix(int64(i)*60, 0).UTC(), Active: 5 * i, Queued: 20 * i, Admitted: i, WaitP50: float64(i), WaitP90: float64(3 * i), OriginP50: 75}
	}
	return all, name == "shop"
}

func TestRooms(t *testing.T) {
	shelf := testkit.NewShelf(t)
	s := newSite(t, shelf, func(o *Options) { o.Rooms = house{} })
	for target, wants := range map[string][]string{
		"/rooms":      {`<a href="/rooms/shop">shop</a>`, "1,234", "people wait", "event sale", "shop.example/&lt;b&gt;", "?live=off"},
		"/rooms/shop": {"1,234", "of 300 in", "59</strong> of 100 let in", "limit 300", "<title>Waiting room shop", "1 min 15 s", `role="img"`, "nine of ten"},
	} {
		w := get(t, s, target)
		body := w.Body.String() // which checkPage reads
		checkPage(t, w)
		for _, want := range wants {
			if !strings.Contains(body, want) {
				t.Errorf("%s lacks %q: %d", target, want, w.Code)
			}
		}
		if strings.Contains(body, "NaN") || strings.Contains(body, " style=") {
			t.Errorf("%s has something that no browser draws, or that the policy forbids", target)
		}
	}
	for target, want := range map[string]string{"/rooms": "10", "/rooms/shop": "10", "/rooms?live=off": "", "/rooms/shop?live=off": "", "/": ""} {
		if got := get(t, s, target).Header().Get("Refresh"); got != want {
			t.Errorf("%s: Refresh is %q, want %q", target, got, want)
		}
	}
	if w := get(t, s, "/rooms/other"); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "“other”") {
		t.Errorf("another room: %d", w.Code)
	}
	if w := get(t, newSite(t, shelf, nil), "/rooms"); w.Code != http.StatusNotFound {
		t.Errorf("without rooms: %d", w.Code)
	}
}

func TestRoomStatusWords(t *testing.T) {
	for want, s := range map[string]waitingroom.Status{
		"no visitor waits":         {Status: waitingroom.NotQueueing, Method: "fifo"},
		"people wait":              {Status: waitingroom.Queueing, Method: "fifo"},
		"no new visitor is let in": {Status: waitingroom.Queueing, Method: "reject"},
		"suspended":                {Status: waitingroom.Suspended, Method: "reject"},
		"another":                  {Status: "another"},
	} {
		if got := formatRoomStatus(s); got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}
