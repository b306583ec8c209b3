package library

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	"github.com/larder-cdn/larder/api/search"
)

// updateSearch puts the changed libraries, by name, into the search index. It removes those that are nil or hidden.
func (x *Index) updateSearch(changed map[string]*Library) {
	var documents []search.Document
	var removed []string
	for name, l := range changed {
		if l == nil || l.Hidden {
			removed = append(removed, name)
		} else {
			documents = append(documents, l.searchDocument())
		}
	}
	x.search.Update(documents, removed)
}

// Near returns at most n libraries (n is not negative) that the misspelt name may mean: first those whose name differs in at
// most one letter or in the order of two, then those of which one name begins with the other, then those that differ in two
// letters, even if one begins with the other; among each, popular ones first. Case, hyphens, underscores, dots, and .js and
// .css at the end do not count. It leaves out libraries that are hidden from search, and returns none for a name over
// maxNear bytes. It waits for the first listing.
func (x *Index) Near(ctx context.Context, name string, n int) ([]*Library, error) {
	ranking, err := x.Ranking(ctx)
	if err != nil || len(name) > maxNear {
		return nil, err
	}
	sought := bareLibraryName(name)
	var near [3][]*Library
	for _, l := range ranking.Libraries {
		if class := compareSpelling(sought, bareLibraryName(l.Name)); class < len(near) && !l.Hidden {
			near[class] = append(near[class], l)
		}
	}
	found := slices.Concat(near[:]...)
	return found[:min(n, len(found))], nil
}

// maxNear limits the name that [Index.Near] compares with others, in bytes.
const maxNear = 100

// bareLibraryName returns the name of a library in lower case, without .js and .css at its end and without hyphens,
// underscores and dots.
func bareLibraryName(name string) string {
	name = strings.ToLower(name)
	for _, affix := range []string{".js", ".css"} {
		name = strings.TrimSuffix(name, affix)
	}
	return strings.NewReplacer("-", "", "_", "", ".", "").Replace(name)
}

// compareSpelling returns 0 if a and b differ in at most one letter or only in the order of two neighbors, 2 if they differ
// in two letters, else 1 if one begins with the other, else 3. If the shorter name has at most one byte, the result is 3; if
// it has fewer than 4, never 1; if it has fewer than 6, never 2.
func compareSpelling(a, b string) int {
	const leastPrefix, leastForTwo = 4, 6 // letters
	shorter := min(len(a), len(b))
	if max(len(a), len(b))-shorter <= 2 {
		switch edits := levenshtein.ComputeDistance(a, b); {
		case edits <= 1 && shorter > 1, edits == 2 && areSwapped(a, b):
			return 0
		case edits == 2 && shorter >= leastForTwo:
			return 2
		}
	}
	if shorter >= leastPrefix && a[:shorter] == b[:shorter] {
		return 1
	}
	return 3
}

// areSwapped reports whether a is b with two neighboring letters in the other order, and no other difference.
func areSwapped(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) - 1 {
		if a[i] != b[i] {
			return a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
		}
	}
	return false
}

// Search returns the libraries that match text, best first, by how well they match and how popular they are, without those
// that are hidden from search. For a text of nothing but white space it returns all of these in the byte order of their
// names. fields restricts the search to some of [search.Fields]; unknown names do not count, and without a known one it
// searches all. It waits for the first listing, as [Index.Listing] does.
func (x *Index) Search(ctx context.Context, text string, fields []string) ([]*Library, error) {
	listing, err := x.Listing(ctx)
	if err != nil {
		return nil, err
	}
	names, err := x.search.Search(ctx, search.Query{Text: text, Fields: fields, Popularity: func(name string) float64 {
		if l := listing.Library(name); l != nil {
			return x.options.Popularity(l)
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
