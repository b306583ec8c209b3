// Package search finds libraries by what people type: a full-text index in
// memory over what is known of each library, and the order of the answers.
//
// Guarantees: every word of a query is found in each answer, or, of a query of few words that few libraries have all of,
// all but one that others have, or one of three where nothing has more, so nonsense finds nothing; a library whose name is exactly the query is first; the work
// for a query is bounded whatever its bytes are; a search sees the documents as they were before or after an update, never
// half of one; equal documents and equal queries give equal answers, in whatever order the documents came.
//
// # What matches
//
// Documents and queries are cut into words in the same way: letters and digits
// without accents, in lower case, everything else parts them. "font-awesome" is
// the words font and awesome, and fontawesome as one. A word of the query matches
// a word that equals it or starts with it, and its singular; in names, one that has it inside
// ("query" finds jquery). The whole query without its gaps is also compared with
// whole names, which is why "jquery ui" finds jqueryui, and with words ("date picker"). Other forms of a word (typing, typed)
// and its synonyms (carousel, slider) match like keywords, in queries of several words and where a word alone finds few. Words that say little
// about the library (versions, umd, the) are left out where few libraries have them all. C++, C# and .js are words. Where all of that finds
// few libraries and none that is called so, words may be mistyped: one letter wrong, missing, too many or
// swapped with its neighbour from four letters on, two from eight.
//
// # What comes first
//
// What is called as the query says comes first, in this order, however popular the others are:
//
//  1. the name, letter for letter; then without regard to case
//  2. the name without punctuation (fontawesome, Font.Awesome)
//  3. the name without .js, js or .css (angular and angularjs: angular.js), also
//     where the query has more of that kind (jquery 3.7.1, bootstrap.min.css)
//  4. another name of the library, or its name with a version behind (vue3)
//
// All others are ordered by a sum: where the words are, how well they match there, how much of the name they are, and
// popularity, which counts about as much as the rest together. The places, each worth less than the one before (bases):
// names that start with the query, or in which each word is or starts one; names that are the query but for a typing
// error; words in keywords and the repository's name; names whose words are the query's but for typing errors, or that
// have the words inside; words in the description; words in the rest (file name, repository's address, people); all
// words but one; other typing errors. A library whose words match in several places counts as in the worst. Among equals
// the shorter name is first, then the alphabet decides.
//
// What a user has pasted (an address with or without a scheme, the name of an npm package with scope or version, a tag, an
// install command, an import, the name of a file) is looked up as the library that it is about, if there is one.
//
// bleve keeps the dictionary and says which documents have a word; the order is
// made here, because bleve ranks by how rare words are, which says little of short names and keywords.
//
// The package does not know stores, releases or HTTP, nor where popularity comes
// from.
package search

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/blevesearch/bleve/v2/index/scorch"
	index "github.com/blevesearch/bleve_index_api"
	"golang.org/x/sync/errgroup"
)

// ErrClosed is what a closed index answers with.
var ErrClosed = errors.New("search: the index is closed")

// maxParts is how many updates an index takes before it is made anew. bleve
// merges the parts of an index on disk; in memory each update remains a part of
// its own, which every search has to look into.
const maxParts = 32

// analysts is how many goroutines prepare documents for bleve.
const analysts = 4

// An update is split into batches of at least minBatch documents, because bleve keeps all terms of a batch in memory until it is written, and
// into at most mostBatches, because each search looks into each.
const (
	minBatch    = 1_000
	mostBatches = 6
)

// Index is a set of documents that can be searched. Its methods may be called at
// the same time.
type Index struct {
	// updating guards what only updates look at.
	updating  sync.Mutex
	documents map[string]*known
	bleve     index.Index
	parts     int
	queue     *index.AnalysisQueue

	mu    sync.RWMutex
	state *state // nil once closed; a search holds mu while it reads it
}

// known is a document and what is made of it once.
type known struct {
	Document
	library *library
}

// state is what a search sees.
type state struct {
	reader    index.IndexReader
	fuzzy     index.IndexReaderFuzzy // the same
	libraries []*library             // sorted by name
	at        map[uint64]int         // where in libraries a document of bleve's is
}

// New returns an empty index. Close it when it isn't needed any more.
func New() (*Index, error) {
	queue := index.NewAnalysisQueue(analysts)
	b, err := newBleve(queue)
	if err != nil {
		queue.Close()
		return nil, err
	}
	x := &Index{documents: map[string]*known{}, bleve: b, queue: queue}
	if x.state, err = newState(b, x.documents); err != nil {
		queue.Close()
		return nil, errors.Join(err, b.Close())
	}
	return x, nil
}

// newBleve makes one of bleve's indexes in memory. bleve's own package would add the parts that index and search
// texts; here documents are given as fields and terms, and searched by terms.
func newBleve(queue *index.AnalysisQueue) (index.Index, error) {
	b, err := scorch.NewScorch(scorch.Name, map[string]any{"path": ""}, queue)
	if err == nil {
		err = b.Open()
	}
	if err != nil {
		return nil, fmt.Errorf("search: couldn't make an index: %w", err)
	}
	return b, nil
}

// Update removes the documents called remove and then puts the others in, each
// in place of the one with its name. Searches see all of it or nothing. The
// documents must not be changed afterwards. After an error searches see what
// they saw before, and the update can be repeated.
func (x *Index) Update(put []Document, remove []string) error {
	for i := range put {
		if put[i].Name == "" {
			return fmt.Errorf("search: document %d of %d has no name; a document is known by its name", i+1, len(put))
		}
	}
	x.updating.Lock()
	defer x.updating.Unlock()
	if x.bleve == nil {
		return ErrClosed
	}
	changes := x.changes(put, remove)
	if len(changes) == 0 {
		return nil
	}
	documents := maps.Clone(x.documents)
	for name, d := range changes {
		if d == nil {
			delete(documents, name)
		} else {
			documents[name] = d
		}
	}
	b, parts := x.bleve, x.parts
	if parts >= maxParts {
		var err error
		if b, err = newBleve(x.queue); err != nil {
			return err
		}
		changes, parts = documents, 0
	}
	added, err := apply(b, changes)
	parts += added
	var fresh *state
	if err == nil {
		fresh, err = newState(b, documents)
	}
	if err != nil {
		if b != x.bleve {
			err = errors.Join(err, b.Close())
		}
		return err
	}
	x.mu.Lock()
	old := x.state
	x.state = fresh
	x.mu.Unlock()
	err = old.reader.Close()
	if b != x.bleve {
		err = errors.Join(err, x.bleve.Close())
	}
	x.documents, x.bleve, x.parts = documents, b, parts
	if err != nil {
		return fmt.Errorf("search: updated, but what was before couldn't be closed: %w", err)
	}
	return nil
}

// changes returns what an update changes: the new document by name, nil for one
// that goes. A release rarely changes what is searched of its library.
func (x *Index) changes(put []Document, remove []string) map[string]*known {
	changes := map[string]*known{}
	for _, name := range remove {
		if _, ok := x.documents[name]; ok {
			changes[name] = nil
		}
	}
	for i := range put {
		d := &put[i]
		if old, ok := x.documents[d.Name]; ok && equal(&old.Document, d) {
			delete(changes, d.Name)
		} else {
			changes[d.Name] = &known{*d, d.library()}
		}
	}
	return changes
}

// apply writes the changes to b in batches, as many at once as there are processors, because bleve builds the dictionary of
// a batch in one goroutine. It returns the number of batches.
func apply(b index.Index, changes map[string]*known) (int, error) {
	names := slices.Sorted(maps.Keys(changes))
	size := max(minBatch, (len(names)+mostBatches-1)/mostBatches)
	var batches errgroup.Group
	batches.SetLimit(runtime.GOMAXPROCS(0))
	n := 0
	for part := range slices.Chunk(names, size) {
		n++
		batches.Go(func() error {
			batch := index.NewBatch()
			for _, name := range part {
				if d := changes[name]; d != nil {
					batch.Update(d.entry())
				} else {
					batch.Delete(name)
				}
			}
			return b.Batch(batch)
		})
	}
	if err := batches.Wait(); err != nil {
		return 0, fmt.Errorf("search: couldn't index %d documents: %w", len(changes), err)
	}
	return n, nil
}

// newState opens what is in b, which are the documents.
func newState(b index.Index, documents map[string]*known) (_ *state, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("search: couldn't open the index: %w", err)
		}
	}()
	reader, err := b.Reader()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, reader.Close())
		}
	}()
	s := &state{reader: reader, at: make(map[uint64]int, len(documents))}
	var ok bool
	if s.fuzzy, ok = reader.(index.IndexReaderFuzzy); !ok {
		return nil, fmt.Errorf("bleve's %T can't look for mistyped words", reader)
	}
	place := make(map[string]int, len(documents))
	for i, name := range slices.Sorted(maps.Keys(documents)) {
		s.libraries = append(s.libraries, documents[name].library)
		place[name] = i
	}
	ids, err := reader.DocIDReaderAll()
	if err != nil {
		return nil, err
	}
	defer ids.Close()
	for {
		id, err := ids.Next()
		if err != nil {
			return nil, err
		}
		if id == nil {
			return s, nil
		}
		name, err := reader.ExternalID(id)
		if err != nil {
			return nil, err
		}
		key, err := identity(id)
		if err != nil {
			return nil, err
		}
		i, ok := place[name]
		if !ok {
			return nil, fmt.Errorf("bleve has a document %q that wasn't given to it", name)
		}
		s.at[key] = i
	}
}

// identity returns bleve's identity of a document as a number. What is in its
// bytes is bleve's affair, but eight are compared faster as one.
func identity(id index.IndexInternalID) (uint64, error) {
	if len(id) != 8 {
		return 0, fmt.Errorf("bleve names a document with %d bytes instead of 8", len(id))
	}
	return binary.BigEndian.Uint64(id), nil
}

// Close gives the index's memory back. Searches under way end first.
func (x *Index) Close() error {
	x.updating.Lock()
	defer x.updating.Unlock()
	if x.bleve == nil {
		return nil
	}
	x.mu.Lock()
	old := x.state
	x.state = nil
	x.mu.Unlock()
	err := errors.Join(old.reader.Close(), x.bleve.Close())
	x.queue.Close()
	x.bleve, x.documents = nil, nil
	if err != nil {
		return fmt.Errorf("search: couldn't close the index: %w", err)
	}
	return nil
}
