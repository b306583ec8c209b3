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
// what stops the bot.
func (b *Bot) poll(ctx context.Context, p *packages.Package, q *queue) error {
	if err := b.polling.Acquire(ctx, 1); err != nil {
		return err
	}
	defer b.polling.Release(1)
	if b.source(p) == nil {
		// Such a package gets its releases by Import.
		now := b.options.Now()
		return b.setUpstream(Upstream{Package: p.Name, Checked: now, Next: now.Add(jittered(b.options.Interval))})
	}
	tasks, err := b.ask(ctx, p, inquiry{has: q.has, actor: actorBot})
	if err != nil {
		return err
	}
	q.push(tasks...)
	return nil
}

// An inquiry says on whose behalf an upstream is asked.
type inquiry struct {
	actor string
	has   func(id string) bool // what is in hand already
	force bool                 // releases that failed do not wait for their time
}

// ask is poll without the queue.
func (b *Bot) ask(ctx context.Context, p *packages.Package, in inquiry) ([]task, error) {
	b.emit(ctx, Event{Kind: Checking, Package: p.Name})
	upstream := b.knownUpstream(p.Name)
	if !upstream.follows(p) {
		upstream.Validators, upstream.Seen = fetch.Validators{}, nil
	}
	upstream.Source, upstream.Target = p.Autoupdate.Source, p.Autoupdate.Target
	tasks, err := b.discover(ctx, p, in, &upstream)
	now := b.options.Now()
	upstream.Checked = now
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
		upstream.Attempts++
		upstream.Reason = err.Error()
		upstream.Next = now.Add(backoff(upstream.Attempts))
		if at, ok := fetch.RetryAt(err); ok {
			upstream.Next = later(upstream.Next, at)
		}
		b.logger.Warn("upstream failed", "package", p.Name, "target", p.Autoupdate.Target, "err", err, "next", upstream.Next)
		b.emit(ctx, Event{Kind: Failed, Package: p.Name, Reason: err.Error(), Next: upstream.Next})
	default:
		upstream.Next, upstream.Attempts, upstream.Reason = now.Add(jittered(b.options.Interval)), 0, ""
		b.emit(ctx, Event{Kind: Checked, Package: p.Name, Waiting: len(tasks)})
	}
	if counts, ok := b.catalogue().Get(p.Name); ok && !bytes.Equal(counts.JSON, p.JSON) {
		// The catalogue has changed meanwhile, and by what it says now nobody has looked yet.
		upstream.Validators, upstream.Next = fetch.Validators{}, time.Time{}
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
	}) {
		// Something is to be fetched, which needs the list in whole.
		validators = fetch.Validators{}
	}
	listed, err := b.source(p).list(ctx, p.Autoupdate.Target, validators)
	switch {
	case errors.Is(err, fetch.ErrNotFound):
		return nil, errors.Join(err, b.watch(ctx, p, look{}, states))
	case err != nil:
		return nil, err
	}
	b.note(ctx, upstream, listed)
	if listed.unchanged {
		upstream.Validators = listed.validators
		return nil, b.watch(ctx, p, look{unchanged: true}, states)
	}
	if err := b.watch(ctx, p, look{listing: listed}, states); err != nil {
		return nil, err
	}
	plan := plan(p, listed.versions, states, upstream.Seen, b.options.Releases, in.force, b.options.Now())
	plan.changes = slices.DeleteFunc(plan.changes, func(c stateChange) bool {
		return c.Reason == gone && in.has(releaseID(c.Package, c.Version)) // how that ends is not for this to say
	})
	overtaken, err := b.record(plan.changes, in.actor)
	if err != nil {
		return nil, err
	}
	upstream.Validators, upstream.Seen = listed.validators, plan.seen
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

// record writes changes to the log and the states. What somebody else has changed
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

// planned is what follows from the versions that a source lists.
type planned struct {
	changes []stateChange // detected: new here; refused: not acceptable, or gone from upstream
	tasks   []task        // to be fetched now, newest first
	seen    []string      // the versions that upstream has or had
}

// plan compares what a source lists with what is known: the states of versions, and the
// versions that upstream had before. A new package starts with its newest
// releases, a known one takes every release that has appeared since and is newer
// than the newest known one, by time or by version. It is a pure function.
func plan(p *packages.Package, listed map[string]candidate, states []views.State, seen []string, newest int, force bool, now time.Time) planned {
	known := make(map[string]views.State, len(states))
	var lastTime time.Time
	var lastVersion string
	for _, s := range states {
		known[s.Version] = s
		lastTime = later(lastTime, s.Released)
		if lastVersion == "" || packages.CompareVersions(s.Version, lastVersion) > 0 {
			lastVersion = s.Version
		}
	}
	before := make(map[string]bool, len(seen))
	for _, version := range seen {
		before[version] = true
	}
	wanted := func(r release) bool {
		if len(seen) == 0 { // upstream was never asked before
			return newest > 0
		}
		return !before[r.name] && (lastVersion == "" || r.released.IsZero() || r.released.After(lastTime) || packages.CompareVersions(r.name, lastVersion) > 0)
	}
	var out planned
	unusable := 0
	for _, r := range releases(p, listed) {
		out.seen = append(out.seen, r.name)
		state, ok := known[r.name]
		delete(known, r.name)
		if ok {
			newest-- // a restart must not begin to count anew
		}
		due := task{pkg: p, version: r.version, released: r.released, rank: len(out.tasks) + triedRank*state.Attempts}
		next := stateChange{was: state.Kind, State: views.State{Package: p.Name, Version: r.name, Kind: views.Detected, Released: r.released, Updated: now}}
		switch {
		case ok && r.valid && state.Kind == views.Refused && state.Reason == gone:
			out.changes = append(out.changes, next) // it is back
			out.tasks = append(out.tasks, due)
		case ok && (state.Kind.Final() || state.Next.After(now) && !force):
		case ok:
			out.tasks = append(out.tasks, due)
		case !wanted(r):
		case !r.valid:
			if unusable++; unusable > mostUnusable {
				continue
			}
			next.Kind = views.Refused
			next.Reason = "the version is not one that a URL of Larder can have: up to 128 letters, digits and . _ + -, a letter or digit first"
			out.changes = append(out.changes, next)
		default:
			newest--
			out.changes = append(out.changes, next)
			out.tasks = append(out.tasks, due)
		}
	}
	for _, s := range states {
		if _, missing := known[s.Version]; missing && !s.Kind.Final() {
			change := stateChange{was: s.Kind, State: s}
			change.Kind, change.Reason, change.Updated = views.Refused, gone, now
			out.changes = append(out.changes, change)
		}
	}
	// A registry that once answers in part does not make old releases new.
	there := make(map[string]bool, len(out.seen))
	for _, version := range out.seen {
		there[version] = true
	}
	for _, version := range seen {
		if !there[version] && len(out.seen) < max(mostSeen, len(listed)) {
			out.seen = append(out.seen, version)
		}
	}
	return out
}

// The bounds of what one upstream may have written down. Anybody can give tags any names, as many as they like,
// and others the next day.
const (
	mostUnusable = 20     // refusals, at one look, of what is no version
	mostSeen     = 20_000 // versions, with those that upstream has no longer
)

// gone is why a version is refused that upstream had before. Registries lag, so it
// may come back.
const gone = "upstream lists this version no longer, or the package JSON ignores it now"

// triedRank is more releases than a package ever has waiting.
const triedRank = 1 << 20

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
