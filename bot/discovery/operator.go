package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// Add polls the package name for an operator and publishes the releases that are due, or, if version is not "", only that
// version, which may be older than those known or have been refused before. It waits for the end, and returns an error if a
// release was refused or failed, or if upstream could not be polled; with version "", a rate limit of GitHub is no error. It
// returns nil if no release is due.
func (sc *Scheduler) Add(ctx context.Context, name, version string) error {
	return sc.forOperator(ctx, name, func(ctx context.Context, p *packages.Package) error {
		if version == "" {
			return sc.addDue(ctx, p)
		}
		return sc.addChosen(ctx, p, "", version)
	})
}

// AddUnattested is Add for one version, which is published even if it does not have the attestation that the policy of its
// package requires. The log records reason, which the operator gives.
func (sc *Scheduler) AddUnattested(ctx context.Context, name, version, reason string) error {
	return sc.forOperator(ctx, name, func(ctx context.Context, p *packages.Package) error {
		return sc.addChosen(ctx, p, reason, version)
	})
}

// Retry fetches a package's releases that have failed or were refused, and publishes them. It leaves out those that were refused
// because upstream no longer had them. It waits for the end, and returns an error if there are no such releases, or not all were
// published. If upstream lacks one of them, it fetches none.
func (sc *Scheduler) Retry(ctx context.Context, name string) error {
	return sc.forOperator(ctx, name, func(ctx context.Context, p *packages.Package) error {
		states, err := views.States(sc.store, name)
		if err != nil {
			return err
		}
		var versions []string
		for _, s := range states {
			if tried := s.Kind == views.Refused && s.Reason != sources.Gone || s.Kind == views.Failed; tried && packages.ValidVersion(s.Version) {
				versions = append(versions, s.Version)
			}
		}
		if versions == nil {
			return fmt.Errorf("no release was refused or has failed; `larder add %s` gets those that are new", name)
		}
		return sc.addChosen(ctx, p, "", versions...)
	})
}

// forOperator registers the package name of the catalogue and calls do with it, for an operator's command. It returns an error
// for people, with what to do next, if the catalogue lacks the package, if it has no upstream, if do fails, or if do reports
// failures of the package or its releases as events. Afterwards it moves the package's next poll to sources.MinWait from now,
// unless it is earlier, in case the command was interrupted.
func (sc *Scheduler) forOperator(ctx context.Context, name string, do func(context.Context, *packages.Package) error) error {
	p, err := sc.options.Publisher.LookupPackage(name)
	if err != nil {
		return err
	}
	if sc.options.Sources.ForPackage(p) == nil {
		return fmt.Errorf("package %s is not updated from anywhere; bring a release in with `larder import %s VERSION FOLDER|ARCHIVE`", name, name)
	}
	if err := sc.options.Publisher.Register(ctx, p); err != nil {
		return err
	}
	// If the command is interrupted, the next poll publishes the rest.
	defer func() { sc.Reschedule(ctx, name, sc.options.Now().Add(sources.MinWait)) }()
	var t sources.Tally
	switch err := do(sources.WithTally(ctx, &t), p); {
	case sources.IsOutage(err):
		return fmt.Errorf("%w; `larder doctor` says what helps", err)
	case err != nil:
		return err
	}
	if s := t.Sum(); s.Refused+s.Failed > 0 {
		return fmt.Errorf("%d published, %d refused, %d failed; `larder status %s` says why, and `larder doctor` what helps", s.Published, s.Refused, s.Failed, name)
	}
	return nil
}

// addDue polls the package p for an operator and publishes the releases that are due. It repeats that while releases were refused
// and a new package needs others to start with.
func (sc *Scheduler) addDue(ctx context.Context, p *packages.Package) error {
	for again := true; again; again = sc.options.Publisher.TakeRefill(p.Name) {
		if err := sc.polled.Acquire(ctx, p.Name); err != nil {
			return err
		}
		tasks, err := sc.pollAndRecord(ctx, p, pollRequest{actor: ingest.ActorOperator, force: true, has: func(string) bool { return false }})
		sc.polled.Release(p.Name)
		if err == nil {
			err = sc.releaseAll(ctx, tasks)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addChosen publishes the given versions of the package p for an operator, and waits until that is done. It returns an error
// before it fetches any if one is malformed, published or withdrawn, or if upstream does not have it; versions before that one
// may be recorded as detected then. A release that fails or is refused afterwards is not an error: it is recorded, and counted in
// the tally of ctx. override is the field of [ingest.Task]: the reason to ignore the package's policy, "" for none.
func (sc *Scheduler) addChosen(ctx context.Context, p *packages.Package, override string, versions ...string) error {
	for _, version := range versions {
		if err := sc.options.Publisher.CheckUnpublished(p.Name, version); err != nil {
			return err
		}
	}
	listed, err := sc.options.Sources.ForPackage(p).List(ctx, p.Autoupdate.Target, fetch.Validators{})
	if err != nil {
		return err
	}
	if upstream := sc.options.Records.Known(p.Name); upstream.Follows(p) {
		if err := sc.checkRepository(ctx, p, &upstream); err != nil {
			return err
		}
	}
	var tasks []ingest.Task
	for _, version := range versions {
		t, err := sc.detectVersion(p, version, listed)
		if err != nil {
			return err
		}
		t.Override = override
		tasks = append(tasks, t)
	}
	return sc.releaseAll(ctx, tasks)
}

// detectVersion finds a version of the package p in listed, the list of upstream, records in the log that it was detected, unless
// it is being processed, and returns the task to fetch it for an operator.
func (sc *Scheduler) detectVersion(p *packages.Package, version string, listed *sources.Listing) (ingest.Task, error) {
	v, ok := listed.Versions[version]
	if !ok {
		return ingest.Task{}, fmt.Errorf("%s's %s has no version %s%s", p.Autoupdate.Source, p.Autoupdate.Target, version,
			ingest.SuggestWord(version, slices.Collect(maps.Keys(listed.Versions))))
	}
	state, err := views.LookupState(sc.store, p.Name, version)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return ingest.Task{}, err
	}
	released := v.Published
	change := stateChange{was: state.Kind, State: views.State{Package: p.Name, Version: version, Kind: views.Detected, Released: released, Updated: sc.options.Now()}}
	if state.Kind != views.Processing { // else it is on its way already
		if _, err := sc.recordChanges([]stateChange{change}, ingest.ActorOperator); err != nil {
			return ingest.Task{}, err
		}
	}
	return ingest.Task{Pkg: p, Version: v, Released: released, Actor: ingest.ActorOperator}, nil
}

// releaseAll fetches and publishes the releases of tasks, several at a time, and waits for those that another goroutine is
// publishing. Of the latter it reports those that were refused or failed to the tally in ctx. It returns an error only for what
// stops the bot, or if ctx ends.
func (sc *Scheduler) releaseAll(ctx context.Context, tasks []ingest.Task) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(sc.options.Downloads)
	for _, t := range tasks {
		g.Go(func() error {
			for {
				wait, err := sc.options.Publisher.PublishTask(ctx, t)
				if wait == nil {
					return err
				}
				select {
				case <-wait:
				case <-ctx.Done():
					return ctx.Err()
				}
				state, err := views.LookupState(sc.store, t.Pkg.Name, t.Version.Name)
				if err != nil {
					return err
				}
				switch state.Kind {
				case views.Published, views.Mirrored:
					return nil
				case views.Refused, views.Failed:
					sources.ReportOnly(ctx, sources.Event{Kind: sources.EventKind(state.Kind), Package: state.Package, Version: state.Version, Reason: state.Reason, Next: state.Next})
					return nil
				}
				// The goroutine that had it was stopped; now it is ours.
			}
		})
	}
	return g.Wait()
}
