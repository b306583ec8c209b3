package bot_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/events"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

const year = 365 * 24 * time.Hour

// A clock that was a year ahead once, before a restart or while the bot runs, delays no poll and no attempt by a year.
func TestClockThatWasAhead(t *testing.T) {
	r := newRig(t)
	published := make(chan string, 100)
	r.during = func(e events.Event) {
		if e.Kind == events.Published {
			published <- e.Version
		}
	}
	want := func(versions ...string) {
		t.Helper()
		missing := map[string]bool{}
		for _, version := range versions {
			missing[version] = true
		}
		for deadline := time.After(time.Minute); len(missing) > 0; {
			select {
			case version := <-published:
				delete(missing, version)
			case <-deadline:
				t.Fatalf("not published within a minute: %v\n%s", missing, r.states("a"))
			}
		}
	}
	add := func(version string) { r.registry.Add("a", version, hour(1), map[string]string{"a.js": version}) }
	add("1.0.0")
	r.enrol("a", fromNpm("a", "*.js"))
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
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.bot.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	want("1.0.0", "1.1.0", "1.2.0")

	add("1.3.0")
	r.setNow(start.Add(2 * year))
	r.bot.ProbeNpm() // wakes the alarms, which look at an injected clock once a minute
	want("1.3.0")
	add("1.4.0")
	r.setNow(start.Add(2 * time.Hour))
	want("1.4.0")
}

// A year of polls, with a clock that jumps ahead and back, leaves rows, entries and requests that depend on what upstream has, and
// not on how often it was polled.
func TestYearOfPolls(t *testing.T) {
	r := newRig(t)
	r.newest = 2
	hub, url := r.gitHub()
	if err := hub.Add("owner/b", t.TempDir(), "main"); err != nil {
		t.Fatal(err)
	}
	repository := gittest.Use(t, hub.Repository("owner/b"))
	r.enrol("a", fromNpm("a", "*.js"))
	r.enrol("b", fromGit(url+"/owner/b", "*.js"))
	r.enrol("c", fromNpm("c", "wrong/*.js"))
	steps := 40
	if os.Getenv("LARDER_TEST_WHOLE") != "" {
		steps = 365
	}
	release := func(step int) {
		version := fmt.Sprintf("1.%d.0", step)
		r.registry.Add("a", version, r.clock(), map[string]string{"a.js": version})
		r.registry.Add("c", version, r.clock(), map[string]string{"c.js": version})
		repository.Release("v"+version, r.clock(), gittest.Files{"b.js": version})
	}
	r.open()
	start := r.clock()
	const releases = 5
	for step := range steps {
		at := start.Add(year * time.Duration(step) / time.Duration(steps))
		switch step % 10 {
		case 3:
			at = at.Add(year)
		case 7:
			at = at.Add(-year)
		}
		r.setNow(at)
		if step%(steps/releases) == 0 {
			release(step)
		}
		r.once()
	}
	for _, name := range []string{"a", "b"} {
		published := 0
		states, err := views.States(r.store, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range states {
			if s.Kind == views.Published {
				published++
			}
		}
		if published != releases {
			t.Errorf("%d releases of %s are published\n%s", published, name, r.states(name))
		}
	}
	rows, bytes := 0, 0
	for item, err := range r.store.Scan(kvstore.Upstreams, kvstore.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		rows, bytes = rows+1, bytes+len(item.Key)+len(item.Value)
	}
	entries, api := len(r.entries("detected"))+len(r.entries("published"))+len(r.entries("refused"))+len(r.entries("upstream-changed")), 0
	for _, q := range hub.Requests() {
		if q.Path == "/repos/owner/b" {
			api++
		}
	}
	t.Logf("%d polls of each package: %d rows of %d bytes, %d entries, %d API requests", steps, rows, bytes, entries, api)
	if rows > 15 || bytes > 8<<10 || entries > 60 || api > releases+1 {
		t.Error("that is too many")
	}
	r.sound()
}
