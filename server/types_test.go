package server

import (
	"mime"
	"strings"
	"testing"
)

func TestContentType(t *testing.T) {
	for path, want := range map[string]string{
		"a.js": "text/javascript; charset=utf-8", "a.min.mjs": "text/javascript; charset=utf-8", "a.cjs": "text/javascript; charset=utf-8",
		"a.js.map": "application/json", "a.json": "application/json", "a.css": "text/css; charset=utf-8", "a.html": "text/html; charset=utf-8",
		"a.txt": "text/plain; charset=utf-8", "a.d.ts": "text/plain; charset=utf-8", "a.svg": "image/svg+xml", "a.woff": "font/woff", "a.woff2": "font/woff2",
		"a.wasm": "application/wasm", "a.xml": "application/xml", "A.JS": "text/javascript; charset=utf-8", "dir.js/file": octets, "LICENSE": octets, "a.": octets, "a.unknown": octets, ".js": "text/javascript; charset=utf-8",
		"a.js/b.css": "text/css; charset=utf-8",
	} {
		if got := contentType(path); got != want {
			t.Errorf("contentType(%q) = %q, want %q", path, got, want)
		}
	}
}

func TestContentTypesAreWellFormed(t *testing.T) {
	for extension, value := range contentTypes {
		kind, parameters, err := mime.ParseMediaType(value)
		if err != nil {
			t.Errorf("%s: %v", extension, err)
		}
		if strings.HasPrefix(kind, "text/") != (parameters["charset"] == "utf-8") {
			t.Errorf("%s: %q: text, and nothing else, says that it is UTF-8", extension, value)
		}
		if extension != strings.ToLower(extension) {
			t.Errorf("%s is not in lower case", extension)
		}
	}
}
