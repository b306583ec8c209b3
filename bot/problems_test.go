package bot

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/logs/views"
)

func TestProblemsByCause(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	s := Status{}
	for i := range 11 {
		name := fmt.Sprintf("p%d", i)
		s.Packages = append(s.Packages, PackageStatus{
			Name: name, Problem: fmt.Sprintf("npm package %s: couldn't get https://registry.example/%s: 503 Service Unavailable", name, name),
			Next: noon.Add(time.Duration(11-i) * time.Minute),
		})
	}
	s.Packages = append(s.Packages, PackageStatus{Name: "well"})
	for i := range 211 {
		s.Versions = append(s.Versions, views.Account{State: views.State{
			Package: "gone", Version: fmt.Sprintf("1.%d.0", i), Kind: views.Refused,
			Reason: fmt.Sprintf("the package JSON's fileMap selects none of the release's %d files", i+3),
		}})
	}
	s.Versions = append(s.Versions,
		views.Account{State: views.State{Package: "a", Version: "1.0.0", Kind: views.Failed, Next: noon, Reason: "integrity mismatch: the packument says sha512-AAA=, the tarball has sha512-BBB="}},
		views.Account{State: views.State{Package: "b", Version: "2.0.0", Kind: views.Failed, Next: noon, Reason: "integrity mismatch: the packument says sha512-CCC=, the tarball has sha512-DDD="}},
		views.Account{State: views.State{Package: "b", Version: "2.0.0", Kind: views.Published}})
	var got []string
	for _, x := range s.groupProblems() {
		got = append(got, fmt.Sprintf("%s: %d in %d, %s", x.Kind, x.Count, len(x.Packages), x.Next.Format(time.TimeOnly)))
	}
	if want := "upstream: 11 in 11, 12:01:00|failed: 2 in 2, 12:00:00|refused: 211 in 1, 00:00:00"; strings.Join(got, "|") != want {
		t.Errorf("got %s, want %s", strings.Join(got, "|"), want)
	}
}

// TestARegistryThatIsDownIsOneTrouble has a registry fail in several ways, and another one for a package alone.
func TestARegistryThatIsDownIsOneTrouble(t *testing.T) {
	s := Status{}
	for i, reason := range []string{"503 Service Unavailable", "connection refused", "no answer in 30s", "connection reset"} {
		s.Packages = append(s.Packages, PackageStatus{Name: fmt.Sprintf("p%d", i), Problem: reason, upstream: upstreamProblem{outage: "npm"}})
	}
	s.Packages = append(s.Packages, PackageStatus{Name: "private", Problem: "401 Unauthorized", upstream: upstreamProblem{outage: "npm @scope"}}, PackageStatus{Name: "lost", Problem: "404 Not Found", upstream: upstreamProblem{missing: true}})
	for i := range 40 {
		s.Versions = append(s.Versions, views.Account{State: views.State{Package: fmt.Sprintf("p%d", i%4), Version: fmt.Sprintf("1.%d.0", i), Kind: views.Failed, Reason: "connection refused"}})
	}
	s.Problems = append(s.groupProblems(), Problem{Kind: "of a newer server", Count: 1})
	var got []string
	for _, l := range s.Lines() {
		got = append(got, fmt.Sprintf("%d %s (%s): %s", l.Count, l.What, l.Packages, l.Why))
	}
	want := []string{
		"4 upstreams can't be asked (p0, p1, p2 and 1 other): 40 releases wait for that, too; 503 Service Unavailable",
		"1 upstream can't be asked (private): 401 Unauthorized",
		`1 package is not at its upstream (lost): 404 Not Found; correct "target" in the package JSON, or, if it is private, configure credentials for it`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestCausesLeaveOutWhatIsParticular(t *testing.T) {
	all := make(causes)
	for _, tt := range []struct{ reason, pkg, version, other, otherPkg, otherVersion string }{
		{`the fileMap selects none of 57 files; its folders and their numbers of files: "dist" (3), "src" (12)`, "a", "1.0.0",
			`the fileMap selects none of 9 files; its folders and their numbers of files: "lib" (9)`, "b", "2.0.0"},
		{`the fileMap selects none of 57 files; its folders and their numbers of files: "dist" (3)`, "a", "1.0.0", `the fileMap selects none of 9 files`, "b", "2.0.0"},
		{"jquery 3.0.0 is not there", "jquery", "3.0.0", "vue 3.0.0-rc.1 is not there", "vue", "3.0.0-rc.1"},
		{"https://registry.example/a: 503", "a", "", "https://registry.example/b: 503", "b", ""},
	} {
		if one, other := all.get(tt.reason, tt.pkg, tt.version), all.get(tt.other, tt.otherPkg, tt.otherVersion); one != other {
			t.Errorf("%q and %q are two causes", one, other)
		}
	}
	for _, target := range []string{"plain", "@scope/other"} {
		reason := "npm package " + target + ": couldn't get http://registry.example:4873/" + strings.Replace(target, "/", "%2f", 1) + ": 404 Not Found"
		if got := all.get(reason, target, "name"); got != "npm package *: couldn't get *: * Not Found" {
			t.Errorf("the cause is %q", got)
		}
	}
	if one, other := all.get("an archive of a package", "pack", "1"), all.get("an archive of a package", "a", "1"); one == other {
		t.Errorf("a part of a word is taken for a name: %q", one)
	}
}

func TestReplaceWord(t *testing.T) {
	for _, c := range []struct{ s, word, want string }{
		{"react: react is gone", "react", "*: * is gone"},
		{"react-dom and preact", "react", "*-dom and preact"},
		{"reactreact reacts", "react", "reactreact reacts"},
		{"a/@s/x b", "@s/x", "a/* b"},
		{"unchanged", "", "unchanged"},
	} {
		if got := replaceWord(c.s, c.word); got != c.want {
			t.Errorf("replaceWord(%q, %q) = %q, want %q", c.s, c.word, got, c.want)
		}
	}
}
