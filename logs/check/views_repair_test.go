package check_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/views"
)

// rows returns the differing rows that Run finds, or Repair finds and replaces.
func (s *logShelf) rows(repair bool) (check.Summary, []string) {
	s.t.Helper()
	run := check.Run
	if repair {
		run = check.ReplaceViews
	}
	var rows []string
	sum, err := run(s.t.Context(), s.store, check.Options{Temp: s.t.TempDir()}, func(f check.Finding) {
		isRow := f.Kind == check.View || f.Kind == check.State
		if f.Repaired != (isRow && repair) {
			s.t.Errorf("%+v", f)
		}
		if isRow {
			rows = append(rows, string(f.Kind)+" "+f.Where+": "+f.Problem)
		}
	})
	if err != nil {
		s.t.Fatal(err)
	}
	var differences int64
	for _, v := range sum.Views {
		differences += v.Missing + v.Differing + v.Unexplained
	}
	if differences != int64(len(rows)) || repair && sum.Repaired != differences {
		s.t.Errorf("%+v counts other than what was reported: %q", sum, rows)
	}
	return sum, rows
}

var viewNamespaces = []kvstore.Namespace{kvstore.Files, kvstore.SRIs, kvstore.Versions, kvstore.Packages, kvstore.States, kvstore.LogIndex, kvstore.Named}

// dump is all rows of the views.
func (s *logShelf) dump() map[string]string {
	s.t.Helper()
	all := make(map[string]string)
	for _, ns := range viewNamespaces {
		for item, err := range s.store.Scan(ns, kvstore.Range{}) {
			if err != nil {
				s.t.Fatal(err)
			}
			all[string(ns)+string(item.Key)] = string(item.Value)
		}
	}
	return all
}

func (s *logShelf) wantRows(want map[string]string) {
	s.t.Helper()
	got := s.dump()
	for key, value := range want {
		if got[key] != value {
			s.t.Errorf("%q is %q, want %q", key, got[key], value)
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			s.t.Errorf("%q is there", key)
		}
	}
}

func (s *logShelf) setState(state views.State) {
	s.t.Helper()
	if err := s.log.Update(func(tx *logs.Tx) error { return views.SetState(tx.Batch, state) }); err != nil {
		s.t.Fatal(err)
	}
}

// changeable is a stocked logShelf with a release of each fate.
func changeable(t *testing.T) *logShelf {
	s := stocked(t)
	c := s.publish("d3", "6.0.0", "d3.js", "malware")
	c.Kind, c.Reason = logs.Withdrawn, "malware"
	s.record(c)
	c = s.publish("d3", "7.0.0", "d3.js", "d3")
	c.Kind, c.Reason = logs.Withdrawn, "by mistake"
	s.record(c)
	c.Kind, c.Reason = logs.Restored, "it was a mistake"
	s.record(c)
	s.record(views.Change{Entry: logs.Entry{Kind: logs.Detected, Time: noon, Package: "vue", Version: "3.2.0", Released: noon}})
	s.record(views.Change{Entry: logs.Entry{Kind: logs.Detected, Time: noon, Package: "vue", Version: "3.3.0", Released: noon}})
	s.record(views.Change{Entry: logs.Entry{Kind: logs.Detected, Time: noon, Package: "vue", Version: "3.4.0", Released: noon}})
	s.setState(views.State{Package: "vue", Version: "3.3.0", Kind: views.Failed, Reason: "a timeout", Updated: noon, Attempts: 3, Next: noon})
	s.setState(views.State{Package: "vue", Version: "3.4.0", Kind: views.Processing, Updated: noon})
	s.setState(views.State{Package: "vue", Version: "3.5.0", Kind: views.Failed, Reason: "the log knows nothing of this one", Updated: noon, Next: noon})
	return s
}

// liveRows is how many rows the map of what is live in changeable has.
const liveRows = 8

func TestRepairFindsNothingToDo(t *testing.T) {
	s := changeable(t)
	before := s.dump()
	for _, repair := range []bool{false, true} {
		sum, found := s.rows(repair)
		if len(found) > 0 {
			t.Errorf("found %q", found)
		}
		if want := int64(len(before) - 1 + liveRows); sum.Entries != 14 || sum.Rows != want {
			t.Errorf("%+v, want 14 entries and %d rows", sum, want)
		}
	}
	s.wantRows(before)
	if _, found := s.check(false); len(found) > 0 {
		t.Errorf("Run found %v", found)
	}
}

// All rows of all views are removed, changed, and given neighbours.
func TestRepairReplacesEveryRow(t *testing.T) {
	s := changeable(t)
	before := s.dump()
	kept := func(key string) bool { // see TestRepairKeepsStatesThatTheLogDoesNotKnow
		return key == "tvue\x003.2.0" || key == "tvue\x003.3.0" || key == "tvue\x003.4.0" || key == "tvue\x003.5.0"
	}
	for _, damage := range []struct {
		name    string
		key     func(key string) string
		value   func(value string) []byte
		problem string
	}{
		{"removed", strings.Clone, func(string) []byte { return nil }, "the row is missing"},
		{"changed", strings.Clone, func(v string) []byte { return []byte(v + " ") }, "the row differs from what the log says"},
		{"cut off", strings.Clone, func(v string) []byte { return []byte(v[:len(v)/2]) }, "the row differs from what the log says"},
		{"copied", func(key string) string { return key + "-copy" }, func(v string) []byte { return []byte(v) }, "no entry of the log explains this row"},
	} {
		t.Run(damage.name, func(t *testing.T) {
			want := 0
			for key, value := range before {
				if !kept(key) {
					want++
					s.change(kvstore.Namespace(key[0]), []byte(damage.key(key[1:])), damage.value(value))
				}
			}
			if _, found := s.check(false); len(found) < want {
				t.Errorf("Run finds %d things, want %d", len(found), want)
			}
			for _, repair := range []bool{false, true} {
				_, found := s.rows(repair)
				if len(found) != want {
					t.Errorf("found %d differences, want %d: %q", len(found), want, found)
				}
				for _, f := range found {
					if !strings.HasSuffix(f, damage.problem) {
						t.Error(f)
					}
				}
			}
			s.wantRows(before)
		})
	}
	if _, found := s.check(true); len(found) > 0 {
		t.Errorf("Run found %v", found)
	}
}

// The log's word counts where there is one, and the bot's elsewhere.
func TestRepairKeepsStatesThatTheLogDoesNotKnow(t *testing.T) {
	state := func(version string, kind views.StateKind) views.State {
		return views.State{Package: "vue", Version: version, Kind: kind, Reason: "a reason", Updated: noon}
	}
	unlogged := func(version string, kind views.StateKind) views.State {
		s := state(version, kind)
		s.Unlogged = true
		return s
	}
	for _, test := range []struct {
		set  views.State
		want string // what is found; "" keeps it
	}{
		{state("3.2.0", views.Failed), ""},
		{state("3.2.0", views.Processing), ""},
		{state("3.6.0", views.Failed), ""},
		{state("3.6.0", views.Processing), ""},
		{state("3.6.0", views.Detected), ""},
		{state("3.2.0", views.Published), `state states/vue/3.2.0: the state is "published", the log says "detected"`},
		{state("3.2.0", views.Refused), `state states/vue/3.2.0: the state is "refused", the log says "detected"`},
		{unlogged("3.2.0", views.Refused), ""},
		{unlogged("3.6.0", views.Refused), ""},
		{unlogged("3.0.0", views.Refused), `state states/vue/3.0.0: the state is "refused", the log says "published"`},
		{unlogged("9.0.0", views.Refused), `state states/vue/9.0.0: the row differs from what the log says`},
		{unlogged("3.6.0", views.Published), `state states/vue/3.6.0: no entry of the log explains this row`},
		{state("3.2.0", "odd"), `state states/vue/3.2.0: the state is "odd", the log says "detected"`},
		{state("3.6.0", views.Published), `state states/vue/3.6.0: no entry of the log explains this row`},
		{state("3.6.0", views.Withdrawn), `state states/vue/3.6.0: no entry of the log explains this row`},
		{state("3.0.0", views.Failed), `state states/vue/3.0.0: the state is "failed", the log says "published"`},
		{state("9.0.0", views.Processing), `state states/vue/9.0.0: the state is "processing", the log says "refused"`},
		{state("9.0.0", views.Refused), `state states/vue/9.0.0: the row differs from what the log says`},
	} {
		s := changeable(t)
		before := s.dump()
		s.setState(test.set)
		if test.want == "" {
			before = s.dump()
		}
		_, found := s.rows(true)
		if strings.Join(found, "; ") != test.want {
			t.Errorf("%+v: found %q, want %q", test.set, found, test.want)
		}
		s.wantRows(before)
	}
}

// All views at once, and more than one batch of them. Whoever is interrupted, by
// a crash or otherwise, has the rest done by the next.
func TestRepairIsInterrupted(t *testing.T) {
	s := newShelf(t)
	for v := range 3 {
		var files []string
		for i := range 1200 {
			files = append(files, fmt.Sprintf("part/%d.js", i), "the same")
		}
		s.publish("many", fmt.Sprintf("%d.0.0", v), files...)
	}
	before := s.dump()
	b := s.store.NewBatch()
	defer b.Close()
	for key := range before {
		b.Delete(kvstore.Namespace(key[0]), []byte(key[1:]))
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	left := len(before)
	for round := range 3 {
		ctx, cancel := context.WithCancelCause(t.Context())
		told := 0
		_, err := check.ReplaceViews(ctx, s.store, check.Options{Temp: t.TempDir()}, func(check.Finding) {
			if told++; told == 1500 {
				cancel(stop)
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("round %d: %v", round, err)
		}
		now := s.dump()
		if len(before)-len(now) >= left {
			t.Errorf("round %d left %d rows to do of %d", round, len(before)-len(now), left)
		}
		left = len(before) - len(now)
		for key, value := range now {
			if before[key] != value {
				t.Errorf("%q is %q", key, value)
			}
		}
	}
	sum, _ := s.rows(true)
	if sum.Repaired != int64(left) {
		t.Errorf("the last one found %d differences, want %d", sum.Repaired, left)
	}
	s.wantRows(before)
	if _, found := s.check(false); len(found) > 0 {
		t.Errorf("Run found %v", found)
	}
}

func TestRepairCounts(t *testing.T) {
	s := changeable(t)
	s.change(kvstore.Files, kvstore.Key("vue", "3.0.0", "vue.js"), nil)
	s.change(kvstore.Files, kvstore.Key("vue", "3.0.0", "dist/vue.min.js"), []byte("?"))
	s.change(kvstore.Packages, kvstore.Key("left-pad"), []byte("?"))
	for _, repair := range []bool{false, true} {
		sum, found := s.rows(repair)
		want := []check.Rows{
			{View: "files", Rows: 5, Missing: 1, Differing: 1},
			{View: "sris", Rows: 5},
			{View: "versions", Rows: 4},
			{View: "packages", Rows: 1, Unexplained: 1},
			{View: "states", Rows: 8},
			{View: "index", Rows: 40},
			{View: "named", Rows: 13},
			{View: "live", Rows: liveRows},
		}
		if sum.Rows != 76+liveRows || sum.Findings != 3 || !slices.Equal(sum.Views, want) {
			t.Errorf("%+v, want %+v", sum, want)
		}
		if want := []string{
			"view files/vue/3.0.0/dist/vue.min.js: the row differs from what the log says",
			"view files/vue/3.0.0/vue.js: the row is missing",
			"view packages/left-pad: no entry of the log explains this row",
		}; !slices.Equal(found, want) {
			t.Errorf("found %q, want %q", found, want)
		}
	}
	if sum, _ := s.rows(true); sum.Findings > 0 {
		t.Errorf("the second time: %+v", sum)
	}
}

// From a log that is not whole nothing is made: it would take away what is good.
func TestRepairRefusesADamagedLog(t *testing.T) {
	for name, damage := range map[string]func(s *logShelf){
		"an entry is missing": func(s *logShelf) { s.change(kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 3}, nil) },
		"the last entry is missing": func(s *logShelf) {
			s.change(kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 5}, nil)
		},
		"an entry changed": func(s *logShelf) {
			s.change(kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 3}, []byte(`{"format":1,"kind":"detected"}`))
		},
		"a manifest is missing": func(s *logShelf) {
			e, err := logs.ReadEntry(s.store, 3)
			if err != nil {
				s.t.Fatal(err)
			}
			s.change(kvstore.Contents, e.Manifest[:], nil)
		},
		"a manifest changed": func(s *logShelf) {
			e, err := logs.ReadEntry(s.store, 3)
			if err != nil {
				s.t.Fatal(err)
			}
			s.change(kvstore.Blobs, append(e.Manifest[:], byte(coding.Identity)), []byte("{}"))
		},
	} {
		s := stocked(t)
		s.change(kvstore.Files, kvstore.Key("vue", "3.0.0", "vue.js"), nil)
		damage(s)
		before := s.dump()
		told := 0
		sum, err := check.ReplaceViews(t.Context(), s.store, check.Options{Temp: t.TempDir()}, func(f check.Finding) {
			if told++; f.Repaired || f.Kind == check.View || f.Kind == check.State {
				t.Errorf("%s: told of %v", name, f)
			}
		})
		if err == nil || !strings.Contains(err.Error(), "nothing was changed") || told == 0 || sum.Repaired != 0 {
			t.Errorf("%s: %d findings, %d repaired, %v", name, told, sum.Repaired, err)
		}
		s.wantRows(before)
	}
}

// A file's content that is gone does not keep the views from being repaired. It is
// reported as what could not be.
func TestRepairNeedsNoFiles(t *testing.T) {
	s := stocked(t)
	before := s.dump()
	h := kvstore.Sum([]byte("v3"))
	s.change(kvstore.Contents, h[:], nil)
	s.change(kvstore.Versions, kvstore.Key("vue", "3.0.0"), nil)
	sum, rows := s.rows(true)
	if len(rows) != 1 || sum.Repaired != 1 || sum.Findings != 2 {
		t.Errorf("replaced %q, %+v", rows, sum)
	}
	s.wantRows(before)
}
