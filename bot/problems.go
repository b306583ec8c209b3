package bot

import (
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
)

// A ProblemKind says what a [Problem] is about, the most harmful first.
type ProblemKind string

// The kinds of problems.
const (
	UpstreamProblem ProblemKind = "upstream" // packages whose upstream does not respond
	ReplacedProblem ProblemKind = "replaced" // packages whose address names another repository now
	MissingProblem  ProblemKind = "missing"  // packages that their upstream says it does not have
	EmptyProblem    ProblemKind = "empty"    // packages of whose newest releases none can be published
	FailedProblem   ProblemKind = "failed"   // releases that are tried again
	RefusedProblem  ProblemKind = "refused"  // releases that are not tried again by themselves
)

// problemTexts has the words for one and for many problems of each kind, and what helps, the most harmful kind first.
var problemTexts = []struct {
	kind            ProblemKind
	one, many, help string
}{
	{UpstreamProblem, "upstream can't be asked", "upstreams can't be asked", ""},
	{ReplacedProblem, "repository was replaced", "repositories were replaced", ""},
	{MissingProblem, "package is not at its upstream", "packages are not at their upstream",
		"; correct \"target\" in the package JSON, or, if it is private, configure credentials for it"},
	{EmptyProblem, "package without a release", "packages without a release", "; `larder status NAME` says why, `larder show-files` what is selected"},
	{FailedProblem, "release failed", "releases failed", ""},
	{RefusedProblem, "release refused", "releases refused", "; `larder add --retry NAME` tries again"},
}

// rank returns the index of the kind in problemTexts, or their number for a kind that only a newer version knows.
func (k ProblemKind) rank() int {
	for i := range problemTexts {
		if problemTexts[i].kind == k {
			return i
		}
	}
	return len(problemTexts)
}

// A Problem is one cause, and the releases that are not published because of it. A registry that is down is one problem,
// however many packages it has.
type Problem struct {
	Kind     ProblemKind `json:"kind"`
	Cause    string      `json:"cause"` // the reason of the first of them
	Count    int         `json:"count"` // packages, or releases
	Packages []string    `json:"packages"`
	Next     time.Time   `json:"next,omitzero"` // when the first of them is tried again
	// Waiting are the releases that failed, too, because their upstream is down.
	Waiting int `json:"waiting,omitempty"`
}

// particular matches what differs between reasons of one cause: addresses, hashes, quoted text and numbers, those in times, too.
var particular = text.NewRegexp(`https?://[^\s;,]*[^\s:;,]|sha(1|256|384|512)-[0-9A-Za-z+/=]+|[0-9a-f]{40,}|"[^"]*"|[0-9]+`)

// repeated matches a list of stars, which stand for what is particular. Such a list may have any length.
var repeated = text.NewRegexp(`\*( \(\*\))?(, \*( \(\*\))?|, …)*`)

// causes has the cause of each reason that [causes.get] has seen, by the reason with stars for its names. Many reasons are the
// same but for the names in them.
type causes map[string]string

// get returns the cause that a reason for people states, so that equal causes have equal texts: the reason with stars in place of
// the given names, addresses, hashes, numbers and quoted text, and with one star for a list of these. It drops the end of a
// reason from packages.FoldersNote on. It stores results in c, because many reasons are the same.
func (c causes) get(reason string, names ...string) string {
	for _, name := range names {
		reason = replaceWord(reason, name)
	}
	cause, ok := c[reason]
	if !ok {
		cause, _, _ = strings.Cut(reason, packages.FoldersNote)
		cause = repeated.ReplaceAllString(particular.ReplaceAllString(cause, "*"), "*")
		c[reason] = cause
	}
	return cause
}

// replaceWord returns s with a star in place of each occurrence of word that is not a part of a longer word. An empty word
// changes nothing.
func replaceWord(s, word string) string {
	if word == "" || !strings.Contains(s, word) {
		return s
	}
	var b strings.Builder
	for from := 0; ; {
		i := strings.Index(s[from:], word)
		if i < 0 {
			return b.String() + s[from:]
		}
		i += from
		end := i + len(word)
		b.WriteString(s[from:i])
		if i > 0 && isWordByte(s[i-1]) || end < len(s) && isWordByte(s[end]) {
			b.WriteString(word)
		} else {
			b.WriteString("*")
		}
		from = end
	}
}

// isWordByte reports whether a byte can be part of a word: an ASCII letter, a digit or an underscore.
func isWordByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// A Line is a row of the table that [Status.Lines] returns.
type Line struct {
	Count    int
	What     string    // what is counted, in words that fit the count
	Packages string    // names of some of the packages, or "of" and how many there are; "" for none
	Why      string    // the reason, and what helps; "" for none
	Next     time.Time // when the first of them is tried again
}
