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
	EmptyProblem    ProblemKind = "empty"    // packages of which nothing can be published
	FailedProblem   ProblemKind = "failed"   // releases that are tried again
	RefusedProblem  ProblemKind = "refused"  // releases that are not
)

var problemKinds = []ProblemKind{UpstreamProblem, ReplacedProblem, MissingProblem, EmptyProblem, FailedProblem, RefusedProblem}

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

// particular is what differs between reasons of one cause: addresses, hashes, times, numbers, and what is quoted.
var particular = text.NewRegexp(`https?://[^\s;,]*[^\s:;,]|sha(1|256|384|512)-[0-9A-Za-z+/=]+|[0-9a-f]{40,}|"[^"]*"|[0-9]+`)

// repeated is a list of what is particular, which may be of any length.
var repeated = text.NewRegexp(`\*( \(\*\))?(, \*( \(\*\))?|, …)*`)

// causes remembers what reasons come to: many are the same but for the names in them.
type causes map[string]string

// get returns the cause that a reason for people states: the reason with stars in place of the given names, addresses, hashes,
// numbers and quoted text, so that equal causes have equal texts. It stores results in c, because many reasons are the same.
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

// A Line of the table that counts everything.
type Line struct {
	Count    int
	What     string    // of them there are so many
	Packages string    // some, or how many
	Why      string    // and what helps
	Next     time.Time // when the first of them is tried again
}
