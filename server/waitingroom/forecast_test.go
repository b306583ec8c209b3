package waitingroom

import (
	"testing"
	"time"
)

func TestForecast(t *testing.T) {
	t.Parallel()
	room := Status{TotalActiveUsers: 1000, NewUsersPerMinute: 200, SessionDuration: 5}
	full := room
	full.Active, full.Queued = 1000, 400
	closed := room
	closed.TotalActiveUsers, closed.Active = 0, 0
	slow := room
	slow.SessionDuration = 10
	for _, c := range []struct {
		name     string
		room     Status
		people   int
		atOnce   int
		lastWait time.Duration
		endless  bool
	}{
		{"few", room, 100, 100, 0, false},
		{"a minute's worth", room, 200, 200, 0, false},
		{"one more", room, 201, 200, time.Minute, false},
		{"sessions end as fast as people enter", room, 10_000, 200, 49 * time.Minute, false},
		{"the room is full for five minutes of ten", slow, 2000, 200, 14 * time.Minute, false},
		{"behind those who wait", full, 100, 0, 2 * time.Minute, false},
		{"nobody enters", closed, 1, 0, 0, true},
		{"longer than a week", room, 10_000_000, 200, 0, true},
	} {
		got := c.room.Forecast(c.people)
		if got != (Forecast{c.people, c.atOnce, c.lastWait, c.endless}) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
