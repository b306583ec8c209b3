package site

import (
	"context"
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
		TotalActiveUsers: 300, NewUsersPerMinute: 100, SessionDuration: 5, Method: "fifo", Routes: []string{"shop.example/<b>"},
		Settings: house{}.Revision(),
	}, name == "shop"
}

func (house) Analytics(_ context.Context, name string, minutes int) ([]waitingroom.Period, bool, error) {
	step := 1
	switch {
	case minutes > 7*24*60:
		step = 60
	case minutes > 24*60:
		step = 15
	}
	all := make([]waitingroom.Period, minutes/step)
	for i := range all {
		all[i] = waitingroom.Period{Time: time.Unix(int64(i*step)*60, 0).UTC(), Minutes: step, Active: 5 * i, Queued: 20 * i, Admitted: i, WaitP50: float64(i), WaitP90: float64(3 * i), OriginP50: 75}
	}
	return all, name == "shop", nil
}

func (house) Revision() waitingroom.Revision {
	v := house{}.Versions()[0]
	return waitingroom.Revision{Version: v.Number, Time: v.Time, Origin: v.Origin}
}

func (house) Versions() []waitingroom.Version {
	at := time.Unix(1_800_000_000, 0).UTC()
	all := []waitingroom.Version{{Number: 30, Time: at, Origin: "larder room undo on <b>", Restores: 7, InForce: true}}
	for n := int64(29); n > 0; n-- {
		all = append(all, waitingroom.Version{Number: n, Time: at, Origin: "rooms.yaml"})
	}
	return all
}

// The page of a room computes what happens if people come, and ignores what is no number of people.
func TestRoomForecast(t *testing.T) {
	shelf := testkit.NewShelf(t)
	for query, want := range map[string]string{
		"people=1000":      "Of 1,000 people, 0 enter within a minute, and the last one waits at least 37 min.",
		"people=99999999":  "Of 10,000,000 people, 0 enter within a minute, and the last one waits more than a week.",
		"people=-5":        "",
		"people=%3Cscript": "",
	} {
		well := get(t, newSite(t, shelf, func(o *Options) { o.Rooms = house{} }), "/rooms/shop?"+query)
		body := well.Body.String()
		checkPage(t, well)
		if strings.Contains(body, `id="forecast"`) != (want != "") || !strings.Contains(body, want) {
			t.Errorf("%s: the page lacks %q", query, want)
		}
	}
}

// A page shows which version of the settings is in force, and their history; of a node that cannot confirm it, that.
func TestRoomVersions(t *testing.T) {
	shelf := testkit.NewShelf(t)
	for target, wants := range map[string][]string{
		"/rooms":      {"Version 30 is in force", "larder room undo on &lt;b&gt;", "restores version 7", ">in force<", `<th scope="row">11</th>`},
		"/rooms/shop": {"Version 30 is in force"},
	} {
		well := get(t, newSite(t, shelf, func(o *Options) { o.Rooms = house{} }), target)
		body := well.Body.String() // which checkPage reads
		checkPage(t, well)
		for _, want := range wants {
			if !strings.Contains(body, want) {
				t.Errorf("%s lacks %q", target, want)
			}
		}
		if strings.Contains(body, `<th scope="row">10</th>`) || strings.Contains(body, "cannot be confirmed") {
			t.Errorf("%s has too many versions, or a problem", target)
		}
		late := get(t, newSite(t, shelf, func(o *Options) { o.Rooms = lateHouse{} }), target)
		body = late.Body.String()
		checkPage(t, late)
		if !strings.Contains(body, "cannot be confirmed") || !strings.Contains(body, "no answer") {
			t.Errorf("%s does not show that the version cannot be confirmed", target)
		}
	}
}

// lateHouse cannot reach the node that publishes.
type lateHouse struct{ house }

func (lateHouse) Revision() waitingroom.Revision {
	v := house{}.Revision()
	v.Problem, v.Unconfirmed, v.Confirmed = "no answer", true, time.Unix(1_800_000_100, 0).UTC()
	return v
}

func (lateHouse) Status(name string) (waitingroom.Status, bool) {
	s, ok := house{}.Status(name)
	s.Settings = lateHouse{}.Revision()
	return s, ok
}

func TestRooms(t *testing.T) {
	shelf := testkit.NewShelf(t)
	s := newSite(t, shelf, func(o *Options) { o.Rooms = house{} })
	for target, wants := range map[string][]string{
		"/rooms":      {`<a href="/rooms/shop">shop</a>`, "1,234", "people wait", "event sale", "shop.example/&lt;b&gt;", "?live=off"},
		"/rooms/shop": {"1,234", "of 300 in", "0</strong> of 100 let in", "limit 300", "<title>Waiting room shop", "1 min 15 s", `role="img"`, "nine of ten"},
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
	for target, want := range map[string]bool{"/rooms": true, "/rooms/shop": true, "/rooms/shop?span=day": true, "/rooms?live=off": false, "/rooms/shop?live=off": false, "/": false} {
		w := get(t, s, target)
		if got := strings.Contains(w.Body.String(), `<noscript><meta http-equiv="refresh" content="10"></noscript>`); got != want || w.Header().Get("Refresh") != "" {
			t.Errorf("%s: refreshes itself without scripts is %v, want %v; with scripts %q", target, got, want, w.Header().Get("Refresh"))
		}
	}
	for target, wants := range map[string][]string{
		"/rooms/shop":            {"an hour ago", "Let in each minute", `minutes=60&amp;format=csv`, `data-stream="/rooms.stream?room=shop"`, `href="/rooms/shop?live=off"`},
		"/rooms/shop?span=day":   {"a day ago", "Let in each minute", `minutes=1440&amp;format=csv`, `href="/rooms/shop?span=day&amp;live=off"`},
		"/rooms/shop?span=week":  {"a week ago", "Let in each 15 minutes", "Users who wait, at most", "limit 1,500", "7 January 23:45"},
		"/rooms/shop?span=month": {"30 days ago", "Let in each 60 minutes", `minutes=43200&amp;format=csv`},
		"/rooms/shop?span=ever":  {"an hour ago"},
		"/rooms":                 {`data-stream="/rooms.stream"`, `id="now-shop"`},
	} {
		w := get(t, s, target)
		body := w.Body.String()
		checkPage(t, w)
		for _, want := range wants {
			if !strings.Contains(body, want) {
				t.Errorf("%s lacks %q", target, want)
			}
		}
	}
	if w := get(t, s, "/rooms/other"); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "“other”") {
		t.Errorf("another room: %d", w.Code)
	}
	if w := get(t, newSite(t, shelf, nil), "/rooms"); w.Code != http.StatusNotFound {
		t.Errorf("without rooms: %d", w.Code)
	}
}

// stuckHouse has a room that lets in no new user, for two reasons.
type stuckHouse struct{ house }

func (stuckHouse) Statuses() []waitingroom.Status {
	s, _ := stuckHouse{}.Status("shop")
	return []waitingroom.Status{s}
}

func (stuckHouse) Status(name string) (waitingroom.Status, bool) {
	s, ok := house{}.Status(name)
	s.Recovering, s.CutOff = true, true
	return s, ok
}

func TestRoomsThatLetNoUserIn(t *testing.T) {
	shelf := testkit.NewShelf(t)
	lines := []string{"or another node of the cluster has taken over", "does not answer about this room", ">recovering<", ">cut off<"}
	for target, wants := range map[string][]string{"/rooms": lines[2:], "/rooms/shop": lines} {
		stuck := get(t, newSite(t, shelf, func(o *Options) { o.Rooms = stuckHouse{} }), target)
		well := get(t, newSite(t, shelf, func(o *Options) { o.Rooms = house{} }), target).Body.String()
		body := stuck.Body.String() // which checkPage reads
		checkPage(t, stuck)
		for _, want := range wants {
			if !strings.Contains(body, want) || strings.Contains(well, want) {
				t.Errorf("%s: %q is told of a room that is stuck: %v; of one that is well: %v", target, want, strings.Contains(body, want), strings.Contains(well, want))
			}
		}
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

// A removedRoomFixture is a house whose room is removed after its status was read.
type removedRoomFixture struct{ house }

func (removedRoomFixture) Analytics(context.Context, string, int) ([]waitingroom.Period, bool, error) {
	return nil, false, nil
}

// A room that goes while its page is made is not found.
func TestRoomGoes(t *testing.T) {
	w := get(t, newSite(t, testkit.NewShelf(t), func(o *Options) { o.Rooms = removedRoomFixture{} }), "/rooms/shop")
	if w.Code != http.StatusNotFound {
		t.Errorf("the page of a room that has gone has the status %d", w.Code)
	}
}
