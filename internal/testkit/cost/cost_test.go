package cost

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// readers are the packages that parse strangers' bytes: releases, package JSONs, git repositories, pages, advisories, and what is in a bucket or comes from another
// Larder.
var readers = []string{
	"bot/fallback", "bot/git", "bot/npm", "bot/worker", "internal/document", "logs", "logs/cluster", "logs/verify", "packages", "packages/archive", "packages/glob",
}

// TestEveryReaderHasACost holds that each such package bounds what its parsers cost.
func TestEveryReaderHasACost(t *testing.T) {
	for _, name := range readers {
		source, err := os.ReadFile(filepath.Join("..", "..", "..", filepath.FromSlash(name), "cost_test.go"))
		if err != nil || !strings.Contains(string(source), "cost.Check(t") {
			t.Errorf("%s has no TestCost: %v", name, err)
		}
	}
}

// TestFindsSquares holds that the search finds what takes the square of a number of brackets, in its short form.
func TestFindsSquares(t *testing.T) {
	p := Parser{Name: "squares", Seeds: []string{"a(b)c"}, Words: []string{"a", "b", "(", ")", "[", "]"}, Size: 2 << 10, Parse: func(input []byte) {
		depth := 0
		var kept []byte
		for _, c := range input {
			switch c {
			case '[':
				depth++
				kept = append([]byte(nil), make([]byte, depth)...)
			case ']':
				depth = max(0, depth-1)
			}
		}
		_ = kept
	}}
	_, largest, _ := p.search(shortGenerations, time.Minute)
	small, large := p.measure(largest[0].shape, p.Size, 1), p.measure(largest[0].shape, 8*p.Size, 1)
	if !strings.Contains(largest[0].shape.String(), "[") || large.kib < 4*small.kib {
		t.Errorf("found %s: %v, larger %v", largest[0].shape, small, large)
	}
	if s := (shape{"a", "b", "c", "d", "e"}).expand(11); s != "abbbbcdddde" {
		t.Errorf("%q", s)
	}
}
