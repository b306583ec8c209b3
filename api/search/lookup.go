package search

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	index "github.com/blevesearch/bleve_index_api"

	"github.com/larder-cdn/larder/internal/lazyregexp"
	"github.com/larder-cdn/larder/internal/text"
)

// enough is how many libraries make it unlikely that the query is mistyped.
const enough = 10

// few is how many libraries make it unnecessary to leave words out that say little.
const few = 3

// sure is from which length on a whole query that is nearly a name is taken for
// it, although the word exists: chat isn't chart.
const sure = 6

// maxStarting is how many words of one attribute a word of the query may be the
// beginning of. In the public catalogue it is at most 108 where the beginning is so
// long that it has no field of its own.
const maxStarting = 200

// mostLoose is how many words a query may have of which one may be missing.
const mostLoose = 4

// maxMistyped is how many words a query may have to be looked through for typing
// errors. A description that a user pastes isn't mistyped.
const maxMistyped = 12

// dotted matches a query for the end of names, such as .js.
var dotted = lazyregexp.New(`^\.\pL+$`)

// lookup is one query's work in one state of the index.
type lookup struct {
	*state
	ctx    context.Context
	fields []*field

	exact       bool // words match only themselves
	withRelated bool // words also match other forms and synonyms of them

	among   found              // what is still of interest; nil is all
	posting index.TermFieldDoc // reused from one document to the next
}

// found has a match for each of the state's libraries, noTier where there is
// none.
type found []match

// add notes m for a library, unless a better match is known.
func (f found) add(i int, m match) {
	if m.better(f[i]) {
		f[i] = m
	}
}

// count returns how many match, up to most.
func (f found) count(most int) int { return f.countUpTo(noTier-1, most) }

// countUpTo returns how many match in a tier up to worst, up to most.
func (f found) countUpTo(worst tier, most int) int {
	n := 0
	for _, m := range f {
		if m.tier <= worst {
			if n++; n == most {
				break
			}
		}
	}
	return n
}

func (l *lookup) nothing() found {
	return slices.Repeat(found{{tier: noTier}}, len(l.libraries))
}

func (l *lookup) has(name string) bool {
	return slices.ContainsFunc(l.fields, func(f *field) bool { return f.name == name })
}

// names tells whether to look in names.
func (l *lookup) names() bool { return l.has(fields[0].name) }

// all returns what matches the text; everything where there is none, or nothing but percent signs, which are what is left of
// an address.
func (l *lookup) all(text string) (found, error) {
	if strings.Trim(text, "%") == "" {
		return make(found, len(l.libraries)), nil
	}
	list := queryWords(text)
	l.exact = dotted.MatchString(text)
	matches, err := l.everyWord(list, false)
	if err != nil {
		return nil, err
	}
	telling := list
	if matches.count(few) < few {
		telling = withoutNoise(list)
	}
	if len(list) > 1 || matches.countUpTo(keyword, enough) < enough {
		l.withRelated = true
		err := l.addEveryWord(telling, matches)
		l.withRelated = false
		if err != nil {
			return nil, err
		}
	}
	strict := matches.count(enough) // libraries that lack a word say nothing about how it is spelt
	if err := l.loosely(telling, joined(text), matches); err != nil {
		return nil, err
	}
	l.whole(text, matches)
	named := slices.ContainsFunc(matches, func(m match) bool { return m.tier <= otherName })
	if named || strict == enough {
		return matches, nil
	}
	if mayBeMistyped(list) {
		more, err := l.everyWord(list, true)
		if err != nil {
			return nil, err
		}
		if err := l.wholeMistyped(text, list, more); err != nil {
			return nil, err
		}
		for i, m := range more {
			matches.add(i, m)
		}
	}
	if err := l.addSingles(telling, matches); err != nil {
		return nil, err
	}
	return matches, nil
}

// addEveryWord adds the libraries that have all the words.
func (l *lookup) addEveryWord(list []string, to found) error {
	more, err := l.everyWord(list, false)
	for i, m := range more {
		to.add(i, m)
	}
	return err
}

// loosely adds the libraries that have the words of a short query as one (datepicker), and, where few have them all but
// each is a word that some library has, those that have all but one in their names and keywords.
func (l *lookup) loosely(list []string, joined string, to found) error {
	if len(list) < 2 || len(list) > mostLoose {
		return nil
	}
	if err := l.addEveryWord([]string{joined}, to); err != nil {
		return err
	}
	if to.count(enough) == enough {
		return nil
	}
	rarities, err := l.rarities(list)
	if rarities == nil || err != nil {
		return err
	}
	for i := range list {
		rest := slices.Delete(slices.Clone(rarities), i, i+1)
		if err := l.addPart(slices.Delete(slices.Clone(list), i, i+1), partly, slices.Max(rest), to); err != nil {
			return err
		}
	}
	return nil
}

// rarities returns how few libraries have each of the words, from 0 for all to 1 for a single one; nil if no library has one of the words, which
// is mistyped then, or nonsense.
func (l *lookup) rarities(list []string) ([]float64, error) {
	rarities := make([]float64, len(list))
	for i, w := range list {
		having := l.nothing()
		if err := l.word(w, having); err != nil {
			return nil, err
		}
		n := having.count(len(having))
		if n == 0 || isNoise(w) {
			return nil, nil
		}
		rarities[i] = 1 - math.Log(float64(n))/math.Log(float64(len(having)+1))
	}
	return rarities, nil
}

// addSingles adds the libraries that have one word of three or more, where nothing else is found and some library has each.
func (l *lookup) addSingles(list []string, to found) error {
	if len(list) < 3 || len(list) > mostLoose || to.count(1) > 0 {
		return nil
	}
	rarities, err := l.rarities(list)
	if rarities == nil || err != nil {
		return err
	}
	for i := range list {
		if err := l.addPart(list[i:i+1], mistyped, 0.5, to); err != nil {
			return err
		}
	}
	return nil
}

// addPart adds the libraries that have the words, which are a part of a query, in their names or keywords, in the tier in; worth is
// how well they match there.
func (l *lookup) addPart(part []string, in tier, worth float64, to found) error {
	l.withRelated = true
	more, err := l.everyWord(part, false)
	l.withRelated = false
	for i, m := range more {
		switch {
		case m.tier <= nameWords:
			to.add(i, match{in, worth})
		case m.tier <= keyword:
			to.add(i, match{in, 0.5 * worth * m.text})
		}
	}
	return err
}

// mayBeMistyped tells whether to look for typing errors: where a word is long
// enough for one, and not in whole paragraphs.
func mayBeMistyped(list []string) bool {
	return len(list) <= maxMistyped && slices.ContainsFunc(list, func(w string) bool { return typos(utf8.RuneCountInString(w)) > 0 })
}

// everyWord returns the libraries that have all the words.
func (l *lookup) everyWord(list []string, typos bool) (found, error) {
	defer func() { l.among = nil }()
	part := 1 / float64(len(list)) // of a word in the text's score
	for _, w := range list {
		this := l.nothing()
		if err := l.word(w, this); err != nil {
			return nil, err
		}
		if typos {
			if err := l.wordMistyped(w, this); err != nil {
				return nil, err
			}
		}
		for i, m := range this {
			if m.tier == noTier {
				continue
			}
			var before match
			if l.among != nil {
				before = l.among[i]
			}
			this[i] = match{max(before.tier, m.tier), before.text + part*m.worth()}
		}
		l.among = this
		if this.count(1) == 0 {
			break
		}
	}
	if l.among == nil {
		return l.nothing(), nil
	}
	return l.among, nil
}

// worth is what one word's match adds to the text's score: mostly its tier, so
// that of two libraries that have one word in their description, the one that
// has the other in its name is first.
func (m match) worth() float64 {
	return 0.9*float64(noTier-m.tier)/float64(noTier) + 0.1*m.text
}

// word adds the libraries that have the word as it is.
func (l *lookup) word(w string, to found) error {
	length := utf8.RuneCountInString(w)
	for _, f := range l.fields {
		if err := l.term(f.name, w, match{f.tier, 1}, to); err != nil {
			return err
		}
		if one, ok := strings.CutSuffix(w, "s"); ok && length > 3 && !strings.HasSuffix(one, "s") { // of several
			if err := l.term(f.name, one, match{f.tier, 0.8}, to); err != nil {
				return err
			}
		}
		if err := l.related(f, w, to); err != nil {
			return err
		}
		var err error
		switch {
		case l.exact || length < f.minStart:
		case f.kept != nil:
			l.keptStarting(f, w, to)
		case length <= f.maxStart:
			err = l.term(f.name+startSuffix, w, match{f.tier, 0.5}, to)
		default:
			err = l.starting(f.name, w, match{f.tier, 0.5}, to)
		}
		if err != nil {
			return err
		}
	}
	if l.names() && length >= minInside && !l.exact {
		l.inside(w, to)
	}
	return nil
}

// related adds the libraries that have another form of the word, or a synonym of it.
func (l *lookup) related(f *field, w string, to found) error {
	if !l.withRelated || !f.stemmed {
		return nil
	}
	if s := stemTerm(w); s != "" {
		if err := l.term(f.name+stemSuffix, s, match{max(f.tier, keyword), 0.5}, to); err != nil {
			return err
		}
	}
	for _, other := range synonymsOf(w) {
		if err := l.term(f.name, other, match{max(f.tier, keyword), 0.2}, to); err != nil {
			return err
		}
	}
	return nil
}

// inside adds the libraries with w anywhere in the joined name.
func (l *lookup) inside(w string, to found) {
	for i, library := range l.libraries {
		if l.wanted(i) && strings.Contains(library.joined, w) {
			to.add(i, match{nameContains, 0.3})
		}
	}
}

// wordMistyped adds the libraries that have nearly the word w, to those that
// have it.
func (l *lookup) wordMistyped(w string, to found) error {
	none := to.count(1) == 0
	if l.names() {
		in := wordsMistyped
		if to.exists() {
			in = mistyped
		}
		if err := l.near(nearField, w, func(int, string) tier { return in }, to); err != nil {
			return err
		}
	}
	// A word that is found as it is isn't looked for elsewhere with errors, and
	// files and people are not what a mistyped word is likely to mean.
	for _, f := range l.fields {
		if !none || to.count(enough) == enough {
			break
		}
		if f.name == fields[0].name || f.tier == elsewhere && len(l.fields) == len(fields) {
			continue
		}
		if err := l.near(f.name, w, func(int, string) tier { return mistyped }, to); err != nil {
			return err
		}
	}
	return nil
}

// exists tells of the libraries that have a word whether it is probably meant as
// it is: one has it in its name or keywords, or several have it.
func (f found) exists() bool {
	return f.count(3) == 3 || slices.ContainsFunc(f, func(m match) bool { return m.tier <= keyword })
}

// whole adds the libraries whose name is, starts with or contains the whole
// query, however it is written.
func (l *lookup) whole(text string, to found) {
	names, others := l.names(), l.has("alternativeNames")
	joined, stem := joined(text), stem(core(text))
	bare := strings.TrimRight(joined, "0123456789") // of vue3
	if len(bare) == len(joined) || len(bare) < minInside {
		bare = ""
	}
	for i, library := range l.libraries {
		if names {
			// A name without letters can still be typed.
			switch {
			case library.name == text:
				to.add(i, match{exactName, 1})
			case strings.EqualFold(library.name, text):
				to.add(i, match{sameName, 1})
			case joined == "":
			case library.joined == joined:
				to.add(i, match{joinedName, 1})
			case library.stem == stem || library.stem == joined || library.joined == stem:
				to.add(i, match{stemName, 1})
			case strings.HasPrefix(library.joined, joined):
				to.add(i, match{nameStarts, 1})
			case len(joined) >= minInside && strings.Contains(library.joined, joined):
				to.add(i, match{nameContains, 0.3})
			}
		}
		if names && bare != "" && (library.joined == bare || library.stem == bare) {
			to.add(i, match{otherName, 0.5})
		}
		if others && joined != "" && (slices.Contains(library.others, joined) || slices.Contains(library.others, stem)) {
			to.add(i, match{otherName, 1})
		}
	}
}

// wholeMistyped adds the libraries whose name is nearly the query.
func (l *lookup) wholeMistyped(text string, list []string, to found) error {
	if !l.names() {
		return nil
	}
	joined := joined(text)
	in := nameMistyped
	if len(list) == 1 && utf8.RuneCountInString(joined) < sure {
		has := l.nothing()
		if err := l.word(list[0], has); err != nil {
			return err
		}
		if has.exists() {
			in = mistyped
		}
	}
	return l.near(nearField, joined, func(i int, term string) tier {
		if library := l.libraries[i]; term == library.joined || term == library.stem {
			return in
		}
		return noTier
	}, to)
}

// typos returns how many letters of a word may be wrong.
func typos(length int) int {
	switch {
	case length < 4, length > 24: // long words make automata large
		return 0
	case length < 8, length > 16:
		return 1
	default:
		return 2
	}
}

// near adds the libraries that have a term close to w, in the tier that in says.
// Short words must start alike: users hardly ever mistype the first letter, and
// there are too many words that differ only there.
func (l *lookup) near(field, w string, in func(i int, term string) tier, to found) error {
	length := utf8.RuneCountInString(w)
	n := typos(length)
	if n == 0 {
		return nil
	}
	start := ""
	if length < sure {
		start = text.CutRunes(w, 1)
	}
	dict, err := l.fuzzy.FieldDictFuzzy(field, w, n, start)
	if err != nil {
		return err
	}
	return l.each(dict, func(e *index.DictEntry) error {
		return l.having(field, e.Term, func(i int, _ float64) {
			to.add(i, match{in(i, e.Term), 0.5 / float64(1+e.EditDistance)})
		})
	})
}

// keptStarting adds the libraries with a term at hand that starts with w, the
// shorter the field, the better.
func (l *lookup) keptStarting(f *field, w string, to found) {
	for i, library := range l.libraries {
		if !l.wanted(i) {
			continue
		}
		terms := f.kept(library)
		if slices.ContainsFunc(terms, func(t string) bool { return strings.HasPrefix(t, w) }) {
			to.add(i, match{f.tier, 0.5 / math.Sqrt(float64(len(terms)))})
		}
	}
}

// starting adds the libraries with a term in the field that starts with w. Of
// terms that only start with it the first maxStarting count.
func (l *lookup) starting(field, w string, m match, to found) error {
	dict, err := l.reader.FieldDictPrefix(field, []byte(w))
	if err != nil {
		return err
	}
	n := 0
	return l.each(dict, func(e *index.DictEntry) error {
		if n++; n > maxStarting {
			return errEnough
		}
		return l.term(field, e.Term, m, to)
	})
}

// errEnough ends each.
var errEnough = errors.New("enough terms")

// each calls do for the dictionary's terms, until it returns errEnough, and
// closes it.
func (l *lookup) each(dict index.FieldDict, do func(*index.DictEntry) error) error {
	for {
		e, err := dict.Next()
		if err == nil && e != nil {
			err = do(e)
		}
		if err == errEnough {
			err, e = nil, nil
		}
		if err != nil || e == nil {
			return errors.Join(err, dict.Close())
		}
	}
}

// term adds the libraries that have exactly the term in the field, the more
// often and the shorter the field, the better.
func (l *lookup) term(field, term string, m match, to found) error {
	return l.having(field, term, func(i int, weight float64) {
		to.add(i, match{m.tier, m.text * weight})
	})
}

// having calls do for each library of interest that has the term, with the
// term's weight as in TF-IDF; how rare the term is is the same for all of them.
func (l *lookup) having(field, term string, do func(i int, weight float64)) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	postings, err := l.reader.TermFieldReader(l.ctx, []byte(term), field, true, true, false)
	if err != nil {
		return err
	}
	defer postings.Close()
	for {
		p, err := postings.Next(l.posting.Reset())
		if err != nil || p == nil {
			return err
		}
		id, err := identity(p.ID)
		if err != nil {
			return err
		}
		if i, ok := l.at[id]; ok && l.wanted(i) {
			do(i, min(1, math.Sqrt(float64(p.Freq))*p.Norm))
		}
	}
}

// wanted tells whether a library is still of interest.
func (l *lookup) wanted(i int) bool { return l.among == nil || l.among[i].tier != noTier }
