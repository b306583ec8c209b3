package glob

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func seedFuzz(f *testing.F) {
	for i, pattern := range readPatterns(f) {
		if i%20 == 0 {
			f.Add(pattern, strings.Join(candidates(pattern, 3), "/"))
		}
	}
	for _, tree := range readTrees(f)[:1] {
		for _, entry := range tree.Entries {
			f.Add(entry.Pattern, strings.Join(candidates(entry.Pattern, 3), "/"))
		}
	}
	for _, test := range hostile {
		f.Add(test.pattern, test.path)
	}
}

// FuzzMatch looks for a panic, for work out of proportion, and for an answer that
// depends on more than the pattern and the path.
func FuzzMatch(f *testing.F) {
	seedFuzz(f)
	f.Fuzz(func(t *testing.T, pattern, path string) {
		g, err := Compile(pattern)
		if err != nil {
			if g != nil {
				t.Fatal("a Glob and an error")
			}
			return
		}
		if g.String() != pattern {
			t.Fatalf("String() = %q", g.String())
		}
		var steps int
		got := g.match(path, &steps)
		if most := g.mostSteps(path); steps > most {
			t.Errorf("%d steps; at most %d expected", steps, most)
		}
		if got && (path == "" || cleanPath(path) != path) {
			t.Error("selected a path that no file has")
		}
		again, err := Compile(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if again.Match(path) != got || g.Match(path) != got {
			t.Error("another answer the second time")
		}
	})
}

func readPatterns(t testing.TB) []string {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "patterns.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var patterns []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		patterns = append(patterns, lines.Text())
	}
	if len(patterns) < 1000 {
		t.Fatalf("only %d patterns", len(patterns))
	}
	return patterns
}
