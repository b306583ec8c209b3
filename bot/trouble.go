package bot

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/larder-cdn/larder/internal/lazyregexp"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// A TroubleKind says what a [Trouble] is about, the most harmful first.
type TroubleKind string

// The kinds of troubles.
const (
	UpstreamTrouble TroubleKind = "upstream" // packages whose upstream cannot be asked
	ReplacedTrouble TroubleKind = "replaced" // packages whose address names another repository now
	MissingTrouble  TroubleKind = "missing"  // packages that their upstream says it does not have
	EmptyTrouble    TroubleKind = "empty"    // packages of which nothing can be published
	FailedTrouble   TroubleKind = "failed"   // releases that are tried again
	RefusedTrouble  TroubleKind = "refused"  // releases that are not
)

var kindsOfTrouble = []TroubleKind{UpstreamTrouble, ReplacedTrouble, MissingTrouble, EmptyTrouble, FailedTrouble, RefusedTrouble}

// A Trouble is one cause, and what it keeps from being published. A registry that is down is one trouble,
// however many packages it has.
type Trouble struct {
	Kind     TroubleKind `json:"kind"`
	Cause    string      `json:"cause"` // the reason of the first of them
	Count    int         `json:"count"` // packages, or releases
	Packages []string    `json:"packages"`
	Next     time.Time   `json:"next,omitzero"` // when the first of them is tried again
	// Waiting are the releases that failed, too, because their upstream is down.
	Waiting int `json:"waiting,omitempty"`
}

// troubles groups what is wrong by cause, the most harmful first.
func (s *Status) troubles() []Trouble {
	byCause := make(map[[2]string]*Trouble)
	add := func(kind TroubleKind, cause, pkg, reason string, next time.Time) {
		key := [2]string{string(kind), cause}
		t := byCause[key]
		if t == nil {
			t = &Trouble{Kind: kind, Cause: reason, Next: next}
			byCause[key] = t
		}
		if t.Count++; !slices.Contains(t.Packages, pkg) {
			t.Packages = append(t.Packages, pkg)
		}
		if next.Before(t.Next) {
			t.Next = next
		}
	}
	causes := make(causes)
	out := make(map[string]int)        // packages by the upstream that does not answer
	targets := make(map[string]string) // by package
	for _, p := range s.Packages {
		targets[p.Name] = p.target
		if p.outage != "" {
			out[p.outage]++
		}
	}
	down := make(map[string]*Trouble) // by package
	for _, p := range s.Packages {
		switch {
		case p.outage != "" && out[p.outage] >= failuresDown: // whatever each of its requests met
			add(UpstreamTrouble, "outage of "+p.outage, p.Name, p.Problem, p.Next)
			down[p.Name] = byCause[[2]string{string(UpstreamTrouble), "outage of " + p.outage}]
		case p.replaced:
			add(ReplacedTrouble, "", p.Name, p.Problem, p.Next)
		case p.missing:
			add(MissingTrouble, causes.of(p.Problem, p.target, p.Name), p.Name, p.Problem, p.Next)
		case p.Problem != "":
			add(UpstreamTrouble, causes.of(p.Problem, p.target, p.Name), p.Name, p.Problem, p.Next)
		}
		if p.Published == 0 && p.Looked > 0 && p.Waiting == 0 {
			add(EmptyTrouble, "", p.Name, "none of the newest releases can be published", time.Time{})
		}
	}
	for _, v := range s.Versions {
		switch {
		case v.Kind == views.Failed && down[v.Package] != nil:
			down[v.Package].Waiting++
		case v.Kind == views.Failed:
			add(FailedTrouble, causes.of(v.Reason, targets[v.Package], v.Version, v.Package), v.Package, v.Reason, v.Next)
		case v.Kind == views.Refused:
			add(RefusedTrouble, causes.of(v.Reason, targets[v.Package], v.Version, v.Package), v.Package, v.Reason, time.Time{})
		}
	}
	all := []Trouble{}
	for _, t := range byCause {
		all = append(all, *t)
	}
	slices.SortFunc(all, func(a, b Trouble) int {
		return cmp.Or(
			cmp.Compare(slices.Index(kindsOfTrouble, a.Kind), slices.Index(kindsOfTrouble, b.Kind)),
			cmp.Compare(len(b.Packages), len(a.Packages)), cmp.Compare(b.Count, a.Count), strings.Compare(a.Packages[0], b.Packages[0]))
	})
	return all
}

// particular is what differs between reasons of one cause: addresses, hashes, times, numbers, and what is quoted.
var particular = lazyregexp.New(`https?://[^\s;,]*[^\s:;,]|sha(1|256|384|512)-[0-9A-Za-z+/=]+|[0-9a-f]{40,}|"[^"]*"|[0-9]+`)

// repeated is a list of what is particular, which may be of any length.
var repeated = lazyregexp.New(`\*( \(\*\))?(, \*( \(\*\))?|, …)*`)

// causes remembers what reasons come to: many are the same but for the names in them.
type causes map[string]string

// of returns a reason without what is particular to a release, and without these names.
func (c causes) of(reason string, names ...string) string {
	for _, name := range names {
		reason = withoutWord(reason, name)
	}
	cause, ok := c[reason]
	if !ok {
		cause, _, _ = strings.Cut(reason, packages.FoldersNote)
		cause = repeated.ReplaceAllString(particular.ReplaceAllString(cause, "*"), "*")
		c[reason] = cause
	}
	return cause
}

// withoutWord puts a star in the place of a word, but not of a part of another.
func withoutWord(s, word string) string {
	if word == "" || !strings.Contains(s, word) {
		return s
	}
	var b strings.Builder
	for {
		i := strings.Index(s, word)
		if i < 0 {
			return b.String() + s
		}
		end := i + len(word)
		b.WriteString(s[:i])
		if i > 0 && inWord(s[i-1]) || end < len(s) && inWord(s[end]) {
			b.WriteString(word)
		} else {
			b.WriteString("*")
		}
		s = s[end:]
	}
}

func inWord(c byte) bool {
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

// Lines are the table that counts everything: what is wrong, by cause, the most harmful first, and then the rest.
func (s *Status) Lines() []Line {
	const mostNames = 3
	var lines []Line
	add := func(n int, one, many, where, why string, next time.Time) {
		if n > 0 {
			lines = append(lines, Line{n, english.PluralWord(n, one, many), where, why, next})
		}
	}
	for _, t := range s.Troubles {
		t.Cause, _, _ = strings.Cut(t.Cause, "\n")
		names := strings.Join(t.Packages[:min(len(t.Packages), mostNames)], ", ")
		if n := len(t.Packages) - mostNames; n > 0 {
			names += " and " + text.Count(n, "other", "others")
		}
		switch t.Kind {
		case UpstreamTrouble:
			why := t.Cause
			if t.Waiting > 0 {
				why = text.Count(t.Waiting, "release waits", "releases wait") + " for that, too; " + why
			}
			add(t.Count, "upstream can't be asked", "upstreams can't be asked", names, why, t.Next)
		case ReplacedTrouble:
			add(t.Count, "repository was replaced", "repositories were replaced", names, t.Cause, t.Next)
		case MissingTrouble:
			add(t.Count, "package is not at its upstream", "packages are not at their upstream", names,
				t.Cause+"; correct \"target\" in the package JSON, or, if it is private, configure credentials for it", t.Next)
		case EmptyTrouble:
			add(t.Count, "package without a release", "packages without a release", names, t.Cause+"; `larder status NAME` says why, `larder show-files` what is selected", t.Next)
		case FailedTrouble:
			add(t.Count, "release failed", "releases failed", names, t.Cause, t.Next)
		case RefusedTrouble:
			add(t.Count, "release refused", "releases refused", names, t.Cause+"; `larder retry NAME` tries again", t.Next)
		}
	}
	if n := len(s.Changed); n > 0 {
		add(n, "release differs from its upstream", "releases differ from their upstream", s.Changed[0].Package, "upstream has changed or removed what they were published from", time.Time{})
	}
	var sum PackageStatus
	for _, p := range s.Packages {
		sum.Published += p.Published
		sum.Waiting += p.Waiting
		sum.Withdrawn += p.Withdrawn
	}
	all := "of " + humanize.Comma(int64(len(s.Packages)))
	if len(s.Packages) == 1 {
		all = s.Packages[0].Name
	}
	add(sum.Waiting, "release waits", "releases wait", all, "", time.Time{})
	add(s.Squeezing.Contents, "content to be squeezed", "contents to be squeezed", "", s.Squeezing.Rest(), time.Time{})
	add(s.Squeezing.GivenUp, "content not squeezed", "contents not squeezed", "", "an encoder was killed three times; `larder squeeze` tries again", time.Time{})
	add(sum.Withdrawn, "release withdrawn", "releases withdrawn", all, "", time.Time{})
	add(s.Audited, "release compared", "releases compared", "", "with upstream, file by file, and the same", time.Time{})
	add(sum.Published, "release published", "releases published", all, "", time.Time{})
	return lines
}
