package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

var Noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func testPackage(t *testing.T, ignore string) *packages.Package {
	t.Helper()
	p, err := packages.Parse("a.json", fmt.Appendf(nil, `{
		"name": "a", "description": "A.", "keywords": ["a"], "filename": "a.js",
		"repository": {"type": "git", "url": "https://example.com/a.git"},
		"autoupdate": {"source": "npm", "target": "a", "fileMap": [{"basePath": "", "files": ["**"]}], "ignoreVersions": [%s]}
	}`, ignore))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// releasedAt makes a list whose versions appeared an hour apart, oldest
// first; "-" leaves an hour without one.
func releasedAt(versions ...string) map[string]sources.Candidate {
	all := make(map[string]sources.Candidate)
	for i, v := range versions {
		all[v] = sources.Candidate{Name: v, Published: hour(i)}
	}
	return all
}

func hour(i int) time.Time { return Noon.Add(time.Duration(i) * time.Hour) }

func TestPlan(t *testing.T) {
	state := func(version string, kind views.StateKind, released, next time.Time) views.State {
		return views.State{Package: "a", Version: version, Kind: kind, Released: released, Next: next}
	}
	now := hour(100)
	tests := []struct {
		name     string
		listed   map[string]sources.Candidate
		ignore   string
		states   []views.State
		seen     string
		newest   int
		detected string
		tasks    string
		refused  string
	}{
		{"a new package starts with its newest", releasedAt("1.0.0", "1.1.0", "2.0.0", "1.1.1"), "", nil, "", 3, "2.0.0 1.1.1 1.1.0", "2.0.0 1.1.1 1.1.0", ""},
		{"ignored versions do not count", releasedAt("1.0.0", "2.0.0-beta.1", "1.1.0"), `"*-beta*"`, nil, "", 2, "1.1.0 1.0.0", "1.1.0 1.0.0", ""},
		{"a known one takes all that is newer", releasedAt("1.0.0", "1.1.0", "1.2.0", "1.3.0", "1.0.1"), "",
			[]views.State{state("1.1.0", views.Published, hour(1), time.Time{})}, "1.0.0 1.1.0", 1, "1.3.0 1.2.0 1.0.1", "1.3.0 1.2.0 1.0.1", ""},
		{"a mirror's new time for an old release is not news", releasedAt("1.1.0", "1.0.0"), "",
			[]views.State{state("1.1.0", views.Published, hour(0), time.Time{})}, "1.0.0 1.1.0", 10, "", "", ""},
		{"an old release that appears late is not newer", releasedAt("0.9.0", "1.1.0"), "",
			[]views.State{state("1.1.0", views.Published, hour(1), time.Time{})}, "1.1.0", 10, "", "", ""},
		{"a newer version counts whatever its time", releasedAt("1.2.0", "1.1.0"), "",
			[]views.State{state("1.1.0", views.Published, hour(1), time.Time{})}, "1.1.0", 10, "1.2.0", "1.2.0", ""},
		{"nothing is new", releasedAt("1.0.0", "1.1.0"), "",
			[]views.State{state("1.1.0", views.Published, hour(1), time.Time{})}, "1.0.0 1.1.0", 10, "", "", ""},
		{"what was not finished continues", releasedAt("1.0.0", "1.1.0", "1.2.0"), "",
			[]views.State{state("1.0.0", views.Detected, hour(0), time.Time{}), state("1.1.0", views.Processing, hour(1), time.Time{}), state("1.2.0", views.Published, hour(2), time.Time{})},
			"1.0.0 1.1.0 1.2.0", 10, "", "1.1.0 1.0.0", ""},
		{"what failed waits for its time", releasedAt("1.0.0", "1.1.0"), "",
			[]views.State{state("1.0.0", views.Failed, hour(0), now.Add(time.Minute)), state("1.1.0", views.Failed, hour(1), now.Add(-time.Minute))},
			"1.0.0 1.1.0", 10, "", "1.1.0", ""},
		{"what was refused stays so", releasedAt("1.0.0"), "", []views.State{state("1.0.0", views.Refused, hour(0), time.Time{})}, "1.0.0 1.1.0", 10, "", "", ""},
		{"what upstream took back is refused", releasedAt("1.0.0"), "",
			[]views.State{state("1.0.0", views.Published, hour(0), time.Time{}), state("0.9.0", views.Failed, hour(0), time.Time{})}, "0.9.0 1.0.0", 10, "", "", "0.9.0"},
		{"what upstream took back and has again is tried again", releasedAt("1.0.0"), "",
			[]views.State{{Package: "a", Version: "1.0.0", Kind: views.Refused, Reason: sources.Gone, Released: hour(0)}}, "1.0.0", 10, "1.0.0", "1.0.0", ""},
		{"a version that a URL cannot have is refused", releasedAt("1.0.0", "../2"), "", nil, "", 10, "1.0.0", "1.0.0", `"../2"#` + kvstore.Sum([]byte("../2")).String()[:8]},
		{"without times the order of versions decides", map[string]sources.Candidate{
			"1.9.0": {Name: "1.9.0"}, "1.10.0": {Name: "1.10.0"}, "1.0.0": {Name: "1.0.0"}}, "", nil, "", 2, "1.10.0 1.9.0", "1.10.0 1.9.0", ""},
		{"an old release fetched by hand does not make the package known", releasedAt("1.0.0", "1.1.0", "1.2.0", "1.3.0"), "",
			[]views.State{state("1.0.0", views.Published, hour(0), time.Time{})}, "", 2, "1.3.0 1.2.0", "1.3.0 1.2.0", ""},
		{"a restart right after the first look goes on with it", releasedAt("1.0.0", "1.1.0", "1.2.0"), "",
			[]views.State{state("1.2.0", views.Published, hour(2), time.Time{}), state("1.1.0", views.Detected, hour(1), time.Time{})}, "", 2, "", "1.1.0", ""},
		{"nothing there", releasedAt(), "", nil, "", 10, "", "", ""},
		{"the first release of a package that had none", releasedAt("1.0.0-rc.1", "1.0.0"), `"*-rc*"`, nil, "0.0.1", 10, "1.0.0", "1.0.0", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := planPackage(planInput{
				pkg: testPackage(t, tt.ignore), listed: tt.listed, states: tt.states, newest: tt.newest, now: now,
				known: sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: strings.Fields(tt.seen)}, Filled: tt.seen != ""},
			})
			var tasks []string
			for i, task := range got.tasks {
				tasks = append(tasks, task.Version.Name)
				if task.Rank != i {
					t.Errorf("task %d has rank %d", i, task.Rank)
				}
			}
			for _, c := range []struct{ what, got, want string }{
				{"detected", versionsOf(got.changes, views.Detected), tt.detected},
				{"tasks", strings.Join(tasks, " "), tt.tasks},
				{"refused", versionsOf(got.changes, views.Refused), tt.refused},
			} {
				if c.got != c.want {
					t.Errorf("%s: got %q, want %q", c.what, c.got, c.want)
				}
			}
			for _, c := range got.changes {
				if c.Kind == views.Refused && c.Reason == "" {
					t.Errorf("%s is refused without a reason", c.Version)
				}
			}
		})
	}
}

// TestPlanWhileFilling has packages that do not have yet what they start with: at the first looks, and after their JSON was
// mended.
func TestPlanWhileFilling(t *testing.T) {
	state := func(version string, kind views.StateKind, released int) views.State {
		return views.State{Package: "a", Version: version, Kind: kind, Released: hour(released), Updated: hour(40)}
	}
	published := func(version string, released int) views.State { return state(version, views.Published, released) }
	refused := func(version string, released int) views.State { return state(version, views.Refused, released) }
	failed := func(version string, next int) views.State {
		s := state(version, views.Failed, 0)
		s.Next = hour(next)
		return s
	}
	back := refused("1.2.0", 2)
	back.Reason = sources.Gone
	five := []string{"1.0.0", "1.1.0", "1.2.0", "1.3.0", "1.4.0"}
	tests := []struct {
		name   string
		listed []string
		latest string
		known  sources.Upstream
		states []views.State
		named  bool
		force  bool
		tasks  string // with a star where they go ahead of the backlog
		fresh  string
		retry  string
		filled bool
	}{
		{"the first look, because of an event", five, "", sources.Upstream{}, nil, true, false, "1.4.0* 1.3.0", "1.4.0", "", false},
		{"what upstream calls latest is one of them", five, "1.0.0", sources.Upstream{}, nil, false, false, "1.4.0 1.3.0 1.0.0", "", "", false},
		{"refused ones make room for older ones", five, "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: five}},
			[]views.State{refused("1.4.0", 4), published("1.3.0", 3)}, false, false, "1.2.0", "", "", false},
		{"all are there", five, "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: five}},
			[]views.State{refused("1.4.0", 4), published("1.3.0", 3), published("1.2.0", 2)}, false, false, "", "", "", true},
		{"a new release comes while one waits", append(five, "2.0.0"), "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: five}},
			[]views.State{failed("1.4.0", 200), published("1.3.0", 3)}, false, false, "2.0.0*", "2.0.0", "", false},
		{"a new release of an older line comes while one waits", append(five, "1.3.1"), "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: five}},
			[]views.State{failed("1.4.0", 200), published("1.3.0", 3)}, false, false, "1.3.1*", "1.3.1", "", false},
		{"an old release appears while one waits", append([]string{"0.9.0"}, five...), "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: five}},
			[]views.State{failed("1.4.0", 200), published("1.3.0", 9)}, false, false, "", "", "", false},
		{"a new release fails, and is still new", append(five, "2.0.0"), "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: append(five, "2.0.0")}, Fresh: []string{"2.0.0"}},
			[]views.State{failed("2.0.0", 200), state("1.4.0", views.Detected, 4), published("1.3.0", 3)}, false, false, "1.4.0", "2.0.0", "", false},
		{"the operator does not wait for its time", append(five, "2.0.0"), "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: append(five, "2.0.0")}, Fresh: []string{"2.0.0"}},
			[]views.State{failed("2.0.0", 200), failed("1.4.0", 200), published("1.3.0", 3)}, false, true, "2.0.0* 1.4.0", "2.0.0", "", false},
		{"an event while the newest waits for its time", five, "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: five}},
			[]views.State{failed("1.4.0", 200), state("1.3.0", views.Detected, 3)}, true, false, "1.3.0*", "1.3.0", "", false},
		{"it is back, while others are missing", five, "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: five}},
			[]views.State{refused("1.4.0", 4), published("1.3.0", 3), back}, false, false, "1.2.0", "", "", false},
		{"a corrected JSON has the newest tried again", five, "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: five}, Began: hour(50), Retry: []string{"1.4.0", "1.1.0", "1.0.0"}},
			[]views.State{refused("1.4.0", 4), published("1.3.0", 3), published("1.2.0", 2), refused("1.1.0", 1), refused("1.0.0", 0)}, false, false, "1.4.0", "", "1.1.0 1.0.0", false},
		{"a corrected JSON does not have others of the backlog be new", five, "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: five}, Began: hour(50), Retry: []string{"1.4.0"}},
			[]views.State{refused("1.4.0", 4), state("1.3.0", views.Detected, 3), published("1.2.0", 2)}, false, false, "1.4.0 1.3.0", "", "", false},
		{"a release comes with the corrected JSON", append(five, "2.0.0"), "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: five}, Began: hour(50), Retry: []string{"1.4.0"}},
			[]views.State{refused("1.4.0", 4), published("1.3.0", 3), published("1.2.0", 2)}, false, false, "2.0.0* 1.4.0", "2.0.0", "", false},
		{"a corrected JSON did not help", five, "", sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: five}, Began: hour(50)},
			[]views.State{refused("1.4.0", 4), published("1.3.0", 3), published("1.2.0", 2)}, false, false, "", "", "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := planPackage(planInput{
				pkg: testPackage(t, ""), listed: releasedAt(tt.listed...), latest: tt.latest, states: tt.states, newest: 2,
				known: tt.known, named: tt.named, force: tt.force, now: hour(100),
			})
			var tasks []string
			for _, task := range got.tasks {
				name := task.Version.Name
				if task.Fresh {
					name += "*"
				}
				tasks = append(tasks, name)
			}
			for _, c := range []struct{ what, got, want string }{
				{"tasks", strings.Join(tasks, " "), tt.tasks},
				{"fresh", strings.Join(got.fresh, " "), tt.fresh},
				{"retry", strings.Join(got.retry, " "), tt.retry},
			} {
				if c.got != c.want {
					t.Errorf("%s: got %q, want %q", c.what, c.got, c.want)
				}
			}
			if got.filled != tt.filled {
				t.Errorf("filled: %v", got.filled)
			}
		})
	}
}

func versionsOf(changes []stateChange, kind views.StateKind) string {
	var all []string
	for _, c := range changes {
		if c.Kind == kind {
			all = append(all, c.Version)
		}
	}
	return strings.Join(all, " ")
}

func TestPartialAnswerDoesNotMakeOldReleasesNew(t *testing.T) {
	p := testPackage(t, "")
	states := []views.State{{Package: "a", Version: "1.2.0", Kind: views.Published, Released: hour(2)}}
	look := planInput{pkg: p, states: states, newest: 1, now: hour(100), known: sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: []string{"1.0.0", "1.1.0", "1.2.0"}}, Filled: true}}
	look.listed = releasedAt("1.2.0")
	look.known.Seen = planPackage(look).Seen
	look.listed = map[string]sources.Candidate{"1.0.0": {Name: "1.0.0"}, "1.1.0": {Name: "1.1.0"}, "1.2.0": {Name: "1.2.0"}}
	if got := planPackage(look); len(got.tasks) > 0 {
		t.Errorf("%d old releases are fetched", len(got.tasks))
	}
}

// Tags cost nothing, so they must not fill the log, nor what is remembered.
func TestPlanIsBounded(t *testing.T) {
	p := testPackage(t, "")
	s := planInput{pkg: p, newest: 10, now: hour(100), states: []views.State{{Package: "a", Version: "1.0.0", Kind: views.Published}}}
	for look := range 4 {
		s.listed = map[string]sources.Candidate{"1.0.0": {Name: "1.0.0"}}
		for i := range 9_000 {
			name := fmt.Sprintf("packages/a@%d.%d", look, i)
			s.listed[name] = sources.Candidate{Name: name}
		}
		got := planPackage(s)
		if len(got.changes) != mostUnusable || len(got.tasks) > 0 {
			t.Errorf("look %d: %d changes, %d tasks", look, len(got.changes), len(got.tasks))
		}
		s.known = sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: got.Seen}, Filled: true}
		if want := min(9_000*(look+1)+1, mostSeen); len(got.Seen) != want {
			t.Errorf("look %d: %d are remembered, want %d", look, len(got.Seen), want)
		}
		if again := planPackage(s); len(again.changes) > 0 {
			t.Errorf("look %d: %d changes the second time", look, len(again.changes))
		}
	}
	if !slices.Contains(s.known.Seen, "1.0.0") {
		t.Error("what is there is forgotten")
	}
}
