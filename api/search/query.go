package search

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
)

// Query is what to look for.
type Query struct {
	// Text is what the user typed: any bytes, of which the first 4096 count.
	// Text of nothing but white space finds every library.
	Text string
	// Fields are the attributes to look in, of [Fields], without regard to case.
	// Unknown ones are ignored; without a known one, or with "*", all are looked in.
	Fields []string
	// Popularity returns how much a library is in demand, 0 for unknown. The
	// ranking compares the logarithms. Nil: nothing is known of demand.
	Popularity func(name string) float64
}

// Search returns the names of the libraries that match q, best first; the order is described with the package. If the text
// was pasted, such as an address or an install command, and refers to a library that exists, the results are those for its
// name. A query without text finds all, in the byte order of their names. The result is not nil without an error. If ctx
// ends, Search returns its error.
func (x *Index) Search(ctx context.Context, q Query) ([]string, error) {
	wanted := strings.TrimSpace(text.Cut(q.Text, maxText))
	for _, meant := range guessNames(wanted) {
		answers, err := x.find(ctx, meant, q.Fields)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(answers, func(a answer) bool { return a.tier <= otherName }) {
			return rank(answers, meant, q.Popularity), nil
		}
	}
	answers, err := x.find(ctx, wanted, q.Fields)
	if err != nil {
		return nil, err
	}
	if wanted == "" {
		return namesOf(answers), nil
	}
	return rank(answers, wanted, q.Popularity), nil
}

// find returns the libraries that match the text wanted in the fields called names, in the byte order of their names, with
// what rank needs. If ctx ends, it returns its error.
func (x *Index) find(ctx context.Context, wanted string, names []string) ([]answer, error) {
	l := &lookup{state: x.state.Load(), ctx: ctx, fields: selectFields(names)}
	matches := l.match(wanted)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	asked := words(wanted)
	repetitions := l.repetitions(withoutNoise(l.words))
	var answers []answer
	for i, m := range matches {
		if m.tier != noTier {
			answers = append(answers, answer{match: m, name: l.libraries[i].name, isAddOn: l.isAddOn(l.libraries[i], asked), repetition: repetitions[i]})
		}
	}
	return answers, nil
}

// selectFields returns the fields with these names, in any case, in the order of [Fields]. It returns all fields if names
// has "*" or no known name.
func selectFields(names []string) []*field {
	var list, all []*field
	for i := range fields {
		f := &fields[i]
		all = append(all, f)
		if slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, f.name) }) {
			list = append(list, f)
		}
	}
	if len(list) == 0 || slices.Contains(names, "*") {
		return all
	}
	return list
}

// queryWords returns the first 32 different words of a query, the longest first, because fewest libraries have them.
func queryWords(text string) []string {
	seen := map[string]bool{}
	var list []string
	for _, w := range words(text) {
		if !seen[w] && len(list) < maxWords {
			seen[w] = true
			list = append(list, w)
		}
	}
	slices.SortStableFunc(list, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return list
}

// tier is how well a library answers a query; the smaller, the better. The package comment
// says what the tiers mean.
type tier uint8

const (
	exactName     tier = iota
	sameName           // but for the case
	joinedName         // but for punctuation
	stemName           // but for .js
	otherName          // another name, in any of these ways
	nameStarts         // with the query
	nameWords          // each word is or starts one of the name's
	nameContains       // the words, anywhere
	nameMistyped       // the whole name but for a typing error
	wordsMistyped      // words of the name but for typing errors
	keyword
	description
	elsewhere
	partly   // all words but one
	mistyped // a word that may be right as it is; or only one word of several
	noTier
)

// match is how a library matches.
type match struct {
	tier tier
	// text is how well the words match inside the tier, from 0 to 1.
	text float64
}

// ranksBefore reports whether m is better than o: in a better tier, or in the same one with a higher text score.
func (m match) ranksBefore(o match) bool {
	return m.tier < o.tier || m.tier == o.tier && m.text > o.text
}

// answer is a library that matches.
type answer struct {
	match
	name string
	// isAddOn: the library is of a family that the query does not name.
	isAddOn bool
	// repetition is in how many more than one field a word is, on average.
	repetition float64
	score      float64 // inside the tier: text, name and popularity
}

// bases are what tiers are worth in the score, beside text and popularity. Those before nameStarts, in which the complete
// name matches, have no worth: their libraries come before all others.
var bases = [noTier]float64{
	nameStarts: 1, nameWords: 1, nameContains: 0.75, nameMistyped: 1.25, wordsMistyped: 0.4,
	keyword: 0.85, description: 0.65, elsewhere: 0.3, partly: 0.2, mistyped: 0.1,
}

// What text, the part of the name that is covered, and popularity are worth, each from 0 to 1.
const (
	textWorth  = 0.3
	shareWorth = 0.45
	wantWorth  = 1.1
	// repetitionWorth is what each further field is worth that a word is in, at most two.
	repetitionWorth = 0.1
	// addOnWorth is what a library loses that is an add-on of one that the query does not name.
	addOnWorth = 0.3
)

// minFamily is how many names that start with the same word make a family.
const minFamily = 5

// isAddOn reports whether the library o is of a family (at least minFamily names that start with the same word) and none of
// asked, the words of the query, starts with the family's word.
func (s *state) isAddOn(o *library, asked []string) bool {
	return o.family != "" && s.families[o.family] >= minFamily &&
		!slices.ContainsFunc(asked, func(w string) bool { return strings.HasPrefix(w, o.family) })
}

// rank returns the names of the libraries found for a text, best first. popularity returns how much a library is in demand;
// what is not a positive, finite number counts as 0. popularity may be nil. rank sorts answers in place and sets their
// scores.
func rank(answers []answer, text string, popularity func(string) float64) []string {
	most := 0.0
	for i := range answers {
		a := &answers[i]
		if popularity == nil {
			break
		}
		// What isn't a number, is negative or infinite would break the order.
		if p := popularity(a.name); p > 0 && !math.IsInf(p, 1) {
			a.score = math.Log1p(p)
			most = max(most, a.score)
		}
	}
	for i := range answers {
		a := &answers[i]
		if most > 0 {
			a.score *= wantWorth / most
		}
		switch a.tier {
		case partly, nameMistyped, wordsMistyped, mistyped: // the most wanted would come before what is meant
			a.score /= 2
		}
		a.score += bases[a.tier] + textWorth*a.text
		if a.tier <= elsewhere {
			a.score += repetitionWorth * a.repetition
		}
		if a.isAddOn && a.tier != nameMistyped {
			a.score -= addOnWorth
		}
		if a.tier <= wordsMistyped {
			a.score += shareWorth * coverage(text, a.name)
		}
	}
	slices.SortFunc(answers, func(a, b answer) int {
		return cmp.Or(
			cmp.Compare(min(a.tier, nameStarts), min(b.tier, nameStarts)),
			cmp.Compare(b.score, a.score),
			cmp.Compare(len(a.name), len(b.name)),
			cmp.Compare(a.name, b.name),
		)
	})
	return namesOf(answers)
}

// namesOf returns the names of the libraries in answers, in the same order.
func namesOf(answers []answer) []string {
	return text.Each(answers, func(a answer) string { return a.name })
}

// coverage returns the length of part divided by that of whole, at most 1. It does not compare the texts.
func coverage(part, whole string) float64 {
	return min(1, float64(len(part))/float64(max(len(whole), 1)))
}
