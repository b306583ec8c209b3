package bot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/agnivade/levenshtein"

	"github.com/larder-cdn/larder/bot/npm"
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
	if p.Autoupdate == nil || p.Autoupdate.Source != "npm" {
		return fmt.Errorf("package %s is not updated from npm; bring a release in with `larder import %s VERSION FOLDER|ARCHIVE`", name, name)
	}
	if err := b.enrol(ctx, p); err != nil {
		return err
	}
	defer b.agenda.set(name, b.options.Now().Add(minWait))
	var t tally
	ctx = counted(ctx, &t)
	if version == "" {
		err = b.addDue(ctx, p)
	} else {
		err = b.addOne(ctx, p, version)
	}
	if err != nil {
		return err
	}
	if s := t.sum(); s.Refused+s.Failed > 0 {
		return fmt.Errorf("%s: %d published, %d refused, %d failed; `larder status %s` says why", name, s.Published, s.Refused, s.Failed, name)
	}
	return nil
}

func (b *Bot) addDue(ctx context.Context, p *packages.Package) error {
	tasks, err := b.ask(ctx, p)
	if err != nil {
		return err
	}
	q := newQueue()
	q.push(tasks...)
	q.close()
	return b.drain(ctx, q)
}

func (b *Bot) addOne(ctx context.Context, p *packages.Package, version string) error {
	if err := b.unpublished(p.Name, version); err != nil {
		return err
	}
	packument, _, err := b.options.Npm.Packument(ctx, p.Autoupdate.Target, npm.Validators{})
	if err != nil {
		return err
	}
	v, ok := packument.Versions[version]
	if !ok {
		return fmt.Errorf("npm's %s has no version %s%s", p.Autoupdate.Target, version, nearest(version, mapKeys(packument.Versions)))
	}
	state := views.State{Package: p.Name, Version: version, Kind: views.Detected, Released: packument.Time[version], Updated: b.options.Now()}
	if err := b.record(planned{detected: []views.State{state}}, b.knownUpstream(p.Name)); err != nil {
		return err
	}
	return b.release(ctx, task{pkg: p, version: v, released: state.Released})
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
	if err := b.unpublished(name, version); err != nil {
		return err
	}
	opened, err := archive.OpenFile(source)
	if err != nil {
		return err
	}
	id := task{pkg: p, version: npm.Version{Version: version}}.id()
	if _, err := b.claims.take(id); err != nil {
		return fmt.Errorf("%s %s is being published right now", name, version)
	}
	defer b.claims.drop(id)
	b.emit(ctx, Event{Kind: Releasing, Package: name, Version: version})
	manifest, err := b.publish(ctx, intake{
		pkg: p, version: version, released: b.options.Now(), actor: actorOperator,
		archive: opened,
		source:  logs.Source{Type: "import", Name: filepath.Base(source)},
	})
	if err != nil {
		return fmt.Errorf("%s %s was not imported: %w", name, version, err)
	}
	b.logger.Info("imported", "package", name, "version", version, "files", len(manifest.Files))
	b.emit(ctx, publishedEvent(manifest))
	return nil
}

func (b *Bot) lookup(name string) (*packages.Package, error) {
	p, ok := b.options.Catalogue.Get(name)
	if !ok {
		var names []string
		for _, p := range b.options.Catalogue.Packages() {
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
		return fmt.Errorf("%s %s was withdrawn (%s) and stays so", name, version, v.Withdrawn.Reason)
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

func mapKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}
