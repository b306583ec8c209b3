package library

import (
	"context"
	"fmt"

	"github.com/larder-cdn/larder/api/search"
)

// updateSearch puts the changed libraries into the search index. A nil library has been removed.
func (x *Index) updateSearch(changed map[string]*Library) {
	var documents []search.Document
	var removed []string
	for name, l := range changed {
		if l == nil || l.Hidden {
			removed = append(removed, name)
		} else {
			documents = append(documents, l.document())
		}
	}
	x.search.Update(documents, removed)
}

// Search returns the libraries that match text, best first. Fields restricts the
// search to some of [search.Fields]; nil is all.
func (x *Index) Search(ctx context.Context, text string, fields []string) ([]*Library, error) {
	listing, err := x.Listing(ctx)
	if err != nil {
		return nil, err
	}
	names, err := x.search.Search(ctx, search.Query{Text: text, Fields: fields, Popularity: func(name string) float64 {
		if l := listing.Library(name); l != nil {
			return x.popularity(l)
		}
		return 0 // the index is a moment ahead of the listing
	}})
	if err != nil {
		return nil, fmt.Errorf("library: couldn't search for %q: %w", text, err)
	}
	found := make([]*Library, 0, len(names))
	for _, name := range names {
		if l := listing.Library(name); l != nil { // the index may be a moment ahead
			found = append(found, l)
		}
	}
	return found, nil
}
