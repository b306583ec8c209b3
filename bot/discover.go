package bot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// Actors in the log.
const (
	actorBot      = "bot"
	actorOperator = "operator"
)

// poll asks a package's upstream what there is, records new versions and queues
// what is to be fetched. A failure of this package is recorded; the error is for
// what stops the bot. Where resume is there and the upstream is down, the error is errParked and resume is called
// when it may be back.
func (b *Bot) poll(ctx context.Context, p *packages.Package, q *queue, resume func()) error {
	if err := b.polling.Acquire(ctx, 1); err != nil {
		return err
	}
	defer b.polling.Release(1)
	if b.source(p) == nil {
		// Such a package gets its releases by Import.
		now := b.options.Now()
		return b.setUpstream(Upstream{Package: p.Name, Checked: now, Next: now.Add(jittered(b.options.Interval))})
	}
	if resume != nil && !b.outages.admit(upstreamOf(p), p.Name, resume) {
		return errParked
	}
	if err := b.looks.hold(ctx, p.Name); err != nil {
		return err
	}
	defer b.looks.drop(p.Name)
	tasks, err := b.ask(ctx, p, inquiry{has: q.has, actor: actorBot})
	if err != nil {
		return err
	}
	q.push(tasks...)
	return nil
}

// errParked is that a package waits for an upstream that is down.
var errParked = errors.New("its upstream is down")

// An inquiry says on whose behalf an upstream is asked.
type inquiry struct {
	actor string
	has   func(id string) bool // what is in hand already
	force bool                 // releases that failed do not wait for their time
	named bool                 // by an event, which says that there is a release
}

// ask is poll without the queue. The caller holds the package in b.looks.
func (b *Bot) ask(ctx context.Context, p *packages.Package, in inquiry) ([]task, error) {
	b.emit(ctx, Event{Kind: Checking, Package: p.Name})
	upstream := b.knownUpstream(p.Name)
	before := upstream
	if !upstream.follows(p) {
		upstream.forget()
	}
	upstream.Source, upstream.Target = p.Autoupdate.Source, p.Autoupdate.Target
	if in.named {
		upstream.Named = b.options.Now()
	}
	tasks, err := b.discover(ctx, p, in, &upstream)
	if errors.Is(err, fetch.ErrNotFound) && len(upstream.Seen) > 0 {
		err = vanishedError{error: err}
	}
	b.outages.told(upstreamOf(p), p.Name, err)
	down := b.outages.down(upstreamOf(p))
	now := b.options.Now()
	upstream.Checked, upstream.Outage, upstream.Missing = now, isOutage(err), errors.Is(err, fetch.ErrNotFound)
	var limit *git.LimitError
	switch {
	case stops(err), err != nil && ctx.Err() != nil:
		return nil, errors.Join(ctx.Err(), err)
	case errors.As(err, &limit):
		// Nothing is wrong with it; but until then there is no use in asking.
		upstream.Attempts, upstream.Reason = max(1, upstream.Attempts), err.Error()
		upstream.Next = limit.Until.Add(jittered(minWait))
		b.emit(ctx, Event{Kind: Checked, Package: p.Name})
	case err != nil:
		if upstream.Attempts == 0 || !down { // the pauses of a package don't grow by what isn't its fault
			upstream.Attempts++
		}
		upstream.Reason = err.Error()
		upstream.Next = now.Add(min(longestRest, backoff(upstream.Attempts)))
		if down {
			upstream.Next = now.Add(minWait)
		}
		if at, ok := fetch.RetryAt(err); ok {
			upstream.Next = later(upstream.Next, at)
		}
		b.logger.Warn("upstream failed", "package", p.Name, "target", p.Autoupdate.Target, "err", err, "next", upstream.Next)
		b.emit(ctx, Event{Kind: Failed, Package: p.Name, Reason: err.Error(), Next: upstream.Next})
	default:
		upstream.Next, upstream.Attempts, upstream.Reason = now.Add(jittered(upstream.pause(now, b.shortest(p), b.options.Interval))), 0, ""
		b.emit(ctx, Event{Kind: Checked, Package: p.Name, Waiting: len(tasks)})
	}
	if counts, ok := b.catalogue().Get(p.Name); ok && !bytes.Equal(counts.JSON, p.JSON) {
		// The catalogue has changed meanwhile, and has not been looked at by what it says now.
		upstream.Validators, upstream.Next = fetch.Validators{}, time.Time{}
	}
	b.rows.Lock()
	defer b.rows.Unlock()
	row := b.knownUpstream(p.Name)
	if row.Next.IsZero() && !before.Next.IsZero() { // it was enrolled anew during the look
		upstream.Validators, upstream.Next = fetch.Validators{}, time.Time{}
	}
	for _, version := range row.Mended {
		if !slices.Contains(before.Mended, version) {
			upstream.Mended, upstream.Filled = append(upstream.Mended, version), false
		}
	}
	// Only now, when what the answer says is durable, may its validators be used.
	return tasks, b.setUpstream(upstream)
}

// discover asks for the versions, unless they are as they were, and records what
// follows from them.
func (b *Bot) discover(ctx context.Context, p *packages.Package, in inquiry, upstream *Upstream) ([]task, error) {
	states, err := views.States(b.store, p.Name)
	if err != nil {
		return nil, err
	}
	validators := upstream.Validators
	if slices.ContainsFunc(states, func(s views.State) bool {
		return !s.Kind.Final() && (in.force || !s.Next.After(b.options.Now())) && !in.has(releaseID(s.Package, s.Version))
	}) || !upstream.filledBy(states, b.options.Releases) {
		// Something is to be fetched or to be chosen, which needs the list in whole.
		validators = fetch.Validators{}
	}
	here := placeOf(p)
	listed, err := b.source(p).list(ctx, p.Autoupdate.Target, validators)
	switch {
	case errors.Is(err, fetch.ErrNotFound):
		return nil, errors.Join(err, b.watch(ctx, p.Name, here, look{from: here}, states))
	case err != nil:
		return nil, err
	}
	b.note(ctx, upstream, listed)
	if listed.unchanged {
		upstream.Validators = listed.validators
		return nil, b.watch(ctx, p.Name, here, look{from: here, unchanged: true}, states)
	}
	if err := b.watch(ctx, p.Name, here, look{from: here, listing: listed}, states); err != nil {
		return nil, err
	}
	plan := plan(survey{
		pkg: p, listed: listed.versions, latest: listed.latest, states: states, known: *upstream,
		newest: b.options.Releases, force: in.force, now: b.options.Now(),
		named: in.named || len(upstream.Seen) == 0 && !upstream.Named.IsZero(), // the event's own look failed
	})
	plan.changes = slices.DeleteFunc(plan.changes, func(c stateChange) bool {
		return c.Reason == gone && in.has(releaseID(c.Package, c.Version)) // how that ends is not for this to say
	})
	overtaken, err := b.record(plan.changes, in.actor)
	if err != nil {
		return nil, err
	}
	if known := upstream.Validators; known != (fetch.Validators{}) && known != listed.validators {
		upstream.Changed = b.options.Now()
	}
	upstream.moved(p, listed.versions, b.options.Now())
	upstream.Validators, upstream.Seen, upstream.Tried, upstream.Fresh = listed.validators, plan.seen, plan.tried, plan.fresh
	upstream.Ignored, upstream.Gone, upstream.Deprecated = plan.ignored, plan.gone, deprecations(listed.versions)
	if !upstream.Filled {
		upstream.Filled, upstream.Looked, upstream.Mended = plan.filled, plan.looked, plan.mended
	}
	if upstream.Filled && upstream.Began.IsZero() {
		upstream.Began = b.options.Now()
	}
	var tasks []task
	for _, t := range plan.tasks {
		if _, lost := overtaken[t.version.name]; !lost {
			t.actor = in.actor
			tasks = append(tasks, t)
		}
	}
	for _, c := range plan.changes {
		if _, lost := overtaken[c.Version]; !lost && c.Kind == views.Refused {
			b.emit(ctx, Event{Kind: Refused, Package: p.Name, Version: c.Version, Reason: c.Reason})
		}
	}
	return tasks, nil
}

// note keeps what people should know of an upstream, and tells them of what is new.
func (b *Bot) note(ctx context.Context, upstream *Upstream, listed *listing) {
	if !listed.noted {
		return
	}
	for _, note := range listed.notes {
		if !slices.Contains(upstream.Notes, note) {
			b.logger.Warn("upstream", "package", upstream.Package, "target", upstream.Target, "note", note)
			b.emit(ctx, Event{Kind: Note, Package: upstream.Package, Reason: upstream.Package + ": " + note})
		}
	}
	upstream.Notes = listed.notes
}

func (b *Bot) setUpstream(u Upstream) error {
	batch := b.store.NewBatch()
	defer batch.Close()
	if err := setUpstream(batch, u); err != nil {
		return err
	}
	return batch.Commit()
}

// A stateChange is a version's next state and the one that it follows from.
type stateChange struct {
	views.State
	was views.StateKind // "" for a version that is new here
}

// record writes changes to the log and the states. What another goroutine has changed
// since the plan was made is left as it is; the result names those versions.
func (b *Bot) record(changes []stateChange, actor string) (overtaken map[string]struct{}, err error) {
	overtaken = make(map[string]struct{})
	if len(changes) == 0 {
		return overtaken, nil
	}
	err = b.log.Update(func(tx *logs.Tx) error {
		for _, c := range changes {
			now, err := views.LookupState(b.store, c.Package, c.Version)
			if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
				return err
			}
			if now.Kind != c.was {
				overtaken[c.Version] = struct{}{}
				continue
			}
			entry := logs.Entry{
				Kind: logs.Detected, Time: c.Updated, Actor: actor,
				Package: c.Package, Version: c.Version, Released: c.Released, Reason: c.Reason,
			}
			if c.Kind == views.Refused {
				entry.Kind = logs.Refused
			}
			if err := views.Record(tx, views.Change{Entry: entry}); err != nil {
				return err
			}
		}
		return nil
	})
	return overtaken, err
}

// A survey is what a plan is made from.
type survey struct {
	pkg    *packages.Package
	listed map[string]candidate
	latest string // the version that upstream calls so; "" where it calls none
	states []views.State
	known  Upstream
	newest int // how many releases a new package starts with
	force  bool
	named  bool // an event says that there is a release
	now    time.Time
}

// planned is what follows from the versions that a source lists.
type planned struct {
	changes []stateChange // detected: new here; refused: not acceptable, or gone from upstream
	tasks   []task        // to be fetched now, newest first
	// What is to be remembered, see [Upstream].
	seen    []string
	ignored []string
	gone    int
	filled  bool
	looked  int
	tried   map[string]string
	mended  []string
	fresh   []string
}

// plan compares what a source lists with what is known: the states of versions, and the
// versions that upstream had before. A new package starts with its newest releases that can
// be published, and with the one that upstream calls latest; a known one takes every release that has
// appeared since and is newer than the newest known one, by time or by version. It is a pure function.
func plan(s survey) planned {
	known := make(map[string]views.State, len(s.states))
	var lastTime time.Time
	var lastVersion string
	for _, state := range s.states {
		known[state.Version] = state
		lastTime = later(lastTime, state.Released)
		if lastVersion == "" || packages.CompareVersions(state.Version, lastVersion) > 0 {
			lastVersion = state.Version
		}
	}
	before := make(map[string]bool, len(s.known.Seen))
	for _, version := range s.known.Seen {
		before[version] = true
	}
	first := packages.NewStart(s.newest)
	begins := func(r release) bool { return s.newest > 0 && r.name == s.latest || first.Wants(r.name) }
	wanted := func(r release) bool {
		switch {
		case !s.known.Filled && begins(r):
			return true
		case !s.known.Filled && s.known.Began.IsZero() && len(before) == 0: // it has never been looked at
			return false
		}
		return !before[r.name] && (lastVersion == "" || r.released.IsZero() || r.released.After(lastTime) || packages.CompareVersions(r.name, lastVersion) > 0)
	}
	again := func(r release, refused views.State) bool { // because of another package JSON
		return slices.Contains(s.known.Mended, r.name) && (begins(r) || !s.known.Began.IsZero() && refused.Updated.After(s.known.Began))
	}
	out := planned{tried: make(map[string]string)}
	unusable, pending := 0, false
	appeared := func(name string) bool { // since the first look
		return s.known.Filled || len(before) > 0 && !before[name] || slices.Contains(s.known.Fresh, name)
	}
	fetch := func(r release, attempts int) {
		t := task{pkg: s.pkg, version: r.version, released: r.released, rank: len(out.tasks), tried: attempts}
		if t.fresh = appeared(r.name) || s.named && t.rank == 0; t.fresh && !s.known.Filled {
			out.fresh = append(out.fresh, r.name)
		}
		out.tasks = append(out.tasks, t)
		out.tried[r.name] = r.version.hash
	}
	for _, r := range releases(s.pkg, s.listed) {
		out.seen = append(out.seen, r.name)
		state, ok := known[r.name]
		delete(known, r.name)
		retried := ok && state.Kind == views.Refused && r.valid && (again(r, state) || state.Reason == gone || s.mended(r))
		if ok && !retried {
			count(first, state)
			pending = pending || !state.Kind.Final()
		}
		next := stateChange{was: state.Kind, State: views.State{Package: s.pkg.Name, Version: r.name, Kind: views.Detected, Released: r.released, Updated: s.now}}
		switch {
		case retried:
			count(first, next.State)
			pending = true
			out.changes = append(out.changes, next)
			fetch(r, state.Attempts)
		case ok && state.Kind == views.Refused && r.valid:
			out.tried[r.name] = r.version.hash
		case ok && state.Kind.Final():
		case ok && state.Next.After(s.now) && !s.force && !s.mended(r):
			if slices.Contains(s.known.Fresh, r.name) {
				out.fresh = append(out.fresh, r.name)
			}
		case ok:
			fetch(r, state.Attempts)
		case !wanted(r):
		case !r.valid:
			if unusable++; unusable > mostUnusable {
				continue
			}
			next.Kind = views.Refused
			next.Reason = invalidVersion
			out.changes = append(out.changes, next)
		default:
			count(first, next.State)
			pending = true
			out.changes = append(out.changes, next)
			fetch(r, 0)
		}
	}
	out.filled, out.looked = !pending && len(out.seen) > 0, first.Looked()
	if !out.filled {
		out.mended = slices.DeleteFunc(slices.Clone(s.known.Mended), func(version string) bool { return chosen(out.changes, version) })
	}
	for _, state := range s.states {
		if _, missing := known[state.Version]; missing && !state.Kind.Final() {
			change := stateChange{was: state.Kind, State: state}
			change.Kind, change.Reason, change.Updated = views.Refused, gone, s.now
			out.changes = append(out.changes, change)
		}
	}
	// A registry that once answers in part does not make old releases new.
	there := make(map[string]bool, len(out.seen))
	for _, version := range out.seen {
		there[version] = true
	}
	for _, version := range s.known.Seen {
		if !there[version] && len(out.seen) < max(mostSeen, len(s.listed)) {
			out.seen = append(out.seen, version)
			out.gone++
		}
	}
	for version := range s.listed {
		if packages.ValidVersion(version) && s.pkg.IgnoresVersion(version) && len(out.ignored) < mostSeen {
			out.ignored = append(out.ignored, version)
		}
	}
	slices.Sort(out.ignored)
	return out
}

func chosen(changes []stateChange, version string) bool {
	return slices.ContainsFunc(changes, func(c stateChange) bool { return c.Version == version })
}

// mended reports whether upstream states another hash of a release than when that was refused.
func (s *survey) mended(r release) bool {
	tried, ok := s.known.Tried[r.name]
	return ok && r.version.hash != "" && tried != r.version.hash
}

// count has first know of a release that is known, or was chosen.
func count(first *packages.Start, s views.State) {
	if s.Kind == views.Refused && s.Reason != gone {
		first.Pass()
	} else {
		first.Take(s.Version)
	}
}

// The bounds of what one upstream may have written down. An upstream can give tags any names, as many as they like,
// and others the next day.
const (
	mostUnusable = 20     // refusals, at one look, of what is no version
	mostSeen     = 20_000 // versions, with those that upstream has no longer
)

// gone is why a version is refused that upstream had before. Registries lag, so it
// may come back.
const gone = "upstream lists this version no longer, or the package JSON ignores it now"

// invalidVersion is why a version is refused that upstream names as it likes.
const invalidVersion = "the version is not one that a URL of Larder can have: up to 128 letters, digits and . _ + -, a letter or digit first"

// A release is a version of a source.
type release struct {
	name     string // the version, or what stands for one that is not valid
	valid    bool
	version  candidate
	released time.Time // zero where the source does not say
}

// releases returns the versions that the package does not ignore, newest first.
// The order is that of versions: times are those of upstream only where the
// registry is no mirror.
func releases(p *packages.Package, listed map[string]candidate) []release {
	var all []release
	for name, v := range listed {
		if p.IgnoresVersion(name) {
			continue
		}
		r := release{name: name, valid: packages.ValidVersion(name), version: v, released: v.published}
		if !r.valid {
			// Strangers' bytes of any length do not become part of a key.
			r.name = fmt.Sprintf("%.40q#%.8s", name, kvstore.Sum([]byte(name)))
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b release) int { return packages.CompareVersions(b.name, a.name) })
	return all
}
