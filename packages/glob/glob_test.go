package glob

import (
	"fmt"
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	tests := []struct{ pattern, selects, leaves string }{
		{"a.js", "a.js", "b.js d/a.js a.jsx .a.js"},
		{"*", "a a.js", ".a d/a"},
		{"*.js", "a.js a.min.js", ".js .a.js d/a.js a.js/b"},
		{"?.js", "a.js é.js", "ab.js .js"},
		{".*", ".a .a.js", "a d/.a"},

		{"**", "a d/a d/e/a", ".a .d/a d/.a d/.e/a"},
		{"**/*.js", "a.js d/a.js d/e/a.js", "d/.a.js .d/a.js a.css"},
		{"d/**", "d/a d/e/a", "d e/d/a d/.a"},
		{"d/**/a", "d/a d/e/a d/e/f/a", "a d/b d/e/.f/a"},
		{"**/.a", ".a d/.a", "a d/.e/.a"},
		{"a**", "a ab", "a/b ab/c"},
		{"**/e/*.js", "e/a.js d/e/a.js", "d/a.js e/d/a.js"},

		{"{a,b}.js", "a.js b.js", "c.js {a,b}.js"},
		{"{,d/}*.js", "a.js d/a.js", "e/a.js d/e/a.js"},
		{"a{,.min}.{js,css}", "a.js a.min.js a.css a.min.css", "a a.min"},
		{"{a,{b,c}d}", "a bd cd", "b c ad"},
		{"{1..3}", "1 2 3", "0 4 1..3"},
		{"{08..10}", "08 09 10", "8 9"},
		{"{9..1..4}", "9 5 1", "8"},
		{"{a..e..2}", "a c e", "b d"},
		{"{a}", "{a}", "a"},
		{"{}", "{}", "a"},
		{"${a,b}", "${a,b}", "$a $b a"},
		{"{a,b", "{a,b", "a b"},
		{`\{a,b}`, "{a,b}", "a b"},

		{"[ab].js", "a.js b.js", "c.js ab.js [ab].js"},
		{"[a-c]", "a b c", "d -"},
		{"[!a-c]", "d - !", "a b .d .a"},
		{"[^a]", "b", "a ^a"},
		{"[]a]", "] a", "[]a]"},
		{"[a", "[a", "a"},
		{"[c-a]*", "[c-a] [c-a]x", "a b c"},
		{"[[:alpha:]]", "a] :] [] p]", "a b"}, // minimatch 3 has no named classes

		{"@(a|b).js", "a.js b.js", "c.js .js ab.js"},
		{"?(a|b).js", "a.js b.js", ".js ab.js"},
		{"+(a|b).js", "a.js ab.js bba.js", ".js ac.js"},
		{"*(a|b)c", "c abc aac", "adc"},
		{"*.@(woff|woff2)", "a.woff a.woff2", "a.ttf .woff d/a.woff"},
		{"*.js?(.map)", "a.js a.js.map", "a.map a.jsx"},
		{"a@(.b@(c|d)|e)", "a.bc a.bd ae", "a.b a"},
		{"@(.a|b)", "b", ".a"},
		{"@(a", "@(a", "a"},
		{"a|b", "a|b", "a b"},

		{"!(a)", "b ab", "a .b"},
		{"!(a|b)", "c ab", "a b .c"},
		{"**/!(*.d.ts)", "a.js d/a.ts", "a.d.ts d/a.d.ts .a"},
		{"!(*.min).js", "a.js min.js", "a.min.js a.min.js.js a.css"},
		{"a!(.min)*", "a", "a.min.js"},
		{"!(demos|lib)/**/*", "src/a src/b/a", "demos/a lib/b/a a"},
		{"!(plugins){,**/*}", "a.js d/a", "plugins plugins/a d/e/a"},
		{"!(plugins){,/**}", "a.js d/a d/e/a", "plugins plugins/a"},
		{"*.!(js|map)", "a.css a.js.map", "a.js a.map"},
		{"!(!(a))", "a", "b"},
		{"@(a)!(b)@(b)", "", "ab abb"}, // minimatch 3 makes no valid expression of it

		{"!a", "!a", "b"},
		{"#a", "#a", "a"},
		{`\*`, "*", "a"},
		{`a\b`, "ab", ""},
		{" a ", "a", ""},

		{"./a", "a", "d/a"},
		{"d//a", "d/a", ""},
		{"d/", "", "d d/a"},
		{"/a", "", "a"},
		{"../a", "", "a"},
		{"0.[0-7].*", "0.1.0 0.7.1-beta", "0.8.0 1.0.0"},
	}
	for _, test := range tests {
		g, err := Compile(test.pattern)
		if err != nil {
			t.Error(err)
			continue
		}
		for path := range strings.FieldsSeq(test.selects) {
			if !g.Match(path) {
				t.Errorf("%s should select %s", test.pattern, path)
			}
		}
		for path := range strings.FieldsSeq(test.leaves) {
			if g.Match(path) {
				t.Errorf("%s should not select %s", test.pattern, path)
			}
		}
	}
}

// TestUncleanPaths tries what is no path of a file.
func TestUncleanPaths(t *testing.T) {
	for _, pattern := range []string{"**", "*", ".*", ".*/*", "**/*", "a", "a/", "/a", "../a", "a/../b", ".", "[!a]", "?(.)?(.)/a"} {
		g, err := Compile(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"", "/", "/a", "a/", ".", "..", "./a", "../a", "a/..", "a/../b", "a//b", "../../x"} {
			if g.Match(path) {
				t.Errorf("%s selects %q", pattern, path)
			}
		}
	}
}

func TestManyNames(t *testing.T) {
	g, err := Compile("**/+(a|b)/**/c.js")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{14, 15, 16, 17, 30, 31, 32, 33, 200} {
		if path := strings.Repeat("x/", n/2) + "ab/" + strings.Repeat("y/", n/2) + "c.js"; !g.Match(path) {
			t.Errorf("%d names: not selected", n)
		}
		if path := strings.Repeat("x/", n) + "c.js"; g.Match(path) {
			t.Errorf("%d names: selected", n)
		}
	}
}

func ExampleGlob_Match() {
	g, err := Compile("**/!(*.d.ts|*.esm.js)")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, path := range []string{"dist/app.js", "dist/app.esm.js", "types/app.d.ts", "dist/.cache/app.js"} {
		fmt.Println(path, g.Match(path))
	}
	// Output:
	// dist/app.js true
	// dist/app.esm.js false
	// types/app.d.ts false
	// dist/.cache/app.js false
}
