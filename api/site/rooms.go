package site

import (
	"cmp"
	"html/template"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	drawing "github.com/larder-cdn/larder/internal/chart"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// Rooms are the waiting rooms that the pages show.
type Rooms interface {
	// Statuses returns the state of all rooms.
	Statuses() []waitingroom.Status
	// Status returns the state of one, false where there is none of that name.
	Status(name string) (waitingroom.Status, bool)
	// Analytics returns what happened in one in the last so many minutes, the present one
	// last.
	Analytics(name string, minutes int) ([]waitingroom.Minute, bool)
}

const (
	// shownMinutes is how far the charts go back.
	shownMinutes = 60
	// liveEvery is how often a page of rooms refreshes itself.
	liveEvery = 10 * time.Second
)

// roomsPage shows all rooms.
type roomsPage struct {
	live
	Rooms []waitingroom.Status
}

// roomPage shows one room.
type roomPage struct {
	live
	Room    waitingroom.Status
	Now     waitingroom.Minute
	Charts  []chart
	Minutes []waitingroom.Minute // newest first
}

// live says whether a page refreshes itself, and Path is where that can be changed.
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
		view: "rooms", title: "Waiting rooms", refresh: l.refresh(),
		description: "How many users are in the waiting rooms here, and how many wait.",
		data:        roomsPage{l, s.options.Rooms.Statuses()},
	}, nil
}

func (s *Site) room(q *request) (*answer, error) {
	name := q.segments[0]
	status, ok := s.options.Rooms.Status(name)
	minutes, found := s.options.Rooms.Analytics(name, shownMinutes)
	if !ok || !found {
		return nil, refuse(http.StatusNotFound, "Waiting room not found", "No waiting room here is called “"+text.Cut(name, maxText)+"”.")
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
		newChart("wait", "How long admitted users had waited", "minutes", 0, line{"half waited at most", half}, line{"nine of ten waited at most", most}),
	}
}

// statusWords are the states of rooms in words.
var statusWords = map[string]string{
	waitingroom.NotQueueing: "no visitor waits", waitingroom.Queueing: "people wait", waitingroom.EventPrequeueing: "people wait for an event", waitingroom.Suspended: "suspended",
}

func formatRoomStatus(s waitingroom.Status) string {
	if s.Status == waitingroom.Queueing && s.Method == queue.Reject {
		return "no new visitor is let in"
	}
	return cmp.Or(statusWords[s.Status], s.Status)
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

// A chart is a picture of values over the last minutes. Its text says the same.
type chart struct {
	ID, Title, Unit string
	SVG             template.HTML
	Lines           []line
}

// A line is what is drawn: one value for each minute.
type line struct {
	Name   string
	values []float64
}

// newChart draws lines, and a limit where it is not 0 and near enough to be seen beside
// the lines.
func newChart(id, title, unit string, limit float64, lines ...line) chart {
	minutes := len(lines[0].values)
	last := float64(max(1, minutes-1))
	c := drawing.Chart{X: drawing.Axis{Max: last, Marks: []drawing.Mark{{At: 0, Text: "an hour ago"}, {At: last, Text: "now"}}}}
	highest := 0.0
	var said []string
	for i, l := range lines {
		most := 0.0
		for _, v := range l.values {
			most = max(most, v)
		}
		highest = max(highest, most)
		said = append(said, l.Name+": "+short1(l.values[minutes-1])+" now, at most "+short1(most))
		c.Lines = append(c.Lines, drawing.Line{Name: l.Name, Step: 1, Values: l.values, Filled: i == 0})
	}
	if limit > 0 && limit <= 4*max(highest, 1) {
		highest = max(highest, limit)
		c.Limit, c.LimitText = limit, "limit "+formatNumber(int(limit))
	}
	step := drawing.Step(highest, 1)
	c.Y = drawing.Axis{Max: math.Ceil(max(highest, step)/step) * step, Step: step}
	c.Summary = title + ", in " + unit + ", over the last " + strconv.Itoa(minutes) + " minutes. " + strings.Join(said, "; ") + "."
	return chart{id, title, unit, template.HTML(c.Inline()), lines} //nolint:gosec // Inline escapes its texts
}

// short1 writes a value for people: whole, or with one digit behind the point.
func short1(v float64) string {
	if v == math.Trunc(v) {
		return formatNumber(int(v))
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}
