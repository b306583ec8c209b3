package api

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom"
)

// house has one room.
type house struct{}

func (house) Status(name string) (waitingroom.Status, bool) {
	return waitingroom.Status{
		Name: name, Status: waitingroom.Queueing, EventID: "sale", Queued: 7, Active: 3, MaxMinutes: 2,
		TotalActiveUsers: 3, NewUsersPerMinute: 2, Method: "fifo", Routes: []string{"/shop"},
		Settings: waitingroom.Revision{Version: 2, Time: time.Unix(1_800_000_000, 0).UTC(), Origin: "larder room undo on a"},
	}, name == "shop"
}

func (house) Analytics(_ context.Context, name string, minutes int) ([]waitingroom.Period, bool, error) {
	all := make([]waitingroom.Period, minutes)
	for i := range all {
		all[i] = waitingroom.Period{Time: time.Unix(int64(i)*60, 0).UTC(), Minutes: 1, Active: 3, WaitP50: 1.5}
	}
	return all, name == "shop", nil
}

func (house) Statuses() []waitingroom.Status {
	s, _ := house{}.Status("shop")
	return []waitingroom.Status{s}
}

func (house) Versions() []waitingroom.Version {
	at := time.Unix(1_800_000_000, 0).UTC()
	return []waitingroom.Version{{Number: 2, Time: at, Origin: "larder room undo on a", Restores: 1, InForce: true}, {Number: 1, Time: at, Origin: "rooms.yaml"}}
}

func TestRoomHistory(t *testing.T) {
	s := newService(t, func(o *PublicOptions) { o.Rooms = house{} })
	got := s.get("/rooms.history")
	want := `[{"version":2,"time":"2027-01-15T08:00:00Z","origin":"larder room undo on a","restores":1,"in_force":true},{"version":1,"time":"2027-01-15T08:00:00Z","origin":"rooms.yaml"}]`
	if strings.TrimSpace(got.body) != want || got.get("Cache-Control") != never {
		t.Errorf("%s, %v", got.body, got.header)
	}
	if got := newService(t).get("/rooms.history"); got.status != 404 {
		t.Errorf("without rooms: %d", got.status)
	}
}

// TestRoomAsCSV reads what happened back from a table.
func TestRoomAsCSV(t *testing.T) {
	s := newService(t, func(o *PublicOptions) { o.Rooms = house{} })
	got := s.get("/rooms/shop/analytics?minutes=2&format=csv")
	want := "time,minutes,active_users,queued_users,new_users,sessions_revoked,time_waited_p50_seconds,time_waited_p90_seconds,time_on_origin_p50_seconds\r\n" +
		"1970-01-01T00:00:00Z,1,3,0,0,0,1.5,0,0\r\n1970-01-01T00:01:00Z,1,3,0,0,0,1.5,0,0\r\n"
	if got.body != want || got.get("Content-Type") != "text/csv; charset=utf-8; header=present" || got.get("Cache-Control") != never {
		t.Errorf("%q, %v", got.body, got.header)
	}
	if got := s.get("/rooms/shop/analytics?format=xml"); got.body != errorText(400, badFormat.Message) {
		t.Errorf("as XML: %s", got.body)
	}
}

// growing has a room whose queue a test sets.
type growing struct {
	house
	queued atomic.Int64
}

func (c *growing) Status(name string) (waitingroom.Status, bool) {
	s, ok := house{}.Status(name)
	s.Queued = int(c.queued.Load())
	return s, ok
}

func (c *growing) Statuses() []waitingroom.Status {
	s, _ := c.Status("shop")
	return []waitingroom.Status{s}
}

// TestRoomStream follows a room whose queue grows, until the process stops.
func TestRoomStream(t *testing.T) {
	stopping := make(chan struct{})
	rooms := &growing{}
	s := newService(t, func(o *PublicOptions) { o.Rooms, o.Stopping = rooms, stopping })
	s.public.heartbeat, s.public.roomBeat = time.Millisecond, time.Millisecond
	server := httptest.NewServer(s.handler)
	defer server.Close()
	for _, query := range []string{"", "?room=shop"} {
		f := s.follow(server.URL+"/rooms.stream"+query, "")
		if got := f.response.Header; got.Get("Content-Type") != "text/event-stream" || got.Get("Cache-Control") != notCached.Control() {
			t.Errorf("%q: %v", query, got)
		}
		for queued := rooms.queued.Load(); queued < rooms.queued.Load()+3; {
			var statuses []waitingroom.Status
			for f.lines.Scan() {
				if data, ok := strings.CutPrefix(f.lines.Text(), "data: "); ok {
					if err := json.Unmarshal([]byte(data), &statuses); err != nil {
						t.Fatal(err)
					}
					break
				}
			}
			if len(statuses) != 1 || statuses[0].Name != "shop" {
				t.Fatalf("%q: %+v, %v", query, statuses, f.lines.Err())
			}
			if statuses[0].Queued != int(rooms.queued.Load()) {
				continue // the turn of a minute
			}
			if queued = rooms.queued.Add(1); queued%4 == 0 {
				break
			}
		}
	}
	last := s.follow(server.URL+"/rooms.stream", "")
	close(stopping)
	for last.lines.Scan() {
	}
	if err := last.lines.Err(); err != nil {
		t.Errorf("the stream broke off: %v", err)
	}
	if got := s.get("/rooms.stream?room=other"); got.body != errorText(404, "Waiting room not found") {
		t.Errorf("of a room that is not: %s", got.body)
	}
	if got := newService(t).get("/rooms.stream"); got.status != 404 {
		t.Errorf("without rooms: %d", got.status)
	}
}

func TestRooms(t *testing.T) {
	s := newService(t, func(o *PublicOptions) { o.Rooms = house{} })
	const status = `{"name":"shop","status":"queueing","event_id":"sale","estimated_queued_users":7,"estimated_total_active_users":3,"max_estimated_time_minutes":2,` +
		`"total_active_users":3,"new_users_per_minute":2,"session_duration":0,"queueing_method":"fifo","routes":["/shop"],"settings":{"version":2,"time":"2027-01-15T08:00:00Z","origin":"larder room undo on a"}}`
	for target, want := range map[string]string{
		"/rooms/shop/status": status, "/rooms/shop/status/": status, "/rooms/other/status": errorText(404, "Waiting room not found"),
		"/rooms/other/analytics": errorText(404, "Waiting room not found"), "/rooms/shop/analytics?minutes=0": errorText(400, badMinutes.Message),
		"/rooms/shop/analytics?minutes=43201": errorText(400, badMinutes.Message), "/rooms/shop/analytics?minutes=x": errorText(400, badMinutes.Message),
	} {
		if got := s.get(target); got.body != want {
			t.Errorf("%s:\n got %s\nwant %s", target, got.body, want)
		}
	}
	for target, want := range map[string]int{"/rooms/shop/analytics": 60, "/rooms/shop/analytics?minutes=3": 3} {
		var minutes []waitingroom.Period
		got := s.get(target)
		if err := json.Unmarshal([]byte(got.body), &minutes); err != nil || len(minutes) != want || got.get("Cache-Control") != never {
			t.Errorf("%s: %d minutes, %v, %v", target, len(minutes), err, got.header)
		}
	}
	if got := newService(t).get("/rooms/shop/status"); got.status != 404 {
		t.Errorf("without rooms: %d", got.status)
	}
}
