package npm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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

// compare tells where settings differ from what npm reads. npm's values are "?" where they are no string, boolean or null: Larder
// knows no such setting.
func compare(t *testing.T, text string, settings []setting, want map[string][]string) {
	t.Helper()
	lookup := func(name string) (string, bool) {
		value, ok := variables[name]
		return value, ok
	}
	got := make(map[string][]string)
	for _, s := range settings {
		key := expandReferences(s.key, lookup)
		got[key] = nil
		for _, value := range s.values {
			got[key] = append(got[key], expandReferences(value, lookup))
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

// recording is what npm's own reader makes of npmrcs, in their order. TestNpmrcRecording, with the build tag oracle, compares it
// with that reader.
var recording = filepath.Join("testdata", "npmrc.json")

func readRecording(t *testing.T) (want []map[string][]string) {
	t.Helper()
	data, err := os.ReadFile(recording)
	if err == nil {
		err = json.Unmarshal(data, &want)
	}
	if err != nil || len(want) != len(npmrcs) {
		t.Fatalf("%s has %d of %d files (%v); record them again, see testdata/README.md", recording, len(want), len(npmrcs), err)
	}
	return want
}

// TestNpmrc compares with npm's own reader.
func TestNpmrc(t *testing.T) {
	want := readRecording(t)
	for i, text := range npmrcs {
		settings, err := parseNpmrc("file", text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		compare(t, text, settings, want[i])
	}
}

func FuzzNpmrc(f *testing.F) {
	for _, text := range npmrcs {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		settings, err := parseNpmrc("file", text)
		if err != nil {
			if len(err.Error()) > len("file:123456: want key=value or a comment") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		settings = slices.DeleteFunc(settings, func(s setting) bool { return s.key == "cafile" }) // no file is to be opened
		c, err := newConfig(settings)
		if err == nil && (c.registry.Hostname() == "" || c.registry.User != nil) {
			t.Errorf("%q: the registry is %v", text, c.registry)
		}
	})
}
