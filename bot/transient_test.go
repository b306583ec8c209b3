package bot_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/gittest"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

const page = "<!doctype html><title>Down for maintenance</title>"

// passingFaults are what a registry does on its bad days, to every request of a kind.
var passingFaults = []struct {
	name  string
	fault npmtest.Fault
	asked time.Duration // how long it wants to be left alone
	slow  bool          // real time goes by
}{
	{name: "500", fault: npmtest.Fault{Status: 500}},
	{name: "429", fault: npmtest.Fault{Status: 429}},
	{name: "429, an hour", fault: npmtest.Fault{Status: 429, RetryAfter: "3600"}, asked: time.Hour},
	{name: "401", fault: npmtest.Fault{Status: 401}},
	{name: "403", fault: npmtest.Fault{Status: 403}},
	{name: "404", fault: npmtest.Fault{Status: 404}},
	{name: "reset", fault: npmtest.Fault{Reset: true}},
	{name: "cut off", fault: npmtest.Fault{Truncate: true}},
	{name: "a page", fault: npmtest.Fault{Body: page}},
	{name: "a redirect to a page", fault: npmtest.Fault{Redirect: "http://127.0.0.2/login"}},
	{name: "a flipped bit", fault: npmtest.Fault{Garble: true}},
	{name: "silence", fault: npmtest.Fault{Silent: true}, slow: true},
	{name: "half, and silence", fault: npmtest.Fault{Hang: true}, slow: true},
	{name: "a drip", fault: npmtest.Fault{Drip: true}, slow: true},
}

// Whatever a registry does, to packuments or to archives, for a minute or a month: two minutes after it has stopped,
// every release is there, and none was refused.
func TestEveryFaultPasses(t *testing.T) {
	const all = 4
	for _, tt := range passingFaults {
		if testing.Short() && tt.slow {
			continue
		}
		for _, what := range []string{"packuments", "archives"} {
			t.Run(tt.name+", "+what, func(t *testing.T) {
				r := newRig(t)
				for i := range all {
					name := fmt.Sprintf("p%d", i)
					r.register(name, fromNpm(name, "*.txt"))
					r.registry.Add(name, "1.0.0", hour(1), map[string]string{"a.txt": name})
				}
				r.open()
				r.once()
				r.setNow(r.now.Add(2 * time.Minute))
				if got := r.states(""); strings.Count(got, "published") != all {
					t.Fatalf("at first: %s", got)
				}
				if tt.slow {
					r.stall = 3 * time.Second
					r.open()
				}
				for i := range all {
					name := fmt.Sprintf("p%d", i)
					r.registry.Add(name, "1.1.0", hour(2), map[string]string{"a.txt": name + " is new"})
					fault := tt.fault
					fault.Path = "/" + name
					if what == "archives" {
						fault.Path += "/-/"
					}
					r.registry.Fail(fault)
				}
				steps := []time.Duration{2 * time.Minute, 2 * time.Minute, 30 * 24 * time.Hour, 2 * time.Minute}
				if tt.slow {
					steps = steps[3:]
				}
				for _, step := range steps {
					r.once()
					r.setNow(r.now.Add(step))
					if got := r.states(""); strings.Count(got, "published") != all {
						t.Fatalf("meanwhile: %s", got)
					}
				}
				r.setNow(r.now.Add(tt.asked))
				r.registry.ClearFaults()
				for end := r.now.Add(2 * time.Minute); strings.Count(r.states(""), "published") < 2*all; r.setNow(r.now.Add(10 * time.Second)) {
					if r.once(); r.now.After(end) {
						t.Fatalf("two minutes later: %s", r.states(""))
					}
				}
				if refused := r.entries(logs.Refused); len(refused) > 0 {
					t.Errorf("the log is\n%s", r.kinds())
				}
				r.sound()
			})
		}
	}
}

// Two minutes after a registry is back, what came meanwhile is served: 200 packages' releases, those that were newest
// when it went away among them.
func TestTwoHundredReleasesGoOn(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	const all = 200
	for _, tt := range []struct {
		name  string
		fault npmtest.Fault
	}{
		{"packuments", npmtest.Fault{Path: "/", Status: 503}},
		{"a page for archives", npmtest.Fault{Path: "/p", Body: page}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			for i := range all {
				name := fmt.Sprintf("p%03d", i)
				r.register(name, fromNpm(name, "*.txt"))
				r.registry.Add(name, "1.0.0", hour(1), map[string]string{"a.txt": name})
				if tt.fault.Body != "" {
					r.registry.Fail(npmtest.Fault{Path: "/" + name + "/-/", Body: page})
				}
			}
			if tt.fault.Body == "" {
				r.registry.Fail(tt.fault)
			}
			r.clockCheck = 10 * time.Millisecond
			r.open()
			stop := r.run()
			r.wait(func() (int, bool) { return 0, r.bot.NpmIsDown() })
			for range 10 {
				before := r.registry.Count("/")
				r.setNow(r.clock().Add(10 * 24 * time.Hour))
				r.wait(func() (int, bool) {
					r.advance(time.Minute) // a poll under way before may set the time of the next one
					r.bot.WakeAlarms()
					n := r.registry.Count("/")
					return n, n > before
				})
			}
			r.awaitRecovery(all)
			stop()
			if refused := r.entries(logs.Refused); len(refused) > 0 {
				t.Errorf("%d releases were refused", len(refused))
			}
		})
	}
}

// What a packument says of a release may be a moment's mistake, too.
func TestWrongWordsPass(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	files := map[string]string{"a.js": "a"}
	r.registry.Add("a", "1.0.0", hour(1), files, npmtest.Dist("integrity", nil), npmtest.Dist("shasum", nil))
	r.registry.Add("a", "1.1.0", hour(2), files, npmtest.Dist("tarball", nil))
	r.registry.Add("a", "1.2.0", hour(3), files, npmtest.Dist("tarball", "https://127.0.0.2/a.tgz"))
	r.registry.Add("a", "1.3.0", hour(4), files, npmtest.Dist("integrity", logs.SumSRI([]byte("other")).String()))
	r.open()
	for range 3 {
		if sum := r.once(); sum.Published+sum.Refused > 0 {
			t.Fatalf("%+v: %s", sum, r.states("a"))
		}
		r.setNow(r.now.Add(time.Minute))
	}
	for i := range 4 {
		r.registry.Add("a", fmt.Sprintf("1.%d.0", i), hour(i+1), files)
	}
	r.once()
	r.setNow(r.now.Add(2 * time.Minute))
	if r.once(); strings.Count(r.states("a"), "published") != 4 {
		t.Errorf("once they are right: %s", r.states("a"))
	}

	// What stays wrong is refused, and is looked at again when it is said otherwise.
	r.registry.Add("a", "1.4.0", hour(5), files, npmtest.Dist("tarball", nil))
	r.setNow(r.now.Add(2 * time.Hour))
	r.settle()
	if s := r.state("a", "1.4.0"); s.Kind != views.Refused || !strings.Contains(s.Reason, "dist.tarball") || !strings.Contains(s.Reason, "times since") {
		t.Errorf("%+v", s)
	}
	r.registry.Add("a", "1.4.0", hour(5), files)
	if r.poll(); r.state("a", "1.4.0").Kind != views.Published {
		t.Errorf("%+v", r.state("a", "1.4.0"))
	}
	r.sound()
}

// A corrected package JSON brings the releases with which a package begins, and those that came since, not all that were
// refused by the old one.
func TestMendedPackageJSONBringsTheNewest(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "wrong/*.js"))
	add := func(from, to int) {
		for i := from; i < to; i++ {
			r.registry.Add("a", fmt.Sprintf("1.%d.0", i), hour(i), map[string]string{"a.js": fmt.Sprint(i)})
		}
	}
	add(0, 40)
	r.open()
	if sum := r.once(); sum.Refused != 40 {
		t.Errorf("%+v", sum)
	}
	r.register("a", fromNpm("a", "*.js"))
	r.open()
	if sum := r.once(); sum.Published != 10 || sum.Refused != 0 || r.state("a", "1.30.0").Kind != views.Published {
		t.Errorf("after the mend: %+v", sum)
	}
	r.poll()
	r.register("a", fromNpm("a", "wrong/*.js"))
	r.open()
	add(40, 55)
	r.setNow(r.now.Add(2 * time.Hour))
	if sum := r.once(); sum.Published != 0 || sum.Refused != 15 {
		t.Errorf("wrong again: %+v", sum)
	}
	r.register("a", fromNpm("a", "[a-c].js"))
	r.open()
	if sum := r.once(); sum.Published != 15 || sum.Refused != 0 {
		t.Errorf("after the second mend: %+v", sum)
	}
	if sum := r.once(); sum.Published+sum.Refused != 0 || strings.Count(r.states("a"), "published") != 25 {
		t.Errorf("in the end: %+v: %s", sum, r.states("a"))
	}
	r.sound()
}

// Mending a package JSON halfway looks on: where the newest are refused again, older ones take their place.
func TestMendedPackageJSONLooksOn(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "wrong/*.js"))
	for i := range 40 {
		name := "dist/a.js"
		if i >= 15 {
			name = "build/a.js"
		}
		r.registry.Add("a", fmt.Sprintf("1.%d.0", i), hour(i), map[string]string{name: fmt.Sprint(i)})
	}
	r.open()
	r.once()
	r.register("a", fromNpm("a", "dist/*.js"))
	r.open()
	if sum := r.once(); sum.Published != 10 || r.state("a", "1.5.0").Kind != views.Published {
		t.Errorf("%+v: %s", sum, r.states("a"))
	}
	r.sound()
}

// A pack that arrives malformed is fetched again, and refused only when it stays so. A commit that breaks a rule is refused at once: it
// is what the tag names.
func TestWrongPacksOfTagsPass(t *testing.T) {
	r := newRig(t)
	hub, url := r.gitHub()
	if err := hub.Add("owner/a", t.TempDir(), "main"); err != nil {
		t.Fatal(err)
	}
	repository := gittest.Use(t, hub.Repository("owner/a"))
	repository.Release("v1.0.0", hour(1), gittest.Files{"a.js": "a"})
	r.register("a", fromGit(url+"/owner/a", "*.js"))
	r.open()
	for _, tt := range []struct {
		name  string
		spoil func([]byte) []byte
		want  int // how often the same wrong bytes came
	}{
		{"a page", func([]byte) []byte { return []byte(page) }, 0},
		{"cut short", func(data []byte) []byte { return data[:len(data)/2] }, 0},
		{"a flipped bit", func(data []byte) []byte { data[len(data)-20] ^= 1; return data }, 3},
	} {
		hub.Spoil(tt.spoil)
		r.once()
		if s := r.state("a", "1.0.0"); s.Kind != views.Failed || s.Wrong.Times != tt.want {
			t.Fatalf("%s: %+v", tt.name, s)
		}
		r.setNow(r.state("a", "1.0.0").Next)
	}
	if r.settle(); r.state("a", "1.0.0").Kind != views.Refused {
		t.Errorf("what stays wrong: %+v", r.state("a", "1.0.0"))
	}
	hub.Spoil(nil)
	if err := r.bot.Retry(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if s := r.state("a", "1.0.0"); s.Kind != views.Published {
		t.Errorf("%+v", s)
	}
	repository.Release("v2.0.0", hour(2), gittest.Files{"raw:..": "x", "a.js": "a"})
	if r.poll(); r.state("a", "2.0.0").Kind != views.Refused {
		t.Errorf("%+v", r.state("a", "2.0.0"))
	}
	r.sound()
}
