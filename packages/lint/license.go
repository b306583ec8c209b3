package lint

import (
	"slices"
	"strings"
	"sync"

	"github.com/github/go-spdx/v2/spdxexp/spdxlicenses"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
)

// maxLicense is the longest licence that is taken for an expression, in bytes.
const maxLicense = 500

// checkLicense adds a problem to the result r if the license of the package is not an SPDX expression, with the license that
// was probably meant. It adds a warning if a valid package JSON has no license.
func (l *Linter) checkLicense(r *Result, p *packages.Package) {
	at := []string{"license"}
	switch text := p.License; {
	case text == "":
		if r.Package != nil {
			r.add(packages.Warning, "license", at, `"license" is missing; add the SPDX identifier of the library's licence, for example "license": "MIT"`)
		}
	case !validLicense(text):
		if hint := nearestLicense(text); hint != "" {
			r.add(l.lesserSeverity(), "license", at, "%q is not an SPDX licence identifier or expression; did you mean %q?", shorten(text), hint)
			return
		}
		r.add(l.lesserSeverity(), "license", at, "%q is not an SPDX licence identifier or expression; write one such as \"MIT\", \"Apache-2.0\" or \"(MIT OR GPL-3.0-only)\", see spdx.org/licenses", shorten(text))
	}
}

// ValidateLicense reports whether a text is a valid SPDX expression, such as "MIT" or "(MIT OR GPL-3.0-only)". If not,
// nearest is the identifier of the license that was probably meant, "" if that is not clear.
func ValidateLicense(text string) (valid bool, nearest string) {
	if validLicense(text) {
		return true, ""
	}
	return false, nearestLicense(text)
}

// validLicense reports whether a text is an SPDX expression (SPDX 2.3, annex D) of licences on SPDX's list, deprecated ones
// included, or references to others. A text of over 500 bytes is none. Case matters, because other programs compare
// identifiers byte by byte.
//
// The module that has the list has a parser as well, but one that panics at "(((".
func validLicense(text string) bool {
	if len(text) > maxLicense {
		return false
	}
	words := strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ").Replace(text))
	e := expression{words: words}
	return e.parseExpression(0) && len(e.words) == 0
}

// expression is the unread rest of a license expression, in words.
type expression struct{ words []string }

// parseExpression reads licenses joined by AND and OR from e.words, up to a word that continues no expression, and reports
// whether they are valid. depth is the number of parentheses around. The precedence of the operators does not matter for
// that.
func (e *expression) parseExpression(depth int) bool {
	const deepest = 20
	for {
		if depth > deepest || !e.parseOperand(depth) {
			return false
		}
		if !e.skipWord("AND") && !e.skipWord("OR") {
			return true
		}
	}
}

// parseOperand reads from e.words a license, with an exception (WITH …) if it has one, or an expression in parentheses, and
// reports whether it is valid. depth is the number of parentheses around.
func (e *expression) parseOperand(depth int) bool {
	if e.skipWord("(") {
		return e.parseExpression(depth+1) && e.skipWord(")")
	}
	if len(e.words) == 0 || !knownLicense(e.words[0]) {
		return false
	}
	e.words = e.words[1:]
	if !e.skipWord("WITH") {
		return true
	}
	if len(e.words) == 0 || !exceptions()[e.words[0]] {
		return false
	}
	e.words = e.words[1:]
	return true
}

// skipWord removes the first word from e.words if it is the given one, and reports whether it was.
func (e *expression) skipWord(word string) bool {
	if len(e.words) == 0 || e.words[0] != word {
		return false
	}
	e.words = e.words[1:]
	return true
}

// licenseReference is a licence that is not on the list but described elsewhere.
var licenseReference = text.NewRegexp(`^(DocumentRef-[A-Za-z0-9.-]+:)?LicenseRef-[A-Za-z0-9.-]+$`)

// knownLicense reports whether a word is an identifier on the list of SPDX, perhaps with a plus sign, or a reference to
// another license (LicenseRef-…).
func knownLicense(word string) bool {
	return licenses()[word] || licenses()[strings.TrimSuffix(word, "+")] || licenseReference.MatchString(word)
}

var (
	licenses   = sync.OnceValue(func() map[string]bool { return newSet(spdxlicenses.GetLicenses(), spdxlicenses.GetDeprecated()) })
	exceptions = sync.OnceValue(func() map[string]bool { return newSet(spdxlicenses.GetExceptions()) })
)

// newSet returns a set with the words of all lists.
func newSet(lists ...[]string) map[string]bool {
	all := make(map[string]bool)
	for _, list := range lists {
		for _, name := range list {
			all[name] = true
		}
	}
	return all
}

// licenseCases are the identifiers by their lower case.
var licenseCases = sync.OnceValue(func() map[string]string {
	all := make(map[string]string)
	for name := range licenses() {
		all[strings.ToLower(name)] = name
	}
	return all
})

// usual has ways in which people write licences that are too far from the identifiers for counting
// letters, in the form that normalizeLicense returns, by identifier. A text that leaves open which of
// several is meant is not listed.
var usual = map[string]string{
	"Apache-2.0":    "apache apache2 apache20 asl20",
	"0BSD":          "bsd0 bsd0clause",
	"BSD-2-Clause":  "bsd2 bsd2clause freebsd simplifiedbsd",
	"BSD-3-Clause":  "bsd3 bsd3clause modifiedbsd newbsd",
	"CC-BY-3.0":     "ccby30",
	"CC-BY-4.0":     "ccby40",
	"CC0-1.0":       "cc0",
	"MIT":           "expat mitx11 x11mit",
	"GPL-2.0-only":  "gpl2",
	"GPL-3.0-only":  "gpl3",
	"LGPL-2.1-only": "lgpl21",
	"LGPL-3.0-only": "lgpl3",
	"AGPL-3.0-only": "agpl3",
	"MPL-2.0":       "mozilla20 mpl2 mpl20",
	"OFL-1.1":       "sil11 silofl11 silopenfont11",
}

// nearestLicense returns the SPDX identifier that a text which is none probably means: in other case, in a usual form such as
// "Apache 2", or with a misspelling. It returns "" if that is not clear.
func nearestLicense(written string) string {
	if len(written) > maxLicense {
		return ""
	}
	lower := strings.ToLower(strings.TrimSpace(written))
	if name, ok := licenseCases()[lower]; ok {
		return name
	}
	if lower == "unlicensed" { // npm's word for none at all, not the Unlicense
		return ""
	}
	simple := normalizeLicense(lower)
	for name, written := range usual {
		if slices.Contains(strings.Fields(written), simple) {
			return name
		}
	}
	var known []string
	names := make(map[string]string)
	for i, name := range spdxlicenses.GetLicenses() {
		// Another digit is another version, not a slip.
		if k := normalizedLicenses()[i]; digitsOf(k) == digitsOf(simple) && names[k] == "" {
			known, names[k] = append(known, k), name
		}
	}
	if len(simple) < 4 { // of a few letters any are near
		return names[simple]
	}
	best, _ := text.Nearest(simple, known)
	return names[best]
}

// normalizedLicenses returns the names of SPDX's licenses as normalizeLicense returns them, in the order of the list.
var normalizedLicenses = sync.OnceValue(func() []string {
	names := spdxlicenses.GetLicenses()
	for i, name := range names {
		names[i] = normalizeLicense(strings.ToLower(name))
	}
	return names
})

// digitsOf returns the digits of s, in their order, without everything else: "20" for "apache-2.0".
func digitsOf(s string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return r
		}
		return -1
	}, s)
}

// normalizeLicense returns the lower-case name of a license in a form for comparison: without punctuation, and without words
// that many licenses share, such as "license" and "version".
func normalizeLicense(lower string) string {
	var b strings.Builder
	for _, word := range strings.FieldsFunc(lower, func(r rune) bool { return !('a' <= r && r <= 'z' || '0' <= r && r <= '9') }) {
		switch word {
		case "the", "license", "licence", "licensed", "version", "v", "public", "general", "gnu", "software", "foundation", "only", "style":
			continue
		}
		b.WriteString(word)
	}
	s := b.String()
	for _, family := range []string{"agpl", "lgpl", "gpl", "mpl", "apache"} { // gplv3, apachev2
		if rest, ok := strings.CutPrefix(s, family+"v"); ok {
			s = family + rest
		}
		if rest, ok := strings.CutPrefix(s, family+"l"); ok && family == "apache" {
			s = family + rest
		}
	}
	if strings.HasSuffix(s, "gpl20") || strings.HasSuffix(s, "gpl30") {
		s = strings.TrimSuffix(s, "0")
	}
	return s
}
