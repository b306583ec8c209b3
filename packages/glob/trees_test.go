package glob

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A tree is a package's files, and what node-glob 7 selected from them.
type tree struct {
	Package, Version string
	Files            []string
	Entries          []struct {
		BasePath, Pattern string
		Selected          []string
	}
}

func readTrees(t testing.TB) []tree {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "trees.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var trees []tree
	for d := json.NewDecoder(z); ; {
		var one tree
		if err := d.Decode(&one); errors.Is(err, io.EOF) {
			return trees
		} else if err != nil {
			t.Fatal(err)
		}
		trees = append(trees, one)
	}
}

// TestTrees selects what node-glob selected from the trees of a hundred packages,
// by those packages' own patterns, and from one of odd names by odd patterns.
func TestTrees(t *testing.T) {
	trees := readTrees(t)
	if len(trees) < 101 {
		t.Errorf("%d trees; want a hundred real ones and the odd one", len(trees))
	}
	var patterns, files, selected int
	for _, tree := range trees {
		for _, entry := range tree.Entries {
			g, err := Compile(entry.Pattern)
			if err != nil {
				t.Errorf("%s: %v", tree.Package, err)
				continue
			}
			base := strings.Trim(entry.BasePath, "/")
			if base != "" {
				base += "/"
			}
			var got []string
			for _, file := range tree.Files {
				if below, ok := strings.CutPrefix(file, base); ok {
					files++
					if g.Match(below) {
						got = append(got, below)
					}
				}
			}
			slices.Sort(got)
			slices.Sort(entry.Selected)
			patterns++
			selected += len(got)
			if !slices.Equal(got, entry.Selected) {
				t.Errorf("%s %s: %q below %q\nselects   %q\nnode-glob %q", tree.Package, tree.Version, entry.Pattern, entry.BasePath, got, entry.Selected)
			}
		}
	}
	t.Logf("%d trees, %d patterns, %d files tried, %d selected", len(trees), patterns, files, selected)
}
