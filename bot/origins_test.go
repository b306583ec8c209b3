package bot_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
)

// poll asks upstream at the next hour.
func (r *rig) poll() {
	r.Helper()
	r.setNow(r.now.Add(time.Hour + time.Minute))
	r.once()
}

// changes returns what the log tells of upstream's changes, one line each.
func (r *rig) changes() string {
	r.Helper()
	var all []string
	for _, e := range r.entries(logs.UpstreamChanged) {
		all = append(all, fmt.Sprintf("%s %.10s>%.10s", e.Version, e.Upstream.Old, e.Upstream.New))
	}
	return strings.Join(all, "\n")
}

// wantDiffering fails the test unless the status has these lines of published releases that differ from their upstream, in any order.
func (r *rig) wantDiffering(want ...string) {
	r.Helper()
	status, err := bot.ReadStatus(r.store, "")
	if err != nil {
		r.Fatal(err)
	}
	got := []string{}
	for _, line := range status.Lines() {
		if strings.Contains(line.What, "from their upstream") || strings.Contains(line.What, "from its upstream") {
			got = append(got, fmt.Sprintf("%d %s: %s", line.Count, line.Packages, line.Why))
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		r.Errorf("the status tells of %q, want %q", got, want)
	}
}

func (r *rig) origins(pkg string) sources.Origins {
	r.Helper()
	o, err := sources.LookupOrigins(r.store, pkg)
	if err != nil {
		r.Fatal(err)
	}
	return o
}

func TestUpstreamChangesAreLoggedOnce(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	add := func(version, data string) {
		r.registry.Add("a", version, hour(1), map[string]string{"a.js": data})
	}
	integrity := func(version string) string { return r.manifest("a", version).Source.Integrity }
	const another = "upstream has another archive for this release than the one it was published from; the files published stay"
	const none = "upstream has this release no longer; the files published from it stay"
	short := func(s string) string { return fmt.Sprintf("%.10s", s) }
	add("1.0.0", "one")
	add("1.1.0", "two")
	r.open()
	r.once()
	for range 3 {
		r.poll()
	}
	if got := r.changes(); got != "" {
		t.Fatalf("nothing happened, and the log says\n%s", got)
	}
	want := ""
	expect := func(what, line string) {
		t.Helper()
		if line != "" {
			want = strings.TrimPrefix(want+"\n"+line, "\n")
		}
		if got := r.changes(); got != want {
			t.Errorf("%s: the log says\n%s\nwant\n%s", what, got, want)
		}
	}
	one, two := short(integrity("1.0.0")), short(integrity("1.1.0"))

	add("1.0.0", "another one")
	r.poll()
	expect("seen once", "")
	r.poll()
	all := r.entries(logs.UpstreamChanged)
	if len(all) != 1 {
		t.Fatalf("seen twice: %d entries", len(all))
	}
	other := short(all[0].Upstream.New)
	expect("seen twice", "1.0.0 "+one+">"+other)
	if e := all[0]; e.Upstream.Old != integrity("1.0.0") || e.Upstream.New == e.Upstream.Old || !strings.Contains(e.Reason, "another archive") || e.Manifest != r.entries(logs.Published)[1].Manifest && e.Manifest != r.entries(logs.Published)[0].Manifest {
		t.Errorf("entry %+v", e.Entry)
	}
	r.wantDiffering("1 a 1.0.0: " + another)
	r.open() // it is remembered
	for range 3 {
		r.poll()
	}
	add("1.2.0", "three") // so that the packument is another one
	r.poll()
	r.poll()
	expect("seen often", "")
	if o := r.origins("a"); strings.Join(o.Changed(), " ") != "1.0.0" || !strings.Contains(o.Versions["1.0.0"].Reason(), "another archive") {
		t.Errorf("origins %+v", o)
	}

	r.registry.Remove("a", "1.1.0")
	r.poll()
	r.poll()
	expect("removed", "1.1.0 "+two+">")
	r.wantDiffering("1 a 1.0.0: "+another, "1 a 1.1.0: "+none)
	if e := r.entries(logs.UpstreamChanged)[1]; !strings.Contains(e.Reason, "no longer") {
		t.Errorf("entry %+v", e.Entry)
	}
	add("1.1.0", "two")
	r.poll()
	r.poll()
	expect("back again", "1.1.0 >"+two)
	r.wantDiffering("1 a 1.0.0: " + another)
	if e := r.entries(logs.UpstreamChanged)[2]; !strings.Contains(e.Reason, "again as it was published") {
		t.Errorf("entry %+v", e.Entry)
	}
	add("1.0.0", "one")
	r.poll()
	r.poll()
	expect("changed back", "1.0.0 "+other+">"+one)
	r.wantDiffering()
	if o := r.origins("a"); len(o.Changed()) != 0 {
		t.Errorf("origins %+v", o)
	}
	if got := r.file("a", "1.0.0", "a.js"); got != "one" {
		t.Errorf("what is published became %q", got)
	}
	r.sound()
}

func TestUpstreamThatLagsIsNotLogged(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "one"})
	r.registry.Add("a", "1.1.0", hour(1), map[string]string{"a.js": "two"})
	r.open()
	r.once()
	for range 5 {
		r.registry.Remove("a", "1.1.0")
		r.poll()
		// Looks that follow at once are no proof that it lasts.
		r.setNow(r.now.Add(time.Minute))
		r.once()
		r.registry.Add("a", "1.1.0", hour(1), map[string]string{"a.js": "two"})
		r.poll()
	}
	if got := r.changes(); got != "" {
		t.Errorf("the log says\n%s", got)
	}
}

func TestPackageThatIsGoneUpstream(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "one"})
	r.open()
	r.once()
	r.registry.RemovePackage("a")
	r.poll()
	r.poll()
	r.poll()
	if e := r.one(logs.UpstreamChanged); e.Version != "1.0.0" || e.Upstream.New != "" {
		t.Errorf("entry %+v", e.Entry)
	}
	r.wantDiffering("1 a 1.0.0: upstream has this release no longer; the files published from it stay")
	r.registry.Fail(npmtest.Fault{Path: "/a", Status: 503})
	r.poll()
	r.poll()
	r.one(logs.UpstreamChanged)
	r.sound()
}

func TestOriginsOfOthersAreNotCompared(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "one"}, npmtest.Dist("integrity", nil))
	r.open()
	r.once()
	// A mirror adds what it had not; the archive is the same.
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "one"})
	r.poll()
	r.poll()
	// From now on the package is another one upstream, whose archives have nothing to do with these.
	r.registry.Add("b", "1.0.0", hour(1), map[string]string{"a.js": "not a's"})
	r.register("a", fromNpm("b", "*.js"))
	r.open()
	r.once()
	r.poll()
	r.registry.Add("b", "1.1.0", hour(1), map[string]string{"a.js": "newer"})
	r.poll()
	r.poll()
	if got := r.changes(); got != "" {
		t.Errorf("the log says\n%s", got)
	}
	if got, want := r.states("a"), "1.0.0 published, 1.1.0 published"; got != want {
		t.Errorf("states %s, want %s", got, want)
	}
	r.registry.Remove("b", "1.1.0")
	r.poll()
	r.poll()
	if e := r.one(logs.UpstreamChanged); e.Version != "1.1.0" {
		t.Errorf("entry %+v", e.Entry)
	}
	r.sound()
}
