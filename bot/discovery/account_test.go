package discovery

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// TestEveryVersionIsAccountedFor plans what follows from an upstream's list, and asks what became of each version in it.
func TestEveryVersionIsAccountedFor(t *testing.T) {
	p := testPackage(t, `"*-nightly*"`)
	upstream := sources.Upstream{Package: "a", Source: sources.KindNpm, Target: "a"}
	look := func(states []views.State, listed ...string) {
		got := planPackage(planInput{pkg: p, listed: releasedAt(listed...), states: states, known: upstream, newest: 5, now: hour(100)})
		upstream.Seen, upstream.Gone, upstream.Ignored, upstream.Filled = got.Seen, got.Gone, got.Ignored, true
	}
	state := func(version string, kind views.StateKind, reason string) views.State {
		return views.State{Package: "a", Version: version, Kind: kind, Reason: reason, Updated: Noon}
	}
	listed := []string{"0.9.0", "1.0.0", "1.0.0-rc.1", "1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.0", "1.5.1-nightly.1", "1.6.0", "2.0.0-dev.1", "2.0.0-dev.2", "2.0.0-dev.3"}
	look(nil, append(listed, "0.8.0", "../3")...)
	states := []views.State{
		state("1.1.0", views.Withdrawn, "malware"), state("1.2.0", views.Published, ""), state("1.3.0", views.Refused, "an archive"),
		state("1.4.0", views.Failed, "503"), state("1.5.0", views.Detected, ""), state("1.6.0", views.Refused, sources.Gone),
		state("2.0.0-dev.2", views.Published, ""), state("2.0.0-dev.3", views.Published, ""),
	}
	look(states, listed...) // without 0.8.0 and what no URL can have
	nameless := `"../3"#` + kvstore.Sum([]byte("../3")).String()[:8]
	tests := []struct{ version, kind, reason, command string }{
		{"2.0.0-dev.3", "published", "", ""},
		{"2.0.0-dev.2", "published", "", ""},
		{"2.0.0-dev.1", "prerelease", "at most two are prereleases", "larder add a@2.0.0-dev.1"},
		{"1.6.0", "refused", sources.Gone, "larder import a 1.6.0 FOLDER|ARCHIVE"},
		{"1.5.1-nightly.1", "ignored", `the pattern "*-nightly*"`, "larder add a@1.5.1-nightly.1"},
		{"1.5.0", "detected", "", "larder add a@1.5.0"},
		{"1.4.0", "failed", "503", "larder add --retry a@1.4.0"},
		{"1.3.0", "refused", "an archive", "larder add --retry a@1.3.0"},
		{"1.2.0", "published", "", ""},
		{"1.1.0", "withdrawn", "malware", "larder withdraw --undo a 1.1.0 --reason TEXT"},
		{"1.0.0", "older", "older than what was taken", "larder add a@1.0.0"},
		{"1.0.0-rc.1", "prerelease", "", "larder add a@1.0.0-rc.1"},
		{"0.9.0", "older", "", "larder add a@0.9.0"},
		{"0.8.0", "gone", "lists it no longer", "larder import a 0.8.0 FOLDER|ARCHIVE"},
		{nameless, "gone", "", ""},
	}
	all := accountVersions(p, false, upstream, states)
	if len(all) != len(tests) {
		t.Errorf("%d versions are accounted for, want %d: %+v", len(all), len(tests), all)
	}
	for i, tt := range tests[:min(len(tests), len(all))] {
		got := all[i]
		if got.Version != tt.version || string(got.Kind) != tt.kind || got.Command != tt.command || !strings.Contains(got.Reason, tt.reason) {
			t.Errorf("got %s %s %q %q, want %+v", got.Version, got.Kind, got.Reason, got.Command, tt)
		}
	}

	// What cannot be fetched has no command, and what is known of another target does not count.
	for _, got := range accountVersions(p, true, upstream, states) {
		if got.Command != "" && got.Kind != views.Withdrawn || len(states) == 0 {
			t.Errorf("of a package that the catalogue has no more, %s says %q", got.Version, got.Command)
		}
	}
	elsewhere := upstream
	elsewhere.Target = "b"
	if got := accountVersions(p, false, elsewhere, states); len(got) != len(states) {
		t.Errorf("after the target has changed, %d versions are accounted for, want %d", len(got), len(states))
	}
}

// crowd writes a package of whose many versions ten were taken.
func crowd(t testing.TB, store *kvstore.Store, versions int) {
	t.Helper()
	batch := store.NewBatch()
	defer batch.Close()
	text := `{"name": "a", "description": "A.", "keywords": ["a"], "filename": "a.js", "repository": {"type": "git", "url": "https://example.com/a.git"},
		"autoupdate": {"source": "npm", "target": "a", "fileMap": [{"basePath": "", "files": ["**"]}], "ignoreVersions": ["*-nightly*", "0.*"]}}`
	row, err := json.Marshal(views.Package{Name: "a", JSON: json.RawMessage(text)})
	if err != nil {
		t.Fatal(err)
	}
	batch.Set(kvstore.Packages, kvstore.Key("a"), append([]byte{1}, row...)) // the format of JSON
	upstream := sources.Upstream{Package: "a", Source: sources.KindNpm, Target: "a", Filled: true}
	for i := range versions {
		version := fmt.Sprintf("%d.%d.0", 1+(versions-i)/100, (versions-i)%100)
		if i%3 == 1 {
			version += fmt.Sprintf("-dev.20260102.%d", i)
		}
		upstream.Seen = append(upstream.Seen, version)
		if i < 10 {
			if err := views.SetState(batch, views.State{Package: "a", Version: version, Kind: views.Published, Updated: Noon}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := sources.SetUpstream(store, batch, upstream); err != nil {
		t.Fatal(err)
	}
	if err := batch.Commit(); err != nil {
		t.Fatal(err)
	}
}

func TestAccountsAreBounded(t *testing.T) {
	store, err := kvstore.Open(t.TempDir(), kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	crowd(t, store, mostAccounts+500)
	all, err := ReadAccounts(store, "a")
	if err != nil || len(all) != mostAccounts+10 {
		t.Fatalf("%d versions are accounted for, %v", len(all), err)
	}
	if newest := all[0].Version; newest != "206.0.0" || all[0].Kind != views.Published {
		t.Errorf("the first is %+v", all[0])
	}
	for i := 1; i < len(all); i++ {
		if packages.CompareVersions(all[i-1].Version, all[i].Version) <= 0 {
			t.Fatalf("%s is before %s", all[i-1].Version, all[i].Version)
		}
	}
	if all, err := ReadAccounts(store, "nothing"); len(all) > 0 || err != nil {
		t.Errorf("of a package that is not there: %v, %v", all, err)
	}
}

// BenchmarkAccounts reads what became of the versions of the largest package that there may be.
func BenchmarkAccounts(b *testing.B) {
	store, err := kvstore.Open(b.TempDir(), kvstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	crowd(b, store, mostAccounts)
	for b.Loop() {
		if _, err := ReadAccounts(store, "a"); err != nil {
			b.Fatal(err)
		}
	}
}
