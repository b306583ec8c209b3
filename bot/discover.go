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
	b.outages.record(upstreamOf(p), p.Name, err)
	down := b.outages.down(upstreamOf(p))
	now := b.options.Now()
	upstream.Checked, upstream.Outage, upstream.Missing = now, isOutage(err), errors.Is(err, fetch.ErrNotFound)
	var replaced *replacedError
	upstream.Replaced = errors.As(err, &replaced)
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
		upstream.Next, upstream.Attempts, upstream.Reason = now.Add(jittered(upstream.pause(now, b.options.Interval))), 0, ""
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
	for _, version := range row.Retry {
		if !slices.Contains(before.Retry, version) {
			upstream.Retry, upstream.Filled = append(upstream.Retry, version), false
		}
	}
	// Only now, when what the answer says is durable, may its validators be used.
	return tasks, b.setUpstream(upstream)
}

// discover asks for the versions, unless they are as they were, and records what
// follows from them.
func (b *Bot) discover(ctx context.Context, p *packages.Package, in inquiry, upstream *Upstream) ([]task, error) {
	states, err := b.states(p.Name)
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
	if !listed.unchanged || upstream.Repository.ID == 0 {
		if err := b.checkRepository(ctx, p, upstream); err != nil {
			return nil, err
		}
	}
	b.note(ctx, upstream, listed)
	if listed.unchanged {
		upstream.Validators = listed.validators
		return nil, b.watch(ctx, p.Name, here, look{from: here, unchanged: true}, states)
	}
	if err := b.watch(ctx, p.Name, here, look{from: here, listing: listed}, states); err != nil {
		return nil, err
	}
	plan := plan(planInput{
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
		upstream.Filled, upstream.Looked, upstream.Retry = plan.filled, plan.looked, plan.retry
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

// note records what people should know of an upstream, and reports what is new.
func (b *Bot) note(ctx context.Context, upstream *Upstream, listed *listing) {
	var notes []string
	if listed.moved != "" {
		notes = append(notes, fmt.Sprintf("the repository has moved to %.200s; the package JSON should name that", listed.moved))
	}
	if upstream.Repository.Archived {
		notes = append(notes, "the repository is archived, so no release will follow")
	}
	for _, note := range notes {
		if !slices.Contains(upstream.Notes, note) {
			b.logger.Warn("upstream", "package", upstream.Package, "target", upstream.Target, "note", note)
			b.emit(ctx, Event{Kind: Note, Package: upstream.Package, Reason: upstream.Package + ": " + note})
		}
	}
	upstream.Notes = notes
}

func (b *Bot) setUpstream(u Upstream) error {
	before := b.knownUpstream(u.Package)
	batch := b.store.NewBatch()
	defer batch.Close()
	if err := setUpstream(b.store, batch, u); err != nil {
		return err
	}
	if err := batch.Commit(); err != nil {
		return err
	}
	if !u.publishesSame(before) {
		b.options.Changed(u.Package)
	}
	return nil
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
