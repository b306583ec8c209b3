package site

import (
	"cmp"
	"context"
	"html/template"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/chart"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// Rooms are the waiting rooms that the pages show.
type Rooms interface {
	// Statuses returns the state of all rooms, in the order in which the page lists them.
	Statuses() []waitingroom.Status
	// Status returns the state of the room with this name. The bool is false if there is no such room.
	Status(name string) (waitingroom.Status, bool)
	// Analytics returns the statistics of a room in the last minutes, by periods, oldest first and the present one last.
	// The bool is false if there is no such room.
	Analytics(ctx context.Context, name string, minutes int) ([]waitingroom.Period, bool, error)
	// Revision returns the version of the settings that is in force on this node.
	Revision() waitingroom.Revision
	// Versions returns all versions of the settings, newest first.
	Versions() []waitingroom.Version
}

const (
	// liveEvery is the interval in which a browser without scripts loads a page of rooms again.
	liveEvery = 10 * time.Second
	// shownPeriods is how many periods a page lists in numbers.
	shownPeriods = 60
	// maxPeople is the largest number of people in a forecast.
	maxPeople = 10_000_000
	// maxVersions is how many versions of the settings a page lists.
	maxVersions = 20
)

// A timespan is a span of time up to now that charts can cover.
type timespan struct {
	Name    string // in the query
	Text    string
	Ago     string // when it begins, in words
	minutes int
}

// reaches are the timespans that a visitor can choose, the default first.
var reaches = []timespan{
	{"hour", "Hour", "an hour ago", 60},
	{"day", "Day", "a day ago", 24 * 60},
	{"week", "Week", "a week ago", 7 * 24 * 60},
	{"month", "30 days", "30 days ago", waitingroom.MaxMinutes},
}

// roomsPage is the data of the page of all rooms.
type roomsPage struct {
	liveState
	Rooms    []waitingroom.Status
	Settings waitingroom.Revision
	Versions []waitingroom.Version // the newest 20, newest first
}

// roomPage is the data of the page of one room.
type roomPage struct {
	liveState
	Room    waitingroom.Status
	Now     waitingroom.Period // the present minute
	Charts  []roomChart
	Periods []waitingroom.Period // the newest 60, newest first
	Spans   []timespan           // all
	Span    timespan             // that of the charts
	Export  string               // path and query of the statistics in JSON; with a format of "csv" added, in CSV
	// Forecast is the forecast for a number of people; 0 people if the visitor gave no number.
	Forecast waitingroom.Forecast
}

// A liveState says whether a page displays changes as they happen.
type liveState struct {
	Live   bool   // it does
	Every  int    // seconds after which a browser without scripts loads the page again
	Path   string // path and query of the page with live updates; the template adds live=off to pause them
	Stream string // address of the stream of changes
}

// newLive returns the state of live updates for the page at path. They are on unless the request's parameter "live" is
// "off". room is the name of the waiting room whose changes the page displays, "" for all.
func (q *request) newLive(path, room string) liveState {
	return liveState{q.query.Get("live") != "off", int(liveEvery / time.Second), path, withQuery("/rooms.stream", encodeQuery("room", room))}
}

// refreshSeconds returns after how many seconds a browser without scripts loads the page again; 0 means never, and live
// updates are off.
func (l liveState) refreshSeconds() int {
	if l.Live {
		return l.Every
	}
	return 0
}

// roomsPage returns the page of all waiting rooms: their states and the newest 20 versions of their settings. It checks no
// permission; internal/app offers the page to operators only. The error is always nil.
func (s *Site) roomsPage(q *request) (*pageAnswer, error) {
	l := q.newLive("/rooms", "")
	versions := s.options.Rooms.Versions()
	return &pageAnswer{
		view: "rooms", Title: "Waiting rooms", Refresh: l.refreshSeconds(),
		Description: "How many users are in the waiting rooms here, and how many wait.",
		Data:        roomsPage{l, s.options.Rooms.Statuses(), s.options.Rooms.Revision(), versions[:min(len(versions), maxVersions)]},
	}, nil
}

// roomPage returns the page of the waiting room that the path names: its state, charts and numbers for the timespan in the
// query, an hour by default, and a forecast for the number of people in the query, at most 10 million. It ignores an
// unknown timespan or a malformed number. If the room does not exist, it returns a refusal with status 404. It checks no
// permission, as roomsPage.
func (s *Site) roomPage(q *request) (*pageAnswer, error) {
	name := q.segments[0]
	shown := reaches[0]
	for _, other := range reaches {
		if q.query.Get("span") == other.Name {
			shown = other
		}
	}
	status, found := s.options.Rooms.Status(name)
	periods, known, err := s.options.Rooms.Analytics(q.Context(), name, shown.minutes)
	if err != nil {
		return nil, err
	}
	recent, exists, err := s.options.Rooms.Analytics(q.Context(), name, 1)
	if err != nil {
		return nil, err
	}
	if !found || !known || !exists { // the configuration may change between the calls
		return nil, newRefusal(http.StatusNotFound, "Waiting room not found", "No waiting room here is called “"+text.Cut(name, maxText)+"”.")
	}
	p := roomPage{
		liveState: q.newLive(withQuery(roomPath(name), encodeQuery("span", q.query.Get("span"), "people", q.query.Get("people"))), name), Room: status, Now: recent[0], Charts: newRoomCharts(status, periods, shown),
		Spans: reaches, Span: shown, Export: withQuery(roomPath(name)+"/analytics", encodeQuery("minutes", strconv.Itoa(shown.minutes))),
	}
	if people, err := strconv.Atoi(q.query.Get("people")); err == nil && people > 0 {
		p.Forecast = status.Forecast(min(people, maxPeople))
	}
	for i := len(periods) - 1; i >= max(0, len(periods)-shownPeriods); i-- {
		p.Periods = append(p.Periods, periods[i])
	}
	return &pageAnswer{
		view: "room", Title: "Waiting room " + name, Refresh: p.refreshSeconds(),
		Description: "How many users are in the waiting room " + name + ", how many wait, and for how long.",
		Data:        p,
	}, nil
}

// formatPeriod returns the start of a period of a waiting room's statistics as text in UTC: the time of the day, and before
// it the day if the period is longer than a minute.
func formatPeriod(p waitingroom.Period) string {
	if p.Minutes == 1 {
		return p.Time.Format("15:04")
	}
	return p.Time.Format("2 January 15:04")
}

// roomPath returns the path of the page of the waiting room with this name, which it does not escape.
func roomPath(name string) string { return "/rooms/" + name }

// newRoomCharts returns four charts of the statistics of the waiting room s over the timespan shown: users in, waiting and
// admitted, and waiting times. periods are all periods of that timespan, oldest first, and at least one.
func newRoomCharts(s waitingroom.Status, periods []waitingroom.Period, shown timespan) []roomChart {
	line := func(name string, value func(waitingroom.Period) float64) chart.Line {
		values := make([]float64, len(periods))
		for i, p := range periods {
			values[i] = value(p)
		}
		return chart.Line{Name: name, Step: 1, Values: values}
	}
	each, most := "minute", ""
	perMinute := float64(s.NewUsersPerMinute)
	if m := periods[0].Minutes; m > 1 {
		each, most = strconv.Itoa(m)+" minutes", ", at most"
		perMinute *= float64(m)
	}
	active := line("in", func(m waitingroom.Period) float64 { return float64(m.Active) })
	queued := line("waiting", func(m waitingroom.Period) float64 { return float64(m.Queued) })
	admitted := line("let in", func(m waitingroom.Period) float64 { return float64(m.Admitted) })
	half := line("half waited at most", func(m waitingroom.Period) float64 { return m.WaitP50 / 60 })
	longest := line("nine of ten waited at most", func(m waitingroom.Period) float64 { return m.WaitP90 / 60 })
	return []roomChart{
		newRoomChart(shown, "active", "Users who are in"+most, "users", float64(s.TotalActiveUsers), active),
		newRoomChart(shown, "queued", "Users who wait"+most, "users", 0, queued),
		newRoomChart(shown, "admitted", "Let in each "+each, "users", perMinute, admitted),
		newRoomChart(shown, "wait", "How long admitted users had waited", "minutes", 0, half, longest),
	}
}

// statusWords are the states of rooms in words.
var statusWords = map[string]string{
	waitingroom.NotQueueing: "no visitor waits", waitingroom.Queueing: "people wait", waitingroom.EventPrequeueing: "people wait for an event", waitingroom.Suspended: "suspended",
}

// formatRoomStatus returns the state of a waiting room in words; a state without words as it is.
func formatRoomStatus(s waitingroom.Status) string {
	if s.Status == waitingroom.Queueing && s.Method == queue.Reject {
		return "no new visitor is let in"
	}
	return cmp.Or(statusWords[s.Status], s.Status)
}

// formatSeconds returns a number of seconds, rounded to an integer, as text, such as "12 s", "2 min" or "3 min 20 s"; "–"
// for less than half a second.
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

// A roomChart is a picture of values over a timespan, with one value for each period. The SVG contains a summary in words.
type roomChart struct {
	ID, Title, Unit string // ID is unique on the page
	SVG             template.HTML
	Lines           []chart.Line
}

// newRoomChart returns a chart of lines over the timespan shown, with a summary in words. All lines have the same number of
// values, at least one, oldest first. id identifies the chart on the page, and unit is that of the values. It draws limit
// as a line, unless limit is 0 or over four times the highest value (or 1, if that is higher).
func newRoomChart(shown timespan, id, title, unit string, limit float64, lines ...chart.Line) roomChart {
	n := len(lines[0].Values)
	c := chart.Chart{X: chart.NewSpanAxis(n, shown.Ago, "now"), Lines: lines}
	lines[0].Filled = true
	highest := 0.0
	var said []string
	for _, l := range lines {
		most := slices.Max(l.Values)
		highest = max(highest, most)
		said = append(said, l.Name+": "+formatValue(l.Values[n-1])+" now, at most "+formatValue(most))
	}
	if limit > 0 && limit <= 4*max(highest, 1) {
		highest = max(highest, limit)
		c.Limit, c.LimitText = limit, "limit "+formatNumber(int(limit))
	}
	c.Y = chart.NewValueAxis(highest, nil)
	c.Summary = title + ", in " + unit + ", since " + shown.Ago + ". " + strings.Join(said, "; ") + "."
	return roomChart{id, title, unit, template.HTML(c.Inline()), lines} //nolint:gosec // Inline escapes its texts
}

// formatValue returns a number as text: with grouped digits if it is an integer, or else with one decimal digit.
func formatValue(v float64) string {
	if v == math.Trunc(v) {
		return formatNumber(int(v))
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}
