package packages_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/larder-cdn/larder/packages"
)

func TestKeeping(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, filepath.FromSlash(packages.Path(name)))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	open := func() *packages.Catalogue {
		t.Helper()
		c, err := packages.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	sound := func(name string) string {
		return `{"name": "` + name + `", "description": "A.", "keywords": ["a"], "repository": {"type": "git", "url": "https://example.com/a.git"}}`
	}
	write("a", sound("a"))
	write("b", sound("b"))
	write("gone", sound("gone"))
	before := open()
	write("a", `{`)
	write("new", `{`)
	if err := os.Remove(filepath.Join(dir, filepath.FromSlash(packages.Path("gone")))); err != nil {
		t.Fatal(err)
	}
	after := open()
	kept := after.Keeping(before.Get)
	if p, ok := kept.Get("a"); !ok || string(p.JSON) != sound("a") {
		t.Error("the broken one is not what it was")
	}
	if len(after.Packages()) != 1 || len(kept.Packages()) != 2 || kept.Packages()[0].Name != "a" || len(kept.Problems()) != 2 {
		t.Errorf("%d, %d, %v", len(after.Packages()), len(kept.Packages()), kept.Problems())
	}
	for name, want := range map[string]bool{"a": true, "b": true, "new": true, "gone": false, "": false} {
		if after.Mentions(name) != want || kept.Mentions(name) != want {
			t.Errorf("mentions %q: %v", name, !want)
		}
	}
}
