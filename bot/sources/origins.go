package sources

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/packages"
)

// An Origin is what upstream has of one published release: what it was published
// from, unless upstream has changed or removed that.
type Origin struct {
	// Published is the integrity of the archive that the release was published
	// from, or the commit; "" for a release that is not from this upstream.
	Published string `json:"published,omitempty"`
	// Listed is the integrity that upstream listed at the last entry in the log about it, ""
	// where it has the release no longer.
	Listed string `json:"listed,omitempty"`
	// From is the upstream of a release that came from another one than the package's present one.
	From string `json:"from,omitempty"`
	// Changed is the time of the last entry in the log about a change; zero for nearly all.
	Changed time.Time `json:"changed,omitzero"`
	// Seen is what upstream lists instead of Listed since the time Since, which is
	// not in the log yet.
	Seen  string    `json:"seen,omitempty"`
	Since time.Time `json:"since,omitzero"`
}

// Differs reports whether upstream lists another archive for the release than the one it was published from, or none.
func (o Origin) Differs() bool { return o.Listed != o.Published }

// Reason returns a sentence, never "", that says how upstream differs from what the release was published from, or that upstream
// has the same archive or commit again.
func (o Origin) Reason() string {
	if o.Listed == "" {
		return "upstream has this release no longer; the files published from it stay"
	}
	switch _, known := (npm.Version{Integrity: o.Listed}).SameTarball(o.Published); {
	case isCommit(o.Published) && o.Differs():
		return "upstream's tag names another commit now than the one that this release was published from; the files published stay"
	case isCommit(o.Published):
		return "upstream's tag names the commit again that this release was published from"
	case !o.Differs():
		return "upstream has this release again as it was published"
	case !known:
		return "upstream states a hash for this release that cannot be compared with that of the archive it was published from"
	default:
		return "upstream has another archive for this release than the one it was published from; the files published stay"
	}
}

// Origins are those of a package's releases.
type Origins struct {
	Source   string            `json:"source,omitempty"` // "npm" or "git"; "" in old rows
	Target   string            `json:"target"`           // the package's name upstream
	Versions map[string]Origin `json:"versions"`
	// Compared is when all of them were last compared with a complete response.
	Compared time.Time `json:"compared,omitzero"`
	// Failed is when that could not be done; its turn comes again as if it had been.
	Failed time.Time `json:"failed,omitzero"`
}

// A Ref names an upstream: the kind of its source, and the target there.
type Ref struct{ Kind, Target string }

// String returns the kind and the target, which [ParseRef] reads.
func (p Ref) String() string { return p.Kind + " " + p.Target }

// ParseRef reads a reference as [Ref.String] writes it.
func ParseRef(s string) Ref {
	kind, target, _ := strings.Cut(s, " ")
	return Ref{kind, target}
}

// RefOf returns the upstream that a package JSON names, the zero value if the package is not updated.
func RefOf(p *packages.Package) Ref {
	if p.Autoupdate == nil {
		return Ref{}
	}
	return Ref{p.Autoupdate.Source, p.Autoupdate.Target}
}

// Ref returns the present upstream of the package, from which releases came whose [Origin] has no From.
func (o Origins) Ref() Ref { return Ref{cmp.Or(o.Source, KindNpm), o.Target} }

// Move replaces the present upstream. In the origins of releases that came from the old one it stores the old one as From, and it removes From where
// that is the new one. It changes the map Versions in place.
func (o *Origins) Move(to Ref) {
	before := o.Ref().String()
	for version, origin := range o.Versions {
		if origin.From == "" && origin.Published != "" {
			origin.From = before
		}
		if origin.From == to.String() {
			origin.From = ""
		}
		o.Versions[version] = origin
	}
	o.Source, o.Target = to.Kind, to.Target
}

// OriginsKey returns the key of the row with the [Origins] of a package. It is not in the row of its Upstream, which is written with each poll.
func OriginsKey(pkg string) []byte { return kvstore.Key(pkg, "origins") }

// LookupOrigins returns the stored origins of a package's releases, or kvstore.ErrNotFound.
func LookupOrigins(r kvstore.Reader, pkg string) (Origins, error) {
	o, err := readRow[Origins](r, OriginsKey(pkg))
	if err != nil {
		return Origins{}, fmt.Errorf("bot: couldn't read what is known of the origins of %s: %w", pkg, err)
	}
	return o, nil
}

// LastLogged returns what the log last said that upstream lists for a version: the integrity of an archive or a commit, "" for none. If o does not
// have the version, that is the Published of origin.
func (o Origins) LastLogged(version string, origin Origin) string {
	if before, ok := o.Versions[version]; ok {
		return before.Listed
	}
	return origin.Published
}

var commitHash = text.NewRegexp(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)

// isCommit reports whether a hash is that of a git commit, and not the integrity of an archive.
func isCommit(hash string) bool { return commitHash.MatchString(hash) }

// Changed returns the versions whose origin differs: the log last said that upstream lists another archive for them, or none. They are in byte order.
func (o Origins) Changed() []string {
	var all []string
	for version, origin := range o.Versions {
		if origin.Differs() {
			all = append(all, version)
		}
	}
	slices.Sort(all)
	return all
}
