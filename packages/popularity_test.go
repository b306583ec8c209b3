package packages_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/packages"
)

func TestPopularity(t *testing.T) {
	p, err := packages.ParsePopularity([]byte("name\tnpm\tdownloads_a_month\n# as of 2026-10-01\nvue\tvue\t7\n\n# a remark\nname.js\t@a/name\t0\n"))
	if err != nil || p.Downloads["vue"] != 7 || len(p.Downloads) != 2 || !p.AsOf.Equal(time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"vue\t7", "vue\tvue\t-1", "vue\tvue\tmany", "# as of autumn", strings.Repeat("x", 5000)} {
		if _, err := packages.ParsePopularity([]byte(bad)); err == nil {
			t.Errorf("%.40q is taken", bad)
		}
	}
	if data, err := os.ReadFile("../../shared/data/popularity.tsv"); err == nil {
		if p, err := packages.ParsePopularity(data); err != nil || len(p.Downloads) < 2000 {
			t.Errorf("the real one: %d, %v", len(p.Downloads), err)
		}
	}
}

// TestPopularityOfCatalogue finds the file beside the packages, and lets a wrong one cost nothing else.
func TestPopularityOfCatalogue(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		at := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("packages/a/a.json", `{"name": "a", "filename": "a.js", "description": "d", "keywords": ["k"], "license": "MIT", "repository": {"type": "git", "url": "https://github.com/a/a.git"}, "authors": [{"name": "a"}], "autoupdate": {"source": "npm", "target": "a", "fileMap": [{"basePath": "", "files": ["*.js"]}]}}`)
	c, err := packages.Open(folder)
	if err != nil || c.Popularity().Downloads != nil {
		t.Fatalf("without the file: %+v, %v", c.Popularity(), err)
	}
	write("popularity.tsv", "a\ta\t12\n")
	modified := time.Date(2026, 9, 8, 7, 6, 5, 0, time.UTC)
	if err := os.Chtimes(filepath.Join(folder, "popularity.tsv"), modified, modified); err != nil {
		t.Fatal(err)
	}
	if c, err = packages.Open(folder); err != nil || c.Popularity().Downloads["a"] != 12 || !c.Popularity().AsOf.Equal(modified) {
		t.Errorf("with the file: %+v, %v", c.Popularity(), err)
	}
	if kept := c.Keeping(func(string) (*packages.Package, bool) { return nil, false }); kept.Popularity().Downloads["a"] != 12 {
		t.Errorf("kept: %+v", kept.Popularity())
	}
	write("popularity.tsv", "nonsense\n")
	if c, err = packages.Open(folder); err != nil || len(c.Packages()) != 1 || len(c.Problems()) != 1 || c.Popularity().Downloads != nil {
		t.Errorf("with a broken file: %d packages, %v, %v", len(c.Packages()), c.Problems(), err)
	}
}

func FuzzParsePopularity(f *testing.F) {
	f.Add([]byte("name\tnpm\tdownloads_a_month\nvue\tvue\t7\n"))
	f.Add([]byte("# as of 2026-10-01\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := packages.ParsePopularity(data)
		if err != nil {
			return
		}
		for name, n := range p.Downloads {
			if n < 0 {
				t.Errorf("%q has %d downloads", name, n)
			}
		}
	})
}
