package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/larder-cdn/larder/api/site"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/lint"
)

// What a page may cost: less than the bot takes, for anybody can ask.
const (
	draftPackument = 64 << 20 // bytes, read as a stream
	draftTarball   = 32 << 20 // bytes
	draftFiles     = 200      // that the page lists
)

// newDrafts returns what writes package JSONs for the site. It asks the configured registry without its credentials: what
// only the operator may see is none of a visitor's business.
func (s *settings) newDrafts(logger *slog.Logger) (func(context.Context, string) (*site.Draft, error), error) {
	config, err := npm.LoadConfig(".")
	if err != nil {
		return nil, err
	}
	getter, err := fetch.New(fetch.Options{UserAgent: "larder/" + version(), Allow: s.allowHosts, Concurrency: 2, Tries: 1, Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.origin("allow-host"), err)
	}
	source := submission.Npm(npm.NewClient(config.Anonymous(), getter, npm.Options{PackumentBytes: draftPackument, TarballBytes: draftTarball}))
	linter := lint.New(lint.Options{New: true})
	return func(ctx context.Context, name string) (*site.Draft, error) {
		draft, err := submission.NewDraft(ctx, source, name, "")
		if err != nil {
			return nil, draftError(ctx, name, err, logger)
		}
		return showDraft(draft, linter), nil
	}, nil
}

// draftError tells a visitor what is about the package, and only the log what is about this service.
func draftError(ctx context.Context, name string, err error, logger *slog.Logger) error {
	var invalid *npm.NameError
	var undraftable *submission.UndraftableError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &invalid):
		return &site.DraftError{Message: invalid.Error()}
	case errors.As(err, &undraftable):
		return &site.DraftError{Message: undraftable.Error()}
	case errors.Is(err, fetch.ErrNotFound):
		return &site.DraftError{Message: fmt.Sprintf("The npm registry has no package %q. Is that its exact name there?", name)}
	case errors.Is(err, submission.ErrNoReleases):
		return &site.DraftError{Message: fmt.Sprintf("The npm package %q has no release that could be published.", name)}
	case errors.Is(err, fetch.ErrTooLarge):
		return &site.DraftError{Message: fmt.Sprintf("The npm package %q is too large to be looked at from a page; use `larder new`.", name)}
	}
	logger.Warn("couldn't draft a package JSON", "npm", name, "err", err)
	return &site.DraftError{Message: fmt.Sprintf("The npm registry could not be asked about %q just now. Please try again later.", name)}
}

func showDraft(draft *submission.Draft, linter *lint.Linter) *site.Draft {
	p, r := draft.Preview.Package, &draft.Preview.Latest
	shown := &site.Draft{
		Name: p.Name, Version: r.Name, File: packages.Path(p.Name), Text: string(draft.JSON()), About: r.Describe(),
		Notes: draft.Notes, More: max(0, len(r.Files)-draftFiles),
	}
	for _, f := range r.Files[:len(r.Files)-shown.More] {
		shown.Files = append(shown.Files, site.DraftFile{Path: f.Path, Size: submission.Size(f), Main: f.Path == r.Default})
	}
	result := linter.Check(p.Name+".json", "", draft.JSON())
	result.Add(draft.Preview.Problems()...)
	for _, problem := range result.Problems {
		shown.Problems = append(shown.Problems, fmt.Sprintf("line %d: %s", problem.Line, problem.Message))
	}
	return shown
}
