package glob

import (
	"fmt"
	"strings"
	"testing"
)

// hostile are patterns, and paths for them, on which a matcher that goes back and
// tries again takes exponentially long. None of them matches.
var hostile = []struct{ name, pattern, path string }{
	{"nested stars", "[b]" + strings.Repeat("*(", 20) + "a" + strings.Repeat(")", 20) + "@(b|a)", strings.Repeat("a", 200)},
	{"nested pluses", "[b]" + strings.Repeat("+(", 20) + "a" + strings.Repeat(")", 20) + "@(b|a)", strings.Repeat("a", 200)},
	{"nested optional stars", "[b]" + strings.Repeat("*(?(", 12) + "a" + strings.Repeat("))", 12) + "@(b|a)", strings.Repeat("a", 200)},
	{"overlapping alternatives", "[b]" + strings.Repeat("+(a|aa)", 30) + "[b]", strings.Repeat("a", 200)},
	{"overlapping alternatives, end", strings.Repeat("+(a|aa)", 30) + "[b]", strings.Repeat("a", 200)},
	{"many stars", "[b]" + strings.Repeat("a*", 50) + "?", strings.Repeat("a", 500)},
	{"star of stars", "[b]*(*(*)*(*)*)", strings.Repeat("a", 1000)},
	{"negation in a star", "[b]*(!(a*b)|!(*c))", strings.Repeat("ab", 200)},
	{"nested negations", "[c]" + strings.Repeat("!(", 7) + "*a*" + strings.Repeat(")", 7), strings.Repeat("ab", 200) + "a"},
	{"negations in a row", "[c]!(*a)!(*b)", strings.Repeat("ab", 200) + "a"},
	{"globstars", strings.Repeat("**/", 300) + "x", strings.Repeat("a/", 1000) + "b"},
	{"globstars and stars", strings.Repeat("**/*a*/", 100) + "x", strings.Repeat("aaa/", 100) + "b"},
	{"globstars and nested stars", strings.Repeat("**/*(*(a))/", 60) + "x", strings.Repeat("aaaaaaaa/", 60) + "b"},
	{"braces", "[b]{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}*+(a|aa)", strings.Repeat("a", 400)},
	{"optional pieces", "[b]" + strings.Repeat("?(a)", 100) + strings.Repeat("a", 100), strings.Repeat("a", 200)},
}

// mostSteps is the promise that a match keeps: each alternative's every portion
// meets every name once at most, and each instruction is visited once for each
// character with the at most two others it leads to.
func (g *Glob) mostSteps(path string) int {
	names, characters := strings.Count(path, "/")+1, len(path)+1
	most := 0
	for _, portions := range g.alternatives {
		for _, p := range portions {
			most += 3 * (names + 1)
			if p.program != nil {
				most += 4 * len(p.program.instructions) * (characters + names)
			}
		}
	}
	return most
}

func TestHostilePatterns(t *testing.T) {
	for _, test := range hostile {
		t.Run(test.name, func(t *testing.T) {
			g, err := Compile(test.pattern)
			if err != nil {
				t.Fatal(err)
			}
			var steps int
			if g.match(test.path, &steps) {
				t.Error("it matches")
			}
			if most := g.mostSteps(test.path); steps > most {
				t.Errorf("%d steps; at most %d expected", steps, most)
			}
			// Twice the path is at most a little over twice the work, times the
			// names that double with it.
			longer := test.path + "/" + test.path
			if !strings.Contains(test.path, "/") {
				longer = test.path + test.path
			}
			var twice int
			g.match(longer, &twice)
			if twice > 3*steps+100 {
				t.Errorf("%d steps for the path, %d for twice the path", steps, twice)
			}
			t.Logf("%d steps for a pattern of %d and a path of %d bytes", steps, len(test.pattern), len(test.path))
		})
	}
}

func TestLimits(t *testing.T) {
	tests := []struct{ name, pattern, want string }{
		{"empty", "", "empty"},
		{"space", " \t\u00a0\ufeff", "empty"},
		{"long", strings.Repeat("a", maxPattern+1), "1025 bytes; the limit is 1024"},
		{"alternatives", strings.Repeat("{a,b}", 13), "more than 4096 patterns"},
		{"alternatives of a list", "{" + strings.Repeat("{1..1000},", 5) + "}", "more than 4096 patterns"},
		{"range", "{1..5000}", "more than 4096 patterns"},
		{"number", "{1..99999999999999999999}", "number 99999999999999999999"},
		{"text", strings.Repeat("a", 600) + strings.Repeat("{a,b}", 12), "too much text"},
		{"wrapped", strings.Repeat("{{", 20) + strings.Repeat("{a,b}", 10) + strings.Repeat("}}", 20), "levels deep"},
		{"braces", strings.Repeat("{a,", 40) + strings.Repeat("}", 40), "levels deep"},
		{"extended forms", strings.Repeat("@(", 40) + strings.Repeat(")", 40), "levels deep"},
		{"brackets", strings.Repeat("[", 40), "levels deep"},
		{"negations", strings.Repeat("!(a)", 40), "more than 16384 instructions"},
		{"programs", strings.Repeat("{a,b}", 10) + "+(" + strings.Repeat("a|", 40) + "b)", "more than 16384 instructions"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g, err := Compile(test.pattern)
			if err == nil || g != nil {
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q; want %q in it", err, test.want)
			}
			if len(err.Error()) > 1500 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

// TestJustWithinLimits compiles what is as large as it may be.
func TestJustWithinLimits(t *testing.T) {
	for _, pattern := range []string{
		strings.Repeat("a", maxPattern),
		strings.Repeat("{a,b}", 12),
		fmt.Sprintf("{1..%d}", maxAlternatives),
		strings.Repeat("@(", maxDepth) + "a" + strings.Repeat(")", maxDepth),
		strings.Repeat("!(a)", 10),
	} {
		if _, err := Compile(pattern); err != nil {
			t.Error(err)
		}
	}
}
