package library

import (
	"html"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/logs/views"
)

// A Snippet is what a page needs of one file of a release: its address, and the
// tag that loads it.
type Snippet struct {
	URL       string // absolute, percent-encoded
	Integrity string // for the attribute of that name
	// HTML is the tag, "" for a file that no tag loads by itself: a font, an image,
	// a source map.
	HTML string
	Kind Kind
}

// NewSnippet returns the snippet of a file under an asset base, which is a URL
// without a slash at its end. It is the only place where tags are made, so that
// the pages, the commands and whatever comes next never differ.
func NewSnippet(assetBase, name, version string, f views.PublishedFile) Snippet {
	s := Snippet{URL: assetBase + AssetPath(name, version, f.Path), Integrity: f.SRI.String(), Kind: KindOf(f.Path, f.Module)}
	// Without crossorigin a browser refuses to check a file of another origin.
	check := ` integrity="` + html.EscapeString(s.Integrity) + `" crossorigin="anonymous"`
	url := html.EscapeString(s.URL)
	switch s.Kind {
	case Module:
		s.HTML = `<script type="module" src="` + url + `"` + check + `></script>`
	case Script:
		s.HTML = `<script src="` + url + `"` + check + `></script>`
	case Stylesheet:
		s.HTML = `<link rel="stylesheet" href="` + url + `"` + check + `>`
	}
	return s
}

// A Kind is how a page loads a file.
type Kind int

const (
	Other      Kind = iota // not by a tag
	Script                 // a classic script
	Module                 // an ES module
	Stylesheet             // CSS
)

// KindOf tells the kind of a file by its path, and by what its release's manifest says of
// its syntax.
func KindOf(file string, module bool) Kind {
	folder, name := path.Split(strings.ToLower(file))
	switch path.Ext(name) {
	case ".css":
		return Stylesheet
	case ".mjs":
		return Module
	case ".js":
		if module || saysModule(folder, name) {
			return Module
		}
		return Script
	}
	return Other
}

// saysModule reports whether a .js file names itself a module, as builds that ship
// both forms do: three.module.js, vue.esm-browser.prod.js, dist/esm/index.js. The
// manifest does not say so of files that were too large to be parsed. In a
// tag for classic scripts such a file is a syntax error; a classic script that is
// taken for a module by mistake mostly works.
func saysModule(folder, name string) bool {
	if slices.Contains(strings.Split(folder, "/"), "esm") {
		return true
	}
	parts := strings.Split(name, ".")
	return slices.ContainsFunc(parts[1:], func(part string) bool { // the first is what the file is about
		return part == "module" || part == "esm" || strings.HasPrefix(part, "esm-")
	})
}
