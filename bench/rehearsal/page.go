package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/chart"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// A pageEvent is an event as the page tells it.
type pageEvent struct {
	At, Took, Kind, What, Noticed, Failed string
}

// A figure is a chart with its words.
type figure struct {
	Title, Text string
	SVG         template.HTML
	Keys        []string
	Chart       bool // drawn smaller than the timeline
}

// page is one file of HTML that shows what happened when, and what clients noticed.
func (n *notes) page(o *options, ended time.Time, checks []check) ([]byte, error) {
	allowed, others := n.explained()
	view := struct {
		Begun, Took, Seed string
		Good              bool
		Checks            []check
		Figures           []figure
		Events            []pageEvent
		Told              []string
	}{
		Begun: n.begin.UTC().Format("2 January 2006, 15:04 MST"), Took: ended.Sub(n.begin).Round(time.Second).String(), Seed: fmt.Sprint(o.seed),
		Good: !slices.ContainsFunc(checks, func(c check) bool { return !c.OK }), Checks: checks, Told: n.told,
	}
	length := ended.Sub(n.begin)
	view.Figures = append(view.Figures, n.timeline(length, others))
	view.Figures = append(view.Figures, n.requestCharts(length)...)
	for _, u := range uses {
		view.Figures = append(view.Figures, n.useChart(length, u))
	}
	for _, e := range n.events {
		end := e.End
		if end.IsZero() {
			end = ended
		}
		x := pageEvent{At: clock(e.Begin.Sub(n.begin)), Took: end.Sub(e.Begin).Round(100 * time.Millisecond).String(), Kind: e.Kind, What: e.What, Noticed: "nothing"}
		if counts := allowed[e]; len(counts) > 0 {
			var all []string
			for _, what := range slices.Sorted(maps.Keys(counts)) {
				all = append(all, fmt.Sprintf("%s, %d times", what, counts[what]))
			}
			x.Noticed = strings.Join(all, "; ")
		}
		if e.Skipped {
			x.Noticed = "–"
		}
		if e.Failed != nil {
			x.Failed = e.Failed.Error()
		}
		view.Events = append(view.Events, x)
	}
	var b bytes.Buffer
	err := pageTemplate.Execute(&b, view)
	return b.Bytes(), err
}

// clock writes how long after the beginning something is.
func clock(d time.Duration) string {
	d = d.Round(time.Second)
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

const (
	wide      = 1000.0
	laneLeft  = 130.0
	laneHigh  = 22.0
	timeSteps = 6
)

// timeline draws a lane for each kind of event, and one for each entrance at which a request failed.
func (n *notes) timeline(length time.Duration, others []failure) figure {
	var lanes []string
	for _, kind := range kinds {
		if slices.ContainsFunc(n.events, func(e *event) bool { return e.Kind == kind && !e.Skipped }) {
			lanes = append(lanes, kind)
		}
	}
	firstEntrance := len(lanes)
	lanes = append(lanes, slices.Sorted(maps.Keys(n.seconds))...)
	x := func(at time.Time) float64 {
		return laneLeft + (wide-laneLeft-10)*min(1, max(0, float64(at.Sub(n.begin))/float64(length)))
	}
	high := laneHigh*float64(len(lanes)) + 26
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="What happened when: the events, and below them the requests that failed, by entrance">`, wide, high)
	for i, lane := range lanes {
		y := laneHigh * float64(i)
		fmt.Fprintf(&b, `<path class="rule" d="M%.0f %.1fH%.0f"/><text class="tick" x="%.0f" y="%.1f" text-anchor="end">%s</text>`, laneLeft, y+laneHigh, wide-10, laneLeft-8, y+15, template.HTMLEscapeString(lane))
	}
	for _, e := range n.events {
		lane := slices.Index(lanes, e.Kind)
		if lane < 0 || e.Skipped {
			continue
		}
		end := e.End
		if end.IsZero() {
			end = n.begin.Add(length)
		}
		class := "event"
		if e.Failed != nil {
			class = "event bad"
		}
		fmt.Fprintf(&b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.0f"><title>%s %s</title></rect>`, class, x(e.Begin), laneHigh*float64(lane)+4, max(2, x(end)-x(e.Begin)), laneHigh-8, clock(e.Begin.Sub(n.begin)), template.HTMLEscapeString(e.What))
	}
	drawn := map[string]bool{} // of thousands that failed in one second, one stroke is seen
	for i, f := range n.failures {
		lane := slices.Index(lanes[firstEntrance:], f.entrance) + firstEntrance
		class := "failed"
		if slices.ContainsFunc(others, func(o failure) bool { return o == n.failures[i] }) {
			class = "failed bad"
		}
		stroke := fmt.Sprintf(`<path class="%s" d="M%.1f %.1fv%.0f"/>`, class, x(f.at), laneHigh*float64(lane)+4, laneHigh-8)
		if !drawn[stroke] {
			drawn[stroke] = true
			b.WriteString(stroke)
		}
	}
	for i := range timeSteps + 1 {
		at := length * time.Duration(i) / timeSteps
		anchor := "middle"
		if i == timeSteps {
			anchor = "end"
		}
		fmt.Fprintf(&b, `<text class="tick" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, x(n.begin.Add(at)), high-6, anchor, clock(at))
	}
	b.WriteString("</svg>")
	return figure{Title: "What happened, and what clients noticed", Text: "A bar is an event. A stroke is a request that failed: as the contracts allow in the event that is above it, or, in red, as they do not.", SVG: template.HTML(b.String())} //nolint:gosec // escaped above
}

// axes are those of a chart over the whole time.
func axes(length time.Duration, highest float64) (x, y chart.Axis) {
	seconds := length.Seconds()
	x = chart.Axis{Max: seconds}
	for i := range timeSteps + 1 {
		at := length * time.Duration(i) / timeSteps
		x.Marks = append(x.Marks, chart.Mark{At: at.Seconds(), Text: clock(at)})
	}
	step := chart.Step(highest, 0)
	return x, chart.Axis{Max: max(step, math.Ceil(highest/step)*step), Step: step}
}

// requestCharts draw how many requests succeeded each second, and how long they took.
func (n *notes) requestCharts(length time.Duration) []figure {
	seconds := max(1, int(length.Seconds())) // the last one is not whole
	rate, median, late := make([]float64, seconds), make([]float64, seconds), make([]float64, seconds)
	for i := range seconds {
		var took []float32
		for entrance, all := range n.seconds {
			if entrance != "room" && i < len(all) {
				rate[i] += float64(all[i].ok)
				took = append(took, all[i].took...)
			}
		}
		slices.Sort(took)
		if len(took) > 0 {
			median[i], late[i] = float64(took[len(took)/2]), float64(took[(len(took)-1)*99/100])
		}
	}
	x, y := axes(length, slices.Max(rate))
	asked := chart.Chart{Summary: fmt.Sprintf("Requests that succeeded in each second, at most %.0f", slices.Max(rate)), X: x, Y: y, Lines: []chart.Line{{Name: "requests a second", Step: 1, Values: rate, Filled: true}}}
	sorted := slices.Clone(late)
	sort.Float64s(sorted)
	_, y = axes(length, sorted[(len(sorted)-1)*98/100]*1.2)
	for i := range late { // what is above the chart is drawn at its edge
		late[i], median[i] = min(late[i], y.Max), min(median[i], y.Max)
	}
	took := chart.Chart{Summary: "How long requests took in each second: half of them, and 99 of 100", X: x, Y: y, Lines: []chart.Line{{Name: "99 of 100", Step: 1, Values: late}, {Name: "half", Step: 1, Values: median}}}
	return []figure{
		{Title: "Requests that succeeded, each second", Chart: true, SVG: template.HTML(asked.Inline())},                                                                                    //nolint:gosec // escaped by chart
		{Title: "Milliseconds that requests took", Chart: true, Text: "The highest are drawn at the edge.", SVG: template.HTML(took.Inline()), Keys: []string{"99 of 100", "half of them"}}, //nolint:gosec // as above
	}
}

// useChart draws what each process used.
func (n *notes) useChart(length time.Duration, u use) figure {
	const step = 2.0
	c := chart.Chart{}
	f := figure{Chart: true, Title: strings.ToUpper(u.name[:1]) + u.name[1:] + " of each process, in " + u.unit}
	highest := 0.0
	for _, process := range slices.Sorted(maps.Keys(n.samples)) {
		values := make([]float64, int(length.Seconds()/step)+1)
		for _, s := range n.samples[process] {
			if i := int(s.At.Sub(n.begin).Seconds() / step); i >= 0 && i < len(values) {
				values[i] = u.of(s)
				highest = max(highest, values[i])
			}
		}
		for i := 1; i < len(values); i++ { // a process that is measured a moment late leaves no hole
			if values[i] == 0 {
				values[i] = values[i-1]
			}
		}
		c.Lines = append(c.Lines, chart.Line{Name: process, Step: step, Values: values})
		f.Keys = append(f.Keys, process)
	}
	c.X, c.Y = axes(length, highest)
	c.Summary = fmt.Sprintf("%s, at most %.0f %s", f.Title, highest, u.unit)
	f.SVG = template.HTML(c.Inline()) //nolint:gosec // escaped by chart
	return f
}
