package submission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/lint"
)

// Upstreams are the upstreams that the checks of a submission request.
type Upstreams struct {
	Sources    map[string]sources.Source // by their names in a package JSON
	Popularity Popularity
}

// Preview returns what the bot would publish of the latest release of a package, and of up to older of its newest others. A package without upstream,
// or with one of a kind that is not in Sources, is an error.
func (u Upstreams) Preview(ctx context.Context, p *packages.Package, older int) (*Preview, error) {
	if p.Autoupdate == nil {
		return nil, errors.New(`it has no "autoupdate", so it has no upstream`)
	}
	source := u.Sources[p.Autoupdate.Source]
	if source == nil {
		return nil, fmt.Errorf("the releases of source %q cannot be checked", p.Autoupdate.Source)
	}
	return NewPreview(ctx, source, p, older)
}

// Compare sets preview.Change to the difference from the published package JSON, for which it fetches the latest release that this one selects. If
// that fails, the change says so; the only error is that ctx has ended.
func (u Upstreams) Compare(ctx context.Context, preview *Preview, published *packages.Package) error {
	selected, err := u.Preview(ctx, published, 0)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	preview.Change = NewChange(preview, published, selected, err)
	return nil
}

// lintedAtOnce is how many upstreams are requested at the same time.
const lintedAtOnce = 4

// Lint adds the problems that the upstreams of the packages show to the results, for a few packages at the same time; a release that cannot be
// fetched is such a problem. It skips packages without upstream. It returns sentences about counts that are unknown, each once, and an error only if
// ctx has ended.
func (u Upstreams) Lint(ctx context.Context, results []*lint.Result) (unknown []string, err error) {
	notes := make([][]string, len(results))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lintedAtOnce)
	for i, r := range results {
		if r.Package == nil || r.Package.Autoupdate == nil {
			continue
		}
		g.Go(func() error {
			preview, err := u.Preview(ctx, r.Package, 0)
			if err != nil {
				r.Add(ProblemOf(r.Package, err))
				return ctx.Err()
			}
			r.Add(preview.Problems()...)
			problems, unknown := u.Popularity.Check(ctx, r.Package)
			r.Add(problems...)
			notes[i] = unknown
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, note := range slices.Concat(notes...) {
		if !slices.Contains(unknown, note) {
			unknown = append(unknown, note)
		}
	}
	return unknown, nil
}

// Lint returns the problems of the draft, each with its line.
func (d *Draft) Lint() (problems []string) {
	result := lint.New(lint.Options{New: true}).Check(d.Preview.Package.Name+".json", "", d.JSON())
	result.Add(d.Preview.Problems()...)
	for _, p := range result.Problems {
		problems = append(problems, fmt.Sprintf("line %d: %s", p.Line, p.Message))
	}
	return problems
}

// DescribeDraftError says why a draft of an npm package cannot be made, for the person who requested it. about is true for a name that npm
// could not have, and a package that is missing, has no release, is too large, or that no draft can be made of. It is false for any other error, also
// for an archive that is broken or refused; the text then says that the registry could not be requested.
func DescribeDraftError(name string, err error) (text string, about bool) {
	var invalid *npm.NameError
	var undraftable *UndraftableError
	switch {
	case errors.As(err, &invalid):
		return invalid.Error(), true
	case errors.As(err, &undraftable):
		return undraftable.Error(), true
	case errors.Is(err, fetch.ErrNotFound):
		return fmt.Sprintf("The npm registry has no package %q. Is that its exact name there?", name), true
	case errors.Is(err, ErrNoReleases):
		return fmt.Sprintf("The npm package %q has no release that could be published.", name), true
	case errors.Is(err, fetch.ErrTooLarge):
		return fmt.Sprintf("The npm package %q is too large to be looked at from a page; use `larder new`.", name), true
	}
	return fmt.Sprintf("Larder could not request %q from the npm registry. Please try again later.", name), false
}
