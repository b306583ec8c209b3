package bot_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/discovery"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// Wrong bytes that pass are not held against a release.
func TestWrongBytesPass(t *testing.T) {
	tarball := npmtest.Pack("a", "1.0.0", map[string]string{"a.js": "a"})
	for _, tt := range []struct {
		name  string
		fault npmtest.Fault
		slept int
	}{
		{"a flipped bit, once", npmtest.Fault{Garble: true, Times: 1}, 0},
		{"an HTML page, twice", npmtest.Fault{Body: "<!doctype html><title>Down for maintenance</title>", Times: 2}, 1},
		{"an archive that is cut short", npmtest.Fault{Body: string(tarball[:len(tarball)/2]), Times: 2}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.register("a", fromNpm("a", "*.js"))
			r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"})
			tt.fault.Path = "/a/-/"
			r.registry.Fail(tt.fault)
			r.open()
			if sum := r.once(); sum.Published != 1 || sum.Failed+sum.Refused > 0 || r.slept != tt.slept {
				t.Errorf("%+v, and waited %d times", sum, r.slept)
			}
			r.sound()
		})
	}
}

func TestWrongBytesAreRefusedWithTime(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"}, npmtest.Dist("integrity", logs.SumSRI([]byte("other")).String()))
	r.open()
	begun := r.now
	for attempt := 1; ; attempt++ {
		r.once()
		s := r.state("a", "1.0.0")
		if s.Kind == views.Refused {
			if waited := r.now.Sub(begun); waited < 6*time.Hour || attempt < 4 {
				t.Errorf("refused after %v, at attempt %d", waited, attempt)
			}
			if want := fmt.Sprintf("%d times since 2026-02-13 04:00:00", 3*attempt-2); !strings.Contains(s.Reason, "integrity mismatch") || !strings.Contains(s.Reason, want) {
				t.Errorf("the reason is %q, want it to have %q", s.Reason, want)
			}
			break
		}
		if s.Kind != views.Failed || s.Attempts != attempt || s.Wrong.Times != 3*attempt {
			t.Fatalf("attempt %d: %+v", attempt, s)
		}
		r.setNow(s.Next)
	}
	if err := r.bot.Retry(t.Context(), "a"); err == nil || r.state("a", "1.0.0").Kind != views.Failed {
		t.Errorf("the operator tries again: %v, %+v", err, r.state("a", "1.0.0"))
	}
	for r.state("a", "1.0.0").Kind == views.Failed {
		r.setNow(r.now.Add(7 * time.Hour))
		r.once()
	}

	// Once upstream states another hash, the release is looked at again.
	r.registry.Remove("a", "1.0.0")
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"})
	if r.once(); r.state("a", "1.0.0").Kind != views.Published {
		t.Errorf("with the right hash: %+v", r.state("a", "1.0.0"))
	}
	r.sound()
}

// A page that is another one each time proves nothing.
func TestChangingWrongBytesAreNotRefused(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"})
	r.open()
	for i := range 8 {
		r.registry.ClearFaults()
		for j := range 3 {
			r.registry.Fail(npmtest.Fault{Path: "/a/-/", Body: fmt.Sprintf("<p>Request %d is not answered.", 3*i+j), Times: 1})
		}
		r.once()
		if s := r.state("a", "1.0.0"); s.Kind != views.Failed || s.Wrong.Times != 1 {
			t.Fatalf("attempt %d: %+v", i, s)
		}
		r.setNow(r.now.Add(7 * time.Hour))
	}
	r.registry.ClearFaults()
	if sum := r.once(); sum.Published != 1 {
		t.Errorf("in the end: %+v", sum)
	}
	r.sound()
}

// A new package gets its newest releases that can be published, however many have to be looked at.
func TestRefusedReleasesDoNotCount(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "dist/*.js"))
	for i := range 40 {
		files := map[string]string{"dist/a.js": "a"}
		if i >= 15 {
			files = map[string]string{"index.js": "a"} // the newest select nothing
		}
		r.registry.Add("a", fmt.Sprintf("1.%d.0", i), hour(i), files)
	}
	r.registry.Add("a", "0.9.0", hour(50), map[string]string{"dist/a.js": "a"})
	r.registry.Tag("a", "latest", "0.9.0")
	r.open()
	var published []string
	if sum := r.once(); sum.Published != 11 || sum.Refused != 25 {
		t.Errorf("%+v", sum)
	}
	for state := range strings.SplitSeq(r.states("a"), ", ") {
		if version, ok := strings.CutSuffix(state, " published"); ok {
			published = append(published, version)
		}
	}
	if got, want := strings.Join(published, " "), "0.9.0 1.10.0 1.11.0 1.12.0 1.13.0 1.14.0 1.5.0 1.6.0 1.7.0 1.8.0 1.9.0"; got != want {
		t.Errorf("published %s, want %s", got, want)
	}
	if u, err := sources.LookupUpstream(r.store, "a"); err != nil || u.Examined != 36 {
		t.Errorf("%d were looked at, %v", u.Examined, err)
	}
	before := r.registry.Count("/a")
	if sum := r.once(); sum.Published+sum.Refused > 0 || r.registry.Count("/a") != before+1 {
		t.Errorf("the second pass: %+v, %d requests", sum, r.registry.Count("/a")-before)
	}
	r.sound()
}

func TestTheLookBackEnds(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "dist/*.js"))
	for i := range 230 {
		r.registry.Add("a", fmt.Sprintf("1.%d.0", i), hour(i), map[string]string{"index.js": "a"})
	}
	r.open()
	if err := r.bot.Add(context.Background(), "a", ""); err == nil || !strings.Contains(err.Error(), "0 published, 200 refused") {
		t.Errorf("add: %v", err)
	}
	if u, err := sources.LookupUpstream(r.store, "a"); err != nil || !u.Filled || u.Examined != 200 {
		t.Errorf("filled %v, %d were looked at, %v", u.Filled, u.Examined, err)
	}
}

func TestFewPrereleasesCount(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	for i := range 20 {
		r.registry.Add("a", fmt.Sprintf("2.0.0-dev.%d", i), hour(100+i), map[string]string{"a.js": "a"})
		r.registry.Add("a", fmt.Sprintf("1.%d.0", i), hour(i), map[string]string{"a.js": "a"})
	}
	r.open()
	if sum := r.once(); sum.Published != 10 {
		t.Errorf("%+v", sum)
	}
	if got, want := r.states("a"), "1.12.0 published, 1.13.0 published, 1.14.0 published, 1.15.0 published, 1.16.0 published, 1.17.0 published, 1.18.0 published, 1.19.0 published, 2.0.0-dev.18 published, 2.0.0-dev.19 published"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// While the registry is down few requests are made, and when it is back what waited goes on at once.
func TestRegistryIsAway(t *testing.T) {
	r := newRig(t)
	const all = 30
	for i := range all {
		name := fmt.Sprintf("p%d", i)
		r.register(name, fromNpm(name, "*.js"))
		r.registry.Add(name, "1.0.0", hour(1), map[string]string{"a.js": "a"})
	}
	r.registry.Fail(npmtest.Fault{Path: "/", Status: 503})
	r.clockCheck = 10 * time.Millisecond
	r.open()
	stop := r.run()
	first := r.wait(func() (int, bool) { n := r.registry.Count("/"); return n, n >= 3 })
	if first > discovery.PollsAtOnce+3 {
		t.Errorf("%d requests to a registry that is down", first)
	}
	r.awaitRecovery(all)
	stop()
	if len(r.entries(logs.Refused)) > 0 {
		t.Errorf("the log is\n%s", r.kinds())
	}
	r.sound()
}

// awaitRecovery has the registry respond again, and waits until that many releases are published. Two minutes pass meanwhile at most.
func (r *rig) awaitRecovery(releases int) {
	r.registry.ClearFaults()
	back := r.clock()
	r.wait(func() (int, bool) {
		if r.clock().Before(back.Add(2 * time.Minute)) {
			r.advance(10 * time.Second)
		}
		r.bot.WakeAlarms()
		n := strings.Count(r.states(""), "published")
		return n, n == releases
	})
}

// advance moves the clock by d, unless a poll or a release is under way: no time passes meanwhile, however busy the machine is.
func (r *rig) advance(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	busy := 0
	for _, e := range r.events {
		switch e.Kind {
		case sources.Checking, sources.Releasing:
			busy++
		case sources.Checked, sources.Published, sources.Refused, sources.Failed:
			busy--
		}
	}
	if busy == 0 {
		r.now = r.now.Add(d)
	}
}

// wait returns what until reports once that is enough.
func (r *rig) wait(until func() (int, bool)) int {
	r.Helper()
	for begun := time.Now(); time.Since(begun) < 5*time.Minute; time.Sleep(20 * time.Millisecond) {
		if n, ok := until(); ok {
			return n
		}
	}
	n, _ := until()
	r.Fatalf("still %d after five minutes", n)
	return n
}
