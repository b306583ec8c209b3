package browsertest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// elsewhere serves a user's own page, on another origin than the instance. The
// page notes in window.refused what the browser would not load.
func elsewhere(t *testing.T, markup string) *httptest.Server {
	t.Helper()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, `<!doctype html><html lang="en"><title>A user's page</title>
<link rel="icon" href="data:,">
<script>addEventListener("error", e => { window.refused = e.target.src ?? e.target.href ?? e.message }, true)</script>
`+markup)
	}))
	t.Cleanup(site.Close)
	return site
}

// paste copies what a button gives and opens a page elsewhere that is made of it.
func paste(t *testing.T, library, button string, markup func(copied string) string) *tab {
	t.Helper()
	b := newTab(t)
	b.allowClipboard()
	b.visit(library)
	site := elsewhere(t, markup(b.copied(button)))
	b.allow(site.URL)
	b.visit(site.URL + "/")
	return b
}

// tampered changes the first integrity in some markup.
func tampered(t *testing.T, markup string) string {
	t.Helper()
	before, after, ok := strings.Cut(markup, "sha512-")
	if !ok {
		t.Fatalf("there is no integrity in %s", markup)
	}
	other := "A"
	if after[:1] == other {
		other = "B"
	}
	return before + "sha512-" + other + after[1:]
}

const (
	scriptTag = `^Copy tag for pickle\.min\.js$`
	styleTag  = `^Copy tag for css/shelf\.min\.css$`
	moduleTag = `^Copy tag for preserve\.mjs$`
	importMap = `^Copy import map for preserve\.mjs$`
)

func TestScriptElsewhere(t *testing.T) {
	t.Parallel()
	b := paste(t, "/library/pickle/2.0.0", scriptTag, func(copied string) string { return copied })
	b.until(`window.pickle?.version === "2.0.0"`)
}

func TestTamperedScriptElsewhere(t *testing.T) {
	t.Parallel()
	b := paste(t, "/library/pickle/2.0.0", scriptTag, func(copied string) string { return tampered(t, copied) })
	b.tolerate("(?i)integrity|digest")
	b.until(`window.refused?.endsWith("/pickle.min.js")`)
	if eval[bool](b, "'pickle' in window") {
		t.Error("a script ran whose integrity is another")
	}
}

func TestStyleElsewhere(t *testing.T) {
	t.Parallel()
	b := paste(t, "/library/shelf-css/3.2.1", styleTag, func(copied string) string {
		return copied + `<div class="shelf"><p class="jar">Plum</p><p class="mark">A</p></div>`
	})
	b.until(`getComputedStyle(document.querySelector(".shelf")).borderBottomWidth === "7px"`)
	// What the style sheet loads has to be allowed to other origins too, fonts above all.
	b.until(`document.fonts.ready.then(fonts => Array.from(fonts).some(f => f.family.includes("Shelf Marks") && f.status === "loaded"))`)
}

func TestTamperedStyleElsewhere(t *testing.T) {
	t.Parallel()
	b := paste(t, "/library/shelf-css/3.2.1", styleTag, func(copied string) string {
		return tampered(t, copied) + `<div class="shelf"></div>`
	})
	b.tolerate("(?i)integrity|digest")
	b.until(`window.refused?.endsWith("/shelf.min.css")`)
	b.until(`getComputedStyle(document.querySelector(".shelf")).borderBottomWidth === "0px"`)
}

func TestModuleElsewhere(t *testing.T) {
	t.Parallel()
	b := paste(t, "/library/preserve/1.1.0", moduleTag, func(copied string) string {
		return copied + `<script type="module">addEventListener("load", () => { window.loaded = true })</script>`
	})
	b.until("window.loaded")
}

// keeps imports what the import map names, in a module after the one that comes with it.
const keeps = `<script type="module">import { preserve, version } from "preserve"; window.kept = preserve(version).content</script>`

func TestImportMapElsewhere(t *testing.T) {
	t.Parallel()
	b := paste(t, "/library/preserve/1.1.0", importMap, func(copied string) string { return copied + keeps })
	b.until(`window.kept === "1.1.0"`)
}

func TestTamperedImportMapElsewhere(t *testing.T) {
	t.Parallel()
	b := paste(t, "/library/preserve/1.1.0", importMap, func(copied string) string { return tampered(t, copied) + keeps })
	b.tolerate("(?i)integrity|digest")
	b.wait("a refusal", func() bool { return b.complained("(?i)integrity|digest") })
	if eval[bool](b, "'kept' in window") {
		t.Error("a module ran whose integrity is another")
	}
}
