package bot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/internal/lazyregexp"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// An Origin is what upstream has of one published release: what it was published
// from, unless upstream has changed or removed that.
type Origin struct {
	// Published is the integrity of the archive that the release was published
	// from, or the commit; "" for a release that is not from this upstream.
	Published string `json:"published,omitempty"`
	// Listed is the integrity that upstream listed when the log last told of it, ""
	// where it has the release no longer.
	Listed string `json:"listed,omitempty"`
	// From is the upstream of a release that came from another one than the package's present one.
	From string `json:"from,omitempty"`
	// Changed is when the log last told of a change; zero for nearly all.
	Changed time.Time `json:"changed,omitzero"`
	// Seen is what upstream lists instead of Listed since the time Since, which is
	// not in the log yet.
	Seen  string    `json:"seen,omitempty"`
	Since time.Time `json:"since,omitzero"`
}

// Differs reports whether upstream has another archive now, or none.
func (o Origin) Differs() bool { return o.Listed != o.Published }

// Reason says in a sentence how upstream differs.
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
	// Compared is when all of them were last compared with an answer that was asked for whole, whatever the one before was.
	Compared time.Time `json:"compared,omitzero"`
	// Failed is when that could not be done; its turn comes again as if it had been.
	Failed time.Time `json:"failed,omitzero"`
}

// A place is an upstream: the kind of its source, and the target there.
type place struct{ kind, target string }

func (p place) String() string { return p.kind + " " + p.target }

// parsePlace is String's inverse.
func parsePlace(s string) place {
	kind, target, _ := strings.Cut(s, " ")
	return place{kind, target}
}

// placeOf is where the releases of a package come from now, "" for one that is not updated.
func placeOf(p *packages.Package) place {
	if p.Autoupdate == nil {
		return place{}
	}
	return place{p.Autoupdate.Source, p.Autoupdate.Target}
}

// at is the upstream that the origins are of which name none.
func (o Origins) at() place { return place{cmp.Or(o.Source, npmType), o.Target} }

// move has the origins be those of a package that has another upstream now. What is known of the old one stays.
func (o *Origins) move(to place) {
	before := o.at().String()
	for version, origin := range o.Versions {
		if origin.From == "" && origin.Published != "" {
			origin.From = before
		}
		if origin.From == to.String() {
			origin.From = ""
		}
		o.Versions[version] = origin
	}
	o.Source, o.Target = to.kind, to.target
}

// originsKey is beside that of the package's Upstream, because it changes seldom
// and that is written whenever upstream was asked.
func originsKey(pkg string) []byte { return kvstore.Key(pkg, "origins") }

// LookupOrigins returns what is known of where a package's releases came from, or
// kvstore.ErrNotFound.
func LookupOrigins(r kvstore.Reader, pkg string) (Origins, error) {
	data, err := r.Get(kvstore.Upstreams, originsKey(pkg))
	if err != nil {
		return Origins{}, err
	}
	var o Origins
	if err := json.Unmarshal(data, &o); err != nil {
		return Origins{}, fmt.Errorf("bot: what is known of the origins of %s is malformed: %w", pkg, err)
	}
	return o, nil
}

// A look is what asking an upstream came to.
type look struct {
	from      place
	listing   *listing // nil where there is none
	unchanged bool     // it is what it was at the last look
	same      func(v candidate, published string) (same, known bool)
}

// knownOrigins returns what is known of the origins of a package whose upstream is there now, "" for none. The caller
// holds b.watching.
func (b *Bot) knownOrigins(pkg string, now place) Origins {
	known, err := LookupOrigins(b.store, pkg)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		b.logger.Warn("origins begun anew", "package", pkg, "err", err)
	}
	if known.Versions == nil {
		known = Origins{Source: now.kind, Target: now.target, Versions: make(map[string]Origin)}
	}
	if now != (place{}) && known.at() != now {
		known.move(now)
	}
	return known
}

// watch compares what upstream has of the published releases with what they were
// published from, and logs what has changed. Registries have nodes that lag and
// now and then answer in part, so a change is logged when it has lasted: when a
// look sees it that comes half an interval or more after the first one that did.
func (b *Bot) watch(ctx context.Context, pkg string, now place, at look, states []views.State) error {
	b.watching.Lock()
	defer b.watching.Unlock()
	known := b.knownOrigins(pkg, now)
	next := maps.Clone(known.Versions)
	at.same = b.sourceOf(at.from.kind).same
	now = known.at()
	clock := b.options.Now()
	var changed []views.State
	for _, s := range states {
		if s.Kind != views.Published {
			continue
		}
		origin, ok := next[s.Version]
		if !ok {
			if at.unchanged {
				continue // the list that it was published from
			}
			var err error
			if origin, err = b.origin(now, s.Package, s.Version); err != nil {
				b.logger.Warn("origin not known", "package", s.Package, "version", s.Version, "err", err)
				continue
			}
		}
		if cmp.Or(origin.From, now.String()) == at.from.String() && at.observe(&origin, s.Version, clock, b.options.Interval/2) {
			changed = append(changed, s)
		}
		next[s.Version] = origin
	}
	if maps.Equal(next, known.Versions) {
		return nil
	}
	data, err := json.Marshal(Origins{Source: known.Source, Target: known.Target, Versions: next, Compared: known.Compared, Failed: known.Failed})
	if err != nil {
		return fmt.Errorf("bot: %w", err)
	}
	err = b.log.Update(func(tx *logs.Tx) error {
		for _, s := range changed {
			v, err := views.LookupVersion(b.store, s.Package, s.Version)
			if err != nil {
				b.logger.Warn("the log will not name the manifest", "package", s.Package, "version", s.Version, "err", err)
			}
			origin := next[s.Version]
			err = views.Record(tx, views.Change{Entry: logs.Entry{
				Kind: logs.UpstreamChanged, Time: clock, Actor: actorBot,
				Package: s.Package, Version: s.Version, Released: s.Released, Reason: origin.Reason(), Manifest: v.Manifest,
				Upstream: logs.UpstreamChange{Old: known.listed(s.Version, origin), New: origin.Listed},
			}})
			if err != nil {
				return err
			}
		}
		tx.Batch.Set(kvstore.Upstreams, originsKey(pkg), data)
		return nil
	})
	if err != nil {
		return err
	}
	for _, s := range changed {
		reason := next[s.Version].Reason()
		b.logger.Warn("upstream changed", "package", s.Package, "version", s.Version, "reason", reason)
		b.emit(ctx, Event{Kind: Changed, Package: s.Package, Version: s.Version, Reason: reason})
	}
	return nil
}

// listed is what the log said last of a version before it changed to origin.
func (o Origins) listed(version string, origin Origin) string {
	if before, ok := o.Versions[version]; ok {
		return before.Listed
	}
	return origin.Published
}

// origin returns what a release was published from, as its manifest has it, of a package whose upstream is there now.
func (b *Bot) origin(now place, pkg, version string) (Origin, error) {
	v, err := views.LookupVersion(b.store, pkg, version)
	if err != nil {
		return Origin{}, err
	}
	m, err := logs.ReadManifest(b.store, v.Manifest)
	if err != nil {
		return Origin{}, err
	}
	hash := bounded(cmp.Or(m.Source.Commit, m.Source.Integrity))
	o := Origin{Published: hash, Listed: hash}
	if m.Source.Type != npmType && m.Source.Type != gitType {
		return Origin{}, nil // it was brought in by hand
	}
	if from := (place{m.Source.Type, m.Source.Name}); from != now {
		o.From = from.String()
	}
	return o, nil
}

// observe takes what a look shows of a release into its origin. It reports whether
// that is for the log: it differs from what that said last, and has lasted.
func (at look) observe(o *Origin, version string, now time.Time, lasting time.Duration) bool {
	if o.Published == "" {
		return false
	}
	seen, ok := at.listed(*o, version)
	switch {
	case !ok:
		return false
	case seen == o.Listed:
		o.Seen, o.Since = "", time.Time{}
		return false
	case o.Since.IsZero() || seen != o.Seen || o.Since.After(now):
		o.Seen, o.Since = seen, now
		return false
	case now.Sub(o.Since) < lasting:
		return false
	}
	o.Listed, o.Changed = seen, now
	o.Seen, o.Since = "", time.Time{}
	return true
}

// listed is the integrity that upstream lists for a version, "" for none; false
// where that cannot be told.
func (at look) listed(o Origin, version string) (string, bool) {
	switch {
	case at.unchanged && o.Since.IsZero():
		return o.Listed, true
	case at.unchanged:
		return o.Seen, true
	case at.listing == nil:
		return "", true
	}
	v, ok := at.listing.versions[version]
	if !ok {
		return "", true
	}
	if v.hash == "" {
		return "", false
	}
	if same, _ := at.same(v, o.Published); same {
		return o.Published, true
	}
	return bounded(v.hash), true
}

var commitHash = lazyregexp.New(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)

func isCommit(hash string) bool { return commitHash.MatchString(hash) }

// maxIntegrity is the most that is kept of an integrity, in bytes; three hashes
// are shorter.
const maxIntegrity = 512

func bounded(integrity string) string {
	return text.Cut(strings.ToValidUTF8(integrity, "\uFFFD"), maxIntegrity)
}

// Changed returns the versions of which upstream has another archive now, or none,
// in byte order.
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
