package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/recompression"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

func TestStatusTellsWhatUpstreamChanged(t *testing.T) {
	store, err := kvstore.Open(t.TempDir(), kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	batch := store.NewBatch()
	defer batch.Close()
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0"} {
		if err := views.SetState(batch, views.State{Package: "demo", Version: version, Kind: views.Published, Updated: noon}); err != nil {
			t.Fatal(err)
		}
	}
	row, err := json.Marshal(sources.Origins{Target: "demo", Versions: map[string]sources.Origin{
		"1.0.0": {Published: "sha512-a", Listed: "sha512-a"},
		"1.1.0": {Published: "sha512-a", Changed: noon},
		"1.2.0": {Published: "sha512-a", Listed: "sha512-a", Changed: noon},
	}})
	if err != nil {
		t.Fatal(err)
	}
	batch.Set(kvstore.Upstreams, kvstore.Key("demo", "origins"), row)
	if err := batch.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "demo"} {
		s, err := bot.ReadStatus(store, name)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Changed) != 1 || s.Changed[0].Version != "1.1.0" || !s.Changed[0].Since.Equal(noon) {
			t.Errorf("status %q tells of %+v", name, s.Changed)
		}
		var out strings.Builder
		if err := (statusText{&app.Status{Status: *s}}).print(&out, name != "", noon); err != nil {
			t.Fatal(err)
		}
		if want := "\ndemo 1.1.0: upstream has this release no longer"; strings.Count(out.String(), want) != 1 {
			t.Errorf("status %q prints\n%s", name, &out)
		}
	}
}

// A store whose rows are lost is not described as one that was never filled.
func TestStatusOfNoPackages(t *testing.T) {
	for degraded, want := range map[string]int{"": 1, "./data is not written to: it holds no store, and 4 log entries were signed": 0} {
		var out strings.Builder
		if err := (statusText{&app.Status{Degraded: degraded}}).print(&out, false, time.Time{}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out.String(), "Nothing is here yet"); got != want {
			t.Errorf("degraded %q: the status says %d times that nothing is here yet\n%s", degraded, got, &out)
		}
	}
}

func TestStatusTellsATroubleOnce(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	status := &app.Status{Unprotected: []string{"Landlock: the kernel lacks it"}, Status: bot.Status{
		Packages: []bot.PackageStatus{{Name: "a", Problem: "503", StateCounts: bot.StateCounts{Published: 3}}, {Name: "b", Problem: "503", StateCounts: bot.StateCounts{Published: 1, Waiting: 4, Withdrawn: 1}}, {Name: "c", StateCounts: bot.StateCounts{Refused: 200}, Examined: 200}},
		Problems: []bot.Problem{
			{Kind: bot.UpstreamProblem, Count: 11, Packages: []string{"a", "b", "d", "e", "f"}, Cause: "503 Service Unavailable", Next: noon.Add(time.Minute), Waiting: 40},
			{Kind: bot.EmptyProblem, Count: 1, Packages: []string{"c"}, Cause: "none can be published"},
			{Kind: bot.RefusedProblem, Count: 200, Packages: []string{"c"}, Cause: "it selects none of 7 files\nat all"},
		},
		Squeezing: recompression.QueueState{Contents: 1200, Bytes: 2_000_000, Speed: 2000, Seconds: 1000},
	}}
	var out strings.Builder
	if err := (statusText{status}).print(&out, false, noon); err != nil {
		t.Fatal(err)
	}
	const want = `Child processes that read strangers' files go without Landlock: the kernel lacks it.

COUNT  WHAT                       PACKAGES              WHY, AND WHAT HELPS
11     upstreams can't be asked   a, b, d and 2 others  40 releases wait for that, too; 503 Service Unavailable (tried again 1 minute from now)
1      package without a release  c                     none can be published; ` + "`larder status NAME` says why, `larder show-files` what is selected" + `
200    releases refused           c                     it selects none of 7 files; ` + "`larder add --retry NAME` tries again" + `
4      releases wait              of 3                  
1,200  contents to squeeze                              2.0 MB, about 16m40s at the recent 2.0 kB/s
1      release withdrawn          of 3                  
4      releases published         of 3                  

PACKAGE  NEWEST  PUBLISHED  WAITING  FAILED  REFUSED  WITHDRAWN
a        -       3          0        0       0        0
b        -       1          4        0       0        1
c        -       0          0        0       200      0
`
	if out.String() != want {
		t.Errorf("it prints\n%s\nwant\n%s", &out, want)
	}
}

func TestStatusFoldsWhatWasNeverTried(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.Local)
	account := func(version string, kind views.StateKind, updated time.Time, reason, command string) views.Account {
		return views.Account{State: views.State{Package: "a", Version: version, Kind: kind, Updated: updated, Reason: reason}, Command: command}
	}
	status := &app.Status{Status: bot.Status{
		Packages: []bot.PackageStatus{{Name: "a", StateCounts: bot.StateCounts{Published: 1, Refused: 1}}},
		Versions: []views.Account{
			account("3.0.0", views.Refused, noon, "a bomb", "larder add --retry a@3.0.0"),
			account("2.1.0", views.Detected, noon, "", "larder add a@2.1.0"),
			account("3.0.0-rc.1", views.Prerelease, time.Time{}, "a prerelease", "larder add a@3.0.0-rc.1"),
			account("2.0.0", views.Published, noon, "", ""),
			account("1.9.0", views.Older, time.Time{}, "it is older", "larder add a@1.9.0"),
			account("1.8.0", views.Older, time.Time{}, "it is older", "larder add a@1.8.0"),
			account("1.7.0", views.Older, time.Time{}, "it is older", "larder add a@1.7.0"),
		},
	}}
	var out strings.Builder
	if err := (statusText{status}).print(&out, true, noon); err != nil {
		t.Fatal(err)
	}
	const want = `
COUNT  WHAT               PACKAGES  WHY, AND WHAT HELPS
1      release published  a         

VERSION             STATE       SINCE                WHY, AND THE COMMAND THAT GETS IT
3.0.0               refused     2026-01-02 12:00:00  a bomb; ` + "`larder add --retry a@3.0.0`" + `
2.1.0               detected    2026-01-02 12:00:00  it waits for its turn; ` + "`larder add a@2.1.0`" + `
2.0.0               published   2026-01-02 12:00:00  
3.0.0-rc.1          prerelease                       a prerelease; ` + "`larder add a@3.0.0-rc.1`" + `
1.9.0 and 2 others  older                            it is older; ` + "`larder add a@1.9.0`" + `
`
	if out.String() != want {
		t.Errorf("it prints\n%s\nwant\n%s", &out, want)
	}
}
