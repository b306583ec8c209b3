package search

import (
	"math"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
)

// segment is an inverted index of some documents. It never changes.
type segment struct {
	documents []*indexed
	fields    map[string]*dictionary // by the field's name, and nearField
}

// dictionary has the terms of one field and the documents that have each.
type dictionary struct {
	terms    []string         // sorted
	postings [][]posting      // of each term, in the order of documents
	stems    map[string][]int // indexes of the terms that have each stem; nil if the field has none
}

// posting is a document that has a term.
type posting struct {
	document uint32  // its index in segment.documents
	share    float32 // of the document's terms in the field, how many are this one, from 0 to 1
}

// newSegment builds an inverted index of the documents, with a dictionary for each field and one for mistyped names. It
// builds the dictionaries of several fields at once, because that takes much of a start. The segment keeps the slice.
func newSegment(documents []*indexed) *segment {
	s := &segment{documents, make(map[string]*dictionary, len(fields)+1)}
	var builders errgroup.Group
	builders.SetLimit(runtime.GOMAXPROCS(0))
	build := func(name string, terms func(*Document) []string, stemmed bool) {
		d := &dictionary{}
		s.fields[name] = d
		builders.Go(func() error {
			d.add(documents, terms)
			if stemmed {
				d.addStems()
			}
			return nil
		})
	}
	build(nearField, func(d *Document) []string { return nearTerms(d.Name) }, false)
	for i := range fields {
		f := &fields[i]
		build(f.name, f.termsOf, f.stemmed)
	}
	_ = builders.Wait() // no builder returns an error
	return s
}

// add fills an empty dictionary with the terms that termsOf returns of each document, sorted, and for each term with the
// documents that have it, in their order.
func (d *dictionary) add(documents []*indexed, termsOf func(*Document) []string) {
	found := make(map[string]*[]posting)
	for i, document := range documents {
		list := termsOf(&document.Document)
		for _, term := range list {
			p := found[term]
			if p == nil {
				p = new([]posting)
				found[strings.Clone(term)] = p // term is a part of a longer text, which need not stay in memory
			}
			share := 1 / float32(len(list))
			if n := len(*p); n > 0 && (*p)[n-1].document == uint32(i) {
				(*p)[n-1].share += share
			} else {
				*p = append(*p, posting{uint32(i), share})
			}
		}
	}
	d.terms = make([]string, 0, len(found))
	for term := range found {
		d.terms = append(d.terms, term)
	}
	slices.Sort(d.terms)
	d.postings = make([][]posting, len(d.terms))
	for i, term := range d.terms {
		d.postings[i] = slices.Clip(*found[term])
	}
}

// addStems fills d.stems: which terms of the dictionary have each stem, the form that is common to typing and typed. Terms
// without a stem are left out.
func (d *dictionary) addStems() {
	d.stems = make(map[string][]int)
	for i, term := range d.terms {
		if s := stemOf(term); s != "" {
			d.stems[s] = append(d.stems[s], i)
		}
	}
}

// find returns the index of a term in d.terms and true. If the dictionary does not have the term, it returns the index at
// which it would be, and false.
func (d *dictionary) find(term string) (int, bool) { return slices.BinarySearch(d.terms, term) }

// prefixRange returns the range of indexes of the terms that start with the prefix: from is the first, and to the one after
// the last. They are equal if no term does.
func (d *dictionary) prefixRange(prefix string) (from, to int) {
	from, _ = d.find(prefix)
	to = from
	for to < len(d.terms) && strings.HasPrefix(d.terms[to], prefix) {
		to++
	}
	return from, to
}

// editRow is a row of the table of edit distances between a word and a term: how many edits turn each beginning of the
// word into one beginning of the term.
type editRow struct {
	end   int // of the term's beginning, in bytes
	last  rune
	edits []int
}

// eachNear calls do with the index of each term that starts with the prefix and is the word w or differs from it by at
// most most edits, and with the number of these edits, 0 for w itself, in the order of terms. An edit is a letter changed, removed, inserted, or
// swapped with the next one. Neighbouring terms start alike, so the rows of their common beginning are computed once; terms
// whose beginning already needs too many edits are skipped.
func (d *dictionary) eachNear(w, prefix string, most int, do func(term, edits int)) {
	word := []rune(w)
	rows := make([]editRow, 1, len(word)+most+2)
	rows[0].edits = make([]int, len(word)+1)
	for j := range rows[0].edits {
		rows[0].edits[j] = j
	}
	from, to := d.prefixRange(prefix)
	failed := "" // the beginning that needs too many edits
	for i := from; i < to; i++ {
		term := d.terms[i]
		if failed != "" && strings.HasPrefix(term, failed) {
			continue
		}
		failed = ""
		common := 0
		if i > from {
			common = commonPrefix(d.terms[i-1], term)
		}
		for len(rows) > 1 && rows[len(rows)-1].end > common {
			rows = rows[:len(rows)-1]
		}
		for end := rows[len(rows)-1].end; end < len(term) && failed == ""; {
			r, size := utf8.DecodeRuneInString(term[end:])
			end += size
			var least int
			if rows, least = appendEditRow(rows, word, r, end, most); least > most {
				failed = term[:end]
			}
		}
		if failed == "" {
			if edits := rows[len(rows)-1].edits[len(word)]; edits <= most {
				do(i, edits)
			}
		}
	}
}

// appendEditRow appends to rows, the table of edit distances between word and a term's beginning, the row for that beginning
// with one more letter, r; the longer beginning is end bytes long. It returns the rows and the least value in the new one.
// Only values up to most matter, so it computes only those around the diagonal; the others are most+1. rows must have room
// for another row.
func appendEditRow(rows []editRow, word []rune, r rune, end, most int) (_ []editRow, least int) {
	n := len(rows)    // letters of the longer beginning
	rows = rows[:n+1] // a row that needs too many edits comes before the capacity ends
	row, above := &rows[n], rows[n-1]
	row.end, row.last = end, r
	if row.edits == nil {
		row.edits = make([]int, len(word)+1)
	}
	for j := range row.edits {
		row.edits[j] = most + 1
	}
	if n <= most {
		row.edits[0] = n
	}
	least = row.edits[0]
	for j := max(1, n-most); j <= min(len(word), n+most); j++ {
		edits := min(above.edits[j], row.edits[j-1]) + 1
		if word[j-1] == r {
			edits = min(edits, above.edits[j-1])
		} else {
			edits = min(edits, above.edits[j-1]+1)
		}
		if n > 1 && j > 1 && word[j-1] == above.last && word[j-2] == r {
			edits = min(edits, rows[n-2].edits[j-2]+1)
		}
		row.edits[j] = edits
		least = min(least, edits)
	}
	return rows, least
}

// commonPrefix returns how many bytes a and b have in common at their start.
func commonPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// weight returns how well the posting's term describes its document, from 0 to 1: the square root of the share of the
// field's terms that are this term. How rare the term is does not count, because it is the same for all documents that have
// it.
func (p posting) weight() float64 { return math.Sqrt(float64(min(1, p.share))) }
