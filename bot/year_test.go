package bot_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/chart"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// A yearDay is what the bot has done by the end of a day.
type yearDay struct{ polls, requests, rows, bytes, entries, releases float64 }

// TestYear plays days of four packages on a virtual clock, a year of them with LARDER_TEST_WHOLE: one from npm that has a release every five days, one that
// never has one, one whose file map selects nothing of its releases, and one from GitHub. The clock is a year ahead for a few polls once, and later two days
// behind. What is stored and requested stays within bounds, and no release is late by more than a day. LARDER_TEST_CHARTS names a folder for charts.
func TestYear(t *testing.T) {
	r := newRig(t)
	days := 7
	if os.Getenv("LARDER_TEST_WHOLE") != "" {
		days = 365
	}
	const interval = time.Hour
	hub, url := r.gitHub()
	if err := hub.Add("owner/c", t.TempDir(), "main"); err != nil {
		t.Fatal(err)
	}
	repository := gittest.Use(t, hub.Repository("owner/c"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"})
	r.registry.Add("b", "1.0.0", hour(1), map[string]string{"a.js": "b"})
	repository.Release("v1.0.0", hour(1), gittest.Files{"a.js": "c"})
	r.registry.Add("d", "1.0.0", hour(1), map[string]string{"a.js": "d"})
	names := []string{"a", "b", "c", "d"}
	r.register("a", fromNpm("a", "*.js"))
	r.register("b", fromNpm("b", "*.js"))
	r.register("c", fromGit(url+"/owner/c", "*.js"))
	r.register("d", fromNpm("d", "wrong/*.js"))
	r.open()
	due := make(map[string]time.Time)
	schedule := func() { // as at a start, and after the clock was set back
		records := sources.NewRecords(sources.RecordsOptions{Store: r.store, Logger: slog.New(slog.DiscardHandler), Interval: interval, Now: r.clock})
		for _, name := range names {
			due[name] = records.Known(name).Due(interval)
		}
	}
	polls := 0
	poll := r.bot.Polls()
	play := func(until time.Time) {
		for {
			name := slices.MinFunc(names, func(x, y string) int { return due[x].Compare(due[y]) })
			if !due[name].Before(until) {
				break
			}
			if due[name].After(r.clock()) {
				r.setNow(due[name])
			}
			next, err := poll(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			polls++
			due[name] = next
		}
		r.setNow(until)
	}
	var all []yearDay
	releases := len(names) - 1 // that have files
	for day := range days {
		morning := r.clock()
		switch day {
		case days / 3: // a year ahead for an hour
			r.setNow(morning.AddDate(1, 0, 0))
			schedule()
			play(r.clock().Add(time.Hour))
			r.setNow(morning)
			schedule()
		case days / 2: // two days behind
			r.setNow(morning.Add(-2 * 24 * time.Hour))
			schedule()
		}
		version := fmt.Sprintf("1.%d.0", day+1)
		if day%5 == 4 {
			r.registry.Add("a", version, r.clock(), map[string]string{"a.js": version})
			releases++
		}
		if day%10 == 9 {
			repository.Release("v"+version, r.clock(), gittest.Files{"a.js": version})
			r.registry.Add("d", version, r.clock(), map[string]string{"a.js": version})
			releases++
		}
		play(r.clock().Add(24 * time.Hour))
		r.once()
		if _, err := r.bot.Audit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if published := len(r.entries(logs.Published)); published != releases {
			t.Fatalf("day %d: %d of %d releases are published", day, published, releases)
		}
		d := r.measureDay(polls, releases)
		d.requests += float64(len(hub.Requests()))
		all = append(all, d)
	}
	for i, d := range all {
		before := yearDay{}
		if i > 0 {
			before = all[i-1]
		}
		if got := d.polls - before.polls; got > float64(len(names)*400) || got < float64(len(names)*20) {
			t.Errorf("day %d: %v polls of %d packages", i, got, len(names))
		}
		// A poll of a git repository is two requests, and releases and audits have some of their own.
		if got, most := d.requests-before.requests, 2*(d.polls-before.polls)+float64(20*len(names)); got > most {
			t.Errorf("day %d: %v requests, want at most %v", i, got, most)
		}
		if d.rows > float64(8*len(names))+4*d.releases || d.bytes > float64(2000*len(names))+1200*d.releases || d.entries > float64(len(names))+4*d.releases {
			t.Errorf("day %d: %+v", i, d)
		}
	}
	api := 0
	for _, q := range hub.Requests() {
		if q.Path == "/repos/owner/c" {
			api++
		}
	}
	if float64(api) > float64(days)/10+2 {
		t.Errorf("%d requests to GitHub's API", api)
	}
	if refusals := len(r.entries(logs.Refused)); refusals != 1 {
		t.Errorf("the log has %d entries of releases without files, want 1", refusals)
	}
	last := all[len(all)-1]
	t.Logf("%d days: %+v, %d requests to GitHub's API", days, last, api)
	r.drawDays(all)
	r.sound()
}

// measureDay returns what the store has of the bot's rows, and what was requested of the registry.
func (r *rig) measureDay(polls, releases int) yearDay {
	r.Helper()
	d := yearDay{polls: float64(polls), requests: float64(r.registry.Count("/")), releases: float64(releases)}
	for _, ns := range []kvstore.Namespace{kvstore.Upstreams, kvstore.States, kvstore.Queue} {
		for item, err := range r.store.Scan(ns, kvstore.Range{}) {
			if err != nil {
				r.Fatal(err)
			}
			d.rows++
			d.bytes += float64(len(item.Key) + len(item.Value))
		}
	}
	for _, err := range logs.Entries(r.store, 0) {
		if err != nil {
			r.Fatal(err)
		}
		d.entries++
	}
	return d
}

// drawDays writes a chart of each measure to the folder that LARDER_TEST_CHARTS names.
func (r *rig) drawDays(all []yearDay) {
	r.Helper()
	dir := os.Getenv("LARDER_TEST_CHARTS")
	if dir == "" {
		return
	}
	for name, of := range map[string]func(yearDay) float64{
		"polls": func(d yearDay) float64 { return d.polls }, "requests": func(d yearDay) float64 { return d.requests },
		"rows": func(d yearDay) float64 { return d.rows }, "bytes": func(d yearDay) float64 { return d.bytes }, "entries": func(d yearDay) float64 { return d.entries },
	} {
		line := chart.Line{Name: name, Step: 1}
		for _, d := range all {
			line.Values = append(line.Values, of(d))
		}
		highest := slices.Max(line.Values)
		c := chart.Chart{
			Title: name + " of four packages", Summary: fmt.Sprintf("%s grow to %.0f in %d days", name, highest, len(all)),
			X: chart.Axis{Title: "day", Max: float64(len(all)), Step: chart.Step(float64(len(all)), 1)}, Y: chart.Axis{Title: name, Max: highest, Step: chart.Step(highest, 1)},
			Lines: []chart.Line{line},
		}
		if err := os.WriteFile(filepath.Join(dir, name+".svg"), c.File(), 0o600); err != nil {
			r.Fatal(err)
		}
	}
}
