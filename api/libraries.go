package api

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/api/search"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// resultFields are the fields that a result of /libraries can have.
var resultFields = vocabulary{
	"name", "latest", "filename", "description", "version", "keywords", "alternativeNames", "fileType", "github",
	"objectID", "license", "homepage", "repository", "author", "originalName", "sri",
}

// factFields are the fields of [library.Facts]. The public service does not have them, so a response contains only those
// that the query names.
var factFields = vocabulary{"size", "brotli", "downloads", "deprecated", "vulnerable", "provenance", "safeVersion"}

// alwaysInResults are the bits of "name" and "latest".
const alwaysInResults fieldSet = 1<<0 | 1<<1

// latestURL returns, as a value for JSON, the URL of the main file of the library's latest version, which begins with
// assetBase; nil if it has none.
func latestURL(l *library.Library, assetBase string) any {
	if !l.HasFile() {
		return nil
	}
	return assetBase + library.AssetPath(l.Name, l.Version, l.Filename)
}

// writeResult writes a library as a result of /libraries: its resultFields in set and its factFields in facts, which it
// reads from the store. What is unknown is "" or an empty list, or null in place of an object, of "latest" and of a fact.
// URLs begin with assetBase.
func (p *public) writeResult(w *jsonWriter, l *library.Library, set, facts fieldSet, assetBase string) {
	w.beginObject()
	for i, name := range resultFields {
		if set&(1<<i) != 0 {
			w.writeField(name, p.resultField(l, name, assetBase))
		}
	}
	p.writeFacts(w, l, facts)
	w.endObject()
}

// resultField returns the value of a field of a result of /libraries, or the field "autoupdate", for a library. It reads
// nothing from the store. It panics for other names, also those of facts.
func (p *public) resultField(l *library.Library, name, assetBase string) any {
	switch name {
	case "name", "objectID", "originalName":
		return l.Name
	case "latest":
		return latestURL(l, assetBase)
	case "filename":
		return l.Filename
	case "description":
		return l.Description
	case "version":
		return l.Version
	case "keywords":
		return append([]string{}, l.Keywords...) // JSON encodes nil as null
	case "alternativeNames":
		return l.AlternativeNames()
	case "fileType":
		return l.FileType()
	case "github":
		return p.gitHub(l)
	case "license":
		return l.License
	case "homepage":
		return l.Homepage
	case "repository":
		return l.Repository
	case "author":
		return l.Author
	case "autoupdate":
		return l.Autoupdate
	case "sri":
		return l.SRI
	}
	panic("api: no such field: " + name)
}

// writeFacts writes the factFields of a library that are in set, such as its size and whether it is vulnerable, which it
// reads from the store. What is unknown or was not checked is null. It logs facts that cannot be read, which are null, too.
func (p *public) writeFacts(w *jsonWriter, l *library.Library, set fieldSet) {
	if set == 0 {
		return
	}
	f, err := p.Library.Facts(l, p.Advisories)
	if err != nil {
		p.Logger.Error("api: couldn't read all facts of a library; the response has null for the others", "package", l.Name, "err", err)
	}
	values := map[string]any{"deprecated": f.Deprecated, "vulnerable": f.Vulnerable, "safeVersion": f.SafeVersion, "provenance": nil}
	for name, n := range map[string]int64{"size": f.Size, "brotli": f.Brotli, "downloads": f.Downloads} {
		if values[name] = nil; n > 0 {
			values[name] = n
		}
	}
	if f.Provenance != "" {
		values["provenance"] = f.Provenance
	}
	for _, name := range factFields.names(set) {
		w.writeField(name, values[name])
	}
}

// gitHub returns the value of the field "github" of a library: its repository at GitHub with counts such as stars, or nil if
// it has none or the counts are unknown.
func (p *public) gitHub(l *library.Library) any {
	at, counts, ok := p.Library.GitHub(l)
	if !ok {
		return nil
	}
	return struct {
		library.GitHub
		library.GitHubCounts
	}{at, counts}
}

// A list has the results of a response of /libraries, of which firstResults returns a prefix.
type list struct {
	records []byte        // with commas between
	ends    []int         // of each result in records
	whole   *answers.Body // the response with all of them, if the list is cached
}

// newList returns the list of libraries, in their order. It encodes each as a JSON result with the fields in set and the
// facts in facts, as they are now; URLs begin with assetBase. It logs facts that cannot be read, which become null. It
// leaves list.whole nil.
func (p *public) newList(libraries []*library.Library, set, facts fieldSet, assetBase string) *list {
	var w jsonWriter
	l := &list{ends: make([]int, len(libraries))}
	for i, lib := range libraries {
		p.writeResult(&w, lib, set, facts, assetBase)
		l.ends[i] = w.len()
	}
	l.records = w.bytes()
	return l
}

// firstResults returns the JSON response with the first n results of the list, which must have as many; available is how
// many libraries were found altogether, and is in the response.
func (l *list) firstResults(n, available int) *answers.Body {
	end := 0
	if n > 0 {
		end = l.ends[n-1]
	}
	var w jsonWriter
	w.buffer.Grow(end + 100)
	w.beginObject()
	w.writeName("results")
	w.beginArray()
	w.buffer.Write(l.records[:end])
	w.endArray()
	w.writeField("total", n)
	w.writeField("available", available)
	w.endObject()
	return newJSON(w.bytes())
}

// listKey is the inputs of a cached list.
type listKey struct {
	ranking       *library.Ranking
	fields, facts fieldSet
	assetBase     string
}

// listAll returns the list of all libraries in the ranking's order, with the resultFields in set and the factFields in
// facts, and drops the lists of other rankings from the cache. It makes the list only if p.lists, which has the ones used
// last, does not have it. Facts that cannot be read are logged, and null. The only error is that a concurrent call, which
// made the same list, panicked.
func (p *public) listAll(ranking *library.Ranking, set, facts fieldSet, assetBase string) (*list, error) {
	if p.newest.Swap(ranking) != ranking {
		p.lists.Remove(func(k listKey) bool { return k.ranking != ranking })
	}
	return p.lists.Get(listKey{ranking, set, facts, assetBase}, func() (*list, int, error) {
		l := p.newList(ranking.Libraries, set, facts, assetBase)
		l.whole = l.firstResults(len(l.ends), len(l.ends))
		return l, 3 * len(l.records), nil // the records, the whole response, and its encodings
	})
}

// libraries returns the response to /libraries: all libraries, most popular first, or those that match the query parameter
// "search", of which 512 bytes count, best first. The results have "name", "latest" and the fields and facts that the query
// names; "limit" bounds their number.
func (p *public) libraries(ctx context.Context, r *request) (*answers.Body, answers.Caching, error) {
	limit, _ := parseLimit(r.query) // like the public service, it ignores what is not a number
	assetBase, err := r.base(p.AssetBase)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	set, _ := resultFields.parse(r.query["fields"])
	set |= alwaysInResults
	facts := factFields.named(r.query["fields"])
	wanted := text.Cut(r.query.Get("search"), maxSearch)
	if strings.TrimSpace(wanted) != "" {
		found, err := p.Library.Search(ctx, wanted, parseSearchFields(r.query["search_fields"]))
		if err != nil {
			return nil, answers.Caching{}, err
		}
		n := min(limit, len(found))
		return p.newList(found[:n], set, facts, assetBase).firstResults(n, len(found)), sixHours, nil
	}
	ranking, err := p.Library.Ranking(ctx)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	l, err := p.listAll(ranking, set, facts, assetBase)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	if n := len(l.ends); limit < n {
		return l.firstResults(limit, n), sixHours, nil
	}
	return l.whole, sixHours, nil
}

// parseSearchFields returns the search fields that values of the query parameter "search_fields" name; nil, which stands for
// all, if they name all of them or none that exists.
func parseSearchFields(values []string) []string {
	named := vocabulary(search.Fields)
	set, _ := named.parse(values)
	if set == named.all() {
		return nil
	}
	return named.names(set)
}

// libraryFields are the fields of /libraries/{library}.
var libraryFields = vocabulary{
	"name", "latest", "sri", "filename", "description", "version", "keywords", "homepage", "license", "repository",
	"author", "autoupdate", "versions", "assets",
}

// A libraryResponder returns the response to a request about a library, and its caching.
type libraryResponder func(context.Context, *request, *library.Library) (*answers.Body, answers.Caching, error)

// withLibrary returns a handler that looks up the library that the path names, and sends the response that the function
// answer returns about it, or the failure that its error means. See handle.
func (p *public) withLibrary(answer libraryResponder) gin.HandlerFunc {
	return p.handle(func(ctx context.Context, r *request) (*answers.Body, answers.Caching, error) {
		l, err := p.Library.Library(ctx, r.params["library"])
		if err != nil {
			return nil, answers.Caching{}, err
		}
		return answer(ctx, r, l)
	})
}

// library returns the response to /libraries/{library}: the fields and facts that the query names, or if it names none all
// fields and no facts. It reads only what these need.
func (p *public) library(ctx context.Context, r *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	assetBase, err := r.base(p.AssetBase)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	set := libraryFields.parseOrAll(r.query["fields"])
	var w jsonWriter
	w.beginObject()
	p.writeFacts(&w, l, factFields.named(r.query["fields"]))
	for _, name := range libraryFields.names(set) {
		switch name {
		case "versions":
			versions, err := p.versionNames(l)
			if err != nil {
				return nil, answers.Caching{}, err
			}
			w.writeField(name, versions)
		case "assets": // the last field
			b, err := p.finishWithAssets(ctx, &w, l)
			return b, sixHours, err
		default:
			if value, ok := p.libraryField(l, name, assetBase); ok {
				w.writeField(name, value)
			}
		}
	}
	w.endObject()
	return newJSON(w.bytes()), sixHours, nil
}

// libraryField returns the value of a field of the response about a library, without reading the store. ok is false for a
// field to leave out because the library has no value for it; "latest" and "sri" are null (nil) instead.
func (p *public) libraryField(l *library.Library, name, assetBase string) (value any, ok bool) {
	switch v := p.resultField(l, name, assetBase).(type) {
	case nil:
		return nil, true
	case []string:
		return v, len(v) > 0
	case *packages.Repository:
		return v, v != nil
	case *library.Autoupdate:
		return v, v != nil
	case string:
		if name == "sri" && v == "" {
			return nil, true
		}
		return v, v != ""
	default:
		panic(fmt.Sprintf("api: the field %s is a %T", name, v))
	}
}

// versionNames returns the published versions of a library, newest first.
func (p *public) versionNames(l *library.Library) ([]string, error) {
	versions, err := p.Library.Versions(l.Name)
	return library.VersionNames(versions), err
}

// finishWithAssets adds the last field, "assets", and the closing brace to the response in w, and returns the response. The
// field has one entry, for the files of the latest version, or none if no version is published. If that version was
// withdrawn just now, the error is a failure with status 503.
func (p *public) finishWithAssets(ctx context.Context, w *jsonWriter, l *library.Library) (*answers.Body, error) {
	if l.Version == "" {
		w.writeField("assets", []string{})
		w.endObject()
		return newJSON(w.bytes()), nil
	}
	release, err := p.Library.Release(ctx, l.Name, l.Version)
	if gone := (*library.WithdrawnError)(nil); errors.As(err, &gone) {
		return nil, changing
	}
	if err != nil {
		return nil, err
	}
	return p.releaseBody(release, "library "+string(w.bytes()), func() *answers.Body {
		w.writeName("assets")
		w.beginArray()
		w.beginObject()
		w.writeField("version", release.Version)
		w.writeField("files", whitelistedPaths(release.Files))
		w.writeField("rawFiles", filePaths(release.Files))
		w.writeName("sri")
		writeSRIs(w, "", release.Files)
		w.endObject()
		w.endArray()
		w.endObject()
		return newJSON(w.bytes())
	})
}

// releaseBodyKey is the inputs of a response about a release's files.
type releaseBodyKey struct {
	release *library.Release // the same pointer as long as the release stays as it is
	kind    string           // the kind of response, and what else is in it
}

// fewFiles is up to how many files a response is not worth caching.
const fewFiles = 500

// releaseBody returns the response that write makes of a release. If the release has over 500 files, it caches the response
// with its encodings; release and kind are the key, so kind must have all other inputs of write. write is not called if the
// response is cached.
func (p *public) releaseBody(release *library.Release, kind string, write func() *answers.Body) (*answers.Body, error) {
	if len(release.Files) <= fewFiles {
		return write(), nil
	}
	return p.releases.Get(releaseBodyKey{release, kind}, func() (*answers.Body, int, error) {
		b := write()
		return b, 2*b.Len() + len(kind), nil // with encodings: integrity values do not compress well
	})
}

// writeSRIs writes an object that maps each file's path, after prefix, to its integrity value.
func writeSRIs(w *jsonWriter, prefix string, files []views.PublishedFile) {
	w.beginObject()
	for _, f := range files {
		w.writeField(prefix+f.Path, f.SRI.String())
	}
	w.endObject()
}

// versionFields are the fields of /libraries/{library}/{version}.
var versionFields = vocabulary{"name", "version", "rawFiles", "files", "sri"}

// ofVersion are the bits of "name" and "version", which need no files.
const ofVersion fieldSet = 1<<0 | 1<<1

// version returns the response to /libraries/{library}/{version} with the fields that the query names, or all, and adds the
// version's cache tags to the header. It reads the files only if a field needs them.
func (p *public) version(ctx context.Context, r *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	version := r.params["version"]
	set := versionFields.parseOrAll(r.query["fields"])
	release := &library.Release{}
	var err error
	if set&^ofVersion == 0 {
		_, err = p.Library.Version(ctx, l.Name, version)
	} else {
		release, err = p.Library.Release(ctx, l.Name, version)
	}
	if err != nil {
		return nil, answers.Caching{}, err
	}
	p.setCacheTags(r, l.Name, version)
	b, err := p.releaseBody(release, fmt.Sprint("version ", set), func() *answers.Body { return newVersionBody(l.Name, version, set, release.Files) })
	return b, cachingOfFiles(release.Files), err
}

// newVersionBody returns the response of /libraries/{library}/{version}: the versionFields in set of the version that has
// these files.
func newVersionBody(name, version string, set fieldSet, files []views.PublishedFile) *answers.Body {
	var w jsonWriter
	w.beginObject()
	for _, field := range versionFields.names(set) {
		w.writeName(field)
		switch field {
		case "name":
			w.writeValue(name)
		case "version":
			w.writeValue(version)
		case "rawFiles":
			w.writeValue(filePaths(files))
		case "files":
			w.writeValue(whitelistedPaths(files))
		case "sri":
			writeSRIs(&w, "", files)
		}
	}
	w.endObject()
	return newJSON(w.bytes())
}
