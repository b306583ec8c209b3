package simulate

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/larder-cdn/larder/internal/chart"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// Result is what happened.
type Result struct {
	Settings queue.Settings
	Visitors []Visitor
	Minutes  []Minute
	Seconds  []Second
	// PeakActive is the most sessions at once, and PeakAdmitted the most admissions in
	// one calendar minute of the global object's clock.
	PeakActive, PeakAdmitted int
	// PeakRolling is the most admissions in any 60 seconds.
	PeakRolling int
	// FirstWait is how many were active when the first visitor had to wait.
	FirstWait int
	// Draws is how many requests waited for the global object.
	Draws int

	fresh  int
	latest []time.Duration // admissions of the last 60 seconds
	ends   map[int]int     // by second
}

// Visitor is one visitor of the run.
type Visitor struct {
	Arrived  time.Duration // by the ticket
	Joined   time.Duration // the first request
	Called   time.Duration // the last time; 0 without an event stream
	Missed   bool          // had to wait at a request within 30 s after being called
	Admitted time.Duration // the first time
	In       bool          // whether there was an admission
	CheckIns int           // that counted, before the first admission and after the session
	Attacks  bool
	Streams  bool // holds an event stream while it waits
	// Told is the first wait that the visitor was told, at ToldAt; ToldAt is 0 for none.
	Told, ToldAt time.Duration
}

// Wait returns the time from the visitor's first request to the first admission.
func (v Visitor) Wait() time.Duration { return v.Admitted - v.Joined }

// Minute is one minute of the run.
type Minute struct {
	Arrived, Admitted int
	Active, Waiting   int // at its end
	Peak              int // of the active
}

// Second is one sample.
type Second struct {
	Active, Waiting int
	// Ended is how many sessions have ended in the second before, and Admitted how many
	// visitors have come in.
	Ended, Admitted int
}

// newResult returns an empty result with the settings of the options.
func newResult(o Options) *Result {
	return &Result{Settings: o.Settings, ends: map[int]int{}}
}

// minuteAt returns the minute of the run that contains a time, and adds it, and those before, if they are missing.
func (r *Result) minuteAt(at time.Duration) *Minute {
	m := int(at / time.Minute)
	for len(r.Minutes) <= m {
		r.Minutes = append(r.Minutes, Minute{})
	}
	return &r.Minutes[m]
}

// countAdmission counts an admission at the present time of the run, which run.active includes already.
func (r *Result) countAdmission(run *run) {
	m := r.minuteAt(run.now)
	m.Admitted++
	m.Peak = max(m.Peak, run.active)
	r.fresh++
	r.PeakActive = max(r.PeakActive, run.active)
	r.PeakAdmitted = max(r.PeakAdmitted, m.Admitted)
	r.latest = append(r.latest, run.now)
	for r.latest[0] <= run.now-time.Minute {
		r.latest = r.latest[1:]
	}
	r.PeakRolling = max(r.PeakRolling, len(r.latest))
}

// countEnd counts that a session ended at a time.
func (r *Result) countEnd(at time.Duration) { r.ends[int(at/time.Second)]++ }

// addSample adds the counts of the second that is over, and updates those of the minute. It is called once a virtual second.
func (r *Result) addSample(run *run) {
	s := Second{Active: run.active, Waiting: run.waiting, Admitted: r.fresh, Ended: r.ends[len(r.Seconds)-1]}
	delete(r.ends, len(r.Seconds)-1)
	r.fresh = 0
	r.Seconds = append(r.Seconds, s)
	m := r.minuteAt(run.now)
	m.Active, m.Waiting, m.Peak = run.active, run.waiting, max(m.Peak, run.active)
}

// addVisitors adds all visitors of the run, at its end, and counts their arrivals by the minute.
func (r *Result) addVisitors(run *run) {
	for i := range run.users {
		r.Visitors = append(r.Visitors, run.users[i].Visitor)
		r.minuteAt(run.users[i].Arrived).Arrived++
	}
}

// Waits returns the waits of the admitted visitors, in ascending order.
func (r *Result) Waits() []time.Duration {
	var waits []time.Duration
	for _, v := range r.Visitors {
		if v.In {
			waits = append(waits, v.Wait())
		}
	}
	slices.Sort(waits)
	return waits
}

// quantile returns the p-quantile of an ascending list, p from 0 to 1; zero if the list is empty.
func quantile[T cmp.Ordered](sorted []T, p float64) (none T) {
	if len(sorted) == 0 {
		return none
	}
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

// waitsByArrival returns, for each minute of the run, the waits of the admitted visitors who arrived in it, ascending.
func (r *Result) waitsByArrival() [][]time.Duration {
	waits := make([][]time.Duration, len(r.Minutes))
	for _, v := range r.Visitors {
		if v.In {
			m := int(v.Arrived / time.Minute)
			waits[m] = append(waits[m], v.Wait())
		}
	}
	for _, w := range waits {
		slices.Sort(w)
	}
	return waits
}

// Table writes the run as a table minute by minute, and a summary.
func (r *Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "minute\tarrived\tadmitted\tactive at most\twaiting\twait of its arrivals, p50\tp90\t")
	waits := r.waitsByArrival()
	for i, m := range r.Minutes {
		p50, p90 := "", ""
		if len(waits[i]) > 0 {
			p50, p90 = secondsText(quantile(waits[i], 0.5)), secondsText(quantile(waits[i], 0.9))
		}
		fmt.Fprintf(t, "%d\t%d\t%d\t%d\t%d\t%s\t%s\t\n", i, m.Arrived, m.Admitted, m.Peak, m.Waiting, p50, p90)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	all := r.Waits()
	s := r.Settings
	_, err := fmt.Fprintf(w, `
%d of %d visitors came in; they waited %s (p50), %s (p90), %s at most
active users: %d at most, of %d allowed
admitted in a minute: %d at most, of %d allowed
requests that waited for the global object: %d
`, len(all), len(r.Visitors), secondsText(quantile(all, 0.5)), secondsText(quantile(all, 0.9)), secondsText(quantile(all, 1)),
		r.PeakActive, s.TotalActiveUsers, r.PeakAdmitted, s.NewUsersPerMinute, r.Draws)
	return err
}

// secondsText returns a duration as text, rounded to seconds.
func secondsText(d time.Duration) string { return d.Round(time.Second).String() }

// Draw writes two pictures into dir and returns their files: name-waits.svg, a heat map of
// the waits by the minute of arrival, and name-room.svg, a chart of active and waiting users
// with their limit.
func (r *Result) Draw(dir, name string) (files []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	waits, room := r.waitsChart(), r.roomChart()
	for _, p := range []struct {
		name  string
		chart *chart.Chart
	}{{"waits", &waits}, {"room", &room}} {
		file := filepath.Join(dir, name+"-"+p.name+".svg")
		if err := os.WriteFile(file, p.chart.File(), 0o644); err != nil {
			return files, err
		}
		files = append(files, file)
	}
	return files, nil
}

// waitBins is how many rows the heat map has.
const waitBins = 30

// waitsChart returns a heat map of the admitted visitors by the minute of their arrival and by their wait.
func (r *Result) waitsChart() chart.Chart {
	longest, minutes := time.Minute, 2
	for _, v := range r.Visitors {
		if v.In {
			longest = max(longest, v.Wait()+1)
			minutes = max(minutes, int(v.Arrived/time.Minute)+1)
		}
	}
	bin := (longest + waitBins - 1) / waitBins
	counts := make([][]float64, minutes)
	for i := range counts {
		counts[i] = make([]float64, waitBins)
	}
	for _, v := range r.Visitors {
		if v.In {
			counts[int(v.Arrived/time.Minute)][int(v.Wait()/bin)]++
		}
	}
	all := r.Waits()
	across, up := float64(minutes), (waitBins * bin).Minutes()
	return chart.Chart{
		Title: "How long users wait, by minute of arrival (" + r.methodText() + ")",
		Summary: fmt.Sprintf("Heat map of %d users: minute of arrival, from 0 to %d, against the wait. Half of them waited at most %s, nine of ten %s, all %s.",
			len(all), minutes, secondsText(quantile(all, 0.5)), secondsText(quantile(all, 0.9)), secondsText(quantile(all, 1))),
		X:    chart.Axis{Title: "minute of arrival", Max: across, Step: chart.Step(across, 1)},
		Y:    chart.Axis{Title: "wait in minutes", Max: up, Step: chart.Step(up, 0)},
		Heat: &chart.Heat{Columns: counts, Unit: "users"},
	}
}

// roomChart returns a chart of the active and waiting users over time, with their limit.
func (r *Result) roomChart() chart.Chart {
	limit := r.Settings.TotalActiveUsers
	most := float64(limit)
	active, waiting := make([]float64, len(r.Seconds)), make([]float64, len(r.Seconds))
	for i, s := range r.Seconds {
		active[i], waiting[i] = float64(s.Active), float64(s.Waiting)
		most = max(most, active[i], waiting[i])
	}
	across, step := float64(max(1, len(r.Seconds)))/60, chart.Step(most, 1)
	return chart.Chart{
		Title:   "Active and waiting users (" + r.methodText() + ")",
		Summary: fmt.Sprintf("Users over %.0f minutes: at most %d active, of %d allowed, and %.0f waiting.", across, r.PeakActive, limit, slices.Max(append(waiting, 0))),
		X:       chart.Axis{Title: "minute", Max: across, Step: chart.Step(across, 0)},
		Y:       chart.Axis{Title: "users", Max: math.Ceil(most/step) * step, Step: step},
		Lines:   []chart.Line{{Name: "waiting", Step: 1. / 60, Values: waiting}, {Name: "active", Step: 1. / 60, Values: active}},
		Limit:   float64(limit), LimitText: fmt.Sprintf("limit %d", limit),
	}
}

// methodText returns the queueing method and the allocator of the run as text, for titles.
func (r *Result) methodText() string {
	return fmt.Sprintf("%s, %s", r.Settings.Method, r.Settings.Allocator)
}

// Utilisation returns the mean part of the limit that was active, from 0 to 1, in the seconds in which more visitors waited than
// slots were free, from when the room was nearly full first. It is 0 if there were no such seconds.
func (r *Result) Utilisation() float64 {
	used, seconds := 0.0, 0
	limit := r.Settings.TotalActiveUsers
	full := false
	for _, s := range r.Seconds {
		full = full || s.Active >= limit*9/10
		if full && s.Waiting > max(0, limit-s.Active) {
			used += float64(s.Active) / float64(limit)
			seconds++
		}
	}
	if seconds == 0 {
		return 0
	}
	return used / float64(seconds)
}
