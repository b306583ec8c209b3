package bot_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs/views"
)

const year = 365 * 24 * time.Hour

// A clock that was a year ahead once, before a restart or while the bot runs, delays no poll and no attempt by a year.
func TestClockThatWasAhead(t *testing.T) {
	r := newRig(t)
	published := make(chan string, 100)
	r.during = func(e sources.Event) {
		if e.Kind == sources.Published {
			published <- e.Version
		}
	}
	deadline := time.After(5 * time.Minute)
	want := func(versions ...string) {
		t.Helper()
		missing := map[string]bool{}
		for _, version := range versions {
			missing[version] = true
		}
		for len(missing) > 0 {
			select {
			case version := <-published:
				delete(missing, version)
			case <-deadline:
				t.Fatalf("%v are not published after five minutes", slices.Sorted(maps.Keys(missing)))
			}
		}
	}
	add := func(version string) { r.registry.Add("a", version, hour(1), map[string]string{"a.js": version}) }
	add("1.0.0")
	r.register("a", fromNpm("a", "*.js"))
	start := r.clock()
	r.setNow(start.Add(year))
	r.open()
	r.once()
	add("1.1.0")
	r.registry.Fail(npmtest.Fault{Path: "/a/-/", Status: 503})
	r.poll()
	if s := r.state("a", "1.1.0"); s.Kind != views.Failed {
		t.Fatalf("%+v", s)
	}
	r.registry.ClearFaults()
	add("1.2.0")
	r.setNow(start)
	r.clockCheck = 10 * time.Millisecond
	r.open()
	defer r.run()()
	want("1.0.0", "1.1.0", "1.2.0")

	add("1.3.0")
	r.setNow(start.Add(2 * year))
	r.bot.WakeAlarms()
	want("1.3.0")
	add("1.4.0")
	r.setNow(start.Add(2 * time.Hour))
	want("1.4.0")
}
