package main

import (
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// serveModules serves the modules of all releases of modulesPackage. change changes the bytes of a file after the API has named
// their integrity, and more names a further file.
func serveModules(t *testing.T, change func(file, text string) string, more ...string) *entrance {
	t.Helper()
	module := func(version, file string) string { return "export const version = '" + version + " " + file + "';\n" }
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.SplitN(r.URL.Path, "/", 6)
		if parts[1] == "ajax" {
			_, _ = fmt.Fprint(w, change(parts[5], module(parts[4], parts[5])))
			return
		}
		sri := map[string]string{"index.js": "sha512-x"}
		for _, file := range append([]string{"esm/index.mjs", "esm/more.mjs"}, more...) {
			sum := sha512.Sum512([]byte(module(parts[3], file)))
			sri[file] = "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"sri": sri})
	}))
	t.Cleanup(s.Close)
	return &entrance{name: s.URL, url: s.URL}
}

// TestJudgeModules tests that the check fails if a module has other bytes than the API says, another entrance has other
// modules, or there are none.
func TestJudgeModules(t *testing.T) {
	same := func(_, text string) string { return text }
	flip := func(file, text string) string {
		if file == "esm/more.mjs" {
			return strings.Replace(text, "more", "mode", 1)
		}
		return text
	}
	for name, tt := range map[string]struct {
		entrances []*entrance
		fault     string
	}{
		"right":   {[]*entrance{serveModules(t, same), serveModules(t, same)}, ""},
		"changed": {[]*entrance{serveModules(t, same), serveModules(t, flip)}, "and the API says"},
		"more":    {[]*entrance{serveModules(t, same), serveModules(t, same, "esm/a.mjs")}, "and the first entrance"},
		"none":    {nil, "no module was built"},
	} {
		p := &play{library: newLibrary(), registry: &registry{}, entrances: tt.entrances}
		p.registry.modules = []string{"1.0.0", "1.1.0"}
		if c := p.judgeModules(t.Context()); c.OK != (tt.fault == "") || !strings.Contains(c.Said, tt.fault) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestModulesStay tests that a module may not change, not even with its integrity.
func TestModulesStay(t *testing.T) {
	var n moduleNotes
	integrity := func(text string) string {
		sum := sha512.Sum512([]byte(text))
		return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
	}
	if err := n.add("/a", integrity("one"), []byte("one")); err != nil {
		t.Error(err)
	}
	if err := n.add("/a", integrity("two"), []byte("two")); causeOf(err) != wrongBytes {
		t.Error(err)
	}
}

// TestLoadModule tests that a client notes a module that is missing after it was there, and not before.
func TestLoadModule(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	p := &play{notes: newNotes(), registry: &registry{}}
	p.registry.modules = []string{"1.0.0"}
	e := &entrance{name: "one", url: s.URL}
	tr := p.transport(e)
	defer tr.CloseIdleConnections()
	random := rand.New(rand.NewPCG(1, 1))
	p.loadModule(t.Context(), tr, e, random, map[string]bool{})
	if len(p.notes.failures) > 0 {
		t.Error("a release that is not published yet is missing")
	}
	p.loadModule(t.Context(), tr, e, random, map[string]bool{"1.0.0": true})
	if len(p.notes.failures) != 1 || p.notes.failures[0].cause != notFound {
		t.Errorf("%+v", p.notes.failures)
	}
}
