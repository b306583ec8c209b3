package search

import (
	"cmp"
	"math"
	"slices"
)

// tier is how well a library answers a query; the smaller, the better. What the
// tiers mean is told with the package.
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
	mistyped // a word that may be right as it is
	noTier
)

// match is how a library matches.
type match struct {
	tier tier
	// text is how well the words match inside the tier, from 0 to 1.
	text float64
}

// better tells whether m comes before o.
func (m match) better(o match) bool {
	return m.tier < o.tier || m.tier == o.tier && m.text > o.text
}

// answer is a library that matches.
type answer struct {
	match
	name  string
	score float64 // inside the tier: text, name and popularity
}

// rank returns the names of the answers, best first.
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
			a.score /= most
		}
		a.score += a.text
		if a.tier <= wordsMistyped {
			a.score += share(text, a.name)
		}
	}
	slices.SortFunc(answers, func(a, b answer) int {
		return cmp.Or(
			cmp.Compare(a.tier, b.tier),
			cmp.Compare(b.score, a.score),
			cmp.Compare(len(a.name), len(b.name)),
			cmp.Compare(a.name, b.name),
		)
	})
	return namesOf(answers)
}

func namesOf(answers []answer) []string {
	names := make([]string, len(answers))
	for i, a := range answers {
		names[i] = a.name
	}
	return names
}

// share tells how much of whole part is, from 0 to 1, by their lengths.
func share(part, whole string) float64 {
	return min(1, float64(len(part))/float64(max(len(whole), 1)))
}
