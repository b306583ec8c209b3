package site

import (
	"bytes"
	"encoding/json"
	"html"
	"strings"
	"unicode"

	"github.com/larder-cdn/larder/api/library"
)

// importMap returns the markup with which a page imports a module by its name. The
// integrity stands in the map (https://html.spec.whatwg.org/#import-map-integrity-metadata-map),
// because an import statement has no place for it.
func importMap(name string, module library.Snippet) string {
	type pair map[string]string
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ") // and "<" is escaped, so that nothing ends the script element
	_ = e.Encode(struct {
		Imports   pair `json:"imports"`
		Integrity pair `json:"integrity"`
	}{pair{name: module.URL}, pair{module.URL: module.Integrity}}) // strings always encode
	quoted, _ := json.Marshal(name) // too
	return "<script type=\"importmap\">\n" + b.String() + "</script>\n" +
		"<script type=\"module\">\n  import * as " + identifier(name) + " from " + string(quoted) + ";\n</script>"
}

// modulePreload returns the tag that fetches a module before it is imported, and checks
// it where a browser does not know integrity in import maps.
func modulePreload(module library.Snippet) string {
	return `<link rel="modulepreload" href="` + html.EscapeString(module.URL) + `" integrity="` + html.EscapeString(module.Integrity) + `" crossorigin="anonymous">`
}

// identifier makes a name for a variable of a package's name.
func identifier(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		name = name[i+1:] // the scope
	}
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".js"), ".mjs")
	var b strings.Builder
	upper := false
	for _, r := range name {
		switch {
		case r < unicode.MaxASCII && (unicode.IsLetter(r) || r == '_' || r == '$' || unicode.IsDigit(r) && b.Len() > 0):
			if upper {
				r = unicode.ToUpper(r)
			}
			b.WriteRune(r)
			upper = false
		default:
			upper = b.Len() > 0
		}
	}
	if id := b.String(); id != "" && !reserved[id] {
		return id
	}
	return "library"
}

// reserved are the names that no variable of a module can have.
var reserved = func() map[string]bool {
	m := map[string]bool{}
	for _, word := range strings.Fields(`await break case catch class const continue debugger default delete do else enum export extends false
		finally for function if implements import in instanceof interface let new null package private protected public return static super
		switch this throw true try typeof var void while with yield arguments eval`) {
		m[word] = true
	}
	return m
}()
