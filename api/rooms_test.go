package api

import (
	"encoding/json"
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
	}, name == "shop"
}

func (house) Analytics(name string, minutes int) ([]waitingroom.Minute, bool) {
	all := make([]waitingroom.Minute, minutes)
	for i := range all {
		all[i] = waitingroom.Minute{Time: time.Unix(int64(i)*60, 0).UTC(), Active: 3, WaitP50: 1.5}
	}
	return all, name == "shop"
}

func TestRooms(t *testing.T) {
	s := newService(t, func(o *PublicOptions) { o.Rooms = house{} })
	const status = `{"name":"shop","status":"queueing","event_id":"sale","estimated_queued_users":7,"estimated_total_active_users":3,"max_estimated_time_minutes":2,` +
		`"total_active_users":3,"new_users_per_minute":2,"queueing_method":"fifo","routes":["/shop"]}`
	for target, want := range map[string]string{
		"/rooms/shop/status": status, "/rooms/shop/status/": status, "/rooms/other/status": errorText(404, "Waiting room not found"),
		"/rooms/other/analytics": errorText(404, "Waiting room not found"), "/rooms/shop/analytics?minutes=0": errorText(400, badMinutes.Message),
		"/rooms/shop/analytics?minutes=1441": errorText(400, badMinutes.Message), "/rooms/shop/analytics?minutes=x": errorText(400, badMinutes.Message),
	} {
		if got := s.get(target); got.body != want {
			t.Errorf("%s:\n got %s\nwant %s", target, got.body, want)
		}
	}
	for target, want := range map[string]int{"/rooms/shop/analytics": 60, "/rooms/shop/analytics?minutes=3": 3} {
		var minutes []waitingroom.Minute
		got := s.get(target)
		if err := json.Unmarshal([]byte(got.body), &minutes); err != nil || len(minutes) != want || got.get("Cache-Control") != never {
			t.Errorf("%s: %d minutes, %v, %v", target, len(minutes), err, got.header)
		}
	}
	if got := newService(t).get("/rooms/shop/status"); got.status != 404 {
		t.Errorf("without rooms: %d", got.status)
	}
}
