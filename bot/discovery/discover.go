package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// poll polls the upstream of the package p, records new versions, and puts releases that are due into q. It waits while too many
// upstreams, or this package, are polled. Of a package without an upstream, or whose upstream the bot has no client for, it only
// records the time. It records a failure of the package and returns nil; other errors stop the bot or are that of ctx. If resume
// is not nil and the upstream's circuit breaker is open, poll returns errUpstreamDown, and resume is called once the upstream may
// respond again. If resume is nil, poll ignores the circuit breaker.
func (sc *Scheduler) poll(ctx context.Context, p *packages.Package, q *queue, resume func()) error {
	if err := sc.polling.Acquire(ctx, 1); err != nil {
		return err
	}
	defer sc.polling.Release(1)
	if sc.options.Sources.ForPackage(p) == nil {
		// Such a package gets its releases by Import.
		now := sc.options.Now()
		return sc.options.Records.Set(sources.Upstream{Package: p.Name, Checked: now, Next: now.Add(sources.Jittered(sc.options.Interval))})
	}
	if resume != nil && !sc.options.Breakers.Admit(sources.UpstreamName(p), p.Name, resume) {
		return errUpstreamDown
	}
	if err := sc.polled.Acquire(ctx, p.Name); err != nil {
		return err
	}
	defer sc.polled.Release(p.Name)
	tasks, err := sc.pollAndRecord(ctx, p, pollRequest{has: q.has, actor: ingest.ActorBot})
	if err != nil {
		return err
	}
	q.push(tasks...)
	return nil
}

// errUpstreamDown says that a package waits because the circuit breaker of its upstream is open.
var errUpstreamDown = errors.New("its upstream is down")

// A pollRequest says on whose behalf an upstream is polled.
type pollRequest struct {
	actor string               // of the entries in the log
	has   func(id string) bool // reports whether the release with that id (see ingest.ReleaseID) is in the queue or being worked on
	force bool                 // releases that failed do not wait for their time
	named bool                 // by an event, which says that there is a release
}

// pollAndRecord polls the upstream of the package p, which has one, stores the result and the time of the next poll, and returns
// the releases to fetch. It records a failure of the package, and returns neither releases nor an error for it. An error stops
// the bot, is that of ctx, or of the store; then the poll's result is not stored, but new states may be in the log. in says on
// whose behalf it polls. The caller has claimed the package in sc.polled. It locks Records.Mu while it stores.
func (sc *Scheduler) pollAndRecord(ctx context.Context, p *packages.Package, in pollRequest) ([]ingest.Task, error) {
	sc.options.Events.Emit(ctx, sources.Event{Kind: sources.Checking, Package: p.Name})
	upstream := sc.options.Records.Known(p.Name)
	before := upstream
	if !upstream.Follows(p) {
		upstream.ForgetTarget()
	}
	upstream.Source, upstream.Target = p.Autoupdate.Source, p.Autoupdate.Target
	if in.named {
		upstream.Named = sc.options.Now()
	}
	tasks, err := sc.listAndPlan(ctx, p, in, &upstream)
	if errors.Is(err, fetch.ErrNotFound) && len(upstream.Seen) > 0 {
		err = sources.VanishedError{Err: err}
	}
	sc.options.Breakers.Record(sources.UpstreamName(p), p.Name, err)
	down := sc.options.Breakers.IsDown(sources.UpstreamName(p))
	now := sc.options.Now()
	upstream.Checked, upstream.Outage, upstream.Missing = now, sources.IsOutage(err), errors.Is(err, fetch.ErrNotFound)
	var replaced *replacedError
	upstream.Replaced = errors.As(err, &replaced)
	var limit *git.LimitError
	switch {
	case sources.Stops(err), err != nil && ctx.Err() != nil:
		return nil, errors.Join(ctx.Err(), err)
	case errors.As(err, &limit):
		// A request before then would be refused.
		upstream.Attempts, upstream.Reason = max(1, upstream.Attempts), err.Error()
		upstream.Next = limit.Until.Add(sources.Jittered(sources.MinWait))
		sc.options.Events.Emit(ctx, sources.Event{Kind: sources.Checked, Package: p.Name})
	case err != nil:
		if upstream.Attempts == 0 || !down { // the pauses of a package don't grow by what isn't its fault
			upstream.Attempts++
		}
		upstream.Reason = err.Error()
		upstream.Next = now.Add(min(sources.LongestRest, sources.Backoff(upstream.Attempts)))
		if down {
			upstream.Next = now.Add(sources.MinWait)
		}
		if at, ok := fetch.RetryAt(err); ok {
			upstream.Next = sources.Later(upstream.Next, at)
		}
		sc.logger.Warn("upstream failed", "package", p.Name, "target", p.Autoupdate.Target, "err", err, "next", upstream.Next)
		sc.options.Events.Emit(ctx, sources.Event{Kind: sources.Failed, Package: p.Name, Reason: err.Error(), Next: upstream.Next})
	default:
		upstream.Next, upstream.Attempts, upstream.Reason = now.Add(sources.Jittered(upstream.PollInterval(now, sc.options.Interval))), 0, ""
		sc.options.Events.Emit(ctx, sources.Event{Kind: sources.Checked, Package: p.Name, Waiting: len(tasks)})
	}
	if counts, ok := sc.options.Publisher.Catalogue().Get(p.Name); ok && !bytes.Equal(counts.JSON, p.JSON) {
		// The package JSON has changed meanwhile, and the poll was by the old one.
		upstream.Validators, upstream.Next = fetch.Validators{}, time.Time{}
	}
	sc.options.Records.Mu.Lock()
	defer sc.options.Records.Mu.Unlock()
	row := sc.options.Records.Known(p.Name)
	if row.Next.IsZero() && !before.Next.IsZero() { // it was registered again during the poll
		upstream.Validators, upstream.Next = fetch.Validators{}, time.Time{}
	}
	upstream.NoFiles = row.NoFiles
	for _, version := range row.Retry {
		if !slices.Contains(before.Retry, version) {
			upstream.Retry, upstream.Filled = append(upstream.Retry, version), false
		}
	}
	// The validators may be used only now that the versions of the response are durable.
	return tasks, sc.options.Records.Set(upstream)
}

// listAndPlan requests the versions of the package p from its upstream: only if they have changed, or all if a release is due or
// the package needs another one to start with. It plans what follows, records new states of versions in the log, and returns the
// releases to fetch. If the list has changed, it also asks GitHub whether the repository is still the same one. It compares the
// list with what published releases were made from. It changes upstream, the poll's result so far, accordingly, which the caller
// stores. The error is one of upstream, of the store, or a *replacedError; after it, upstream may have changed in part.
func (sc *Scheduler) listAndPlan(ctx context.Context, p *packages.Package, in pollRequest, upstream *sources.Upstream) ([]ingest.Task, error) {
	states, err := sc.options.Records.States(p.Name)
	if err != nil {
		return nil, err
	}
	validators := upstream.Validators
	if slices.ContainsFunc(states, func(s views.State) bool {
		return !s.Kind.Final() && (in.force || !s.Next.After(sc.options.Now())) && !in.has(ingest.ReleaseID(s.Package, s.Version))
	}) || !upstream.UpdateFilled(states, sc.options.Releases) {
		// The bot has to fetch or choose versions, which needs the complete list.
		validators = fetch.Validators{}
	}
	here := sources.RefOf(p)
	listed, err := sc.options.Sources.ForPackage(p).List(ctx, p.Autoupdate.Target, validators)
	switch {
	case errors.Is(err, fetch.ErrNotFound):
		return nil, errors.Join(err, sc.compareOrigins(ctx, p.Name, here, pollResult{from: here}, states))
	case err != nil:
		return nil, err
	}
	sameTags := listed.Unchanged || listed.Validators == upstream.Validators // the list may have been requested for another reason
	if !sameTags || upstream.Repository.ID == 0 {
		if err := sc.checkRepository(ctx, p, upstream); err != nil {
			return nil, err
		}
	}
	sc.updateNotes(ctx, upstream, listed)
	if listed.Unchanged {
		upstream.Validators = listed.Validators
		return nil, sc.compareOrigins(ctx, p.Name, here, pollResult{from: here, unchanged: true}, states)
	}
	if err := sc.compareOrigins(ctx, p.Name, here, pollResult{from: here, listing: listed}, states); err != nil {
		return nil, err
	}
	plan := planPackage(planInput{
		pkg: p, listed: listed.Versions, latest: listed.Latest, states: states, known: *upstream,
		newest: sc.options.Releases, force: in.force, now: sc.options.Now(),
		named: in.named || len(upstream.Seen) == 0 && !upstream.Named.IsZero(), // the event's own poll failed
	})
	plan.changes = slices.DeleteFunc(plan.changes, func(c stateChange) bool {
		return c.Reason == sources.Gone && in.has(ingest.ReleaseID(c.Package, c.Version)) // how that ends is not for this to say
	})
	overtaken, err := sc.recordChanges(plan.changes, in.actor)
	if err != nil {
		return nil, err
	}
	if known := upstream.Validators; known != (fetch.Validators{}) && known != listed.Validators {
		upstream.Changed = sc.options.Now()
	}
	upstream.RecordMoves(p, listed.Versions, sc.options.Now())
	upstream.Validators, upstream.UpstreamVersions, upstream.Fresh = listed.Validators, plan.UpstreamVersions, plan.fresh
	if !upstream.Filled {
		upstream.Filled, upstream.Examined, upstream.Retry = plan.filled, plan.examined, plan.retry
	}
	if upstream.Filled && upstream.Began.IsZero() {
		upstream.Began = sc.options.Now()
	}
	var tasks []ingest.Task
	for _, t := range plan.tasks {
		if _, lost := overtaken[t.Version.Name]; !lost {
			t.Actor = in.actor
			tasks = append(tasks, t)
		}
	}
	for _, c := range plan.changes {
		if _, lost := overtaken[c.Version]; !lost && c.Kind == views.Refused {
			sc.options.Events.Emit(ctx, sources.Event{Kind: sources.Refused, Package: p.Name, Version: c.Version, Reason: c.Reason})
		}
	}
	return tasks, nil
}

// updateNotes replaces the notes in upstream for people, such as that the repository has moved, by those that follow from listed.
// It logs and reports notes that are new. It does not store upstream.
func (sc *Scheduler) updateNotes(ctx context.Context, upstream *sources.Upstream, listed *sources.Listing) {
	var notes []string
	if listed.Moved != "" {
		notes = append(notes, fmt.Sprintf("the repository has moved to %.200s; the package JSON should name that", listed.Moved))
	}
	if upstream.Repository.Archived {
		notes = append(notes, "the repository is archived, so no release will follow")
	}
	for _, note := range notes {
		if !slices.Contains(upstream.Notes, note) {
			sc.logger.Warn("upstream", "package", upstream.Package, "target", upstream.Target, "note", note)
			sc.options.Events.Emit(ctx, sources.Event{Kind: sources.Note, Package: upstream.Package, Reason: upstream.Package + ": " + note})
		}
	}
	upstream.Notes = notes
}

// A stateChange is a version's next state and the one that it follows from.
type stateChange struct {
	views.State
	was views.StateKind // "" for a version that is new here
}

// recordChanges adds an entry to the log for each change of a version's state, of kind Refused or, for any other state, Detected,
// in the name of actor. It skips versions whose state is not the one from which the plan was made, because another goroutine has
// changed it, and returns these versions. After an error nothing is recorded.
func (sc *Scheduler) recordChanges(changes []stateChange, actor string) (overtaken map[string]struct{}, err error) {
	overtaken = make(map[string]struct{})
	if len(changes) == 0 {
		return overtaken, nil
	}
	err = sc.log.Update(func(tx *logs.Tx) error {
		for _, c := range changes {
			now, err := views.LookupState(sc.store, c.Package, c.Version)
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
