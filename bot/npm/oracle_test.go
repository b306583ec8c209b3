//go:build oracle

package npm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dop251/goja"
)

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

// readByNpm returns what npm's own reader makes of text.
func readByNpm(t *testing.T, read func(string, map[string]string) string, text string) (want map[string][]string) {
	t.Helper()
	if err := json.Unmarshal([]byte(read(text, variables)), &want); err != nil {
		t.Fatal(err)
	}
	return want
}

// TestNpmrcRecording compares the recording with npm's own reader. LARDER_TEST_RECORD=1 writes it.
func TestNpmrcRecording(t *testing.T) {
	read := newOracle(t)
	var want []map[string][]string
	for _, text := range npmrcs {
		want = append(want, readByNpm(t, read, text))
	}
	if os.Getenv("LARDER_TEST_RECORD") != "" {
		data, err := json.MarshalIndent(want, "", "\t")
		if err == nil {
			err = os.WriteFile(recording, append(data, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := readRecording(t); !reflect.DeepEqual(got, want) {
		t.Errorf("%s has %q; npm reads %q", recording, got, want)
	}
}

// FuzzNpmrcLikeNpm compares with npm's own reader. npm reads what is no UTF-8 in another way, and its lines end at U+2028, too.
func FuzzNpmrcLikeNpm(f *testing.F) {
	for _, text := range npmrcs {
		f.Add(text)
	}
	read := newOracle(f)
	f.Fuzz(func(t *testing.T, text string) {
		settings, err := parseNpmrc("file", text)
		if err == nil && utf8.ValidString(text) && !strings.ContainsAny(text, "\u2028\u2029") {
			compare(t, text, settings, readByNpm(t, read, text))
		}
	})
}
