package npm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dop251/goja"
)

// npmrcs are files that try the dialect.
var npmrcs = []string{
	"registry=https://mirror.example/npm/\n@team:registry = https://team.example/\n//team.example/:_authToken=${TOKEN}\n",
	"; comment\n  # comment\n\na = b\r\nc=d\re=f\n",
	"a=b ; comment\nb=b#comment\nc=b\\;c\nd=b\\#c\ne=b\\\\c\nf=C:\\x\ng=b\\\nh=c",
	"a=\"b c\"\nb='b c'\nc=\"b\\nc\"\nd=\"b;c\"\ne='b;c'\nf=\"x\" ; y\ng=\"x\nh='x\ni=\"\"\nj=''\nk=\"\nl='\nm='\"b\"'",
	"ca[]=\"A\\nB\"\nca[] = \"C\"\nk=1\nk[]=2\nl[]=1\nl=2\n[]=3\na=1\na=2",
	"a=`b\nb=`b`\nc=\"\"\"b\nd=\"\"\"b\"\"\"\n`e`=b\n\"f g\"=c\n-=b\n!h=b\ni=%(b)s",
	"\ufeffa=b\n\u00a0c\u00a0=\u00a0d\ne==f\ng=h=i\nj:k=l\nm.n=o\np=true\nq=false\nr=null\ns=",
	"a=b\n[s]\nb=c\n[t]\na=d",
	"[s=1\n[t] =2\n [u]=3",
	"a=${A}\nb=\\${A}\nc=\\\\${A}\nd=${NONE}\ne=${NONE?}\nf=${A?}x${B}\n${A}=g\nh=$A\ni=${}\nj=${${A}}\nk=${A}\\${A}",
}

// variables are the environment of npmrcs.
var variables = map[string]string{"A": "1", "B": "2"}

// newOracle gives npm's own reader of .npmrc files.
func newOracle(t testing.TB) (read func(text string, variables map[string]string) string) {
	t.Helper()
	vm := goja.New()
	for name, as := range map[string]string{"ini.js": "ini", "env-replace.js": "expand"} {
		source, err := os.ReadFile(filepath.Join("testdata", "npm", name))
		if err != nil {
			t.Fatal(err)
		}
		vm.Set("source", string(source))
		if _, err := vm.RunString("var module = {exports: {}}; new Function('module', source)(module); var " + as + " = module.exports"); err != nil {
			t.Fatal(err)
		}
	}
	// A string is given as it is; "?" stands for numbers and objects, which are no settings that Larder knows.
	_, err := vm.RunString(`function read(text, variables) {
		const found = ini.parse(text), settings = {}
		const one = v => typeof v === 'string' ? expand(v, variables) : v === null || typeof v === 'boolean' ? String(v) : '?'
		for (const key of Object.keys(found)) {
			const v = found[key]
			settings[expand(key, variables)] = Array.isArray(v) ? v.map(one) : [one(v)]
		}
		return JSON.stringify(settings)
	}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := vm.ExportTo(vm.Get("read"), &read); err != nil {
		t.Fatal(err)
	}
	return read
}

func compare(t *testing.T, text string, settings []setting, oracle func(string, map[string]string) string) {
	t.Helper()
	want := make(map[string][]string)
	if err := json.Unmarshal([]byte(oracle(text, variables)), &want); err != nil {
		t.Fatal(err)
	}
	lookup := func(name string) (string, bool) {
		value, ok := variables[name]
		return value, ok
	}
	got := make(map[string][]string)
	for _, s := range settings {
		key := expand(s.key, lookup)
		got[key] = nil
		for _, value := range s.values {
			got[key] = append(got[key], expand(value, lookup))
		}
	}
	for key := range want {
		if !slices.Contains(want[key], "?") && !slices.Equal(got[key], want[key]) {
			t.Errorf("%q: %q is %q; npm reads %q", text, key, got[key], want[key])
		}
		delete(got, key)
	}
	delete(got, "__proto__")
	for key, values := range got {
		if strings.Contains(key, ".") && slices.Equal(values, []string{"null"}) {
			continue // npm takes it for a section
		}
		t.Errorf("%q: %q is %q; npm knows nothing of it", text, key, values)
	}
}

// TestNpmrc compares with npm's own reader.
func TestNpmrc(t *testing.T) {
	oracle := newOracle(t)
	for _, text := range npmrcs {
		settings, err := parseNpmrc("file", text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		compare(t, text, settings, oracle)
	}
}

func FuzzNpmrc(f *testing.F) {
	for _, text := range npmrcs {
		f.Add(text)
	}
	oracle := newOracle(f)
	f.Fuzz(func(t *testing.T, text string) {
		settings, err := parseNpmrc("file", text)
		if err != nil {
			if len(err.Error()) > len("file:123456: want key=value or a comment") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		// npm reads what is no UTF-8 in another way, and its lines end at U+2028, too.
		if utf8.ValidString(text) && !strings.ContainsAny(text, "\u2028\u2029") {
			compare(t, text, settings, oracle)
		}
		settings = slices.DeleteFunc(settings, func(s setting) bool { return s.key == "cafile" }) // no file is to be opened
		c, err := newConfig(settings)
		if err == nil && (c.registry.Hostname() == "" || c.registry.User != nil) {
			t.Errorf("%q: the registry is %v", text, c.registry)
		}
	})
}
