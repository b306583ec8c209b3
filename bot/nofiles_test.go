package bot_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// TestOneReportForEachFileMap publishes releases that a file map selects nothing of: the log has one entry for each package JSON, and all releases
// get another chance with the next one.
func TestOneReportForEachFileMap(t *testing.T) {
	r := newRig(t)
	for i := range 6 {
		r.registry.Add("a", fmt.Sprintf("1.%d.0", i), hour(i), map[string]string{"lib/a.js": "a"})
	}
	refusals := func() (n int) {
		t.Helper()
		for e, err := range logs.Entries(r.store, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Kind == logs.Refused {
				n++
			}
		}
		return n
	}
	want := func(when string, entries, refused int) {
		t.Helper()
		states, err := views.States(r.store, "a")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, s := range states {
			if s.Kind == views.Refused && strings.Contains(s.Reason, "selects none") {
				n++
			}
		}
		if got := refusals(); got != entries || n != refused {
			t.Errorf("%s: %d entries and %d refused releases, want %d and %d", when, got, n, entries, refused)
		}
		r.sound()
	}
	r.register("a", fromNpm("a", "dist/*.js"))
	r.open()
	r.once()
	want("six releases", 1, 6)
	r.open()
	r.registry.Add("a", "1.6.0", hour(6), map[string]string{"lib/a.js": "a"})
	r.once()
	want("another one after a restart", 1, 7)
	r.register("a", fromNpm("a", "build/*.js"))
	r.open()
	r.once()
	want("another file map", 2, 7)
	r.register("a", fromNpm("a", "lib/*.js"))
	r.open()
	if sum := r.once(); sum.Published != 7 {
		t.Errorf("%+v, want all seven published: %s", sum, r.states("a"))
	}
	want("a file map that fits", 2, 0)
}
