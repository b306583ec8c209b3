package packages

import (
	"cmp"
	"net/url"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
)

// A CDNAddress is what the URL of a file at a public CDN says about it. Nothing says that the file exists.
type CDNAddress struct {
	// Library is the name of the library at cdnjs, and File the path in its release; "" if the URL names an npm package alone.
	Library string `json:"library,omitempty"`
	File    string `json:"file,omitempty"`
	// NPM is the name of the npm package, and NPMFile the path in it; "" if the URL names a library of cdnjs alone.
	NPM     string `json:"npm,omitempty"`
	NPMFile string `json:"npmFile,omitempty"`
	// Version is as the URL has it: a version, or "", a tag or a range of versions.
	Version string `json:"version,omitempty"`
}

// CDNURL matches the beginning of a URL at a CDN that [ParseCDNAddress] reads, and what may be its path.
var CDNURL = text.NewRegexp(`(?i)(?:https?:)?//(?:cdnjs\.cloudflare\.com|[a-z0-9-]+\.jsdelivr\.net|unpkg\.com|code\.jquery\.com|ajax\.googleapis\.com)\b[^\s"'<>()\\;,]*`)

// exactVersion matches versions of npm packages, as opposed to tags and ranges.
var exactVersion = text.NewRegexp(`^\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.+-]+)?$`)

// IsExact reports whether the address names one release, rather than the newest one of a tag or range. The version of an npm
// package must have three numbers for that; for a library alone, any valid version does.
func (a CDNAddress) IsExact() bool {
	return ValidVersion(a.Version) && (a.NPM == "" || exactVersion.MatchString(a.Version))
}

// String returns what a person calls the release: NAME@VERSION, or only NAME if the URL has no version. NAME is that of the library
// at cdnjs, else that of the npm package.
func (a CDNAddress) String() string {
	name := cmp.Or(a.Library, a.NPM)
	if a.Version != "" {
		name += "@" + a.Version
	}
	return name
}

// googleNames are the names of libraries at Google's CDN that cdnjs calls otherwise.
var googleNames = map[string]string{"angularjs": "angular.js", "angular_material": "angular-material", "d3js": "d3", "hammerjs": "hammer.js", "threejs": "three.js"}

// jQueryPlugins are the folders of code.jquery.com, the libraries whose files they have, and the file names up to the version.
var jQueryPlugins = map[string]struct{ library, npm, file string }{
	"":       {"jquery", "jquery", "jquery"},
	"mobile": {"jquery-mobile", "jquery-mobile", "jquery.mobile"},
	"color":  {"jquery-color", "jquery-color", "jquery.color"},
	"qunit":  {"qunit", "qunit", "qunit"},
}

// ParseCDNAddress parses the absolute URL of a file at cdnjs, jsDelivr (npm packages), unpkg, code.jquery.com or Google's Hosted
// Libraries, with http or https. A library at Google is returned with its name at cdnjs. ok is false for other URLs at these hosts,
// and at other hosts; a means nothing then.
func ParseCDNAddress(address string) (a CDNAddress, ok bool) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return a, false
	}
	host, path := strings.ToLower(u.Hostname()), strings.TrimPrefix(u.EscapedPath(), "/")
	switch {
	case host == "cdnjs.cloudflare.com", host == "ajax.googleapis.com":
		a, ok = parseLibraryPath(path)
		if name, renamed := googleNames[a.Library]; renamed && host == "ajax.googleapis.com" {
			a.Library = name
		}
		return a, ok
	case strings.HasSuffix(host, ".jsdelivr.net"):
		rest, npm := strings.CutPrefix(path, "npm/")
		if !npm || strings.Contains(rest, ",") { // several files in one
			return a, false
		}
		return ParseNPMPath(rest)
	case host == "unpkg.com":
		return ParseNPMPath(path)
	case host == "code.jquery.com":
		return parseJQueryPath(path)
	}
	return a, false
}

// parseLibraryPath parses ajax/libs/NAME/VERSION/FILE, percent-encoded. ok is false if a part is missing or malformed. It does not
// check that VERSION is a valid version.
func parseLibraryPath(path string) (a CDNAddress, ok bool) {
	parts := strings.SplitN(path, "/", 5)
	if len(parts) < 5 || parts[0] != "ajax" || parts[1] != "libs" {
		return a, false
	}
	name, errName := text.DecodePathName(parts[2])
	version, errVersion := text.DecodePathName(parts[3])
	file, errFile := text.DecodePathFile(parts[4])
	return CDNAddress{Library: name, Version: version, File: file}, errName == nil && errVersion == nil && errFile == nil
}

// ParseNPMPath parses NAME[@VERSION][/FILE], percent-encoded, as jsDelivr and unpkg have it; NAME may have a scope. ok is false if
// the name is missing or over 214 bytes, or the path is malformed. It does not check the characters of the name and the
// version, which may be empty after its @.
func ParseNPMPath(escaped string) (a CDNAddress, ok bool) {
	first, rest, _ := strings.Cut(escaped, "/")
	if strings.HasPrefix(first, "@") || strings.HasPrefix(first, "%40") {
		var second string
		second, rest, _ = strings.Cut(rest, "/")
		first += "/" + second
	}
	name, err := url.PathUnescape(first)
	if at := strings.LastIndexByte(name, '@'); at > 0 {
		name, a.Version = name[:at], name[at+1:]
	}
	a.NPM = name
	if rest != "" && err == nil {
		a.NPMFile, err = text.DecodePathFile(rest)
	}
	return a, err == nil && name != "" && !strings.HasSuffix(name, "/") && len(name) <= maxNPMName
}

// maxNPMName is the most bytes that npm accepts in a name.
const maxNPMName = 214

// parseJQueryPath parses the path of a URL at code.jquery.com, without its first slash, such as jquery-3.7.1.min.js and
// ui/1.13.2/jquery-ui.min.js. What stands between the library's name and the extension, or below ui/ the first
// folder, is taken for the version, such as "latest". ok is false for paths of another form; a then means nothing.
func parseJQueryPath(path string) (a CDNAddress, ok bool) {
	folder, file, found := strings.Cut(path, "/")
	if !found {
		folder, file = "", path
	}
	if folder == "ui" || folder == "mobile" {
		version, rest, _ := strings.Cut(file, "/")
		if folder == "ui" {
			file, err := text.DecodePathFile(rest)
			return CDNAddress{Library: "jqueryui", NPM: "jquery-ui", Version: version, File: file, NPMFile: "dist/" + file}, err == nil
		}
		file = rest
	}
	p, ok := jQueryPlugins[folder]
	if folder == "" && strings.HasPrefix(file, "jquery-migrate-") {
		p.library, p.npm, p.file = "jquery-migrate", "jquery-migrate", "jquery-migrate"
	}
	version, named := strings.CutPrefix(file, p.file+"-")
	if !ok || !named || strings.Contains(version, "/") {
		return a, false
	}
	end := len(version)
	for _, suffix := range []string{".slim.min.js", ".slim.js", ".min.js", ".js", ".min.css", ".css"} {
		if strings.HasSuffix(version, suffix) {
			end -= len(suffix)
			break
		}
	}
	file = p.file + version[end:]
	return CDNAddress{Library: p.library, NPM: p.npm, Version: version[:end], File: file, NPMFile: "dist/" + file}, end < len(version)
}
