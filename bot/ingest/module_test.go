package ingest

import "testing"

func TestMaybeModule(t *testing.T) {
	for script, want := range map[string]bool{
		"export const a = 1":                        true,
		"  export{a}":                               true,
		"var a;export{a as b}":                      true,
		"function a(){}export default a":            true,
		"import\"./a.js\"":                          true,
		"/* licence */import{a}from\"./a.js\"":      true,
		"console.log(import.meta.url)":              true,
		"":                                          false,
		"var exported = 1, importer = exported":     false,
		" * exports and imports nothing\nvar a = 1": false,
		"// we export everything":                   false,
		"import('./a.js')":                          false,
		"a.export = 1; b = {import: 2}":             false,
	} {
		if got := maybeModule([]byte(script)); got != want {
			t.Errorf("%q: %v, want %v", script, got, want)
		}
	}
}
