package site

import (
	"net/http"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// Rooms are the waiting rooms that the pages show.
type Rooms interface {
	// Statuses returns how all of them are.
	Statuses() []waitingroom.Status
	// Status returns how one is, false where there is none of that name.
	Status(name string) (waitingroom.Status, bool)
	// Analytics returns what happened in one in the last so many minutes, the present one
	// last.
	Analytics(name string, minutes int) ([]waitingroom.Minute, bool)
}

const (
	// shownMinutes is how far the charts go back.
	shownMinutes = 60
	// liveEvery is how often a page of rooms loads itself again.
	liveEvery = 10 * time.Second
)

// roomsPage is how all rooms are.
type roomsPage struct {
	live
	Rooms []waitingroom.Status
}

// roomPage is how one room is.
type roomPage struct {
	live
	Room    waitingroom.Status
	Now     waitingroom.Minute
	Charts  []chart
	Minutes []waitingroom.Minute // newest first
}

// live says whether a page loads itself again, and where it does otherwise.
type live struct {
	Live  bool
	Every int // seconds
	Path  string
}

func (q *request) live(path string) live {
	return live{q.query.Get("live") != "off", int(liveEvery / time.Second), path}
}

func (l live) refresh() int {
	if l.Live {
		return l.Every
	}
	return 0
}

func (s *Site) rooms(q *request) (*answer, error) {
	l := q.live("/rooms")
	return &answer{
		view: "rooms", title: "Waiting rooms", canonical: "/rooms", refresh: l.refresh(),
		description: "How many users are in the waiting rooms here, and how many wait.",
		data:        roomsPage{l, s.options.Rooms.Statuses()},
	}, nil
}

func (s *Site) room(q *request) (*answer, error) {
	name := q.segments[0]
	status, ok := s.options.Rooms.Status(name)
	minutes, found := s.options.Rooms.Analytics(name, shownMinutes)
	if !ok || !found {
		return nil, refuse(http.StatusNotFound, "Waiting room not found", "No waiting room here is called “"+cut(name, maxText)+"”.")
	}
	l := q.live(roomPath(name))
	p := roomPage{live: l, Room: status, Now: minutes[len(minutes)-1], Charts: roomCharts(status, minutes)}
	for i := len(minutes) - 1; i >= 0; i-- {
		p.Minutes = append(p.Minutes, minutes[i])
	}
	return &answer{
		view: "room", title: "Waiting room " + name, refresh: l.refresh(),
		description: "How many users are in the waiting room " + name + ", how many wait, and for how long.",
		data:        p,
	}, nil
}

func roomPath(name string) string { return "/rooms/" + name }

// roomCharts draws what happened.
func roomCharts(s waitingroom.Status, minutes []waitingroom.Minute) []chart {
	of := func(value func(waitingroom.Minute) float64) []float64 {
		values := make([]float64, len(minutes))
		for i, m := range minutes {
			values[i] = value(m)
		}
		return values
	}
	active := of(func(m waitingroom.Minute) float64 { return float64(m.Active) })
	queued := of(func(m waitingroom.Minute) float64 { return float64(m.Queued) })
	admitted := of(func(m waitingroom.Minute) float64 { return float64(m.Admitted) })
	half := of(func(m waitingroom.Minute) float64 { return m.WaitP50 / 60 })
	most := of(func(m waitingroom.Minute) float64 { return m.WaitP90 / 60 })
	return []chart{
		newChart("active", "Users who are in", "users", float64(s.TotalActiveUsers), line{"in", active}),
		newChart("queued", "Users who wait", "users", 0, line{"waiting", queued}),
		newChart("admitted", "Let in each minute", "users", float64(s.NewUsersPerMinute), line{"let in", admitted}),
		newChart("wait", "Time waited by who was let in", "minutes", 0, line{"half waited at most", half}, line{"nine of ten waited at most", most}),
	}
}

// statusWords are the states of rooms for people.
var statusWords = map[string]string{
	waitingroom.NotQueueing: "nobody waits", waitingroom.Queueing: "people wait", waitingroom.EventPrequeueing: "people wait for an event", waitingroom.Suspended: "suspended",
}

func formatRoomStatus(s waitingroom.Status) string {
	if s.Status == waitingroom.Queueing && s.Method == config.Reject {
		return "nobody new is let in"
	}
	return or(statusWords[s.Status], s.Status)
}

// formatSeconds writes how long something took: "12 s", "3 min 20 s".
func formatSeconds(seconds float64) string {
	n := int(seconds + 0.5)
	switch {
	case n == 0:
		return "–"
	case n < 60:
		return strconv.Itoa(n) + " s"
	case n%60 == 0:
		return strconv.Itoa(n/60) + " min"
	}
	return strconv.Itoa(n/60) + " min " + strconv.Itoa(n%60) + " s"
}
