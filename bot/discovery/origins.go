package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// A pollResult is the result of polling an upstream.
type pollResult struct {
	from      sources.Ref
	listing   *sources.Listing // nil if upstream has no such package
	unchanged bool             // since the last poll
	// same is that of the source, see [sources.Source]. compareOrigins sets it.
	same func(v sources.Candidate, published string) (same, known bool)
}

// readOrigins returns the stored origins of a package's releases: what each was published from. now is the package's present
// upstream; if it is not the zero value and another one is stored, the origins are moved to it in the result, and not stored:
// those that came from the old one name it in From, and no hash changes. Origins that cannot be read are logged and count as
// none. The caller holds sc.watching.
func (sc *Scheduler) readOrigins(pkg string, now sources.Ref) sources.Origins {
	known, err := sources.LookupOrigins(sc.store, pkg)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		sc.logger.Warn("couldn't read the origins of releases; recording them again", "package", pkg, "err", err)
	}
	if known.Versions == nil {
		known = sources.Origins{Source: now.Kind, Target: now.Target, Versions: make(map[string]sources.Origin)}
	}
	if now != (sources.Ref{}) && known.Ref() != now {
		known.Move(now)
	}
	return known
}

// compareOrigins compares what at, the result of a poll, lists for the published releases that came from that upstream with what
// the log last said of them, at first what they were published from. It stores the origins if they changed, and logs and reports
// changes, also back to what was published. A change is logged only when a poll at least half an interval after the first sees it
// again, because nodes of a registry lag and may respond in part. now is the package's present upstream, and states are those of
// its versions. The bot has a client for at.from. compareOrigins locks sc.watching.
func (sc *Scheduler) compareOrigins(ctx context.Context, pkg string, now sources.Ref, at pollResult, states []views.State) error {
	sc.watching.Lock()
	defer sc.watching.Unlock()
	known := sc.readOrigins(pkg, now)
	next := maps.Clone(known.Versions)
	at.same = sc.options.Sources.ForKind(at.from.Kind).Same
	now = known.Ref()
	clock := sc.options.Now()
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
			if origin, err = sc.originFromManifest(now, s.Package, s.Version); err != nil {
				sc.logger.Warn("origin not known", "package", s.Package, "version", s.Version, "err", err)
				continue
			}
		}
		if cmp.Or(origin.From, now.String()) == at.from.String() && at.updateOrigin(&origin, s.Version, clock, sc.options.Interval/2) {
			changed = append(changed, s)
		}
		next[s.Version] = origin
	}
	if maps.Equal(next, known.Versions) {
		return nil
	}
	data, err := json.Marshal(sources.Origins{Source: known.Source, Target: known.Target, Versions: next, Compared: known.Compared, Failed: known.Failed})
	if err != nil {
		return fmt.Errorf("bot: %w", err)
	}
	err = sc.log.Update(func(tx *logs.Tx) error {
		for _, s := range changed {
			v, err := views.LookupVersion(sc.store, s.Package, s.Version)
			if err != nil {
				sc.logger.Warn("the log will not name the manifest", "package", s.Package, "version", s.Version, "err", err)
			}
			origin := next[s.Version]
			err = views.Record(tx, views.Change{Entry: logs.Entry{
				Kind: logs.UpstreamChanged, Time: clock, Actor: ingest.ActorBot,
				Package: s.Package, Version: s.Version, Released: s.Released, Reason: origin.Reason(), Manifest: v.Manifest,
				Upstream: logs.UpstreamChange{Old: known.LastLogged(s.Version, origin), New: origin.Listed},
			}})
			if err != nil {
				return err
			}
		}
		tx.Batch.Set(kvstore.Upstreams, sources.OriginsKey(pkg), data)
		return nil
	})
	if err != nil {
		return err
	}
	for _, s := range changed {
		reason := next[s.Version].Reason()
		sc.logger.Warn("upstream changed", "package", s.Package, "version", s.Version, "reason", reason)
		sc.options.Events.Emit(ctx, sources.Event{Kind: sources.Changed, Package: s.Package, Version: s.Version, Reason: reason})
	}
	return nil
}

// originFromManifest returns what a release was published from, as its manifest states; the zero value if that is neither npm nor
// git, as after an import. now is the package's present upstream; From of the result is "" if the release came from there.
func (sc *Scheduler) originFromManifest(now sources.Ref, pkg, version string) (sources.Origin, error) {
	v, err := views.LookupVersion(sc.store, pkg, version)
	if err != nil {
		return sources.Origin{}, err
	}
	m, err := logs.ReadManifest(sc.store, v.Manifest)
	if err != nil {
		return sources.Origin{}, err
	}
	hash := boundIntegrity(cmp.Or(m.Source.Commit, m.Source.Integrity))
	o := sources.Origin{Published: hash, Listed: hash}
	if m.Source.Type != sources.KindNpm && m.Source.Type != sources.KindGit {
		return sources.Origin{}, nil // it was brought in by hand
	}
	if from := (sources.Ref{Kind: m.Source.Type, Target: m.Source.Name}); from != now {
		o.From = from.String()
	}
	return o, nil
}

// updateOrigin stores in o, the origin of a version, what the poll found for the version at the time now. It reports whether the
// caller has to log a change: what upstream lists differs from what the log last said, and has done so for minimum. It does
// nothing if o does not say what the version was published from, as for an import, or if upstream states no hash.
func (at pollResult) updateOrigin(o *sources.Origin, version string, now time.Time, minimum time.Duration) bool {
	if o.Published == "" {
		return false
	}
	seen, ok := at.listedHash(*o, version)
	switch {
	case !ok:
		return false
	case seen == o.Listed:
		o.Seen, o.Since = "", time.Time{}
		return false
	case o.Since.IsZero() || seen != o.Seen || o.Since.After(now):
		o.Seen, o.Since = seen, now
		return false
	case now.Sub(o.Since) < minimum:
		return false
	}
	o.Listed, o.Changed = seen, now
	o.Seen, o.Since = "", time.Time{}
	return true
}

// listedHash returns the integrity or commit that the polled upstream lists for a version whose origin is o, "" if upstream does
// not list the version. If upstream lists the archive that the version was published from, that is o.Published, in whatever form
// upstream states its hash; another integrity is cut to maxIntegrity bytes. If upstream did not change since the last poll, it is
// what that poll found. The second result is false if upstream lists the version and states no hash.
func (at pollResult) listedHash(o sources.Origin, version string) (string, bool) {
	switch {
	case at.unchanged && o.Since.IsZero():
		return o.Listed, true
	case at.unchanged:
		return o.Seen, true
	case at.listing == nil:
		return "", true
	}
	v, ok := at.listing.Versions[version]
	if !ok {
		return "", true
	}
	if v.Hash == "" {
		return "", false
	}
	if same, _ := at.same(v, o.Published); same {
		return o.Published, true
	}
	return boundIntegrity(v.Hash), true
}

// maxIntegrity bounds a stored integrity, in bytes; three hashes are shorter.
const maxIntegrity = 512

// boundIntegrity returns an integrity that upstream stated as valid UTF-8, cut to maxIntegrity bytes.
func boundIntegrity(integrity string) string {
	return text.Cut(strings.ToValidUTF8(integrity, "\uFFFD"), maxIntegrity)
}
