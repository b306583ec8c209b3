package site

import (
	"html/template"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/internal/chart"
	"github.com/larder-cdn/larder/server/usage"
)

// usageDays is how many days the chart of a library covers, today included.
const usageDays = 90

// A usageChart displays the requests for a library, or a version of it.
type usageChart struct {
	Version  string // "" for all versions
	Days     int    // that the chart covers
	Requests int    // on these days
	Bytes    int64  // of the bodies of their responses
	SVG      template.HTML
}

// addUsage sets page.Usage to a chart of the requests in the last 90 days: for all versions of the library if the page is
// about the latest one, or else for the page's version. It sets nothing if there were no requests, the site does not count
// them, or they cannot be read, which it logs.
func (s *Site) addUsage(page *libraryPage) {
	if s.options.Usage == nil {
		return
	}
	version := page.Release.Version
	if page.Latest {
		version = ""
	}
	r, err := s.options.Usage.ReportOn(page.Name, version, usageDays)
	if err != nil {
		s.logger.Error("site: couldn't read how much a library is asked for; the page is shown without", "package", page.Name, "err", err)
		return
	}
	if r.Total.Requests > 0 {
		page.Usage = newUsageChart(version, r)
	}
}

// newUsageChart returns a chart of the requests on each day of report r, which must have at least one day. version is the
// one that the report is about, "" for all versions of the library.
func newUsageChart(version string, r *usage.Report) *usageChart {
	values := make([]float64, len(r.Days))
	highest, busiest := 0.0, 0
	for i, day := range r.Days {
		if values[i] = float64(day.Requests); values[i] > highest {
			highest, busiest = values[i], i
		}
	}
	c := chart.Chart{
		X:     chart.NewSpanAxis(len(values), r.From.Format(time.DateOnly), "today"),
		Y:     chart.NewValueAxis(highest, formatRound),
		Lines: []chart.Line{{Name: "requests", Step: 1, Values: values, Filled: true}},
		Summary: "Requests each day, over the last " + strconv.Itoa(len(values)) + " days: " + formatNumber(int(r.Total.Requests)) + " in all, " +
			formatNumber(int(values[len(values)-1])) + " today so far, at most " + formatNumber(int(highest)) + ", on " + r.From.AddDate(0, 0, busiest).Format(time.DateOnly) + ".",
	}
	return &usageChart{version, len(values), int(r.Total.Requests), int64(r.Total.Bytes), template.HTML(c.Inline())} //nolint:gosec // Inline escapes its texts
}

// formatRound returns a number as a short text, rounded to four digits, with k, M, G or T from a thousand on: "500", "20k",
// "1.5M". T is the largest unit.
func formatRound(v float64) string {
	for _, unit := range []struct {
		of   float64
		name string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= unit.of {
			return strconv.FormatFloat(v/unit.of, 'g', 4, 64) + unit.name
		}
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
