package server

import "strings"

const (
	textPlain  = "text/plain; charset=utf-8"
	javaScript = "text/javascript; charset=utf-8" // RFC 9239
	octets     = "application/octet-stream"
)

// contentTypes is the Content-Type of each file name extension, in lower case.
// The list is ours, not the operating system's, so that every node gives the same
// answer: Linux says that .ts is a video. Text is UTF-8. Source code for which no
// type is registered, or none that browsers know, is text/plain.
var contentTypes = map[string]string{
	// Scripts and what belongs to them.
	"js":          javaScript,
	"mjs":         javaScript,
	"cjs":         javaScript,
	"map":         "application/json",
	"json":        "application/json",
	"json5":       "application/json5",
	"jsonld":      "application/ld+json",
	"geojson":     "application/geo+json",
	"topojson":    "application/json",
	"webmanifest": "application/manifest+json",
	"wasm":        "application/wasm",

	// Documents and styles.
	"css":      "text/css; charset=utf-8",
	"html":     "text/html; charset=utf-8",
	"htm":      "text/html; charset=utf-8",
	"xhtml":    "application/xhtml+xml",
	"xml":      "application/xml",
	"xsl":      "application/xml",
	"xslt":     "application/xml",
	"xsd":      "application/xml",
	"dtd":      "application/xml-dtd",
	"rss":      "application/rss+xml",
	"atom":     "application/atom+xml",
	"txt":      textPlain,
	"text":     textPlain,
	"log":      textPlain,
	"md":       "text/markdown; charset=utf-8",
	"markdown": "text/markdown; charset=utf-8",
	"csv":      "text/csv; charset=utf-8",
	"tsv":      "text/tab-separated-values; charset=utf-8",
	"ics":      "text/calendar; charset=utf-8",
	"vtt":      "text/vtt; charset=utf-8",
	"htc":      "text/x-component; charset=utf-8",
	"yaml":     "application/yaml",
	"yml":      "application/yaml",
	"toml":     "application/toml",
	"pdf":      "application/pdf",
	"rtf":      "application/rtf",

	// Source code.
	"ts":         textPlain,
	"mts":        textPlain,
	"cts":        textPlain,
	"tsx":        textPlain,
	"jsx":        textPlain,
	"es6":        javaScript,
	"coffee":     textPlain,
	"litcoffee":  textPlain,
	"ls":         textPlain,
	"vue":        textPlain,
	"svelte":     textPlain,
	"less":       textPlain,
	"sass":       textPlain,
	"scss":       textPlain,
	"styl":       textPlain,
	"hbs":        textPlain,
	"handlebars": textPlain,
	"mustache":   textPlain,
	"ejs":        textPlain,
	"pug":        textPlain,
	"jade":       textPlain,
	"tmpl":       textPlain,
	"tpl":        textPlain,
	"flow":       textPlain,
	"glsl":       textPlain,
	"vert":       textPlain,
	"frag":       textPlain,
	"wgsl":       textPlain,
	"graphql":    textPlain,
	"sql":        textPlain,
	"py":         textPlain,
	"rb":         textPlain,
	"php":        textPlain,
	"as":         textPlain,
	"sh":         textPlain,
	"properties": textPlain,
	"ini":        textPlain,
	"conf":       textPlain,
	"po":         textPlain,
	"pot":        textPlain,
	"ftl":        textPlain,
	"bnf":        textPlain,
	"appcache":   "text/cache-manifest; charset=utf-8",

	// Images.
	"svg":  "image/svg+xml",
	"png":  "image/png",
	"apng": "image/apng",
	"jpg":  "image/jpeg",
	"jpeg": "image/jpeg",
	"gif":  "image/gif",
	"webp": "image/webp",
	"avif": "image/avif",
	"ico":  "image/x-icon",
	"cur":  "image/x-icon",
	"bmp":  "image/bmp",
	"tif":  "image/tiff",
	"tiff": "image/tiff",
	"jxl":  "image/jxl",
	"ktx2": "image/ktx2",
	"hdr":  "image/vnd.radiance",

	// Fonts (RFC 8081).
	"woff":  "font/woff",
	"woff2": "font/woff2",
	"ttf":   "font/ttf",
	"otf":   "font/otf",
	"ttc":   "font/collection",
	"eot":   "application/vnd.ms-fontobject",

	// Sound, video, models.
	"mp3":  "audio/mpeg",
	"ogg":  "audio/ogg",
	"oga":  "audio/ogg",
	"opus": "audio/ogg",
	"wav":  "audio/wav",
	"m4a":  "audio/mp4",
	"aac":  "audio/aac",
	"flac": "audio/flac",
	"mid":  "audio/midi",
	"weba": "audio/webm",
	"mp4":  "video/mp4",
	"m4v":  "video/mp4",
	"webm": "video/webm",
	"ogv":  "video/ogg",
	"mov":  "video/quicktime",
	"glb":  "model/gltf-binary",
	"gltf": "model/gltf+json",
	"obj":  "model/obj",
	"mtl":  "model/mtl",
	"stl":  "model/stl",

	// Archives and others.
	"zip": "application/zip",
	"gz":  "application/gzip",
	"tgz": "application/gzip",
	"tar": "application/x-tar",
	"swf": "application/x-shockwave-flash",
}

// contentType returns the Content-Type of the file at path. Without a known
// extension it is application/octet-stream, which no browser runs or shows.
func contentType(path string) string {
	name := path[strings.LastIndexByte(path, '/')+1:]
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return octets
	}
	if t, ok := contentTypes[strings.ToLower(name[dot+1:])]; ok {
		return t
	}
	return octets
}
