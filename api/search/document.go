package search

// Document is the searchable text of one library.
type Document struct {
	// Name is the library's name and the document's identity; never empty.
	Name string
	// AlternativeNames are other names of the library.
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

// field is one searchable attribute: how its terms are made and what a match in
// it is worth.
type field struct {
	name string
	// values of the attribute in a document.
	values func(*Document) []string
	// terms that a value is found by.
	terms func(string) []string
	// tier of a word that the attribute has.
	tier tier
	// minStart is how many characters a word must have to match a longer one that starts with it. Nearly every address
	// starts a word with h, every second file with m.
	minStart int
	// stemmed: inflected forms of a word match, see [stemOf].
	stemmed bool
}

// fields are in the order of [Fields].
var fields = [...]field{
	{"name", func(d *Document) []string { return []string{d.Name} }, nameTerms, nameWords, 1, true},
	{"alternativeNames", func(d *Document) []string { return d.AlternativeNames }, nameTerms, nameWords, 1, false},
	{"github.repo", func(d *Document) []string { return []string{d.GithubRepo} }, nameTerms, keyword, 1, false},
	{"description", func(d *Document) []string { return []string{d.Description} }, textTerms, description, 1, true},
	{"keywords", func(d *Document) []string { return d.Keywords }, textTerms, keyword, 1, true},
	{"filename", func(d *Document) []string { return []string{d.Filename} }, words, elsewhere, 3, false},
	{"repositories.url", func(d *Document) []string { return d.Repositories }, words, elsewhere, 3, false},
	{"github.user", func(d *Document) []string { return []string{d.GithubUser} }, words, elsewhere, 1, false},
	{"maintainers.name", func(d *Document) []string { return d.Maintainers }, words, elsewhere, 1, false},
}

// nearField, beside the searchable fields, has all that a mistyped word or query
// may have been meant as in names: their words, the beginnings of these, the
// joined name and its stem.
const nearField = "name/near"

const (
	minInside = 3 // the shortest word that is looked for inside names
	minHead   = 6 // the shortest beginning that may be mistyped
)

// termsOf returns the terms by which the field of a document is indexed, in the order of its text, with repetitions.
func (f *field) termsOf(d *Document) []string {
	var terms []string
	for _, v := range f.values(d) {
		terms = append(terms, f.terms(v)...)
	}
	return terms
}

// library is a document's names in the forms that complete queries are compared
// with.
type library struct {
	name, joined, stem string
	others             []string // alternative names, joined, and their stems
	family             string   // the first word of a name of several words: react of react-select; "" for other names
}

// library returns the names of the document in the forms that complete queries are compared with, such as without
// punctuation.
func (d *Document) library() *library {
	l := &library{name: d.Name, joined: joinWords(d.Name), stem: bareName(d.Name)}
	if list := words(d.Name); len(list) > 1 && list[0] != l.stem {
		l.family = list[0]
	}
	for _, other := range d.AlternativeNames {
		l.others = append(l.others, joinWords(other), bareName(other))
	}
	return l
}
