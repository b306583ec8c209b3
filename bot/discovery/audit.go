package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// The budget of comparing what is published with upstream, besides the usual polls. Each day some releases are compared
// file by file, with those that differed the last time; and some packages have all their integrities compared with
// upstream's full list: so many that every package has its turn within a month.
const (
	auditEvery    = 24 * time.Hour
	auditReleases = 10
	auditAgain    = 10 // of those that differed
	auditDays     = 28 // for all packages
	auditTime     = 10 * time.Minute
	auditPause    = time.Hour // after an upstream that does not respond
)

// An auditPlan is the remaining part of a day's audits.
type auditPlan struct {
	Next     time.Time             `json:"next"` // when the next day's audits start
	Packages []string              `json:"packages,omitempty"`
	Releases []sources.ReleaseName `json:"releases,omitempty"`
}

// auditsKey is that of no package, as those have names.
var auditsKey = []byte("\x00audits")

// readAuditPlan returns the stored plan of the remaining audits, a zero plan if none exists. If it cannot be read, it logs that
// and returns a zero plan, so that others are chosen.
func (sc *Scheduler) readAuditPlan() auditPlan {
	var a auditPlan
	data, err := sc.store.Get(kvstore.Upstreams, auditsKey)
	if err == nil {
		err = json.Unmarshal(data, &a)
	}
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		sc.logger.Warn("couldn't read which releases are still to be compared with upstream; choosing others", "err", err)
		return auditPlan{}
	}
	return a
}

// runAudits calls Audit at once, and again when Audit's result says that more is due, but not before a minute and not after an
// hour. Audit itself decides what is due. runAudits returns nil if ctx ends while it waits, and else the error of Audit, which
// stops the bot or is that of ctx.
func (sc *Scheduler) runAudits(ctx context.Context) error {
	for {
		next, err := sc.Audit(ctx)
		if err != nil {
			return err
		}
		if err := retry.Sleep(ctx, min(max(next.Sub(sc.options.Now()), time.Minute), time.Hour)); err != nil {
			return nil // it is ctx that ended
		}
	}
}

// Audit compares published releases with their upstreams, as far as that is due, stores the results, and returns when more is
// due. The first call for a store only stores that the first audits are due a day later. A restart continues a day's audits. An
// upstream that does not respond interrupts them: then Audit returns, and the rest is due in an hour. Failures of a package are
// logged; the error is that of ctx, one of the store, or another that stops the bot.
func (sc *Scheduler) Audit(ctx context.Context) (next time.Time, err error) {
	todo, now := sc.readAuditPlan(), sc.options.Now()
	if todo.Next.IsZero() {
		todo.Next = now.Add(auditEvery)
		return todo.Next, sc.options.Records.Write(auditsKey, todo)
	}
	if len(todo.Packages)+len(todo.Releases) == 0 {
		if todo.Next = sources.BoundTime(todo.Next, now, auditEvery); now.Before(todo.Next) {
			return todo.Next, nil
		}
		if todo, err = sc.planAudits(now); err != nil {
			return time.Time{}, err
		}
		if err := sc.options.Records.Write(auditsKey, todo); err != nil {
			return time.Time{}, err
		}
	}
	for len(todo.Packages)+len(todo.Releases) > 0 {
		var problem error
		if len(todo.Packages) > 0 {
			problem = sc.compareIntegrities(ctx, todo.Packages[0])
		} else {
			problem = sc.auditRelease(ctx, todo.Releases[0])
		}
		switch {
		case ctx.Err() != nil:
			return time.Time{}, ctx.Err()
		case sources.Stops(problem):
			return time.Time{}, problem
		case problem != nil:
			sc.logger.Warn("couldn't compare releases with upstream; their turn comes again", "err", problem)
		}
		// A package that failed is not audited again at once: the cause may be in it alone, and must not delay the others.
		if len(todo.Packages) > 0 {
			if name := todo.Packages[0]; problem != nil { // its next turn comes later
				problem = errors.Join(problem, sc.changeOrigins(name, sc.presentUpstream(name), func(o *sources.Origins) { o.Failed = sc.options.Now() }))
			}
			todo.Packages = todo.Packages[1:]
		} else {
			todo.Releases = todo.Releases[1:]
		}
		if err := sc.options.Records.Write(auditsKey, todo); err != nil {
			return time.Time{}, err
		}
		if sources.IsOutage(problem) && len(todo.Packages)+len(todo.Releases) > 0 {
			return sc.options.Now().Add(auditPause), nil
		}
	}
	return todo.Next, nil
}

// planAudits chooses what is audited in a day: up to ten random published releases, up to ten random ones that differed before,
// and a twenty-eighth of the packages, those whose last comparison is longest ago. It takes up to twice as many packages if they
// were never compared or have an unconfirmed change. Mirrored releases are left out. The plan says that the next day's audits are
// due a day after now. planAudits does not store it.
func (sc *Scheduler) planAudits(now time.Time) (auditPlan, error) {
	todo := auditPlan{Next: now.Add(auditEvery)}
	states, err := views.States(sc.store, "")
	if err != nil {
		return todo, err
	}
	before, err := sources.ReadAudits(sc.store, "")
	if err != nil {
		return todo, err
	}
	type turn struct {
		name string
		last time.Time
	}
	var due []turn
	var some, again []sources.ReleaseName
	for _, s := range states {
		if s.Kind != views.Published {
			continue
		}
		name := sources.ReleaseName{Package: s.Package, Version: s.Version}
		if before[name].Outcome == verify.Differs {
			again = append(again, name)
		} else {
			some = append(some, name)
		}
		if len(due) > 0 && due[len(due)-1].name == s.Package {
			continue
		}
		origins, err := sources.LookupOrigins(sc.store, s.Package)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			sc.logger.Warn("couldn't read where releases come from", "package", s.Package, "err", err)
		}
		last := sources.Later(sources.BoundTime(origins.Compared, now, 0), sources.BoundTime(origins.Failed, now, 0))
		for _, o := range origins.Versions { // a change is logged only after another poll
			if !o.Since.IsZero() {
				last = time.Time{}
			}
		}
		due = append(due, turn{s.Package, last})
	}
	slices.SortStableFunc(due, func(a, b turn) int { return a.last.Compare(b.last) })
	perDay := (len(due) + auditDays - 1) / auditDays
	for _, t := range due {
		if len(todo.Packages) < perDay || t.last.IsZero() && len(todo.Packages) < 2*perDay {
			todo.Packages = append(todo.Packages, t.name)
		}
	}
	rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	rand.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
	todo.Releases = append(again[:min(auditAgain, len(again))], some[:min(auditReleases, len(some))]...)
	return todo, nil
}

// compareIntegrities compares the integrities of all published releases of a package with the complete lists of the upstreams
// that they came from, also if the catalogue no longer has the package or names another upstream. An upstream that lacks the
// package counts as one that lists nothing; one for which the bot has no client is skipped. It logs changes and stores the time
// of the comparison. It waits while too many upstreams, or this package, are polled. The error is that of ctx, of a request to an
// upstream, or of the store; then the time is not stored.
func (sc *Scheduler) compareIntegrities(ctx context.Context, name string) error {
	if err := sc.polling.Acquire(ctx, 1); err != nil {
		return err
	}
	defer sc.polling.Release(1)
	if err := sc.polled.Acquire(ctx, name); err != nil {
		return err
	}
	defer sc.polled.Release(name)
	states, err := views.States(sc.store, name)
	if err != nil {
		return err
	}
	now := sc.presentUpstream(name)
	for _, from := range sc.upstreamsOf(name, now, states) {
		source := sc.options.Sources.ForKind(from.Kind)
		if source == nil {
			continue
		}
		listed, err := source.List(ctx, from.Target, fetch.Validators{})
		at := pollResult{from: from, listing: listed}
		switch {
		case errors.Is(err, fetch.ErrNotFound):
			at.listing = nil
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := sc.compareOrigins(ctx, name, now, at, states); err != nil {
			return err
		}
	}
	return sc.changeOrigins(name, now, func(o *sources.Origins) { o.Compared = sc.options.Now() })
}

// changeOrigins calls change with the origins of a package's releases, stores them, and calls Options.Changed. present is the
// upstream that the package has now. It locks sc.watching.
func (sc *Scheduler) changeOrigins(name string, present sources.Ref, change func(*sources.Origins)) error {
	sc.watching.Lock()
	defer sc.watching.Unlock()
	origins := sc.readOrigins(name, present)
	change(&origins)
	defer sc.options.Changed(name)
	return sc.options.Records.Write(sources.OriginsKey(name), origins)
}

// presentUpstream returns the upstream that the package JSON of a package names, from the catalogue or else from the store. It
// returns the zero value if neither has a valid JSON, or if the package is not updated.
func (sc *Scheduler) presentUpstream(name string) sources.Ref {
	p, ok := sc.options.Publisher.Catalogue().Get(name)
	if !ok {
		row, err := views.LookupPackage(sc.store, name)
		if err == nil {
			p, err = packages.Parse(packages.Path(name), row.JSON)
		}
		if err != nil { // the manifests say it too
			return sources.Ref{}
		}
	}
	return sources.RefOf(p)
}

// upstreamsOf returns the upstreams that the published releases of a package came from, each once. now is the upstream that the
// package has at present, and states are those of all its versions. It skips imported releases, and those whose origin cannot be
// read, which it logs. It locks sc.watching.
func (sc *Scheduler) upstreamsOf(name string, now sources.Ref, states []views.State) []sources.Ref {
	sc.watching.Lock()
	defer sc.watching.Unlock()
	known := sc.readOrigins(name, now)
	var all []sources.Ref
	for _, s := range states {
		if s.Kind != views.Published {
			continue
		}
		origin, ok := known.Versions[s.Version]
		if !ok {
			var err error
			if origin, err = sc.originFromManifest(known.Ref(), name, s.Version); err != nil {
				sc.logger.Warn("origin not known", "package", name, "version", s.Version, "err", err)
				continue
			}
		}
		from := known.Ref()
		if origin.From != "" {
			from = sources.ParseRef(origin.From)
		}
		if origin.Published != "" && !slices.Contains(all, from) {
			all = append(all, from)
		}
	}
	return all
}

// auditRelease compares a release with its upstream, file by file, and stores and reports the result: equal, different, or why it
// could not be compared. A comparison has ten minutes. The error means that upstream does not respond, that the release's record
// could not be read or the result stored, or that ctx has ended. A release that is not served any more is skipped.
func (sc *Scheduler) auditRelease(ctx context.Context, name sources.ReleaseName) error {
	claim, err := sc.readClaim(name)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil // it was withdrawn since
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", name.Package, name.Version, err)
	}
	limited, cancel := context.WithTimeout(ctx, auditTime)
	defer cancel()
	found := sc.options.Auditor.Compare(limited, claim)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a := sources.Audit{
		At: sc.options.Now(), Outcome: found.Outcome, Problem: text.Short(found.Problem, sources.MaxNote),
		Files: found.Files, Made: found.Made, Unchecked: found.Unchecked,
	}
	if a.Outcome == verify.Unproven && sources.IsOutage(found.Err) {
		return fmt.Errorf("%s %s: %w", name.Package, name.Version, found.Err)
	}
	event := sources.Event{Kind: sources.Audited, Package: name.Package, Version: name.Version, Reason: a.Problem}
	if a.Outcome == verify.Differs {
		event.Kind = sources.Differing
		sc.logger.Error("a release is not what upstream has", "package", name.Package, "version", name.Version, "err", a.Problem)
	}
	if err := sc.options.Records.Write(sources.AuditKey(name.Package, name.Version), a); err != nil {
		return err
	}
	sc.options.Changed(name.Package)
	sc.options.Events.Emit(ctx, event)
	return nil
}

// readClaim returns what the log states about a release that is served: the entry that published it last, and its manifest and
// attestations. It adds the package JSON that is recorded now, none if that cannot be read. The error wraps kvstore.ErrNotFound
// if the release is not served.
func (sc *Scheduler) readClaim(name sources.ReleaseName) (c verify.Claim, err error) {
	if s, err := views.LookupState(sc.store, name.Package, name.Version); err != nil || !s.Kind.Served() {
		return c, cmp.Or(err, kvstore.ErrNotFound)
	}
	e, err := logs.LastPublication(sc.store, name.Package, name.Version)
	if err != nil {
		return c, err
	}
	c.Entry = e.Entry
	if c.Manifest, err = logs.ReadManifest(sc.store, e.Entry.Manifest); err != nil {
		return c, err
	}
	if err := c.ReadAttestations(sc.store.Identity); err != nil {
		return c, err
	}
	if row, err := views.LookupPackage(sc.store, name.Package); err == nil {
		c.PackageJSON = row.JSON
	}
	return c, nil
}
