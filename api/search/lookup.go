package search

import (
	"context"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/larder-cdn/larder/internal/text"
)

const (
	// enough is how many matching libraries make it unlikely that the query is mistyped.
	enough = 10
	// few is how many matching libraries make it unnecessary to leave words out that say little.
	few = 3
	// sureLength is how many characters a complete query must have to be taken for a name that it nearly is, although
	// libraries have it as a word: chat is not chart. In shorter words the first letter must be right.
	sureLength = 6
	// maxPartial is how many words a query may have of which one may be missing.
	maxPartial = 4
	// maxMistyped is how many words a query may have to be searched for typing
	// errors. A description that a user pastes isn't mistyped.
	maxMistyped = 12
)

// extension matches a query for the end of names, such as .js.
var extension = text.NewRegexp(`^\.\pL+$`)

// lookup is the work for one query in one state of the index.
type lookup struct {
	*state
	ctx    context.Context
	fields []*field

	words []string // of the query
	exact bool     // words match only themselves

	candidates matches // libraries that have all words so far; nil is all
}

// leniency is what else than itself a word of a query matches.
type leniency struct {
	related  bool // other forms and synonyms
	mistyped bool // words that differ by a typing error
}

// matches has a match for each of the state's libraries, of noTier for those that do not match.
type matches []match

// add records the match m for the library with index i, unless one that ranks before is known.
func (s matches) add(i int, m match) {
	if m.ranksBefore(s[i]) {
		s[i] = m
	}
}

// addAll records for each library its match in more, unless one that ranks before is known.
func (s matches) addAll(more matches) {
	for i, m := range more {
		s.add(i, m)
	}
}

// countUpTo returns how many libraries match in the tier worst or a better one; most if there are at least that many.
func (s matches) countUpTo(worst tier, most int) int {
	n := 0
	for _, m := range s {
		if m.tier <= worst {
			if n++; n == most {
				break
			}
		}
	}
	return n
}

// count returns how many libraries match; most if there are at least that many.
func (s matches) count(most int) int { return s.countUpTo(noTier-1, most) }

// areLikelyMeant reports, of the matches of one word, whether the word is probably spelt as it is meant: a library has it in
// its name, its repository's name or its keywords, or at least three libraries have it.
func (s matches) areLikelyMeant() bool {
	return s.count(3) == 3 || slices.ContainsFunc(s, func(m match) bool { return m.tier <= keyword })
}

// noMatches returns new matches, one for each library, in which no library matches.
func (l *lookup) noMatches() matches {
	return slices.Repeat(matches{{tier: noTier}}, len(l.libraries))
}

// searchesField reports whether the query searches the field with this name.
func (l *lookup) searchesField(name string) bool {
	return slices.ContainsFunc(l.fields, func(f *field) bool { return f.name == name })
}

// searchesNames reports whether the query searches the names of libraries.
func (l *lookup) searchesNames() bool { return l.searchesField(fields[0].name) }

// isCandidate reports whether the library with index i has all words of the query that were looked up so far, so that the
// next word may still match.
func (l *lookup) isCandidate(i int) bool {
	return l.candidates == nil || l.candidates[i].tier != noTier
}

// match returns the matches of the text, one for each library, of noTier for those that do not match. All match an empty
// text, or one of percent signs, which are what remains of an address that cannot be decoded. It tries exact words first,
// then other forms and parts of the query, and if fewer than ten libraries match and none has the query as its name,
// mistyped words. It sets l.words and l.exact. After the end of ctx the matches are incomplete.
func (l *lookup) match(text string) matches {
	if strings.Trim(text, "%") == "" {
		return make(matches, len(l.libraries))
	}
	list := queryWords(text)
	l.words = list
	l.exact = extension.MatchString(text)
	found := l.matchAllWords(list, leniency{})
	telling := list
	if found.count(few) < few {
		telling = withoutNoise(list)
	}
	if len(list) > 1 || found.countUpTo(keyword, enough) < enough {
		found.addAll(l.matchAllWords(telling, leniency{related: true}))
	}
	strict := found.count(enough) // libraries that lack a word say nothing about how it is spelt
	l.addPartialMatches(telling, joinWords(text), found)
	l.addNameMatches(text, found)
	named := slices.ContainsFunc(found, func(m match) bool { return m.tier <= otherName })
	if named || strict == enough {
		return found
	}
	if mayBeMistyped(list) {
		mistyped := l.matchAllWords(list, leniency{mistyped: true})
		l.addMistypedNames(list, joinWords(text), mistyped)
		found.addAll(mistyped)
	}
	l.addSingleWordMatches(telling, found)
	return found
}

// addPartialMatches adds to found, if the query has two to four words (list), the libraries that have the complete query as
// one word (joined, such as datepicker). If fewer than ten libraries match then, each word is one that some library has, and
// none says little (see isNoise), it also adds those that have all words but one in their names and keywords.
func (l *lookup) addPartialMatches(list []string, joined string, found matches) {
	if len(list) < 2 || len(list) > maxPartial {
		return
	}
	found.addAll(l.matchAllWords([]string{joined}, leniency{}))
	if found.count(enough) == enough {
		return
	}
	rarities := l.wordRarities(list)
	if rarities == nil {
		return
	}
	for i := range list {
		rest := slices.Delete(slices.Clone(rarities), i, i+1)
		l.addMatchesOfPart(slices.Delete(slices.Clone(list), i, i+1), partly, slices.Max(rest), found)
	}
}

// wordRarities returns how few libraries match each of the words, also by a part, another form or a synonym of it: from
// nearly 0 for all to 1 for a single one. It returns nil if a word says little (see isNoise), or no library matches it, so
// that it is mistyped or nonsense.
func (l *lookup) wordRarities(list []string) []float64 {
	rarities := make([]float64, len(list))
	for i, w := range list {
		having := l.noMatches()
		l.addWord(w, leniency{related: true}, having)
		n := having.count(len(having))
		if n == 0 || isNoise(w) {
			return nil
		}
		rarities[i] = 1 - math.Log(float64(n))/math.Log(float64(len(having)+1))
	}
	return rarities
}

// addSingleWordMatches adds to found the libraries that have one of the three or four words in their names or keywords, if
// found has no match yet, some library has each word, and no word says little (see isNoise).
func (l *lookup) addSingleWordMatches(list []string, found matches) {
	if len(list) < 3 || len(list) > maxPartial || found.count(1) > 0 || l.wordRarities(list) == nil {
		return
	}
	for i := range list {
		l.addMatchesOfPart(list[i:i+1], mistyped, 0.5, found)
	}
}

// addMatchesOfPart adds to found, in the tier in, the libraries that have a part of the query's words in their names or
// keywords. worth, from 0 to 1, is the score within the tier if the words are or start words of the name; if names only
// contain them, or keywords have them, the score is at most half of that.
func (l *lookup) addMatchesOfPart(part []string, in tier, worth float64, found matches) {
	for i, m := range l.matchAllWords(part, leniency{related: true}) {
		switch {
		case m.tier <= nameWords:
			found.add(i, match{in, worth})
		case m.tier <= keyword:
			found.add(i, match{in, 0.5 * worth * m.text})
		}
	}
}

// mayBeMistyped reports whether to search for typing errors: a word has a length for which maxEdits allows some, and the
// query has at most maxMistyped words.
func mayBeMistyped(list []string) bool {
	return len(list) <= maxMistyped && slices.ContainsFunc(list, func(w string) bool { return maxEdits(utf8.RuneCountInString(w)) > 0 })
}

// matchAllWords returns the libraries that have all the words, looked up as how says; none if list is empty. A library's
// tier is the worst of its words' tiers. Words after the first are looked up only among libraries that have the ones before;
// at the end it clears l.candidates. After the end of ctx the matches are incomplete.
func (l *lookup) matchAllWords(list []string, how leniency) matches {
	defer func() { l.candidates = nil }()
	part := 1 / float64(len(list)) // of a word in the text's score
	for _, w := range list {
		current := l.noMatches()
		l.addWord(w, how, current)
		if how.mistyped {
			l.addMistypedWord(w, current)
		}
		for i, m := range current {
			if m.tier == noTier {
				continue
			}
			var before match
			if l.candidates != nil {
				before = l.candidates[i]
			}
			current[i] = match{max(before.tier, m.tier), before.text + part*m.score()}
		}
		l.candidates = current
		if current.count(1) == 0 || l.ctx.Err() != nil {
			break
		}
	}
	if l.candidates == nil {
		return l.noMatches()
	}
	return l.candidates
}

// score returns the score of one word's match within the text's score, from 0 to 1. It is mostly the match's tier, so that
// of two libraries that have one word in their description, the one that has the other in its name is first.
func (m match) score() float64 {
	return 0.9*float64(noTier-m.tier)/float64(noTier) + 0.1*m.text
}

// addWord adds to found the candidates that have the word w or its singular in a field and, unless l.exact, those that have
// a word that begins with it, from the field's minStart on, or a name that contains it, from minInside characters on. With
// how.related it also adds those with other forms of the word and synonyms. It ignores how.mistyped; addMistypedWord is for
// typing errors.
func (l *lookup) addWord(w string, how leniency, found matches) {
	length := utf8.RuneCountInString(w)
	for _, f := range l.fields {
		l.addTerm(f.name, w, match{f.tier, 1}, found)
		if one, ok := strings.CutSuffix(w, "s"); ok && length > 3 && !strings.HasSuffix(one, "s") { // of several
			l.addTerm(f.name, one, match{f.tier, 0.8}, found)
		}
		if how.related && f.stemmed {
			l.addRelatedWords(f, w, found)
		}
		if !l.exact && length >= f.minStart {
			l.addTermsStarting(f.name, w, match{f.tier, 0.5}, found)
		}
	}
	if l.searchesNames() && length >= minInside && !l.exact {
		l.addNamesContaining(w, found)
	}
}

// addRelatedWords adds to found the candidates that have an inflected form of the word w, or a synonym of it, in the field f.
// They rank no better than matches in keywords.
func (l *lookup) addRelatedWords(f *field, w string, found matches) {
	if s := stemOf(w); s != "" {
		l.addStem(f.name, s, match{max(f.tier, keyword), 0.5}, found)
	}
	for _, other := range synonymsOf(w) {
		if !l.isFormOfOtherWord(other, w) {
			l.addTerm(f.name, other, match{max(f.tier, keyword), 0.2}, found)
		}
	}
}

// isFormOfOtherWord reports whether a synonym of w is, or has the stem of, another word of the query: one word of a library
// would be taken for two, such as loader for loading spinner.
func (l *lookup) isFormOfOtherWord(synonym, w string) bool {
	return slices.ContainsFunc(l.words, func(other string) bool {
		return other != w && (other == synonym || stemOf(other) != "" && stemOf(other) == stemOf(synonym))
	})
}

// addNamesContaining adds to found the candidates with w anywhere in their names without punctuation.
func (l *lookup) addNamesContaining(w string, found matches) {
	for i, library := range l.libraries {
		if l.isCandidate(i) && strings.Contains(library.joined, w) {
			found.add(i, match{nameContains, 0.3})
		}
	}
}

// addMistypedWord adds to found, which has the candidates that have the word w, those that have a word that differs from it
// by at most maxEdits typing errors: in names, and if no candidate has w itself, also in the other fields of the query,
// except file names, addresses and people if all fields are searched. It stops with the fields once ten libraries match.
func (l *lookup) addMistypedWord(w string, found matches) {
	isUnknown := found.count(1) == 0
	if l.searchesNames() {
		in := wordsMistyped
		if found.areLikelyMeant() {
			in = mistyped
		}
		l.addTermsNear(nearField, w, func(int, string) tier { return in }, found)
	}
	// A word that is found as it is isn't looked up elsewhere with errors, and
	// files and people are not what a mistyped word is likely to mean.
	for _, f := range l.fields {
		if !isUnknown || found.count(enough) == enough {
			break
		}
		if f.name == fields[0].name || f.tier == elsewhere && len(l.fields) == len(fields) {
			continue
		}
		l.addTermsNear(f.name, w, func(int, string) tier { return mistyped }, found)
	}
}

// addNameMatches adds to found the libraries whose name is, starts with or contains the complete query text, with or without
// punctuation and .js. It also adds those that have it as an alternative name, and those whose name is the query without a
// number at its end (vue3). It searches only those of the two fields that the query searches.
func (l *lookup) addNameMatches(text string, found matches) {
	names, others := l.searchesNames(), l.searchesField("alternativeNames")
	joined, stem := joinWords(text), bareName(withoutAddedWords(text))
	bare := strings.TrimRight(joined, "0123456789") // of vue3
	if len(bare) == len(joined) || len(bare) < minInside {
		bare = ""
	}
	for i, library := range l.libraries {
		if names {
			// A name without letters can still be typed.
			switch {
			case library.name == text:
				found.add(i, match{exactName, 1})
			case strings.EqualFold(library.name, text):
				found.add(i, match{sameName, 1})
			case joined == "":
			case library.joined == joined:
				found.add(i, match{joinedName, 1})
			case library.stem == stem || library.stem == joined || library.joined == stem:
				found.add(i, match{stemName, 1})
			case strings.HasPrefix(library.joined, joined):
				found.add(i, match{nameStarts, 1})
			case len(joined) >= minInside && strings.Contains(library.joined, joined):
				found.add(i, match{nameContains, 0.3})
			}
		}
		if names && bare != "" && (library.joined == bare || library.stem == bare) {
			found.add(i, match{otherName, 0.5})
		}
		if others && joined != "" && (slices.Contains(library.others, joined) || slices.Contains(library.others, stem)) {
			found.add(i, match{otherName, 1})
		}
	}
}

// addMistypedNames adds to found the libraries whose name without punctuation, with or without js at its end, differs by at
// most maxEdits typing errors from the query, of which list has the words and joined the words as one. It ranks them low if
// the query is one word of under sureLength characters that libraries have. It adds none if the query does not search names.
func (l *lookup) addMistypedNames(list []string, joined string, found matches) {
	if !l.searchesNames() {
		return
	}
	in := nameMistyped
	if len(list) == 1 && utf8.RuneCountInString(joined) < sureLength {
		having := l.noMatches()
		l.addWord(list[0], leniency{}, having)
		if having.areLikelyMeant() {
			in = mistyped
		}
	}
	l.addTermsNear(nearField, joined, func(i int, term string) tier {
		if library := l.libraries[i]; term == library.joined || term == library.stem {
			return in
		}
		return noTier
	}, found)
}

// maxEdits returns how many typing errors are looked for in a word of this length in characters: 2 from 8 to 16, else 1 from
// 4 to 24, else 0.
func maxEdits(length int) int {
	switch {
	case length < 4, length > 24:
		return 0
	case length < 8, length > 16:
		return 1
	default:
		return 2
	}
}

// addTermsNear adds to found the candidates that have a term in the field that differs from w by at most maxEdits, each in
// the tier that in returns for the library with index i and the term. The first letter of words under sureLength characters
// must be right: users hardly ever mistype it, and there are too many words that differ only there. It does nothing after
// the end of ctx.
func (l *lookup) addTermsNear(field, w string, in func(i int, term string) tier, found matches) {
	length := utf8.RuneCountInString(w)
	most := maxEdits(length)
	if most == 0 || l.ctx.Err() != nil {
		return
	}
	prefix := ""
	if length < sureLength {
		prefix = text.CutRunes(w, 1)
	}
	for _, s := range l.segments {
		d := s.fields[field]
		d.eachNear(w, prefix, most, func(n, edits int) {
			l.eachLibrary(s, d.postings[n], func(i int, _ posting) {
				found.add(i, match{in(i, d.terms[n]), 0.5 / float64(1+edits)})
			})
		})
	}
}

// addTermsStarting adds to found the candidates that have a term in the field that starts with w, as the match m, weighted as
// addPostings does.
func (l *lookup) addTermsStarting(field, w string, m match, found matches) {
	for _, s := range l.segments {
		d := s.fields[field]
		for n, end := d.prefixRange(w); n < end; n++ {
			l.addPostings(s, d.postings[n], m, found)
		}
	}
}

// addStem adds to found the candidates that have a term in the field whose stem is stem, as the match m, weighted as
// addPostings does.
func (l *lookup) addStem(field, stem string, m match, found matches) {
	for _, s := range l.segments {
		d := s.fields[field]
		for _, n := range d.stems[stem] {
			l.addPostings(s, d.postings[n], m, found)
		}
	}
}

// addTerm adds to found the candidates that have exactly the term in the field, as the match m, weighted as addPostings does.
func (l *lookup) addTerm(field, term string, m match, found matches) {
	for _, s := range l.segments {
		if n, ok := s.fields[field].find(term); ok {
			l.addPostings(s, s.fields[field].postings[n], m, found)
		}
	}
}

// addPostings adds to found the candidates of a segment that are in list, the postings of a term, in the tier of m. It reduces
// the text score of m the more, the smaller a part the term is of the library's field.
func (l *lookup) addPostings(s placedSegment, list []posting, m match, found matches) {
	l.eachLibrary(s, list, func(i int, p posting) { found.add(i, match{m.tier, m.text * p.weight()}) })
}

// eachLibrary calls do for each candidate in list, the postings of a term in segment s, with its index in l.libraries. It
// skips documents that have been replaced or removed.
func (l *lookup) eachLibrary(s placedSegment, list []posting, do func(i int, p posting)) {
	for _, p := range list {
		if i := s.positions[p.document]; i >= 0 && l.isCandidate(i) {
			do(i, p)
		}
	}
}

// repetitions returns a value for each of l.libraries, by its index: how often a word of the query is repeated in those
// of the stemmed fields (name, keywords, description) that the query searches. A word counts as the number of these fields that have it, or
// another word of the same stem, minus one (0 if none has). The value is the mean of all queryWords.
func (l *lookup) repetitions(queryWords []string) []float64 {
	repetitions := make([]float64, len(l.libraries))
	for _, w := range queryWords {
		having := make([]uint, len(l.libraries)) // a bit for each field
		for n, f := range l.fields {
			if f.stemmed {
				l.eachHavingForm(f.name, w, func(i int) { having[i] |= 1 << n })
			}
		}
		for i, fields := range having {
			repetitions[i] += float64(max(bits.OnesCount(fields)-1, 0)) / float64(len(queryWords))
		}
	}
	return repetitions
}

// eachHavingForm calls do with the index of each candidate that has the word w or an inflected form of it in the field,
// perhaps more than once.
func (l *lookup) eachHavingForm(field, w string, do func(i int)) {
	for _, s := range l.segments {
		d := s.fields[field]
		forms := d.stems[stemOf(w)]
		if n, ok := d.find(w); ok {
			forms = append(slices.Clip(forms), n)
		}
		for _, n := range forms {
			l.eachLibrary(s, d.postings[n], func(i int, _ posting) { do(i) })
		}
	}
}
