package glob

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
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

// FuzzMinimatch compares with minimatch 3 whatever the pattern, save where the
// package comment says that they differ.
func FuzzMinimatch(f *testing.F) {
	seedFuzz(f)
	o := newOracle(f)
	f.Fuzz(func(t *testing.T, pattern, path string) {
		path = cleanPath(path)
		if path == "" || len(path) > 40 || len(pattern) > 60 || !utf8.ValidString(pattern) || !utf8.ValidString(path) ||
			explodes(pattern) || differs(pattern) {
			return
		}
		g, err := Compile(pattern)
		if err != nil {
			return
		}
		want, err := o.match(pattern, []string{path})
		if err != nil {
			t.Skip(err)
		}
		if got := g.Match(path); got != want[0] {
			t.Errorf("Compile(%q).Match(%q) = %v, minimatch says %v", pattern, path, got, want[0])
		}
	})
}

// explodes reports whether minimatch's regular expression might take too long.
func explodes(pattern string) bool {
	return strings.Count(pattern, "*(")+strings.Count(pattern, "+(") > 1 ||
		strings.Count(pattern, "*") > 6 || strings.Count(pattern, "!(") > 4
}

// differs reports whether this package and minimatch are known to part on the
// pattern. It errs on the side of yes.
func differs(pattern string) bool {
	if strings.ContainsAny(pattern, "\n\r\u2028\u2029\x00") {
		return true
	}
	expanded, err := expandBraces(strings.TrimFunc(pattern, isSpace))
	if err != nil {
		return true
	}
	for _, text := range expanded {
		globstars := 0
		for _, raw := range splitSlashes(text) {
			tokens, magic, err := scan(utf16.Encode([]rune(raw)), 0)
			switch {
			case err != nil, unescape(raw) == ".",
				raw != "**" && globstars > 1 && strings.HasPrefix(raw, "."),
				magic && strings.HasPrefix(raw, `\`):
				return true
			case raw == "**":
				globstars++
				continue
			}
			// Classes that minimatch may read otherwise, and what is left of one.
			if strings.Contains(raw, "[") && strings.ContainsAny(raw, `\`) ||
				strings.Contains(raw, "[]") || strings.Contains(raw, "[**") {
				return true
			}
			if strings.Contains(raw, "!(") {
				for _, t := range tokens {
					if t.op == opChar && (t.unit == '(' || t.unit == ')') {
						return true
					}
					if t.op == opClass && slices.ContainsFunc(t.class.ranges, func(r unitRange) bool { return r.first <= ')' && '(' <= r.last }) {
						return true
					}
				}
			}
			if strings.Contains(raw, `\`) && strings.Contains(raw, "|") {
				return true
			}
		}
		if globstars > 2 {
			return true
		}
	}
	return false
}
