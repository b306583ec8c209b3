package discovery

import (
	"context"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/packages"
)

// A replacedError says that the address of a package's repository names another repository than at the first poll.
type replacedError struct{ recorded, found int64 }

// Error says, with both ids, that GitHub has another repository under the address of the package, and what the operator can do.
func (e *replacedError) Error() string {
	return fmt.Sprintf("GitHub has another repository under this address (id %d, and %d at the first poll), so no release is taken from it; "+
		"if it is the right one, change autoupdate.target in the package JSON to another form of the address, with or without .git", e.found, e.recorded)
}

// checkRepository requests the description of the package's repository from GitHub; it does nothing for a repository elsewhere or
// a package from npm. It returns a *replacedError if the repository's id is not the recorded one: a renamed repository keeps its
// id, and one that is registered under the name of a deleted or renamed one has another id. Otherwise it records the description
// in upstream, which the caller stores, and itself stores the stars. A rate limit of GitHub is not an error while no id is
// recorded. One API request is enough for each change of the tags: without a token GitHub allows sixty in an hour.
func (sc *Scheduler) checkRepository(ctx context.Context, p *packages.Package, upstream *sources.Upstream) error {
	if p.Autoupdate.Source != sources.KindGit || !sc.options.Git.AtGitHub(p.Autoupdate.Target) {
		return nil
	}
	found, etag, err := sc.options.Git.Describe(ctx, p.Autoupdate.Target, upstream.Repository.ETag)
	var limit *git.LimitError
	switch {
	case errors.As(err, &limit) && upstream.Repository.ID == 0:
		return nil // there is nothing to compare with, so releases do not wait; the next poll records the id
	case err != nil:
		return err
	case found == nil: // as it was
		return nil
	case upstream.Repository.ID != 0 && upstream.Repository.ID != found.ID:
		return &replacedError{recorded: upstream.Repository.ID, found: found.ID}
	}
	upstream.Repository = sources.RepositoryState{ID: found.ID, Archived: found.Archived, ETag: etag}
	if p.Repository == nil || git.CanonicalAddress(p.Repository.URL) != git.CanonicalAddress(p.Autoupdate.Target) {
		return nil
	}
	stars := sources.Stars{Counts: found.Counts, Repository: git.CanonicalAddress(p.Repository.URL), AsOf: sc.starsTime(), ETag: etag}
	return sc.options.Records.ChangePopularityCounts(p.Name, func(d *sources.PopularityCounts) { d.GitHub = &stars })
}
