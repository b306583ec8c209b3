package site

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/server/negotiate"
)

//go:embed assets
var embeddedFiles embed.FS

// files are what pages load: a style sheet, scripts, the mark.
type files struct {
	byPath map[string]*file  // as requested
	paths  map[string]string // by name in the folder
}

// A file never changes under its path, because that holds the hash of its bytes.
type file struct {
	contentType string
	tag         string // opaque part of the entity tag
	forms       []negotiate.Form
	bodies      [][]byte // beside forms
}

var fileTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

func loadFiles() (*files, error) {
	loaded := &files{byPath: map[string]*file{}, paths: map[string]string{}}
	entries, err := fs.ReadDir(embeddedFiles, "assets")
	if err != nil {
		return nil, fmt.Errorf("site: couldn't list the embedded files: %w", err)
	}
	for _, e := range entries {
		data, err := embeddedFiles.ReadFile("assets/" + e.Name())
		if err != nil {
			return nil, fmt.Errorf("site: couldn't read the embedded file %s: %w", e.Name(), err)
		}
		sum := sha256.Sum256(data)
		hash := hex.EncodeToString(sum[:6])
		ext := path.Ext(e.Name())
		f := &file{contentType: fileTypes[ext], tag: hash}
		for _, c := range []coding.Coding{coding.Identity, coding.Gzip, coding.Brotli} {
			body, err := coding.Encode(c, coding.Quick, data)
			if err != nil {
				return nil, fmt.Errorf("site: the embedded file %s: %w", e.Name(), err)
			}
			if c == coding.Identity || coding.Worthwhile(len(data), len(body)) {
				f.forms = append(f.forms, negotiate.Form{Coding: c, Length: int64(len(body))})
				f.bodies = append(f.bodies, body)
			}
		}
		p := "/site/" + strings.TrimSuffix(e.Name(), ext) + "." + hash + ext
		loaded.paths[e.Name()], loaded.byPath[p] = p, f
	}
	return loaded, nil
}

// path returns where a page finds the embedded file with that name.
func (f *files) path(name string) (string, error) {
	p, ok := f.paths[name]
	if !ok {
		return "", fmt.Errorf("site: there is no embedded file %s", name)
	}
	return p, nil
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	setSafety(h)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	form := max(negotiate.ParseAcceptEncoding(r.Header["Accept-Encoding"]).Choose(f.forms), 0) // identity where nothing is acceptable
	tag := f.tag
	if c := f.forms[form].Coding; c != coding.Identity {
		tag += "-" + c.String()
		h.Set("Content-Encoding", c.String())
	}
	tag = `"` + tag + `"`
	h.Set("ETag", tag)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	if !negotiate.NoneMatch(r.Header["If-None-Match"], tag) {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", f.contentType)
	h.Set("Content-Length", strconv.Itoa(len(f.bodies[form])))
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = w.Write(f.bodies[form]) // a client that has gone needs no answer
	}
}
