package discovery

import (
	"context"
	"errors"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/retry"
)

// The budgets: sixty requests an hour for npm's downloads; for GitHub's stars sixty with a token, and six of the sixty that
// GitHub allows without. Each package is requested once a month.
const (
	countEvery          = time.Minute
	countEveryAnonymous = 10 * time.Minute
	countAgain          = 30 * 24 * time.Hour
	countTomorrow       = 24 * time.Hour // until the next request about a repository for which GitHub failed
	countPause          = time.Hour      // after a failure, and if no package is due
)

// repeatCounting waits for every and calls one, again and again. one requests the download count or stars of the package that is
// due and returns the package's name, "" if none is due; then, and after an error, the next interval is an hour. It logs errors,
// except of a rate limit. It returns the error of one if that stops the bot or ctx has ended, and nil if ctx ends while it waits.
func (sc *Scheduler) repeatCounting(ctx context.Context, every time.Duration, one func(context.Context) (name string, err error)) error {
	for pause := every; retry.Sleep(ctx, pause) == nil; {
		name, err := one(ctx)
		var limit *git.LimitError
		switch {
		case err != nil && (sources.Stops(err) || ctx.Err() != nil):
			return err
		case errors.As(err, &limit):
			pause = countPause
		case err != nil:
			sc.logger.Warn("couldn't request the download count or stars of a package; it is tried again", "package", name, "after", countPause, "err", err)
			pause = countPause
		case name == "":
			pause = countPause
		default:
			pause = every
		}
	}
	return nil
}

// CountDownloads requests the download count of the catalogue's npm package whose count is oldest or was never requested, and
// stores it; npm's "not found" is stored as 0. It returns the name of the package, also with an error of the request, and "" if
// no count is older than 30 days.
func (sc *Scheduler) CountDownloads(ctx context.Context) (string, error) {
	known, err := sources.ReadAllPopularityCounts(sc.store)
	if err != nil {
		return "", err
	}
	var name, target string
	oldest := sc.options.Now().Add(-countAgain)
	for _, p := range sc.options.Publisher.Catalogue().Packages() {
		if p.Autoupdate == nil || p.Autoupdate.Source != sources.KindNpm {
			continue
		}
		var asked time.Time
		if d := known[p.Name]; d.Asked && !d.AsOf.After(sc.options.Now()) {
			asked = d.AsOf
		}
		if asked.Before(oldest) || asked.IsZero() && name == "" {
			name, target, oldest = p.Name, p.Autoupdate.Target, asked
		}
	}
	if name == "" {
		return "", nil
	}
	n, err := sc.options.CountDownloads(ctx, target)
	if errors.Is(err, fetch.ErrNotFound) {
		n, err = 0, nil // of a new package nothing is counted yet
	}
	if err != nil {
		return name, err
	}
	return name, sc.options.Records.ChangePopularityCounts(name, func(d *sources.PopularityCounts) {
		d.Downloads, d.AsOf, d.Asked = n, sc.options.Now().UTC().Truncate(time.Second), true
	})
}

// starsTime returns the present time in UTC, in whole seconds, as it is stored with stars.
func (sc *Scheduler) starsTime() time.Time { return sc.options.Now().UTC().Truncate(time.Second) }

// CountStars requests the stars of the catalogue's package at GitHub whose count is due first, and stores them, or that the
// repository is missing. A count is due if it is 30 days old, of another repository, or was never requested. CountStars returns
// the name of the package, "" if none is due. After an error of the request it also returns the name; unless that is a rate limit
// or stops the bot, the package is due again a day later, so that the others have their turn. The bot must have a client for git.
func (sc *Scheduler) CountStars(ctx context.Context) (string, error) {
	known, err := sources.ReadAllPopularityCounts(sc.store)
	if err != nil {
		return "", err
	}
	var name, target string
	var before sources.PopularityCounts
	now := sc.starsTime()
	for _, p := range sc.options.Publisher.Catalogue().Packages() {
		if p.Repository == nil || !sc.options.Git.AtGitHub(p.Repository.URL) {
			continue
		}
		d := known[p.Name]
		if g := d.GitHub; g != nil && g.Repository != git.CanonicalAddress(p.Repository.URL) {
			d.GitHub = nil
		}
		if due := d.GitHub == nil || !d.GitHub.AsOf.After(now.Add(-countAgain)) || d.GitHub.AsOf.After(now); due && (name == "" || d.StarsDueBefore(before)) {
			name, target, before = p.Name, p.Repository.URL, d
		}
	}
	if name == "" {
		return "", nil
	}
	next := sources.Stars{Repository: git.CanonicalAddress(target), AsOf: now}
	etag := ""
	if before.GitHub != nil {
		etag = before.GitHub.ETag
	}
	found, fresh, err := sc.options.Git.Describe(ctx, target, etag)
	var refused *git.RefusedError
	var limit *git.LimitError
	switch {
	case errors.Is(err, fetch.ErrNotFound), errors.As(err, &refused):
		next.Missing, err = true, nil
	case err != nil && (errors.As(err, &limit) || sources.Stops(err) || ctx.Err() != nil):
		return name, err
	case err != nil: // GitHub may have blocked the repository for good: it is due again tomorrow, so that the others have their turn
		if next.Missing = before.GitHub == nil; !next.Missing {
			next = *before.GitHub
		}
		next.AsOf = now.Add(countTomorrow - countAgain)
	case found == nil: // as before
		next.Counts, next.ETag = before.GitHub.Counts, etag
	default:
		next.Counts, next.ETag = found.Counts, fresh
	}
	return name, errors.Join(err, sc.options.Records.ChangePopularityCounts(name, func(d *sources.PopularityCounts) { d.GitHub = &next }))
}
