package packages

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// withFileMap returns a package with that fileMap and those ignoreVersions.
func withFileMap(t testing.TB, fileMap []FileSet, ignore ...string) *Package {
	t.Helper()
	p, err := Parse("", documentWith(t, fileMap, ignore))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func documentWith(t testing.TB, fileMap []FileSet, ignore []string) []byte {
	t.Helper()
	data, err := json.Marshal(Package{
		Name: "slider", Filename: "slider.js", Description: "Slides.", Keywords: []string{"slider"},
		Repository: &Repository{Type: "git", URL: "https://github.com/owner/slider.git"},
		Autoupdate: &Autoupdate{Source: "npm", Target: "slider", FileMap: fileMap, IgnoreVersions: ignore},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestSelect(t *testing.T) {
	release := []string{
		"package.json", "README.md", "dist/slider.js", "dist/slider.min.js", "dist/css/slider.css",
		"distant/slider.js", "src/slider.js", "dist/.hidden/x.js",
	}
	for _, test := range []struct {
		name    string
		fileMap []FileSet
		paths   []string
		want    string // "path<source …", sorted
	}{
		{"below basePath", []FileSet{{"dist", []string{"**/*.@(js|css)"}}}, release,
			"css/slider.css<dist/css/slider.css slider.js<dist/slider.js slider.min.js<dist/slider.min.js"},
		{"no basePath", []FileSet{{"", []string{"src/*.js"}}}, release, "src/slider.js<src/slider.js"},
		{"slashes around basePath", []FileSet{{"/dist/", []string{"*.min.js"}}}, release, "slider.min.js<dist/slider.min.js"},
		{"./ before basePath", []FileSet{{"./dist//css/.", []string{"*"}}}, release, "slider.css<dist/css/slider.css"},
		{"a dot for the release", []FileSet{{".", []string{"*.json"}}}, release, "package.json<package.json"},
		{"a slash for the release", []FileSet{{"/", []string{"*.json"}}}, release, "package.json<package.json"},
		{"first entry wins", []FileSet{{"src", []string{"slider.js"}}, {"dist", []string{"*"}}}, release,
			"slider.js<src/slider.js slider.min.js<dist/slider.min.js"},
		{"one source at two paths", []FileSet{{"dist", []string{"slider.js"}}, {"", []string{"dist/slider.js"}}}, release,
			"dist/slider.js<dist/slider.js slider.js<dist/slider.js"},
		{"first file of an entry wins", []FileSet{{"", []string{"*"}}}, []string{"a", "a"}, "a<a"},
		{"nothing", []FileSet{{"lib", []string{"**"}}}, release, ""},
		{"a leading slash", []FileSet{{"dist", []string{"/slider.js"}}}, release, ""},
		{"paths out of the release", []FileSet{{"", []string{"**", "**/*"}}, {"x", []string{"**"}}},
			[]string{"/etc/passwd", "../up", "a/../../up", "./a", "a//b", "", ".", "x/", "x/../y", "x//y"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, s := range withFileMap(t, test.fileMap).Select(test.paths) {
				got = append(got, s.Path+"<"+s.Source)
			}
			if joined := strings.Join(got, " "); joined != test.want {
				t.Errorf("got  %s\nwant %s", joined, test.want)
			}
		})
	}
}

func TestSelectWithoutAutoupdate(t *testing.T) {
	p := &Package{Name: "slider"}
	if got := p.Select([]string{"slider.js"}); got != nil {
		t.Errorf("selected %v", got)
	}
	if p.IgnoresVersion("1.0.0") {
		t.Error("ignores a version")
	}
}

func TestIgnoresVersion(t *testing.T) {
	p := withFileMap(t, []FileSet{{"", []string{"*"}}}, "*-beta*", "v.0.10.4", "0.0.0-*", "@(19|[2-9][0-9]).*")
	for version, want := range map[string]bool{
		"1.0.0": false, "1.0.0-beta": true, "1.0.0-beta.2": true, "1.0.0-rc.1": false, "v.0.10.4": true,
		"0.0.0-experimental-1": true, "19.0.0": true, "20.1.0": true, "18.3.1": false, "1.19.0": false,
	} {
		if got := p.IgnoresVersion(version); got != want {
			t.Errorf("%s: got %v, want %v", version, got, want)
		}
	}
}

func BenchmarkSelect(b *testing.B) {
	var release []string
	for i := range 25_000 {
		release = append(release, fmt.Sprintf("dist/part%d/module%d.%s", i%50, i, []string{"js", "css", "map"}[i%3]))
	}
	p := withFileMap(b, []FileSet{{"dist", []string{"**/*.@(js|css)"}}, {"dist", []string{"**/!(*.d.ts)"}}})
	for b.Loop() {
		if got := p.Select(release); len(got) != len(release) {
			b.Fatalf("%d of %d selected", len(got), len(release))
		}
	}
}

func TestPathsAreSorted(t *testing.T) {
	got := withFileMap(t, []FileSet{{"", []string{"**"}}}).Select([]string{"b", "a/z", "a", "a-b"})
	if !slices.IsSortedFunc(got, func(a, b Selected) int { return strings.Compare(a.Path, b.Path) }) || len(got) != 4 {
		t.Errorf("got %v", got)
	}
}
