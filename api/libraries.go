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

// resultFields are what a result of /libraries can have.
var resultFields = vocabulary{
	"name", "latest", "filename", "description", "version", "keywords", "alternativeNames", "fileType", "github",
	"objectID", "license", "homepage", "repository", "author", "originalName", "sri",
}

// alwaysInResults are the bits of "name" and "latest".
const alwaysInResults fieldSet = 1<<0 | 1<<1

// latestURL is where the main file of the latest version is, or nil.
func latestURL(l *library.Library, assetBase string) any {
	if !l.HasFile() {
		return nil
	}
	return assetBase + library.AssetPath(l.Name, l.Version, l.Filename)
}

// writeResult writes a library as /libraries shows it: what is unknown is "", or null where it would be an object.
func (p *public) writeResult(w *jsonWriter, l *library.Library, set fieldSet, assetBase string) {
	w.beginObject()
	for i, name := range resultFields {
		if set&(1<<i) != 0 {
			w.field(name, p.resultField(l, name, assetBase))
		}
	}
	w.endObject()
}

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
		return orEmpty(l.Keywords)
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

// gitHub is what the API shows of a library's repository at GitHub: nothing until GitHub has said all of it.
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

// orEmpty returns an array for JSON, which nil is not.
func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// A list is the results of an answer of /libraries, of which any first part can be had.
type list struct {
	records []byte        // with commas between
	ends    []int         // of each result in records
	whole   *answers.Body // all of them, where the list is kept
}

func (p *public) newList(libraries []*library.Library, set fieldSet, assetBase string) *list {
	var w jsonWriter
	l := &list{ends: make([]int, len(libraries))}
	for i, lib := range libraries {
		p.writeResult(&w, lib, set, assetBase)
		l.ends[i] = w.len()
	}
	l.records = w.bytes()
	return l
}

// first returns the answer that has n of the results.
func (l *list) first(n, available int) *answers.Body {
	end := 0
	if n > 0 {
		end = l.ends[n-1]
	}
	var w jsonWriter
	w.buffer.Grow(end + 100)
	w.beginObject()
	w.name("results")
	w.beginArray()
	w.buffer.Write(l.records[:end])
	w.endArray()
	w.field("total", n)
	w.field("available", available)
	w.endObject()
	return newJSON(w.bytes())
}

// listKey says what a list that is kept was made from.
type listKey struct {
	ranking   *library.Ranking
	fields    fieldSet
	assetBase string
}

// all returns the list of all libraries, which is made once for each change of them or of their order. Lists in an earlier order are dropped.
func (p *public) all(ranking *library.Ranking, set fieldSet, assetBase string) (*list, error) {
	if p.newest.Swap(ranking) != ranking {
		p.lists.Remove(func(k listKey) bool { return k.ranking != ranking })
	}
	return p.lists.Get(listKey{ranking, set, assetBase}, func() (*list, int, error) {
		l := p.newList(ranking.Libraries, set, assetBase)
		l.whole = l.first(len(l.ends), len(l.ends))
		return l, 3 * len(l.records), nil // the records, the whole, and that in its codings
	})
}

// libraries answers /libraries: all of them, or those that a search finds.
func (p *public) libraries(ctx context.Context, r *request) (*answers.Body, answers.Caching, error) {
	limit, _ := parseLimit(r.query) // one that is no number is ignored, as the public service does
	assetBase, err := baseOr(p.AssetBase, r.Request)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	set, _ := resultFields.parse(r.query["fields"])
	set |= alwaysInResults
	wanted := text.Cut(r.query.Get("search"), maxSearch)
	if strings.TrimSpace(wanted) != "" {
		b, err := p.search(ctx, wanted, searchFields(r.query["search_fields"]), func(found []*library.Library) *answers.Body {
			n := min(limit, len(found))
			return p.newList(found[:n], set, assetBase).first(n, len(found))
		})
		return b, addressed(p.AssetBase != "", sixHours), err
	}
	ranking, err := p.Library.Ranking(ctx)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	l, err := p.all(ranking, set, assetBase)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	if n := len(l.ends); limit < n {
		return l.first(limit, n), addressed(p.AssetBase != "", sixHours), nil
	}
	return l.whole, addressed(p.AssetBase != "", sixHours), nil
}

// search answers with what is made of the libraries that a search finds.
func (p *public) search(ctx context.Context, wanted string, fields []string, answer func([]*library.Library) *answers.Body) (*answers.Body, error) {
	found, err := p.Library.Search(ctx, wanted, fields)
	if err != nil {
		return nil, err
	}
	return answer(found), nil
}

// searchFields returns those that a query names, nil for all, which it is too where it names none that there are.
func searchFields(values []string) []string {
	named := vocabulary(search.Fields)
	set, _ := named.parse(values)
	if set == named.all() {
		return nil
	}
	return named.names(set)
}

// libraryFields are what /libraries/{library} answers.
var libraryFields = vocabulary{
	"name", "latest", "sri", "filename", "description", "version", "keywords", "homepage", "license", "repository",
	"author", "autoupdate", "versions", "assets",
}

// ofLibrary makes a handler of a function that answers about the library that the path names.
func (p *public) ofLibrary(answer func(context.Context, *request, *library.Library) (*answers.Body, answers.Caching, error)) gin.HandlerFunc {
	return p.answering(func(ctx context.Context, r *request) (*answers.Body, answers.Caching, error) {
		name, err := param(r.c, "library")
		if err != nil {
			return nil, answers.Caching{}, err
		}
		l, err := p.Library.Library(ctx, name)
		if err != nil {
			return nil, answers.Caching{}, err
		}
		return answer(ctx, r, l)
	})
}

// library answers /libraries/{library}. What is not asked for is not read.
func (p *public) library(ctx context.Context, r *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	assetBase, err := baseOr(p.AssetBase, r.Request)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	set := libraryFields.parseOrAll(r.query["fields"])
	var w jsonWriter
	w.beginObject()
	for _, name := range libraryFields.names(set) {
		switch name {
		case "versions":
			versions, err := p.versionNames(l)
			if err != nil {
				return nil, answers.Caching{}, err
			}
			w.field(name, versions)
		case "assets": // the last field
			b, err := p.libraryWithAssets(ctx, &w, l)
			return b, addressed(p.AssetBase != "", sixHours), err
		default:
			if value, ok := p.libraryField(l, name, assetBase); ok {
				w.field(name, value)
			}
		}
	}
	w.endObject()
	return newJSON(w.bytes()), addressed(p.AssetBase != "", sixHours), nil
}

// libraryField returns what is known of a library without reading. What it lacks is left out, but "latest" and "sri",
// which are null.
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

func (p *public) versionNames(l *library.Library) ([]string, error) {
	versions, err := p.Library.Versions(l.Name)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(versions))
	for i, v := range versions {
		names[i] = v.Version
	}
	return names, nil
}

// libraryWithAssets returns the response of which w has all fields but the last, "assets". That has one entry, the latest version; none where
// nothing is published.
func (p *public) libraryWithAssets(ctx context.Context, w *jsonWriter, l *library.Library) (*answers.Body, error) {
	if l.Version == "" {
		w.field("assets", []string{})
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
		w.name("assets")
		w.beginArray()
		w.beginObject()
		w.field("version", release.Version)
		w.field("files", shownPaths(release.Files))
		w.field("rawFiles", rawPaths(release.Files))
		w.name("sri")
		writeSRIs(w, "", release.Files)
		w.endObject()
		w.endArray()
		w.endObject()
		return newJSON(w.bytes())
	})
}

// releaseBodyKey is what a response about a release's files is made from.
type releaseBodyKey struct {
	release *library.Release // the same pointer as long as the release stays as it is
	rest    string           // the kind of response, and what else is in it
}

// fewFiles is up to how many files of a release making a response costs less than storing it.
const fewFiles = 500

// releaseBody returns the response that write makes of a release. That of a release with many files is cached, with its encodings.
func (p *public) releaseBody(release *library.Release, rest string, write func() *answers.Body) (*answers.Body, error) {
	if len(release.Files) <= fewFiles {
		return write(), nil
	}
	return p.releases.Get(releaseBodyKey{release, rest}, func() (*answers.Body, int, error) {
		b := write()
		return b, 2*b.Len() + len(rest), nil // with encodings: integrity values do not compress well
	})
}

func writeSRIs(w *jsonWriter, prefix string, files []views.PublishedFile) {
	w.beginObject()
	for _, f := range files {
		w.field(prefix+f.Path, f.SRI.String())
	}
	w.endObject()
}

// versionFields are what /libraries/{library}/{version} answers.
var versionFields = vocabulary{"name", "version", "rawFiles", "files", "sri"}

// ofVersion is what needs no files.
const ofVersion fieldSet = 1<<0 | 1<<1

// version answers /libraries/{library}/{version}.
func (p *public) version(ctx context.Context, r *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	version, err := param(r.c, "version")
	if err != nil {
		return nil, answers.Caching{}, err
	}
	set := versionFields.parseOrAll(r.query["fields"])
	release := &library.Release{}
	if set&^ofVersion == 0 {
		_, err = p.Library.Version(ctx, l.Name, version)
	} else {
		release, err = p.Library.Release(ctx, l.Name, version)
	}
	if err != nil {
		return nil, answers.Caching{}, err
	}
	p.tag(r, l.Name, version)
	b, err := p.releaseBody(release, fmt.Sprint("version ", set), func() *answers.Body { return newVersionBody(l.Name, version, set, release.Files) })
	return b, ofFiles(release.Files), err
}

// newVersionBody returns the response of /libraries/{library}/{version} with some of its fields.
func newVersionBody(name, version string, set fieldSet, files []views.PublishedFile) *answers.Body {
	var w jsonWriter
	w.beginObject()
	for _, field := range versionFields.names(set) {
		w.name(field)
		switch field {
		case "name":
			w.value(name)
		case "version":
			w.value(version)
		case "rawFiles":
			w.value(rawPaths(files))
		case "files":
			w.value(shownPaths(files))
		case "sri":
			writeSRIs(&w, "", files)
		}
	}
	w.endObject()
	return newJSON(w.bytes())
}
