//go:build oracle

package glob

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/dop251/goja"
)

// corpus are paths as releases have them, and versions: some patterns are for those.
var corpus = strings.Fields(`
	index.js index.min.js index.js.map index.min.js.map index.d.ts index.mjs index.cjs index.es.js index.esm.js index.common.js
	LICENSE README.md package.json .npmignore .eslintrc.js dist/.gitkeep dist/.hidden/a.js
	css/style.css css/style.min.css css/style.css.map scss/_mixins.scss less/a.less style.css.gz a.br
	dist/app.js dist/app.min.js dist/umd/app.js dist/esm/index.js dist/locale/de.js dist/fonts/a.woff2 fonts/a.eot
	img/a.png images/icons/a.svg src/a.ts test/a.test.js demo/index.html docs/a/b/c.txt examples/a.html
	lib/a/b/c/d.js i18n/de-DE.json jquery.js jquery.ui.core.min.js plugins/a/plugin.js es/a.js node_modules/a/a.js
	1.0.0 0.0.4 1.10.2 2.0.0-beta.1 2.0.0b3 3.0.0-rc.1 1.0.0-alpha.3 v1.2.3 0.7.1 20130101 1.5.0 12.0.0`)

// An oracle is minimatch 3 itself, with the options that node-glob 7 gives it.
type oracle struct {
	vm     *goja.Runtime
	choose goja.Callable
}

// newOracle loads the modules from testdata, unchanged.
func newOracle(t testing.TB) *oracle {
	t.Helper()
	o := &oracle{vm: goja.New()}
	sources := o.vm.NewObject()
	for _, name := range []string{"minimatch", "brace-expansion", "balanced-match", "concat-map"} {
		source, err := os.ReadFile(filepath.Join("testdata", "minimatch", name+".js"))
		if err != nil {
			t.Fatal(err)
		}
		sources.Set(name, string(source))
	}
	o.vm.Set("sources", sources)
	_, err := o.vm.RunString(`
		var loaded = {};
		function require(name) {
			if (!(name in sources)) throw new Error('no module ' + name);
			if (!(name in loaded)) {
				var module = loaded[name] = {exports: {}};
				new Function('module', 'exports', 'require', sources[name])(module, module.exports, require);
			}
			return loaded[name].exports;
		}
		var Minimatch = require('minimatch').Minimatch;
		function choose(pattern, paths) {
			var m = new Minimatch(pattern, {nonegate: true, nocomment: true, dot: false, allowWindowsEscape: false});
			var answers = '';
			for (var i = 0; i < paths.length; i++) answers += m.match(paths[i]) ? '1' : '0';
			return answers;
		}`)
	if err != nil {
		t.Fatal(err)
	}
	o.choose, _ = goja.AssertFunction(o.vm.Get("choose"))
	return o
}

// match tells for each path whether minimatch matches it.
func (o *oracle) match(pattern string, paths []string) ([]bool, error) {
	list := make([]any, len(paths))
	for i, path := range paths {
		list[i] = path
	}
	answer, err := o.choose(goja.Undefined(), o.vm.ToValue(pattern), o.vm.NewArray(list...))
	if err != nil {
		return nil, err
	}
	out := make([]bool, len(paths))
	for i, c := range answer.String() {
		out[i] = c == '1'
	}
	return out, nil
}

// TestPatternsInUse compares every pattern of the public catalogue with minimatch.
// Set GLOB_PATHS to try more paths for each than the default. LARDER_TEST_WHOLE=1 tries
// 60, and the whole corpus with each pattern instead of an eighth of it in turn.
func TestPatternsInUse(t *testing.T) {
	otherwise, share := 12, 8
	if os.Getenv("LARDER_TEST_WHOLE") != "" {
		otherwise, share = 60, 1
	}
	perPattern := intFromEnvironment(t, "GLOB_PATHS", otherwise)
	o := newOracle(t)
	patterns := readPatterns(t)
	var compared, matched, differences, unmatched int
	for turn, pattern := range patterns {
		g, err := Compile(pattern)
		if err != nil {
			t.Error(err)
			continue
		}
		paths := candidates(pattern, perPattern)
		for i := turn % share; i < len(corpus); i += share {
			paths = append(paths, corpus[i])
		}
		want, err := o.match(pattern, paths)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(want, true) {
			unmatched++
		}
		for i, path := range paths {
			compared++
			if want[i] {
				matched++
			}
			if got := g.Match(path); got != want[i] {
				if differences++; differences <= 50 {
					t.Errorf("Compile(%q).Match(%q) = %v, minimatch says %v", pattern, path, got, want[i])
				}
			}
		}
	}
	t.Logf("%d patterns, %d paths compared, %d of them selected, %d differences; %d patterns selected none",
		len(patterns), compared, matched, differences, unmatched)
}

// TestPatternsMadeUp strings together pieces of the syntax: hardly a sensible
// pattern among them, but every way in which one piece can end up in another. Set
// GLOB_PATTERNS to make up more.
func TestPatternsMadeUp(t *testing.T) {
	pieces := strings.Fields(`a b ab . .js * ? ** / / @( +( !( ?( *( | ) ) ) [a-b] [!a] {a,b} { } , [ ] {1..3} - \\ ! ( + @ [b-a] {a,{b,}} ^ é`)
	names := strings.Fields(`a b ab ba aab .a a.js b.js a.b.js .js abab 1 2 {a} (a) a|b [a] !a a+ @ - ( ) a) a(b) * é aé`)
	s := sampler{rand.New(rand.NewPCG(1, 2))}
	var paths []string
	for _, name := range names {
		paths = append(paths, name, name+"/"+s.pick(names), name+"/"+s.pick(names)+"/"+s.pick(names))
	}
	compared, patterns := 0, intFromEnvironment(t, "GLOB_PATTERNS", 300)
	o := newOracle(t)
	for n := 0; n < patterns; {
		var b strings.Builder
		for range 1 + s.IntN(8) {
			b.WriteString(s.pick(pieces))
		}
		pattern := b.String()
		if explodes(pattern) || differs(pattern) {
			continue
		}
		g, err := Compile(pattern)
		if err != nil {
			continue
		}
		n++
		want, err := o.match(pattern, paths)
		if err != nil {
			t.Fatal(err)
		}
		for i, path := range paths {
			compared++
			if got := g.Match(path); got != want[i] {
				t.Errorf("Compile(%q).Match(%q) = %v, minimatch says %v", pattern, path, got, want[i])
			}
		}
	}
	t.Logf("%d patterns, %d paths compared", patterns, compared)
}

func intFromEnvironment(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
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
