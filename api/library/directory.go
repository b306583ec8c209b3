package library

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/dustin/go-humanize/english"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// A Directory answers the queries of commands about libraries, and suggests names for misspelt ones.
type Directory struct {
	Store *kvstore.Store
	// Index returns the index of all libraries; its first call begins to read them, and does not wait for that.
	Index func() (*Index, error)
	// AssetBase is the URL before the path /ajax/libs/ of files, without a slash at its end; "" if it is not known. Then
	// responses have no URLs, and methods whose results are URLs return an error.
	AssetBase string
	// Dictionaries says that the server sends deltas to browsers that have another version of a file.
	Dictionaries bool
	// Advisories returns the known vulnerabilities, or nil. Default: none are known.
	Advisories func() *Advisories
	// Documents find out what modules import, and what ranges of versions mean. Required for [Directory.Snippets] and
	// [Directory.Modules].
	Documents Documents
}

// The requests to a Directory and its responses, which are also the JSON output of commands.
type (
	// SearchRequest requests the libraries that match a text, best first.
	SearchRequest struct {
		Text  string `json:"text"`
		Limit int    `json:"limit"`
	}
	// Found is the results of a search.
	Found struct {
		Results   []Brief `json:"results"`
		Total     int     `json:"total"`     // in results
		Available int     `json:"available"` // that match
	}
	// Brief is a library in short. Its JSON has the API's names.
	Brief struct {
		Name        string `json:"name"`
		Version     string `json:"version,omitempty"` // the latest, if one is published
		Description string `json:"description,omitempty"`
		Latest      string `json:"latest,omitempty"` // URL of the main file
		License     string `json:"license,omitempty"`
		*Facts             // of results of a search
	}

	// InfoRequest requests a library or a release.
	InfoRequest struct {
		Library string `json:"library"`
		Version string `json:"version,omitempty"` // "" for the library itself
	}
	// Info has either a library or a release.
	Info struct {
		Library *About        `json:"library,omitempty"`
		Release *AboutRelease `json:"release,omitempty"`
	}

	// SnippetRequest requests the tags of files.
	SnippetRequest struct {
		Library string   `json:"library"`
		Version string   `json:"version,omitempty"` // "" for the latest
		Files   []string `json:"files,omitempty"`   // none for the main file
	}
	// ModulesRequest requests the import map of the modules that were built from a release.
	ModulesRequest struct {
		Library  string   `json:"library"`
		Version  string   `json:"version,omitempty"`  // "" for the latest
		Subpaths []string `json:"subpaths,omitempty"` // such as "." and "./client"; all if empty
	}
	// FileSnippet is the snippet of a file, for commands.
	FileSnippet struct {
		File      string `json:"file"`
		URL       string `json:"url"`
		Integrity string `json:"integrity"`
		Tag       string `json:"tag,omitempty"` // where a tag loads the file
		// Notes say which imports of a module the tag alone does not load as they should be loaded.
		Notes []string `json:"notes,omitempty"`
	}
)

// About is what [Directory.Info] returns about a library.
type About struct {
	Brief
	Released   time.Time      `json:"released,omitzero"` // of the latest version
	Filename   string         `json:"filename,omitempty"`
	SRI        string         `json:"sri,omitempty"`
	Homepage   string         `json:"homepage,omitempty"`
	Repository string         `json:"repository,omitempty"`
	Author     string         `json:"author,omitempty"`
	Keywords   []string       `json:"keywords"`
	Autoupdate *Autoupdate    `json:"autoupdate,omitempty"`
	Versions   []AboutVersion `json:"versions"` // newest first
	Problems   []views.State  `json:"problems"` // the newest versions that failed or were refused
}

// AboutVersion is a published version in an About. Bytes is the size of all its files without encoding.
type AboutVersion struct {
	Version  string    `json:"version"`
	Released time.Time `json:"released,omitzero"`
	Files    int       `json:"files"`
	Bytes    int64     `json:"bytes"`
}

// AboutRelease is what [Directory.Info] returns about a release. Bytes is the size of all its files without encoding.
type AboutRelease struct {
	Name     string      `json:"name"`
	Version  string      `json:"version"`
	Released time.Time   `json:"released,omitzero"`
	Filename string      `json:"filename,omitempty"`
	Bytes    int64       `json:"bytes"`
	Entry    int64       `json:"entry"` // as in Release
	Files    []AboutFile `json:"files"`
}

// AboutFile is a file in an AboutRelease. Size is in bytes without encoding.
type AboutFile struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Gzip   int64  `json:"gzip,omitempty"` // size in that coding, where it is worth keeping
	Brotli int64  `json:"br,omitempty"`
	// Upgrades are the bytes that a browser downloads that has the file of an earlier version.
	Upgrades  []Upgrade `json:"upgrades,omitempty"`
	URL       string    `json:"url,omitempty"`
	Integrity string    `json:"integrity"`
}

// How long a command waits for a process that has just started to have read all libraries.
const (
	searchTimeout = 30 * time.Second
	hintTimeout   = 5 * time.Second // for the names that an error suggests
)

// Search returns the libraries that match the request's text, best first, at most r.Limit (not negative), with their facts,
// and how many match. It waits until all libraries have been read, and returns an error if that and the search take over 30
// s. If the facts of a library cannot be read, it returns that error with the results before.
func (d Directory) Search(ctx context.Context, r SearchRequest) (Found, error) {
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	answer := Found{Results: []Brief{}}
	index, err := d.Index()
	if err != nil {
		return answer, err
	}
	found, err := index.Search(ctx, r.Text, nil)
	if errors.Is(err, context.DeadlineExceeded) {
		return answer, fmt.Errorf("the libraries are still being read after %s; try again in a moment", searchTimeout)
	}
	if err != nil {
		return answer, err
	}
	var advisories *Advisories
	if d.Advisories != nil {
		advisories = d.Advisories()
	}
	answer.Available = len(found)
	for _, l := range found[:min(r.Limit, len(found))] {
		brief := d.newBrief(l)
		facts, err := index.Facts(l, advisories)
		if err != nil {
			return answer, err
		}
		brief.Facts = &facts
		answer.Results = append(answer.Results, brief)
	}
	answer.Total = len(answer.Results)
	return answer, nil
}

// newBrief returns name, latest version, description, license, and the URL of the main file of a library, without facts. The
// URL is "" if nothing is published, there is no main file or the asset base is not known.
func (d Directory) newBrief(l *Library) Brief {
	found := Brief{Name: l.Name, Version: l.Version, Description: l.Description, License: l.License}
	if l.HasFile() && d.AssetBase != "" {
		found.Latest = d.AssetBase + AssetPath(l.Name, l.Version, l.Filename)
	}
	return found
}

// mostProblems is how many versions that failed or were refused Info returns.
const mostProblems = 5

// Info returns all that is known about a library, with its published versions and its mostProblems newest versions that
// failed or were refused, without refusals that the log does not have. If r.Version is not "", it returns instead what is
// known about that release and its files. If the library or release does not exist, the error suggests names.
func (d Directory) Info(ctx context.Context, r InfoRequest) (Info, error) {
	snapshot := d.Store.Snapshot()
	defer snapshot.Close()
	if r.Version != "" {
		release, err := d.release(ctx, snapshot, r.Library, r.Version)
		if err != nil {
			return Info{}, err
		}
		about, err := d.describe(release)
		return Info{Release: about}, err
	}
	l, versions, err := d.library(ctx, snapshot, r.Library)
	if err != nil {
		return Info{}, err
	}
	about := &About{
		Brief: d.newBrief(l), Released: l.Released, Filename: l.Filename, SRI: l.SRI,
		Homepage: l.Homepage, Author: l.Author, Keywords: append([]string{}, l.Keywords...), Autoupdate: l.Autoupdate,
		Versions: []AboutVersion{}, Problems: []views.State{},
	}
	if l.Repository != nil {
		about.Repository = l.Repository.URL
	}
	for _, v := range versions {
		about.Versions = append(about.Versions, AboutVersion{v.Version, v.Released, v.Files, v.Bytes})
	}
	states, err := views.States(snapshot, r.Library)
	if err != nil {
		return Info{}, err
	}
	slices.SortFunc(states, func(a, b views.State) int { return packages.CompareVersions(b.Version, a.Version) })
	for _, state := range states {
		if (state.Kind == views.Failed || state.Kind == views.Refused && !state.Unlogged) && len(about.Problems) < mostProblems {
			about.Problems = append(about.Problems, state)
		}
	}
	return Info{Library: about}, nil
}

// describe returns a release's published files, with their sizes, integrity values, URLs and, if [Directory.Dictionaries] is
// set, the deltas that browsers can get. Without an asset base it leaves out the URLs. A file whose content is missing or
// damaged is an error.
func (d Directory) describe(r *Release) (*AboutRelease, error) {
	about := &AboutRelease{Name: r.Library, Version: r.Version, Released: r.Released, Filename: r.Default, Bytes: r.Bytes, Entry: r.Entry, Files: []AboutFile{}}
	versions, err := readPublishedVersions(d.Store, r.Library)
	if err != nil {
		return nil, err
	}
	for _, file := range r.Files {
		content, err := d.Store.Content(file.Hash)
		if err != nil {
			return nil, fmt.Errorf("the file %s of %s %s: %w; `larder fsck` tells what else is wrong", file.Path, r.Library, r.Version, err)
		}
		size := func(c coding.Coding) int64 {
			representation, _ := content.Find(c)
			return representation.Length
		}
		described := AboutFile{Path: file.Path, Size: file.Size, Gzip: size(coding.Gzip), Brotli: size(coding.Brotli), Integrity: file.SRI.String()}
		if d.Dictionaries {
			if described.Upgrades, err = readUpgrades(d.Store, r, file, versions); err != nil {
				return nil, err
			}
		}
		if d.AssetBase != "" {
			described.URL = d.AssetBase + AssetPath(r.Library, r.Version, file.Path)
		}
		about.Files = append(about.Files, described)
	}
	return about, nil
}

// Snippets returns, for each file of the request in its order, the tag, URL and integrity by which a page loads it, and
// notes about its imports. The version "" is the latest. Without files, it does so for the main file of the release; a
// release without a main file is an error. If some files do not exist, it returns the others with an error that names those.
// It returns an error if [Directory.AssetBase] is not set.
func (d Directory) Snippets(ctx context.Context, r SnippetRequest) ([]FileSnippet, error) {
	if d.AssetBase == "" {
		return nil, errNoAssetBase
	}
	snapshot := d.Store.Snapshot()
	defer snapshot.Close()
	release, err := d.latestOr(ctx, snapshot, r.Library, r.Version)
	if err != nil {
		return nil, err
	}
	version, files := release.Version, r.Files
	if len(files) == 0 {
		if release.Default == "" {
			return nil, fmt.Errorf("%s %s has no main file; name one of its files, which `larder info %[1]s@%[2]s` lists", r.Library, version)
		}
		files = []string{release.Default}
	}
	var snippets []FileSnippet
	var failures []error
	for _, name := range files {
		file, ok := release.Find(name)
		if !ok {
			failures = append(failures, fmt.Errorf("%s %s has no file %q%s`larder info %[1]s@%[2]s` lists its files", r.Library, version, name, didYouMean(NearFiles(release, name))))
			continue
		}
		s := NewSnippet(d.AssetBase, r.Library, version, file)
		notes, err := d.describeImports(ctx, release, file, s)
		if err != nil {
			return nil, err
		}
		snippets = append(snippets, FileSnippet{name, s.URL, s.Integrity, s.HTML, notes})
	}
	return snippets, errors.Join(failures...)
}

var errNoAssetBase = errors.New("it is not known under which address the files are reached; say so with --asset-base")

// latestOr reads a version of a library with its files, or for "" the latest version. It returns an error, which names a
// command that helps, if that version is not published.
func (d Directory) latestOr(ctx context.Context, r kvstore.Reader, name, version string) (*Release, error) {
	if version == "" {
		l, _, err := d.library(ctx, r, name)
		if err != nil {
			return nil, err
		}
		if version = l.Version; version == "" {
			return nil, fmt.Errorf("nothing of %s is published yet; `larder status %[1]s` says why", name)
		}
	}
	return d.release(ctx, r, name, version)
}

// describeImports returns sentences about the imports of the file f of release r, whose snippet is s, if it is an ES module:
// which of them cannot be loaded or verified, and whether its tag lacks the integrity of others. For other files, and
// modules without imports, it returns none. It may wait until all libraries have been read.
func (d Directory) describeImports(ctx context.Context, r *Release, f views.PublishedFile, s Snippet) ([]string, error) {
	if s.Kind != Module {
		return nil, nil
	}
	source, err := d.Store.Identity(f.Hash)
	if err != nil {
		return nil, err
	}
	if imports, _, err := d.Documents.Imports(ctx, r.Owner(), f.Hash, source); err == nil && len(imports) == 0 {
		return nil, nil // without imports there is no need to read all libraries
	}
	index, err := d.Index()
	if err != nil {
		return nil, err
	}
	graph, err := index.Graph(ctx, d.AssetBase, r, []views.PublishedFile{f}, d.Documents)
	if err != nil {
		return nil, err
	}
	notes := graph.Problems
	if len(graph.Modules) > 1 {
		notes = append(notes, fmt.Sprintf("The tag has the integrity of %s alone; the page /recipe/%s/%s has that of all %d modules.",
			f.Path, escapePath(r.Library), escapePath(r.Version), len(graph.Modules)))
	}
	return notes, nil
}

// library reads a library with its published versions, newest first. If it does not exist, the error suggests libraries with
// a similar name, and does not wrap [ErrNoLibrary].
func (d Directory) library(ctx context.Context, r kvstore.Reader, name string) (*Library, []views.Version, error) {
	l, versions, err := Lookup(r, name)
	if errors.Is(err, ErrNoLibrary) {
		err = fmt.Errorf("no library %q is here%s`larder search` finds those that are, `larder add` fetches what the catalogue has",
			name, didYouMean(d.nearLibraries(ctx, name)))
	}
	return l, versions, err
}

// release reads a release with its files. If it is not published, the error says why, which versions exist, and which
// command helps; it wraps a [*WithdrawnError], but not [ErrNoVersion].
func (d Directory) release(ctx context.Context, r kvstore.Reader, name, version string) (*Release, error) {
	l, versions, err := d.library(ctx, r, name)
	if err != nil {
		return nil, err
	}
	release, err := LookupRelease(r, name, version)
	var withdrawn *WithdrawnError
	switch {
	case errors.As(err, &withdrawn):
		return nil, fmt.Errorf("%w; `larder info %s` lists the versions that are served", err, name)
	case !errors.Is(err, ErrNoVersion):
		return release, err
	case version == "latest":
		return nil, fmt.Errorf("%s has no version %q; the name alone, %[1]s, is for its latest version", name, version)
	}
	what, near := "is not here", didYouMean(NearVersions(versions, version))
	more := "`larder import` publishes others"
	if l.Autoupdate != nil {
		more = fmt.Sprintf("`larder add %s@%s` fetches it if upstream has it", name, version)
	}
	if state, err := views.LookupState(r, name, version); err == nil {
		what = "is not published: " + string(state.Kind)
		if state.Reason != "" {
			what += ": " + text.Plain(state.Reason)
		}
		if way, ok := onItsWay[state.Kind]; ok {
			what, near, more = "is not published yet: "+way, "; ", fmt.Sprintf("`larder add %s@%s` gets it now", name, version)
		}
	}
	return nil, fmt.Errorf("%s %s %s%s`larder info %[1]s` lists the versions that are, %[5]s", name, version, what, near, more)
}

// onItsWay has texts for the states of a release that the bot will publish without a command.
var onItsWay = map[views.StateKind]string{views.Detected: "it waits for its turn", views.Processing: "it is being fetched"}

// mostNear is how many names are offered for one that is unknown.
const mostNear = 3

// didYouMean returns the middle of an error message that asks whether one of names was meant, from "; " to the next
// sentence; only "; " without names. It replaces control characters in the names.
func didYouMean(names []string) string {
	if len(names) == 0 {
		return "; "
	}
	return "; did you mean " + english.WordSeries(text.Each(names, text.Plain), "or") + "? "
}

// nearLibraries returns the names of up to three libraries that a misspelt name may mean, see [Index.Near]; none if the
// libraries are not read within 5 s, or at any other error.
func (d Directory) nearLibraries(ctx context.Context, name string) []string {
	ctx, cancel := context.WithTimeout(ctx, hintTimeout)
	defer cancel()
	index, err := d.Index()
	if err != nil {
		return nil
	}
	found, err := index.Near(ctx, name, mostNear)
	if err != nil {
		return nil
	}
	return text.Each(found, func(l *Library) string { return l.Name })
}

// NearVersions returns the first three of versions, which are sorted newest first, that start with asked without a leading
// v, or else the newest version; none if there are no versions.
func NearVersions(versions []views.Version, asked string) []string {
	var near []string
	for _, v := range versions {
		if strings.HasPrefix(v.Version, strings.TrimPrefix(asked, "v")) && len(near) < mostNear {
			near = append(near, v.Version)
		}
	}
	if near == nil && len(versions) > 0 {
		near = []string{versions[0].Version}
	}
	return near
}

// mostAsked limits the path that NearFiles compares with those of files, in bytes.
const mostAsked = 500

// NearFiles returns the paths of up to three files of a release that the wrong path asked may mean, nearest first: those
// whose names, in lower case without folder and .min, differ from that of asked in at most a quarter of its letters and one
// more. It returns none for a path over mostAsked bytes.
func NearFiles(r *Release, asked string) []string {
	type candidate struct {
		path     string
		distance int
	}
	if len(asked) > mostAsked {
		return nil
	}
	var near []candidate
	for _, file := range r.Files {
		distance := levenshtein.ComputeDistance(bareName(asked), bareName(file.Path))
		if distance <= len(bareName(asked))/4+1 {
			near = append(near, candidate{file.Path, distance})
		}
	}
	slices.SortStableFunc(near, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(levenshtein.ComputeDistance(asked, a.path), levenshtein.ComputeDistance(asked, b.path)))
	})
	var names []string
	for _, c := range near[:min(mostNear, len(near))] {
		names = append(names, c.path)
	}
	return names
}

// bareName returns the last part of a path in lower case, with "." in place of ".min.".
func bareName(file string) string {
	return strings.ReplaceAll(strings.ToLower(path.Base(file)), ".min.", ".")
}

// maxExamined limits how many packages Example examines for a main file.
const maxExamined = 1000

// Example returns the path, from /ajax/libs/ on and percent-encoded, of some file that the store serves: the main file in
// the latest version of the first library by name that has one, or else the first file. It examines maxExamined libraries at
// most, and skips those that cannot be read. It reads rows only, so it needs no index. The error is [kvstore.ErrNotFound] if
// the store serves no file.
func Example(store *kvstore.Store) (path string, err error) {
	snapshot := store.Snapshot()
	defer snapshot.Close()
	examined := 0
	for item, err := range snapshot.Scan(kvstore.Packages, kvstore.Range{}) {
		if err != nil || examined == maxExamined {
			break // the file rows decide
		}
		examined++
		if l, err := newLibrary(snapshot, string(item.Key)); err == nil && l != nil && l.HasFile() {
			return AssetPath(l.Name, l.Version, l.Filename), nil
		}
	}
	for file, err := range views.AllFiles(snapshot) {
		if err != nil {
			return "", fmt.Errorf("library: couldn't read the first file row: %w", err)
		}
		return AssetPath(file.Package, file.Version, file.Path), nil
	}
	return "", kvstore.ErrNotFound
}
