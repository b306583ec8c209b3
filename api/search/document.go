package search

import (
	"bytes"
	"slices"
	"strings"

	"github.com/blevesearch/bleve/v2/analysis"
	"github.com/blevesearch/bleve/v2/document"
	index "github.com/blevesearch/bleve_index_api"
)

// Document is what can be searched of one library.
type Document struct {
	// Name is the library's name and the document's identity; never empty.
	Name string
	// AlternativeNames are what else the library is called.
	AlternativeNames []string
	// GithubRepo is the repository's name at GitHub, "" where it isn't there.
	GithubRepo string
	// GithubUser is the repository's owner at GitHub, "" where it isn't there.
	GithubUser string
	// Description says what the library does.
	Description string
	// Keywords are the words its authors chose for it.
	Keywords []string
	// Filename is the default file.
	Filename string
	// Repositories are the addresses of its sources.
	Repositories []string
	// Maintainers are the names of the people behind it.
	Maintainers []string
}

// Fields are the searchable attributes as the REST contract names them, in its
// order.
var Fields = []string{
	"name", "alternativeNames", "github.repo", "description", "keywords",
	"filename", "repositories.url", "github.user", "maintainers.name",
}

// field is one searchable attribute: how it gets into the index and what a match
// in it is worth.
type field struct {
	name string
	// values of the attribute in a document.
	values func(*Document) []string
	// terms that a value is found by.
	terms func(string) []string
	// tier of a word that the attribute has.
	tier tier
	// minStart is how long a word must be to match a longer one that starts with
	// it. Nearly every address starts a word with h, every second file with m.
	minStart int
	// maxStart is up to which length beginnings have a field of their own, see
	// startSuffix: longer where many words start alike.
	maxStart int
	// kept returns the terms of the attribute that are at hand with each library,
	// so that their beginnings need no look into the dictionary: in names
	// thousands of words may start alike. Nil for the others.
	kept func(*library) []string
	// stemmed: inflected forms of a word match, see [stemTerm].
	stemmed bool
}

// fields are in the order of [Fields].
var fields = [...]field{
	{"name", func(d *Document) []string { return []string{d.Name} }, nameTerms, nameWords, 1, 0, func(l *library) []string { return l.words }, true},
	{"alternativeNames", func(d *Document) []string { return d.AlternativeNames }, nameTerms, nameWords, 1, 0, func(l *library) []string { return l.otherWords }, false},
	{"github.repo", func(d *Document) []string { return []string{d.GithubRepo} }, nameTerms, keyword, 1, 6, nil, false},
	{"description", func(d *Document) []string { return []string{d.Description} }, textTerms, description, 1, 3, nil, true},
	{"keywords", func(d *Document) []string { return d.Keywords }, textTerms, keyword, 1, 6, nil, true},
	{"filename", func(d *Document) []string { return []string{d.Filename} }, words, elsewhere, 3, 3, nil, false},
	{"repositories.url", func(d *Document) []string { return d.Repositories }, words, elsewhere, 3, 3, nil, false},
	{"github.user", func(d *Document) []string { return []string{d.GithubUser} }, words, elsewhere, 1, 3, nil, false},
	{"maintainers.name", func(d *Document) []string { return d.Maintainers }, words, elsewhere, 1, 3, nil, false},
}

// The fields beside the searchable ones.
const (
	// nearField has all that a mistyped word or query may have been meant as in
	// names: their words, the beginnings of these, the joined name and its stem.
	// It is one field because an automaton is made for each that is looked into.
	nearField = "name/near"
	// startSuffix, after a field's name, names the field with the beginnings of
	// its words up to its maxStart. Looking through all words that start with "a"
	// would take longer than all the rest of a search.
	startSuffix = "/start"
	// stemSuffix, after a field's name, names the field with the stems of its words.
	stemSuffix = "/stem"
)

const (
	minInside = 3 // the shortest word that is looked for inside names
	minHead   = 6 // the shortest beginning that may be mistyped
)

// entry returns the document as bleve is given it: terms only, nothing stored.
func (d *Document) entry() *document.Document {
	entry := document.NewDocument(d.Name)
	add := func(name string, terms []string) {
		if len(terms) > 0 {
			entry.AddField(document.NewTextFieldCustom(name, nil, []byte(strings.Join(terms, " ")), index.IndexField, spaced{}))
		}
	}
	for _, f := range fields {
		var terms, starts, stems []string
		for _, v := range f.values(d) {
			terms = append(terms, f.terms(v)...)
		}
		if f.stemmed {
			stems = stems[:0]
			for _, t := range terms {
				if s := stemTerm(t); s != "" {
					stems = append(stems, s)
				}
			}
			add(f.name+stemSuffix, unique(stems))
		}
		add(f.name, terms)
		for _, t := range terms {
			starts = appendBeginnings(starts, t, f.minStart, f.maxStart)
		}
		add(f.name+startSuffix, unique(starts))
	}
	add(nearField, nearTerms(d.Name))
	return entry
}

// spaced takes a field's terms apart again: bleve reads a field as one text.
type spaced struct{}

// Analyze implements bleve's Analyzer.
func (spaced) Analyze(text []byte) analysis.TokenStream {
	tokens := make([]analysis.Token, bytes.Count(text, []byte(" "))+1)
	stream := make(analysis.TokenStream, 0, len(tokens))
	for term := range bytes.SplitSeq(text, []byte(" ")) {
		t := &tokens[len(stream)]
		t.Term = term
		t.Position = len(stream) + 1
		stream = append(stream, t)
	}
	return stream
}

// library is a document's names in the forms that whole queries are compared
// with.
type library struct {
	name, joined, stem string
	words              []string // of the name
	others             []string // alternative names, joined, and their stems
	otherWords         []string // of these
}

func (d *Document) library() *library {
	l := &library{name: d.Name, joined: joined(d.Name), stem: stem(d.Name), words: nameTerms(d.Name)}
	for _, other := range d.AlternativeNames {
		l.others = append(l.others, joined(other), stem(other))
		l.otherWords = append(l.otherWords, nameTerms(other)...)
	}
	return l
}

func equal(a, b *Document) bool {
	return a.Name == b.Name && slices.Equal(a.AlternativeNames, b.AlternativeNames) &&
		a.GithubRepo == b.GithubRepo && a.GithubUser == b.GithubUser &&
		a.Description == b.Description && slices.Equal(a.Keywords, b.Keywords) &&
		a.Filename == b.Filename && slices.Equal(a.Repositories, b.Repositories) &&
		slices.Equal(a.Maintainers, b.Maintainers)
}
