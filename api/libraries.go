package api

import (
	"context"
	"strings"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/api/search"
)

// resultFields are what a result of /libraries can have.
var resultFields = vocabulary{
	"name", "latest", "filename", "description", "version", "keywords", "alternativeNames", "fileType", "github",
	"objectID", "license", "homepage", "repository", "author", "originalName", "sri",
}

// alwaysInResults are the bits of "name" and "latest".
const alwaysInResults fieldSet = 1<<0 | 1<<1

// latestURL is where the main file of the latest version is, nil where there is none.
func latestURL(l *library.Library, assetBase string) any {
	if !l.HasFile() {
		return nil
	}
	return assetBase + library.AssetPath(l.Name, l.Version, l.Filename)
}

// writeResult writes a library as /libraries shows it: what is unknown is "", or null where it would be an object.
func writeResult(w *jsonWriter, l *library.Library, set fieldSet, assetBase string) {
	w.beginObject()
	for i, name := range resultFields {
		if set&(1<<i) != 0 {
			w.field(name, resultField(l, name, assetBase))
		}
	}
	w.endObject()
}

func resultField(l *library.Library, name, assetBase string) any {
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
		return l.GitHub()
	case "license":
		return l.License
	case "homepage":
		return l.Homepage
	case "repository":
		return l.Repository
	case "author":
		return l.Author
	case "sri":
		return l.SRI
	}
	panic("api: no such field: " + name)
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
	records []byte // with commas between
	ends    []int  // of each result in records
	whole   *body  // all of them, where the list is kept
}

func newList(libraries []*library.Library, set fieldSet, assetBase string) *list {
	var w jsonWriter
	l := &list{ends: make([]int, len(libraries))}
	for i, lib := range libraries {
		writeResult(&w, lib, set, assetBase)
		l.ends[i] = w.len()
	}
	l.records = w.bytes()
	return l
}

// first returns the answer that has n of the results.
func (l *list) first(n, available int) *body {
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
	listing   *library.Listing
	fields    fieldSet
	assetBase string
}

// all returns the list of all libraries, which is made once for each change of them. Those of earlier listings are let go.
func (p *public) all(listing *library.Listing, set fieldSet, assetBase string) (*list, error) {
	if p.newest.Swap(listing) != listing {
		p.lists.forget(func(k listKey) bool { return k.listing != listing })
	}
	return p.lists.get(listKey{listing, set, assetBase}, func() (*list, int, error) {
		l := newList(listing.Libraries, set, assetBase)
		l.whole = l.first(len(l.ends), len(l.ends))
		return l, 3 * len(l.records), nil // the records, the whole, and that in its codings
	})
}

// libraries answers /libraries: all of them, or those that a search finds.
func (p *public) libraries(ctx context.Context, r *request) (*body, caching, error) {
	limit, err := parseLimit(r.query)
	if err != nil {
		return nil, caching{}, err
	}
	assetBase, err := baseOr(p.AssetBase, r.Request)
	if err != nil {
		return nil, caching{}, err
	}
	set, _ := resultFields.parse(r.query["fields"])
	set |= alwaysInResults
	text := cut(r.query.Get("search"), maxSearch)
	if strings.TrimSpace(text) != "" {
		b, err := p.search(ctx, text, searchFields(r.query["search_fields"]), func(found []*library.Library) *body {
			n := min(limit, len(found))
			return newList(found[:n], set, assetBase).first(n, len(found))
		})
		return b, sixHours, err
	}
	listing, err := p.Library.Listing(ctx)
	if err != nil {
		return nil, caching{}, err
	}
	l, err := p.all(listing, set, assetBase)
	if err != nil {
		return nil, caching{}, err
	}
	if n := len(l.ends); limit < n {
		return l.first(limit, n), sixHours, nil
	}
	return l.whole, sixHours, nil
}

// search answers with what is made of the libraries that a search finds. So many at once that they keep all cores busy
// are as fast as more, which would take memory for their answers while they wait for a core.
func (p *public) search(ctx context.Context, text string, fields []string, answer func([]*library.Library) *body) (*body, error) {
	select {
	case p.searching <- struct{}{}:
		defer func() { <-p.searching }()
	case <-ctx.Done():
		return nil, busy
	}
	found, err := p.Library.Search(ctx, text, fields)
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
