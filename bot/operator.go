package bot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// Add fetches a package of the catalogue now: the releases that are due where
// version is "", else that one version, which may be older than those known or
// have been refused before.
func (b *Bot) Add(ctx context.Context, name, version string) error {
	p, err := b.lookup(name)
	if err != nil {
		return err
	}
	if b.source(p) == nil {
		return fmt.Errorf("package %s is not updated from anywhere; bring a release in with `larder import %s VERSION FOLDER|ARCHIVE`", name, name)
	}
	if err := b.enrol(ctx, p); err != nil {
		return err
	}
	// What an interrupted command leaves unfinished is the schedule's.
	defer func() { b.sooner(ctx, name, b.options.Now().Add(minWait)) }()
	var t tally
	ctx = counted(ctx, &t)
	var tasks []task
	if version == "" {
		tasks, err = b.ask(ctx, p, inquiry{actor: actorOperator, force: true, has: func(string) bool { return false }})
	} else {
		tasks, err = b.choose(ctx, p, version)
	}
	if err != nil {
		return err
	}
	if err := b.releaseAll(ctx, tasks); err != nil {
		return err
	}
	if s := t.sum(); s.Refused+s.Failed > 0 {
		return fmt.Errorf("%d published, %d refused, %d failed; `larder status %s` says why", s.Published, s.Refused, s.Failed, name)
	}
	return nil
}

// choose finds one version upstream and records that it is to be fetched.
func (b *Bot) choose(ctx context.Context, p *packages.Package, version string) ([]task, error) {
	if err := b.unpublished(p.Name, version); err != nil {
		return nil, err
	}
	listed, err := b.source(p).list(ctx, p.Autoupdate.Target, fetch.Validators{})
	if err != nil {
		return nil, err
	}
	v, ok := listed.versions[version]
	if !ok {
		return nil, b.missing(p, version, slices.Collect(maps.Keys(listed.versions)))
	}
	state, err := views.LookupState(b.store, p.Name, version)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return nil, err
	}
	released := v.published
	change := stateChange{was: state.Kind, State: views.State{Package: p.Name, Version: version, Kind: views.Detected, Released: released, Updated: b.options.Now()}}
	if state.Kind != views.Processing { // else it is on its way already
		if _, err := b.record([]stateChange{change}, actorOperator); err != nil {
			return nil, err
		}
	}
	return []task{{pkg: p, version: v, released: released, actor: actorOperator}}, nil
}

// releaseAll releases the tasks now. Those that the schedule has in hand it waits
// for, and tells how they ended.
func (b *Bot) releaseAll(ctx context.Context, tasks []task) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(b.options.Downloads)
	for _, t := range tasks {
		g.Go(func() error {
			for {
				wait, err := b.release(ctx, t)
				if wait == nil {
					return err
				}
				select {
				case <-wait:
				case <-ctx.Done():
					return ctx.Err()
				}
				state, err := views.LookupState(b.store, t.pkg.Name, t.version.name)
				if err != nil {
					return err
				}
				switch state.Kind {
				case views.Published:
					return nil
				case views.Refused, views.Failed:
					report(ctx, Event{Kind: EventKind(state.Kind), Package: state.Package, Version: state.Version, Reason: state.Reason, Next: state.Next})
					return nil
				}
				// Whoever had it was stopped; now it is ours.
			}
		})
	}
	return g.Wait()
}

// Import publishes a version of a package from a folder or an archive, by the
// same rules and in the same log as one from npm.
func (b *Bot) Import(ctx context.Context, name, version, source string) error {
	p, err := b.lookup(name)
	if err != nil {
		return err
	}
	if err := b.enrol(ctx, p); err != nil {
		return err
	}
	opened, err := archive.OpenFile(source)
	if err != nil {
		return err
	}
	id := releaseID(name, version)
	b.recovered()
	if b.claims.take(id) != nil {
		return fmt.Errorf("%s %s is being published right now; `larder status %s` tells how that ends", name, version, name)
	}
	defer b.claims.drop(id)
	if err := b.unpublished(name, version); err != nil {
		return err
	}
	if opened, err = b.withoutRoot(ctx, p, source, opened); err != nil {
		return fmt.Errorf("%s %s was not imported: %w", name, version, err)
	}
	b.emit(ctx, Event{Kind: Releasing, Package: name, Version: version})
	manifest, err := b.publish(ctx, intake{
		pkg: p, version: version, released: b.options.Now(), actor: actorOperator,
		archive: opened,
		source:  logs.Source{Type: "import", Name: filepath.Base(source)},
	})
	if reason, ok := refused(err); ok {
		state := views.State{Package: name, Version: version, Kind: views.Refused, Reason: reason, Updated: b.options.Now()}
		if err := b.refuse(state, actorOperator, logs.Signature{}); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s was not imported: %w", name, version, err)
	}
	b.logger.Info("imported", "package", name, "version", version, "files", len(manifest.Files))
	b.emit(ctx, publishedEvent(manifest))
	return nil
}

// withoutRoot leaves out the one folder that archives often wrap everything in
// (npm's "package", GitHub's "name-version"), unless the fileMap counts on it.
func (b *Bot) withoutRoot(ctx context.Context, p *packages.Package, source string, a archive.Source) (archive.Source, error) {
	if info, err := os.Stat(source); err != nil || info.IsDir() {
		return a, err
	}
	roots := make(map[string]bool)
	var names []string
	err := archive.Walk(ctx, a, archive.DefaultLimits, func(e archive.Entry, _ io.Reader) error {
		root, _, _ := strings.Cut(e.Name, "/")
		roots[root] = true
		names = append(names, e.Name)
		return nil
	})
	if err != nil || len(roots) != 1 || len(p.Select(names)) > 0 {
		return a, nil // a refused archive is refused where that is recorded
	}
	for root := range roots {
		if root == "package" || strings.HasPrefix(strings.ToLower(root), strings.ToLower(p.Name)) || p.Autoupdate != nil {
			return a.StripRoot(), nil
		}
	}
	return a, nil
}

func (b *Bot) lookup(name string) (*packages.Package, error) {
	p, ok := b.catalogue().Get(name)
	if !ok {
		for _, refused := range b.catalogue().Problems() {
			if path.Base(refused.File) == name+".json" {
				return nil, fmt.Errorf("the catalogue has a JSON for package %q, but it was refused: %w", name, refused)
			}
		}
		var names []string
		for _, p := range b.catalogue().Packages() {
			names = append(names, p.Name)
		}
		return nil, fmt.Errorf("the catalogue has no package %q; add its JSON, or name another catalogue with --catalogue%s", name, nearest(name, names))
	}
	return p, nil
}

// unpublished returns an error where a version cannot or need not be published.
func (b *Bot) unpublished(name, version string) error {
	if !packages.ValidVersion(version) {
		return fmt.Errorf("%q is not a version: letters, digits and . _ + - are allowed, a letter or digit first", version)
	}
	switch v, err := views.LookupVersion(b.store, name, version); {
	case errors.Is(err, kvstore.ErrNotFound):
		return nil
	case err != nil:
		return err
	case v.Withdrawn != nil:
		return fmt.Errorf("%s %s was withdrawn (%s); `larder restore %s %s` serves it again as it was", name, version, v.Withdrawn.Reason, name, version)
	default:
		return fmt.Errorf("%s %s is published already, and a published version is never rewritten", name, version)
	}
}

// nearest returns a hint at the word that is most like got, or "".
func nearest(got string, words []string) string {
	best, least := "", max(2, len(got)/3)+1
	for _, word := range words {
		d := levenshtein.ComputeDistance(strings.ToLower(got), strings.ToLower(word))
		if d < least || d == least && cmp.Compare(word, best) < 0 && best != "" {
			best, least = word, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}
