package discovery

import (
	"fmt"
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// A planInput is the data from which a plan is made.
type planInput struct {
	pkg    *packages.Package
	listed map[string]sources.Candidate
	latest string // by upstream's own tag; "" without one
	states []views.State
	known  sources.Upstream
	newest int // how many releases a new package starts with
	force  bool
	named  bool // an event says that there is a release
	now    time.Time
}

// planned is what follows from the versions that a source lists.
type planned struct {
	changes []stateChange // detected: new here; refused: not acceptable, or gone from upstream
	tasks   []ingest.Task // to be fetched now, newest first
	// The next values of fields of [sources.Upstream].
	sources.UpstreamVersions
	filled   bool
	examined int
	retry    []string
	fresh    []string
}

// planning is a plan while it is made.
type planning struct {
	planInput
	out    planned
	first  *packages.Start
	before map[string]bool // versions that upstream had at the last poll
	// The newest time and the newest version of all known releases.
	lastTime    time.Time
	lastVersion string
	unusable    int  // how many names of versions no URL can have
	pending     bool // releases are chosen, and neither published nor refused
}

// planPackage compares what a source lists with the states of versions and the versions that upstream had before. A new package
// starts with its newest releases that can be published and with the one that upstream calls latest; a known one takes every
// release that is new and newer than the newest known one, by time or by version. It is a pure function.
func planPackage(s planInput) planned {
	versions := sources.UpstreamVersions{Tried: make(map[string]string), Deprecated: sources.GroupDeprecations(s.listed)}
	p := &planning{planInput: s, out: planned{UpstreamVersions: versions}, first: packages.NewStart(s.newest), before: setOf(s.known.Seen)}
	states := make(map[string]views.State, len(s.states))
	for _, state := range s.states {
		states[state.Version] = state
		p.lastTime = sources.Later(p.lastTime, state.Released)
		if p.lastVersion == "" || packages.CompareVersions(state.Version, p.lastVersion) > 0 {
			p.lastVersion = state.Version
		}
	}
	for _, r := range sortReleases(s.pkg, s.listed) {
		p.out.Seen = append(p.out.Seen, r.name)
		if state, ok := states[r.name]; ok {
			p.planKnown(r, state)
			delete(states, r.name)
		} else {
			p.planUnknownVersion(r)
		}
	}
	p.out.filled, p.out.examined = !p.pending && len(p.out.Seen) > 0, p.first.Examined()
	if !p.out.filled {
		p.out.retry = slices.DeleteFunc(slices.Clone(s.known.Retry), func(version string) bool {
			return slices.ContainsFunc(p.out.changes, func(c stateChange) bool { return c.Version == version })
		})
	}
	for _, state := range s.states {
		if _, missing := states[state.Version]; missing && !state.Kind.Final() {
			change := stateChange{was: state.Kind, State: state}
			change.Kind, change.Reason, change.Updated = views.Refused, sources.Gone, s.now
			p.out.changes = append(p.out.changes, change)
		}
	}
	p.recordVersions()
	return p.out
}

// setOf returns a set of the given versions.
func setOf(versions []string) map[string]bool {
	set := make(map[string]bool, len(versions))
	for _, version := range versions {
		set[version] = true
	}
	return set
}

// planKnown plans for a listed version r that has a state: to detect a refused one again (see canRetry), to fetch one that is
// due, or nothing. It counts the version among those that a new package starts with.
func (p *planning) planKnown(r release, state views.State) {
	if p.canRetry(r, state) {
		p.planDetected(r, state)
		return
	}
	sources.CountStart(p.first, state)
	p.pending = p.pending || !state.Kind.Final()
	switch {
	case state.Kind == views.Refused && r.valid:
		p.out.Tried[r.name] = r.version.Hash
	case state.Kind.Final():
	case state.Next.After(p.now) && !p.force && !p.hashChanged(r):
		if slices.Contains(p.known.Fresh, r.name) {
			p.out.fresh = append(p.out.fresh, r.name)
		}
	default:
		p.planFetch(r, state.Attempts)
	}
}

// canRetry reports whether a version r that is refused in state may be detected and fetched again: the package JSON has changed
// and the package would start with r or refused it since it started; upstream has r again or with another hash; or an operator's
// import of r was refused because it lacked a required attestation.
func (p *planning) canRetry(r release, state views.State) bool {
	if state.Kind != views.Refused || !r.valid {
		return false
	}
	again := slices.Contains(p.known.Retry, r.name) && (p.startsWith(r) || !p.known.Began.IsZero() && state.Updated.After(p.known.Began))
	return again || state.Reason == sources.Gone || state.Imported || p.hashChanged(r)
}

// planUnknownVersion plans to publish a version that has no state yet, if it should be published. It refuses an invalid version
// number, for mostUnusable versions at most. It records nothing about a version that should not be published.
func (p *planning) planUnknownVersion(r release) {
	switch {
	case !p.shouldPublish(r):
	case r.valid:
		p.planDetected(r, views.State{})
	case p.unusable < mostUnusable:
		p.unusable++
		change := p.newChange(r, views.State{})
		change.Kind, change.Reason = views.Refused, invalidVersion
		p.out.changes = append(p.out.changes, change)
	}
}

// startsWith reports whether a release is one of those that a new package starts with: one of its newest, or the one that
// upstream calls latest.
func (p *planning) startsWith(r release) bool {
	return p.newest > 0 && r.name == p.latest || p.first.Wants(r.name)
}

// shouldPublish reports whether the bot publishes a listed version that has no state yet: the package starts with it, or it is
// new at upstream and newer than the known releases by time or by version. A release without a time counts as newer.
func (p *planning) shouldPublish(r release) bool {
	switch {
	case !p.known.Filled && p.startsWith(r):
		return true
	case !p.known.Filled && p.known.Began.IsZero() && len(p.before) == 0: // the package has never been polled
		return false
	}
	return !p.before[r.name] && (p.lastVersion == "" || r.released.IsZero() || r.released.After(p.lastTime) || packages.CompareVersions(r.name, p.lastVersion) > 0)
}

// newChange returns, and does not record, the change of the state of the version r from was to detected.
func (p *planning) newChange(r release, was views.State) stateChange {
	return stateChange{was: was.Kind, State: views.State{Package: p.pkg.Name, Version: r.name, Kind: views.Detected, Released: r.released, Updated: p.now}}
}

// planDetected plans to record the version r, which is new or was refused before, as detected, and to fetch it. was is its state
// before.
func (p *planning) planDetected(r release, was views.State) {
	change := p.newChange(r, was)
	sources.CountStart(p.first, change.State)
	p.pending = true
	p.out.changes = append(p.out.changes, change)
	p.planFetch(r, was.Attempts)
}

// planFetch adds the task to fetch the release r now to the plan, and records the hash that is tried. The task is fresh, ahead of
// others, if the package has all releases that it starts with, if the release has appeared since the package's first poll, or if
// an event names the package and this is the first task of the plan. attempts is how many attempts have failed.
func (p *planning) planFetch(r release, attempts int) {
	appeared := p.known.Filled || len(p.before) > 0 && !p.before[r.name] || slices.Contains(p.known.Fresh, r.name) // since the first poll
	t := ingest.Task{Pkg: p.pkg, Version: r.version, Released: r.released, Rank: len(p.out.tasks), Tried: attempts}
	if t.Fresh = appeared || p.named && t.Rank == 0; t.Fresh && !p.known.Filled {
		p.out.fresh = append(p.out.fresh, r.name)
	}
	p.out.tasks = append(p.out.tasks, t)
	p.out.Tried[r.name] = r.version.Hash
}

// recordVersions completes the plan's list of versions that upstream has or had, so that a registry that once returns only some
// of them makes no old release new, and sets the list of those that the package JSON ignores. Both lists are bounded.
func (p *planning) recordVersions() {
	there := setOf(p.out.Seen)
	for _, version := range p.known.Seen {
		if !there[version] && len(p.out.Seen) < max(mostSeen, len(p.listed)) {
			p.out.Seen = append(p.out.Seen, version)
			p.out.Gone++
		}
	}
	for version := range p.listed {
		if packages.ValidVersion(version) && p.pkg.IgnoresVersion(version) && len(p.out.Ignored) < mostSeen {
			p.out.Ignored = append(p.out.Ignored, version)
		}
	}
	slices.Sort(p.out.Ignored)
}

// hashChanged reports whether upstream states another hash of the release r now than at the last attempt to fetch it, or one
// where it stated none then. It is false if no attempt is recorded, or if upstream states no hash now.
func (s *planInput) hashChanged(r release) bool {
	tried, ok := s.known.Tried[r.name]
	return ok && r.version.Hash != "" && tried != r.version.Hash
}

// The bounds of what one upstream may have written down. An upstream can give tags any names, as many as they like,
// and others the next day.
const (
	mostUnusable = 20     // refusals in one poll of names that are not versions
	mostSeen     = 20_000 // versions, with those that upstream has no longer
)

// invalidVersion is why a version is refused that upstream names as it likes.
const invalidVersion = "the version is not one that a URL of Larder can have: up to 128 letters, digits and . _ + -, a letter or digit first"

// A release is a version of a source.
type release struct {
	name     string // the version, or what stands for one that is not valid
	valid    bool
	version  sources.Candidate
	released time.Time // zero where the source does not say
}

// sortReleases returns the listed versions that the package JSON p does not ignore, newest version first. An invalid version gets
// a bounded name in its place.
func sortReleases(p *packages.Package, listed map[string]sources.Candidate) []release {
	var all []release
	for name, v := range listed {
		if p.IgnoresVersion(name) {
			continue
		}
		r := release{name: name, valid: packages.ValidVersion(name), version: v, released: v.Published}
		if !r.valid {
			// Strangers' bytes of any length do not become part of a key.
			r.name = fmt.Sprintf("%.40q#%.8s", name, kvstore.Sum([]byte(name)))
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b release) int { return packages.CompareVersions(b.name, a.name) })
	return all
}
