package api

import (
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxQuery bounds what is after the question mark, in bytes.
const maxQuery = 8 << 10

// maxSearch is how much of a search text counts, in bytes.
const maxSearch = 512

// words splits values that are lists, at commas and white space, into lower-case words.
func words(values []string) []string {
	var all []string
	for _, v := range values {
		all = append(all, strings.FieldsFunc(strings.ToLower(v), func(r rune) bool { return r == ',' || r == ' ' || '\t' <= r && r <= '\r' })...)
	}
	return all
}

// A fieldSet is some of a vocabulary's names: bit i stands for name i.
type fieldSet uint32

// A vocabulary is the fields that an answer can have, in its order.
type vocabulary []string

func (v vocabulary) all() fieldSet { return 1<<len(v) - 1 }

// has reports whether name is in the set.
func (v vocabulary) has(set fieldSet, name string) bool {
	i := slices.Index(v, name)
	return i >= 0 && set&(1<<i) != 0
}

// parse returns the fields that a query names, and whether it names any, known or not.
func (v vocabulary) parse(values []string) (set fieldSet, given bool) {
	all := words(values)
	for _, word := range all {
		if word == "*" {
			return v.all(), true
		}
		if i := slices.IndexFunc(v, func(name string) bool { return strings.ToLower(name) == word }); i >= 0 {
			set |= 1 << i
		}
	}
	return set, len(all) > 0
}

// parseOrAll is parse for answers that are whole unless the query names fields.
func (v vocabulary) parseOrAll(values []string) fieldSet {
	if set, given := v.parse(values); given {
		return set
	}
	return v.all()
}

// names returns those in the set.
func (v vocabulary) names(set fieldSet) []string {
	var names []string
	for i, name := range v {
		if set&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// parseLimit returns how many results are wanted at most.
func parseLimit(q url.Values) (int, error) {
	text := q.Get("limit")
	if text == "" {
		return math.MaxInt, nil
	}
	if strings.Trim(text, "0123456789") != "" {
		return 0, badLimit
	}
	n, err := strconv.Atoi(text)
	if err != nil || n == 0 { // digits only, so an error says that there are too many
		return math.MaxInt, nil
	}
	return n, nil
}

// cut shortens text to at most n bytes without splitting a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
