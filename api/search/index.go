// Package search finds libraries by what people type: an inverted index in
// memory of what is known about each library, and the ranking of the results.
//
// Guarantees: each result has every word of the query; if few libraries do, also
// those that lack one word of a short query are results, and if none is found,
// those that have one of three or four words. Nonsense finds nothing. A library
// whose name is exactly the query is first. The work for a query is bounded
// whatever its bytes are. A search sees the documents before or after an update,
// never half of one. Equal documents and equal queries give equal results, in
// whatever order the documents came.
//
// # What matches
//
// Documents and queries are cut into words in the same way: letters and digits
// without accents, in lower case; everything else separates them. "font-awesome"
// is the words font and awesome, and fontawesome as one. A word of the query
// matches a word that equals it or starts with it, and its singular; in names, one
// that contains it ("query" finds jquery). The query without its gaps is also
// compared with complete names, which is why "jquery ui" finds jqueryui, and with
// words ("date picker"). Inflected forms of a word (typing, typed) and its synonyms
// (carousel, slider) match like keywords, in queries of several words and if a word
// alone finds few libraries; one word of a library is not taken for two of the query
// that are synonyms (loading spinner). Words that say little about the library (versions,
// umd, the) are left out if few libraries have them all. C++, C# and .js are words.
// If all of that finds few libraries and none whose name is the query, words may
// be mistyped: one letter wrong, missing, too many or swapped with its neighbour
// in words of 4 to 24 letters, two in those of 8 to 16.
//
// # What comes first
//
// Libraries whose name is the query come first, in this order, however popular
// the others are:
//
//  1. the name, letter for letter; then without regard to case
//  2. the name without punctuation (fontawesome, Font.Awesome)
//  3. the name without .js, js or .css (angular and angularjs: angular.js), also
//     if the query has more of that kind (jquery 3.7.1, bootstrap.min.css)
//  4. another name of the library, or its name followed by a version (vue3)
//
// All others are ordered by a sum: where the words are, how well they match there,
// how much of the name they are, and popularity, which counts about as much as the
// rest together. A library of a family that the query does not name (five names or more
// that start with the same word: angular-file-upload for "file upload") is worth less,
// because it needs another library. The places, with their worth (bases): names that are
// the query but for a typing error (1.25); names that start with the query, or in which
// each word is or starts one (1); words in keywords and the repository's name (0.85);
// names that contain the words (0.75); words in the description (0.65); names whose words
// are the query's but for typing errors (0.4); words in the rest (file name, repository's
// address, people; 0.3); all words but one (0.2); other typing errors (0.1). Where a word
// is missing or mistyped, popularity counts half. Each word counts as in the best place
// that has it, and the library as in the worst of its words' places; a word that is in the
// name, the keywords and the description counts more than one that is in a single one of
// them. Among equals the shorter name is first, then the byte order of names decides.
//
// Pasted text (an address with or without a scheme, the name of an npm package with
// scope or version, a tag, an install command, an import, the name of a file) is
// looked up as the library that it refers to, if there is one.
//
// The package does not know stores, releases or HTTP, nor where popularity comes
// from.
package search

import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
)

// minRecent is from how many changes on one segment is built of all documents: when over minRecent, and over a tenth of all
// documents, have changed since the base segment was built. A replaced document counts as two changes, an added or removed
// one as one. Until then, each update builds a second segment of the documents that are not in the base.
const minRecent = 500

// Index is a set of documents that can be searched. Its methods may be called at
// the same time.
type Index struct {
	updating sync.Mutex // held by Update
	state    atomic.Pointer[state]
}

// indexed is a document and the forms of its names.
type indexed struct {
	Document
	library *library
}

// state is one version of the documents and their index. It never changes.
type state struct {
	documents map[string]*indexed // by name
	libraries []*library          // sorted by name
	families  map[string]int      // how many libraries are of each family
	base      *segment            // of most documents, some of which may have been replaced or removed since
	segments  []placedSegment
}

// placedSegment is a segment with the position of each of its documents in state.libraries, -1 for one that has been
// replaced or removed.
type placedSegment struct {
	*segment
	positions []int
}

// New returns an empty index.
func New() *Index {
	x := &Index{}
	x.state.Store(newState(&segment{}, nil))
	return x
}

// Update removes the documents with the names in remove, and then adds those in put, each in place of the one with its name.
// It returns when searches see them; a search never sees only a part of an update. The documents in put, and their slices,
// must not be changed afterwards.
func (x *Index) Update(put []Document, remove []string) {
	x.updating.Lock()
	defer x.updating.Unlock()
	before := x.state.Load()
	documents := maps.Clone(before.documents)
	if documents == nil {
		documents = make(map[string]*indexed, len(put))
	}
	for _, name := range remove {
		delete(documents, name)
	}
	for i := range put {
		d := &put[i]
		// A release rarely changes what is searched of its library.
		if old := before.documents[d.Name]; old != nil && reflect.DeepEqual(old.Document, *d) {
			documents[d.Name] = old
		} else {
			documents[d.Name] = &indexed{*d, d.library()}
		}
	}
	if !maps.Equal(documents, before.documents) {
		x.state.Store(newState(before.base, documents))
	}
}

// newState indexes the documents, by name. It uses the segment base again if most documents are in it, and indexes only the
// others; if there are more changes since base than minRecent and a tenth of all documents, it builds one segment of all
// documents. It does not change documents or base.
func newState(base *segment, documents map[string]*indexed) *state {
	s := &state{documents: documents, base: base, families: make(map[string]int)}
	positions := make(map[*indexed]int, len(documents))
	for i, name := range slices.Sorted(maps.Keys(documents)) {
		d := documents[name]
		s.libraries = append(s.libraries, d.library)
		s.families[d.library.family]++
		positions[d] = i
	}
	place := func(g *segment) (current int) {
		placed := placedSegment{g, make([]int, len(g.documents))}
		for i, d := range g.documents {
			position, ok := positions[d]
			if !ok {
				position = -1
			} else {
				current++
			}
			placed.positions[i] = position
		}
		if len(g.documents) > 0 {
			s.segments = append(s.segments, placed)
		}
		return current
	}
	current := place(base)
	if changed := len(documents) + len(base.documents) - 2*current; changed > max(minRecent, len(documents)/10) {
		s.base, s.segments = newSegment(slices.Collect(maps.Values(documents))), nil
		place(s.base)
		return s
	}
	inBase := make(map[*indexed]bool, current)
	for _, d := range base.documents {
		inBase[d] = true
	}
	var recent []*indexed
	for d := range positions {
		if !inBase[d] {
			recent = append(recent, d)
		}
	}
	if len(recent) > 0 {
		place(newSegment(recent))
	}
	return s
}
