package search

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/larder-cdn/larder/internal/text"
)

const (
	// maxWord is how many characters of a word count. The longest name in the
	// public catalogue has 50.
	maxWord = 64
	// maxWords is how many different words of a query count. The description of
	// a library has about a dozen.
	maxWords = 32
	// maxText is how many bytes of a query are looked at, more than the REST
	// contract lets through.
	maxText = 4096
	// maxField is how many bytes of one value of a document are indexed. The
	// longest description in the public catalogue has 1,100.
	maxField = 16 << 10
)

// letters are those whose form without an accent Unicode does not know.
var letters = strings.NewReplacer("ß", "ss", "ẞ", "SS", "æ", "ae", "Æ", "AE", "œ", "oe", "Œ", "OE", "ø", "o", "Ø", "O", "đ", "d", "Đ", "D", "ð", "d", "Ð", "D", "ł", "l", "Ł", "L", "þ", "th", "Þ", "TH", "ı", "i")

// foldAccents returns s without accents and ligatures, for comparing. The case stays, because it separates words in names.
// Bytes that are not UTF-8 become spaces.
func foldAccents(s string) string {
	if isASCII(s) {
		return s
	}
	return letters.Replace(strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) {
			return -1
		}
		return r
	}, norm.NFKD.String(strings.ToValidUTF8(s, " "))))
}

// isASCII reports whether all bytes of s are ASCII.
func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// words returns the words of s, in lower case, without accents and in s's order, each cut to maxWord characters. It ignores
// what is beyond maxField bytes.
func words(s string) []string {
	s = foldAccents(spellLanguages(text.Cut(s, maxField)))
	list := strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) })
	for i, w := range list {
		list[i] = text.CutRunes(w, maxWord)
	}
	return list
}

// joinWords returns the words of s, see words, joined without a separator and cut to maxWord characters.
func joinWords(s string) string { return text.CutRunes(strings.Join(words(s), ""), maxWord) }

// bareName returns the words of s, a name as it is written, joined in lower case, without a js at the end or, if s ends in
// .css, without css: Chart.js, chartjs and chart give chart. angular-css gives angularcss, because it is not the style sheet
// of angular.
func bareName(s string) string {
	list := words(s)
	if n := len(list); n > 1 && (list[n-1] == "js" || strings.HasSuffix(strings.ToLower(s), ".css")) {
		return text.CutRunes(strings.Join(list[:n-1], ""), maxWord)
	}
	whole := joinWords(s)
	if short, ok := strings.CutSuffix(whole, "js"); ok && utf8.RuneCountInString(short) > 1 {
		return short
	}
	return whole
}

// withoutAddedWords returns the words of a query, joined by spaces, without those at its ends that people add to a library's
// name: jquery 3.7.1, bootstrap.min.css, vue cdn.
func withoutAddedWords(query string) string {
	list := words(query)
	for n := len(list); n > 1 && isAddedWord(list[n-1]); n-- {
		list = list[:n-1]
	}
	for len(list) > 1 && isCDN(list[0]) {
		list = list[1:]
	}
	return strings.Join(list, " ")
}

// isAddedWord reports whether a word is one that people add behind the name of a library: an extension, a
// number, cdn, min, latest.
func isAddedWord(w string) bool {
	switch w {
	case "js", "css", "min", "latest", "umd", "esm":
		return true
	}
	return isCDN(w) || isVersion(w)
}

// isCDN reports whether a word is cdn or cdnjs.
func isCDN(w string) bool { return w == "cdn" || w == "cdnjs" }

// textTerms returns the terms by which prose or a list of words is indexed: the words, and also as one those that only
// punctuation separates, so that frontend finds front-end.
func textTerms(s string) []string {
	var terms []string
	for chunk := range strings.FieldsSeq(s) {
		list := words(chunk)
		terms = append(terms, list...)
		if len(list) > 1 {
			terms = append(terms, text.CutRunes(strings.Join(list, ""), maxWord))
		}
	}
	return terms
}

// nameTerms returns the terms by which a name is indexed: those of [textTerms], and the words that only a capital letter
// separates: mmenu light of MmenuLight.
func nameTerms(s string) []string {
	terms := textTerms(s)
	for _, w := range words(partCapitals(s)) {
		if !slices.Contains(terms, w) {
			terms = append(terms, w)
		}
	}
	return terms
}

// partCapitals inserts a space before each capital that follows a small letter, but not after a word of one letter: jQuery
// is not a query.
func partCapitals(s string) string {
	var b strings.Builder
	length := 0 // of the word so far
	small := false
	for _, r := range foldAccents(s) {
		if small && unicode.IsUpper(r) && length > 1 {
			b.WriteByte(' ')
			length = 0
		}
		b.WriteRune(r)
		small = unicode.IsLower(r)
		length++
		if !unicode.IsLetter(r) && !unicode.IsNumber(r) {
			length = 0
		}
	}
	return b.String()
}

// nearTerms returns the terms that are compared with a mistyped word or query, for a library's name: its words, the words as
// one, and the beginnings of all these with at least minHead characters; sorted and without repetitions.
func nearTerms(name string) []string {
	terms := append(nameTerms(name), words(joinWords(name)+" "+bareName(name))...)
	for _, t := range terms {
		terms = appendBeginnings(terms, t, minHead, maxWord)
	}
	return sortUnique(terms)
}

// appendBeginnings appends the beginnings of w that have least to most characters, w itself among them.
func appendBeginnings(list []string, w string, least, most int) []string {
	n := 0
	for i := range w {
		if n >= least && n <= most {
			list = append(list, w[:i])
		}
		n++
	}
	if n >= least && n <= most {
		list = append(list, w)
	}
	return list
}

// sortUnique sorts list in place and returns it without repetitions.
func sortUnique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
