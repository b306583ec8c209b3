package glob

import (
	"bufio"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dop251/goja"
)

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
	var patterns []string
	for i, pattern := range readPatterns(t) {
		// The oracle takes nearly all the time, and it has no races.
		if !raceDetector || i%20 == 0 {
			patterns = append(patterns, pattern)
		}
	}
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
	if raceDetector {
		patterns = 50
	}
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
