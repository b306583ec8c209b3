// Package library is the read model of everything that people and clients
// browse: which libraries there are, their versions, the files of a release.
// The REST API, the pages and the commands all query it, so that they agree.
//
// Index holds a few hundred bytes of each library in memory and follows the log,
// so a publication shows at once, in search too; versions and files are read
// from the store when they are asked for. What it returns is shared and must
// not be changed.
//
// Renderer has workers render documents that strangers wrote, and caches the
// results. The serving process parses no such document.
//
// The package must not know HTTP, what pages look like, or how worker processes
// are run.
package library

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"iter"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/api/search"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// A Library is one registered package and a summary of its published releases.
type Library struct {
	Name        string
	Description string
	Keywords    []string
	Homepage    string // "" if unknown, as are License and Author
	License     string
	Repository  *packages.Repository // nil where unknown
	Author      string               // as the API shows it, see packages.Package.Author
	Authors     []packages.Author
	Autoupdate  *Autoupdate // nil where releases come by import only
	Hidden      bool        // search does not show it
	Removed     bool        // the catalogue has it no more, so no release follows

	// Version is the latest one, "" if none is published.
	Version  string
	Released time.Time // of the latest version, zero where unknown
	Versions int       // how many are published
	// Downloads is the number of downloads from npm in a month that the log has for the newest release with such a number; 0
	// if no release has one.
	Downloads int64
	// Filename is the main file of the latest version, or the one that the package
	// JSON names if nothing is published; "" for none.
	Filename string
	SRI      string // of the main file of the latest version, "" for none
	// Loaded is the file of the latest version that a page loads: the minified form of the main file or, without one, the
	// main file; zero for none.
	Loaded views.PublishedFile
}

// Autoupdate says where a library's releases come from.
type Autoupdate struct {
	Source string `json:"source"` // "npm" or "git"
	Target string `json:"target"` // the npm package, or the repository's URL
}

// NPM returns the name of the npm package that the library's releases come from, "" if they come from elsewhere.
func (l *Library) NPM() string {
	if l.Autoupdate == nil || l.Autoupdate.Source != "npm" {
		return ""
	}
	return l.Autoupdate.Target
}

// HasFile reports whether a version of the library is published, and the latest one has a main file.
func (l *Library) HasFile() bool { return l.Version != "" && l.Filename != "" }

// FileType returns the extension of the main file (Filename) without its dot, such as "js"; "" if there is no main file or
// it has no extension.
func (l *Library) FileType() string { return strings.TrimPrefix(path.Ext(l.Filename), ".") }

// A GitHub names a repository there.
type GitHub struct {
	User string `json:"user"`
	Repo string `json:"repo"`
}

// GitHubCounts are counts of a GitHub repository. In JSON they have the names of the API of GitHub.
type GitHubCounts struct {
	Stars       int64 `json:"stargazers_count"`
	Forks       int64 `json:"forks"`
	Subscribers int64 `json:"subscribers_count"`
}

// GitHub returns the owner and the name of the GitHub repository that the library's repository URL names; nil if the URL is
// missing or of another host.
func (l *Library) GitHub() *GitHub {
	if l.Repository == nil {
		return nil
	}
	owner, name, ok := packages.ParseGitHubAddress(l.Repository.URL)
	if !ok {
		return nil
	}
	return &GitHub{User: owner, Repo: name}
}

var punctuation = strings.NewReplacer("-", "", "_", "", ".", "", " ", "", "+", "")

// AlternativeNames returns other names, in lower case, by which people search for the library: its name without punctuation
// (- _ . + and spaces), its name without .js, -js, .css or -css at its end, its name without both, and the name of its npm
// package. It leaves out the name itself and repetitions, and is never nil.
func (l *Library) AlternativeNames() []string {
	name := strings.ToLower(l.Name)
	bare := name
	for _, affix := range []string{".js", "-js", ".css", "-css"} {
		bare = strings.TrimSuffix(bare, affix)
	}
	candidates := []string{punctuation.Replace(name), bare, punctuation.Replace(bare), strings.ToLower(l.NPM())}
	names := []string{}
	for _, c := range candidates {
		if c != "" && c != name && !slices.Contains(names, c) {
			names = append(names, c)
		}
	}
	return names
}

// searchDocument returns the fields of the library for the search index.
func (l *Library) searchDocument() search.Document {
	d := search.Document{
		Name:             l.Name,
		AlternativeNames: l.AlternativeNames(),
		Description:      l.Description,
		Keywords:         l.Keywords,
		Filename:         l.Filename,
	}
	if l.Repository != nil {
		d.Repositories = []string{l.Repository.URL}
	}
	if g := l.GitHub(); g != nil {
		d.GithubUser, d.GithubRepo = g.User, g.Repo
	}
	if l.Author != "" {
		d.Maintainers = []string{l.Author}
	}
	return d
}

// newLibrary reads a library from the rows of a store: its package JSON, its versions and the main file of the latest. It
// returns nil without an error if the library is not registered. With an error, the result is nil or incomplete. A main file
// or package JSON that is missing or damaged is an error.
func newLibrary(r kvstore.Reader, name string) (*Library, error) {
	row, err := views.LookupPackage(r, name)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p, err := packages.Parse(packages.Path(name), row.JSON)
	if err != nil {
		return nil, fmt.Errorf("library: the package JSON of %s in the store: %w", name, err)
	}
	l := &Library{
		Name: p.Name, Description: p.Description, Keywords: p.Keywords, Homepage: p.Homepage, License: p.License,
		Repository: p.Repository, Author: p.Author(), Authors: p.Authors, Filename: p.Filename,
		Removed: row.Removed,
	}
	if p.Autoupdate != nil {
		l.Autoupdate = &Autoupdate{Source: p.Autoupdate.Source, Target: p.Autoupdate.Target}
		l.Hidden = p.Autoupdate.ExcludeFromSearch
	}
	versions, err := readPublishedVersions(r, name)
	if err != nil {
		return nil, err
	}
	if len(versions) == 0 {
		return l, nil
	}
	latest := latestOf(versions)
	l.Version, l.Released, l.Versions, l.Filename = latest.Version, latest.Released, len(versions), latest.Default
	for _, v := range versions {
		if l.Downloads = v.Downloads; l.Downloads > 0 {
			break
		}
	}
	if l.Filename == "" {
		return l, nil
	}
	main, err := readFile(r, name, latest.Version, latest.Default)
	if err != nil {
		return nil, fmt.Errorf("library: the main file %s of %s %s: %w", latest.Default, name, latest.Version, err)
	}
	l.SRI, l.Loaded = main.SRI.String(), main
	if minified := MinifiedPath(main.Path); minified != "" {
		switch small, err := readFile(r, name, latest.Version, minified); {
		case err == nil:
			l.Loaded = small
		case !errors.Is(err, kvstore.ErrNotFound):
			return nil, fmt.Errorf("library: the minified file %s of %s %s: %w", minified, name, latest.Version, err)
		}
	}
	return l, nil
}

// readFile reads the row of a published file, and its integrity, but not its content. It returns [kvstore.ErrNotFound] if
// the version has no file at the path.
func readFile(r kvstore.Reader, name, version, file string) (views.PublishedFile, error) {
	sri, err := views.LookupSRI(r, name, version, file)
	if err != nil {
		return views.PublishedFile{}, err
	}
	f, err := views.LookupFile(r, name, version, file)
	return views.PublishedFile{Path: file, File: f, SRI: sri}, err
}

// readPublishedVersions reads the published versions of a library, without withdrawn ones, in the order of
// [packages.CompareVersions], the greatest first. It returns none for an unknown library.
func readPublishedVersions(r kvstore.Reader, name string) ([]views.Version, error) {
	versions, err := views.Versions(r, name)
	if err != nil {
		return nil, err
	}
	versions = slices.DeleteFunc(versions, func(v views.Version) bool { return v.Withdrawn != nil })
	slices.SortFunc(versions, func(a, b views.Version) int { return packages.CompareVersions(b.Version, a.Version) })
	return versions, nil
}

// latestOf returns the latest of versions, which must not be empty, as [packages.LatestVersion] chooses it: the greatest
// stable semantic version, else the greatest prerelease, else the greatest name.
func latestOf(versions []views.Version) views.Version {
	return versions[slices.Index(VersionNames(versions), packages.LatestVersion(VersionNames(versions)))]
}

// A Release is one published version and its files.
type Release struct {
	Library  string
	Version  string
	Released time.Time             // upstream's publish time, zero where unknown
	Default  string                // path of the main file, "" for none
	Bytes    int64                 // of all files as they are without coding
	Entry    int64                 // index in the log: of its publication, or of its restoration after a withdrawal
	Manifest kvstore.Hash          // names the content that lists it
	Files    []views.PublishedFile // by path, in byte order

	modules func() []views.PublishedFile // see Modules
}

// Owner returns NAME@VERSION, which names the release in requests to renderers: a worker process renders documents of one
// release only.
func (r *Release) Owner() string { return r.Library + "@" + r.Version }

// Find returns the release's file at a path, which must match exactly; the result is false if none exists.
func (r *Release) Find(path string) (views.PublishedFile, bool) {
	i, ok := slices.BinarySearchFunc(r.Files, path, func(f views.PublishedFile, path string) int { return cmp.Compare(f.Path, path) })
	if !ok {
		return views.PublishedFile{}, false
	}
	return r.Files[i], true
}

// The errors for names that do not exist.
var (
	ErrNoLibrary = errors.New("library not found")
	ErrNoVersion = errors.New("version not found")
)

// A WithdrawnError says that a version was published once and is served no longer.
type WithdrawnError struct {
	Package, Version string
	views.Withdrawal
}

// Error returns which release was withdrawn, and why.
func (e *WithdrawnError) Error() string {
	return fmt.Sprintf("%s %s was withdrawn (log entry %d): %s", e.Package, e.Version, e.Entry, e.Reason)
}

// AssetPath returns the path of the URL at which a file of a release is served, /ajax/libs/name/version/file. It
// percent-encodes the parts; slashes in them stay.
func AssetPath(name, version, file string) string {
	return "/ajax/libs/" + escapePath(name) + "/" + escapePath(version) + "/" + escapePath(file)
}

// escapePath percent-encodes the characters of s that a URL path must not contain. It leaves slashes.
func escapePath(s string) string { return (&url.URL{Path: "/" + s}).EscapedPath()[1:] }

// readRelease reads a published version with its files from a store. It returns [ErrNoVersion] if the version or the library
// does not exist, and a [*WithdrawnError] if the version was withdrawn.
func readRelease(r kvstore.Reader, name, version string) (*Release, error) {
	v, err := readVersion(r, name, version)
	if err != nil {
		return nil, err
	}
	files, err := views.Files(r, name, version)
	if err != nil {
		return nil, err
	}
	release := &Release{
		Library: name, Version: version, Released: v.Released, Default: v.Default, Bytes: v.Bytes,
		Entry: v.Entry, Manifest: v.Manifest, Files: files,
	}
	release.modules = sync.OnceValue(func() []views.PublishedFile { return findModules(files) })
	return release, nil
}

// readVersion reads the row of a published version. It returns [ErrNoVersion] if the version or the library does not exist
// or no version can have this name, and a [*WithdrawnError] if it was withdrawn.
func readVersion(r kvstore.Reader, name, version string) (views.Version, error) {
	if !packages.ValidVersion(version) {
		return views.Version{}, ErrNoVersion
	}
	v, err := views.LookupVersion(r, name, version)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return views.Version{}, ErrNoVersion
	case err != nil:
		return views.Version{}, err
	case v.Withdrawn != nil:
		return views.Version{}, &WithdrawnError{Package: name, Version: version, Withdrawal: *v.Withdrawn}
	}
	return v, nil
}

// Lookup reads one library and its published versions, newest first, from a store, without the Index, whose first listing
// takes long. It returns [ErrNoLibrary] if the library is not registered, or if the name is empty or has a zero byte. A
// library without versions is not an error.
func Lookup(r kvstore.Reader, name string) (*Library, []views.Version, error) {
	if !validName(name) {
		return nil, nil, ErrNoLibrary
	}
	l, err := newLibrary(r, name)
	if err != nil {
		return nil, nil, err
	}
	if l == nil {
		return nil, nil, ErrNoLibrary
	}
	versions, err := readPublishedVersions(r, name)
	return l, versions, err
}

// LookupRelease reads one published version of a library with its files from a store, for a caller without an Index. It
// returns [ErrNoVersion] if the version or the library does not exist, a [*WithdrawnError] if the version was withdrawn, and
// [ErrNoLibrary] only if the name is empty or has a zero byte.
func LookupRelease(r kvstore.Reader, name, version string) (*Release, error) {
	if !validName(name) {
		return nil, ErrNoLibrary
	}
	return readRelease(r, name, version)
}

// Version returns a published version from the store, without its files. It returns [ErrNoLibrary], [ErrNoVersion] or a
// [*WithdrawnError] if the version is not served. It waits for the first listing, as [Index.Listing] does.
func (x *Index) Version(ctx context.Context, name, version string) (views.Version, error) {
	if _, err := x.Library(ctx, name); err != nil {
		return views.Version{}, err
	}
	return readVersion(x.store, name, version)
}

// Releases yields every published version of a library with its files, newest first, all from one snapshot, which stays open
// during the iteration. After an error, also that of ctx, which it yields with a nil release, it ends. An unknown library
// has none.
func (x *Index) Releases(ctx context.Context, name string) iter.Seq2[*Release, error] {
	return func(yield func(*Release, error) bool) {
		if !validName(name) {
			return
		}
		snapshot := x.store.Snapshot()
		defer snapshot.Close()
		versions, err := readPublishedVersions(snapshot, name)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, v := range versions {
			if err := ctx.Err(); err != nil {
				yield(nil, err)
				return
			}
			r, err := readRelease(snapshot, name, v.Version)
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// A Snippet is the data by which a page loads a file of a release: its address, its integrity and the tag that loads it.
type Snippet struct {
	URL       string // absolute, percent-encoded
	Integrity string // for the attribute of that name
	// HTML is the tag, "" for a file that no tag loads by itself: a font, an image,
	// a source map.
	HTML string
	Kind Kind
}

// FutureTag returns the HTML tag of a file that is not published yet; "" if no tag loads such a file. assetBase is that of
// [NewSnippet]. If known is false, because the bot is going to minify the file, the tag has "sha512-…" in place of the
// integrity. A .js file counts as a module only if its path says so.
func FutureTag(assetBase, name, version, file string, integrity logs.SRI, known bool) string {
	tag := NewSnippet(assetBase, name, version, views.PublishedFile{Path: file, SRI: integrity}).HTML
	if !known {
		tag = strings.ReplaceAll(tag, integrity.String(), "sha512-…")
	}
	return tag
}

// NewSnippet returns URL, integrity and HTML tag of a file of a release. assetBase is the URL before the path /ajax/libs/,
// without a slash at its end; with "" the URL is only a path. All tags come from this function, so pages and commands never
// differ.
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

// MinifiedPath returns the path that the minified form of a .js, .mjs or .css file has, such as a.min.js for a.js, whether
// that file exists or not. It returns "" for a name that has .min there already, and for other extensions.
func MinifiedPath(file string) string {
	ext := path.Ext(file)
	bare := strings.TrimSuffix(file, ext)
	if ext != ".js" && ext != ".css" && ext != ".mjs" || strings.HasSuffix(bare, ".min") {
		return ""
	}
	return bare + ".min" + ext
}

// A Kind is how a page loads a file.
type Kind int

const (
	Other      Kind = iota // not by a tag
	Script                 // a classic script
	Module                 // an ES module
	Stylesheet             // CSS
)

// KindOf returns how a page loads a file: as a style sheet (.css), an ES module (.mjs, and .js if module is true or the path
// says so, see saysModule), a classic script (other .js files), or not by a tag. module says that the manifest has the file
// as an ES module.
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

// saysModule reports whether the folder (with its last slash) or the name of a .js file, both in lower case, says that it is
// an ES module, as builds that ship both forms do: three.module.js, vue.esm-browser.prod.js, dist/esm/index.js. The manifest
// does not say so of files that were too large to be parsed. In a tag for classic scripts a module is a syntax error; a
// classic script in a tag for modules mostly works.
func saysModule(folder, name string) bool {
	if strings.HasPrefix(folder, "esm/") || strings.Contains(folder, "/esm/") {
		return true
	}
	_, rest, ok := strings.Cut(name, ".") // what comes before is what the file is about
	for ok {
		var part string
		if part, rest, ok = strings.Cut(rest, "."); part == "module" || part == "esm" || strings.HasPrefix(part, "esm-") {
			return true
		}
	}
	return false
}
