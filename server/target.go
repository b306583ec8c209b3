package server

import (
	"cmp"
	"errors"
	"net/http"
	"path"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
)

// Prefix is where assets are: Prefix + package + "/" + version + "/" + path.
const Prefix = "/ajax/libs/"

// errNoFile says that a path names no file.
var errNoFile = errors.New("the path names no file")

// A target is the file that a request names.
type target struct {
	pkg, version, path string
	// key is the three joined by slashes. It is unambiguous, because neither
	// of the first two holds one.
	key string
}

// Route returns a handler that passes requests for assets to assets, and all others to rest. Unlike http.ServeMux it leaves every path as it is.
// Paths that only resemble those of assets go to assets, too, which responds 404 or 400: an encoded prefix, superfluous slashes, or dots that lead
// there. So sites that get their URLs slightly wrong get the same kind of errors as for assets: scripts may read them, and no cache stores them for
// long.
func Route(assets, rest http.Handler) http.Handler {
	return routeIf(resemblesAsset, assets, rest)
}

// routeIf returns a handler that passes requests whose path, percent-decoded, matches to one handler, and others to rest.
func routeIf(matches func(path string) bool, matching, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if matches(r.URL.Path) {
			matching.ServeHTTP(w, r)
		} else {
			rest.ServeHTTP(w, r)
		}
	})
}

// resemblesAsset reports whether a path, percent-decoded, is /ajax or below it after superfluous slashes and dots are removed.
func resemblesAsset(decoded string) bool {
	if strings.HasPrefix(decoded, Prefix) {
		return true
	}
	clean := path.Clean("/" + decoded)
	return clean == "/ajax" || strings.HasPrefix(clean, "/ajax/")
}

// parseTarget parses the path of a request, percent-encoded as the client sent it, into package, version and file path. It returns
// [text.ErrMalformedPath] for a path that could lead out of its version, and errNoFile for any other path that cannot name a file.
func parseTarget(escaped string) (t target, _ error) {
	key, ok := strings.CutPrefix(escaped, Prefix)
	if !ok {
		return target{}, errNoFile
	}
	pkg, rest, _ := strings.Cut(key, "/")
	version, file, _ := strings.Cut(rest, "/")
	var errPkg, errVersion, errFile error
	t.pkg, errPkg = text.DecodePathName(pkg)
	t.version, errVersion = text.DecodePathName(version)
	t.path, errFile = text.DecodePathFile(file)
	switch {
	case errPkg == text.ErrMalformedPath, errVersion == text.ErrMalformedPath, errFile == text.ErrMalformedPath:
		return target{}, text.ErrMalformedPath
	case errPkg != nil, errVersion != nil, errFile != nil:
		return target{}, errNoFile
	}
	if t.key = key; strings.IndexByte(key, '%') >= 0 {
		t.key = t.pkg + "/" + t.version + "/" + t.path
	}
	return t, nil
}

// clone returns a copy of the target that shares no memory with the request, so that it may outlive that.
func (t target) clone() target {
	t.key = strings.Clone(t.key)
	if n := len(t.pkg) + 1 + len(t.version) + 1; n+len(t.path) == len(t.key) { // else it names no file
		t.pkg, t.version, t.path = t.key[:len(t.pkg)], t.key[len(t.pkg)+1:n-1], t.key[n:]
	}
	return t
}

const (
	textPlain  = "text/plain; charset=utf-8"
	javaScript = "text/javascript; charset=utf-8" // RFC 9239
	octets     = "application/octet-stream"
)

// contentTypes is the Content-Type of each file name extension, in lower case.
// The list is ours, not the operating system's, so that every node gives the same
// answer: Linux says that .ts is a video. Text is UTF-8. Source code for which no
// type is registered, or none that browsers know, is text/plain.
var contentTypes = func() map[string]string {
	types := make(map[string]string)
	for contentType, extensions := range map[string]string{
		javaScript:                  "js mjs cjs es6",
		"application/json":          "map json topojson",
		"application/json5":         "json5",
		"application/ld+json":       "jsonld",
		"application/geo+json":      "geojson",
		"application/manifest+json": "webmanifest",
		"application/wasm":          "wasm",
		"text/css; charset=utf-8":   "css",
		"text/html; charset=utf-8":  "html htm",
		"application/xhtml+xml":     "xhtml",
		"application/xml":           "xml xsl xslt xsd",
		"application/xml-dtd":       "dtd",
		"application/rss+xml":       "rss",
		"application/atom+xml":      "atom",
		textPlain: "txt text log ts mts cts tsx jsx coffee litcoffee ls vue svelte less sass scss styl hbs " +
			"handlebars mustache ejs pug jade tmpl tpl flow glsl vert frag wgsl graphql sql py rb php as sh " +
			"properties ini conf po pot ftl bnf",
		"text/markdown; charset=utf-8":             "md markdown",
		"text/csv; charset=utf-8":                  "csv",
		"text/tab-separated-values; charset=utf-8": "tsv",
		"text/calendar; charset=utf-8":             "ics",
		"text/vtt; charset=utf-8":                  "vtt",
		"text/x-component; charset=utf-8":          "htc",
		"application/yaml":                         "yaml yml",
		"application/toml":                         "toml",
		"application/pdf":                          "pdf",
		"application/rtf":                          "rtf",
		"text/cache-manifest; charset=utf-8":       "appcache",
		"image/svg+xml":                            "svg",
		"image/png":                                "png",
		"image/apng":                               "apng",
		"image/jpeg":                               "jpg jpeg",
		"image/gif":                                "gif",
		"image/webp":                               "webp",
		"image/avif":                               "avif",
		"image/x-icon":                             "ico cur",
		"image/bmp":                                "bmp",
		"image/tiff":                               "tif tiff",
		"image/jxl":                                "jxl",
		"image/ktx2":                               "ktx2",
		"image/vnd.radiance":                       "hdr",
		"font/woff":                                "woff",
		"font/woff2":                               "woff2",
		"font/ttf":                                 "ttf",
		"font/otf":                                 "otf",
		"font/collection":                          "ttc",
		"application/vnd.ms-fontobject":            "eot",
		"audio/mpeg":                               "mp3",
		"audio/ogg":                                "ogg oga opus",
		"audio/wav":                                "wav",
		"audio/mp4":                                "m4a",
		"audio/aac":                                "aac",
		"audio/flac":                               "flac",
		"audio/midi":                               "mid",
		"audio/webm":                               "weba",
		"video/mp4":                                "mp4 m4v",
		"video/webm":                               "webm",
		"video/ogg":                                "ogv",
		"video/quicktime":                          "mov",
		"model/gltf-binary":                        "glb",
		"model/gltf+json":                          "gltf",
		"model/obj":                                "obj",
		"model/mtl":                                "mtl",
		"model/stl":                                "stl",
		"application/zip":                          "zip",
		"application/gzip":                         "gz tgz",
		"application/x-tar":                        "tar",
		"application/x-shockwave-flash":            "swf",
	} {
		for _, extension := range strings.Fields(extensions) {
			types[extension] = contentType
		}
	}
	return types
}()

// contentType returns the Content-Type for a file, by the extension of its path. Without a known extension that is application/octet-stream, which no
// browser runs or shows.
func contentType(file string) string {
	extension := strings.TrimPrefix(path.Ext(file), ".")
	return cmp.Or(contentTypes[strings.ToLower(extension)], octets)
}
