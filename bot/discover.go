package bot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
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

// enrol records packages whose JSON is new or has changed.
func (b *Bot) enrol(ctx context.Context, all ...*packages.Package) error {
	pins := b.store.Pin()
	defer pins.Release()
	return b.log.Update(func(tx *logs.Tx) error {
		for _, p := range all {
			if err := ctx.Err(); err != nil {
				return err
			}
			var now bytes.Buffer
			if err := json.Compact(&now, p.JSON); err != nil {
				return fmt.Errorf("bot: package %s: %w", p.Name, err)
			}
			kind := logs.PackageChanged
			known, err := views.LookupPackage(b.store, p.Name)
			switch {
			case errors.Is(err, kvstore.ErrNotFound):
				kind = logs.PackageAdded
			case err != nil:
				return err
			case bytes.Equal(known.JSON, now.Bytes()):
				continue
			}
			hash, err := b.keep(pins, p.JSON)
			if err != nil {
				return err
			}
			entry := logs.Entry{Kind: kind, Time: b.options.Now(), Actor: actorBot, Package: p.Name, PackageJSON: hash}
			index, err := tx.Append(entry)
			if err != nil {
				return err
			}
			if err := views.Apply(tx.Batch, views.Change{Index: index, Entry: entry, PackageJSON: p.JSON}); err != nil {
				return err
			}
			b.spare(hash)
		}
		return nil
	})
}

// poll asks a package's upstream what there is, records new versions and queues
// what is to be fetched. A failure of the upstream is recorded; the error is for
// what stops the bot.
func (b *Bot) poll(ctx context.Context, p *packages.Package, q *queue) error {
	if err := b.polling.Acquire(ctx, 1); err != nil {
		return err
	}
	defer b.polling.Release(1)
	if p.Autoupdate == nil || p.Autoupdate.Source != "npm" {
		// Such a package gets its releases by Import.
		return b.setUpstream(Upstream{Package: p.Name, Checked: b.options.Now(), Next: b.options.Now().Add(jittered(b.options.Interval))})
	}
	tasks, err := b.ask(ctx, p)
	if err != nil {
		return err
	}
	q.push(tasks...)
	return nil
}

// ask is poll without the queue.
func (b *Bot) ask(ctx context.Context, p *packages.Package) ([]task, error) {
	b.emit(ctx, Event{Kind: Checking, Package: p.Name})
	states, err := views.States(b.store, p.Name)
	if err != nil {
		return nil, err
	}
	upstream := b.knownUpstream(p.Name)
	validators := upstream.Validators
	if slices.ContainsFunc(states, func(s views.State) bool { return !s.Kind.Final() }) {
		// Something waits to be fetched, which needs the packument in whole.
		validators = npm.Validators{}
	}
	packument, fresh, err := b.options.Npm.Packument(ctx, p.Autoupdate.Target, validators)
	now := b.options.Now()
	upstream.Checked = now
	switch {
	case errors.Is(err, npm.ErrNotModified):
		upstream.Next, upstream.Attempts, upstream.Reason = now.Add(jittered(b.options.Interval)), 0, ""
		b.emit(ctx, Event{Kind: Checked, Package: p.Name})
		return nil, b.setUpstream(upstream)
	case stops(err):
		return nil, err
	case err != nil:
		upstream.Attempts++
		upstream.Reason = err.Error()
		upstream.Next = now.Add(backoff(upstream.Attempts))
		if at, ok := fetch.RetryAt(err); ok {
			upstream.Next = later(upstream.Next, at)
		}
		b.logger.Warn("upstream failed", "package", p.Name, "target", p.Autoupdate.Target, "err", err, "next", upstream.Next)
		b.emit(ctx, Event{Kind: Failed, Package: p.Name, Reason: err.Error(), Next: upstream.Next})
		return nil, b.setUpstream(upstream)
	}
	upstream.Next, upstream.Attempts, upstream.Reason = now.Add(jittered(b.options.Interval)), 0, ""
	upstream.Validators = fresh
	plan := plan(p, packument, states, upstream.Seen, b.options.Releases, now)
	upstream.Seen = plan.seen
	if err := b.record(plan, upstream); err != nil {
		return nil, err
	}
	for _, s := range plan.refused {
		b.emit(ctx, Event{Kind: Refused, Package: p.Name, Version: s.Version, Reason: s.Reason})
	}
	b.emit(ctx, Event{Kind: Checked, Package: p.Name, Waiting: len(plan.tasks)})
	return plan.tasks, nil
}

func (b *Bot) setUpstream(u Upstream) error {
	batch := b.store.NewBatch()
	defer batch.Close()
	if err := setUpstream(batch, u); err != nil {
		return err
	}
	return batch.Commit()
}

// record makes a plan durable before anything of it is done.
func (b *Bot) record(p planned, upstream Upstream) error {
	return b.log.Update(func(tx *logs.Tx) error {
		for _, s := range slices.Concat(p.detected, p.refused) {
			kind := logs.Detected
			if s.Kind == views.Refused {
				kind = logs.Refused
			}
			entry := logs.Entry{
				Kind: kind, Time: s.Updated, Actor: actorBot,
				Package: s.Package, Version: s.Version, Released: s.Released, Reason: s.Reason,
			}
			index, err := tx.Append(entry)
			if err != nil {
				return err
			}
			if err := views.Apply(tx.Batch, views.Change{Index: index, Entry: entry}); err != nil {
				return err
			}
		}
		return setUpstream(tx.Batch, upstream)
	})
}

// planned is what follows from a packument.
type planned struct {
	detected []views.State // new here
	refused  []views.State // new here but not acceptable, or gone from upstream
	tasks    []task        // to be fetched now, newest first
	seen     []string      // the versions that upstream has
}

// plan compares a packument with what is known: the states of versions, and the
// versions that upstream had before. A new package starts with its newest
// releases, a known one takes every release that has appeared since and is newer
// than the newest known one, by time or by version. It is a pure function.
func plan(p *packages.Package, packument *npm.Packument, states []views.State, seen []string, newest int, now time.Time) planned {
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
	first := len(states) == 0 && len(seen) == 0
	wanted := func(r release) bool {
		if first {
			return newest > 0
		}
		return !before[r.name] && (lastVersion == "" || r.released.After(lastTime) || packages.CompareVersions(r.name, lastVersion) > 0)
	}
	var out planned
	for _, r := range releases(p, packument, now) {
		out.seen = append(out.seen, r.name)
		state, ok := known[r.name]
		delete(known, r.name)
		state.Package, state.Version, state.Released = p.Name, r.name, r.released
		due := task{pkg: p, version: r.npm, released: r.released, rank: len(out.tasks) + triedRank*state.Attempts}
		switch {
		case ok && (state.Kind.Final() || state.Next.After(now)):
		case ok:
			out.tasks = append(out.tasks, due)
		case !wanted(r):
		case !packages.ValidVersion(r.name):
			state.Version, state.Kind, state.Updated = fmt.Sprintf("%.100q", r.name), views.Refused, now
			state.Reason = "the version has characters that a URL of Larder must not have; letters, digits and . _ + - are allowed, a letter or digit first"
			out.refused = append(out.refused, state)
		default:
			newest--
			state.Kind, state.Updated = views.Detected, now
			out.detected = append(out.detected, state)
			out.tasks = append(out.tasks, due)
		}
	}
	for _, s := range states {
		if _, gone := known[s.Version]; gone && !s.Kind.Final() {
			s.Kind, s.Reason, s.Updated = views.Refused, "upstream lists this version no longer, or the package JSON ignores it now", now
			out.refused = append(out.refused, s)
		}
	}
	return out
}

// triedRank is more releases than a package ever has waiting.
const triedRank = 1 << 20

// A release is a version of a packument.
type release struct {
	name     string
	npm      npm.Version
	released time.Time
}

// releases returns the versions that the package does not ignore, newest first.
// The order is that of versions: times are those of upstream only where the
// registry is no mirror.
func releases(p *packages.Package, packument *npm.Packument, now time.Time) []release {
	var all []release
	for name, v := range packument.Versions {
		if p.IgnoresVersion(name) {
			continue
		}
		r := release{name: name, npm: v, released: v.Published}
		if r.released.IsZero() {
			r.released = now
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b release) int { return packages.CompareVersions(b.name, a.name) })
	return all
}
