package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/github"
	"github.com/larder-cdn/larder/packages"
)

// upstreamFlags are the settings of commands that look at upstreams without a bot.
var upstreamFlags = []string{"downloads-url", "github-url", "allow-host", "log-format", "log-level"}

// upstreams is where the checks on a submission look.
type upstreams struct {
	getter     *fetch.Client
	sources    map[string]submission.Source // by what a package JSON calls them
	popularity submission.Popularity
	git        *git.Client
}

// newUpstreams is for commands that look and are done: what goes wrong is in what they tell.
func (a *app) newUpstreams() (*upstreams, error) {
	logger := a.settings.newLogger(a.stderr, slog.LevelError)
	token, variable := githubToken(a.environ)
	client, err := github.New(github.Options{URL: a.settings.githubURL, Token: token, UserAgent: "larder/" + version(), Logger: logger})
	if err != nil {
		return nil, usageError{fmt.Errorf("%s, or the token in %s: %w", a.settings.origin("github-url"), variable, err)}
	}
	config, err := strangersConfig()
	if err != nil {
		return nil, err
	}
	return a.openUpstreams(logger, config, client)
}

// openUpstreams asks the npm registry of config, and GitHub with client.
func (a *app) openUpstreams(logger *slog.Logger, config *npm.Config, client *github.Client) (*upstreams, error) {
	s := a.settings
	getter, err := fetch.New(fetch.Options{UserAgent: "larder/" + version(), Allow: s.allowHosts, Logger: logger})
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", s.origin("allow-host"), err)}
	}
	u := &upstreams{getter: getter, sources: map[string]submission.Source{
		"npm": submission.Npm(npm.NewClient(config, getter, npm.Options{})),
	}}
	if s.downloadsURL != "" {
		if u.popularity.Downloads, err = submission.Downloads(getter, s.downloadsURL); err != nil {
			return nil, usageError{fmt.Errorf("%s: %w", s.origin("downloads-url"), err)}
		}
	}
	u.git = git.New(git.Options{Fetch: getter, GitHub: client})
	u.popularity.Stars = stars(client)
	u.sources["git"] = submission.Git(u.git)
	return u, nil
}

// strangersConfig is npm's configuration without the .npmrc of the folder that larder runs in: that may be a checkout of
// what somebody submits, who would choose the registry and get the credentials.
func strangersConfig() (_ *npm.Config, err error) {
	empty, err := os.MkdirTemp("", "larder-npm-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(empty)) }()
	return npm.LoadConfig(empty)
}

func (u *upstreams) close() { u.getter.Close() }

// look shows what the bot would publish of a package.
func (u *upstreams) look(ctx context.Context, p *packages.Package, older int) (*submission.Preview, error) {
	if p.Autoupdate == nil {
		return nil, errors.New(`it has no "autoupdate", so there is no upstream to look at`)
	}
	source := u.sources[p.Autoupdate.Source]
	if source == nil {
		return nil, fmt.Errorf("the releases of source %q cannot be looked at", p.Autoupdate.Source)
	}
	return submission.Look(ctx, source, p, older)
}

// stars asks GitHub how many a repository has.
func stars(client *github.Client) func(ctx context.Context, owner, repository string) (int64, error) {
	return func(ctx context.Context, owner, repository string) (int64, error) {
		found, _, err := client.Repositories.Get(ctx, owner, repository)
		switch {
		case github.Status(err) == http.StatusNotFound:
			return 0, fetch.ErrNotFound
		case err != nil:
			return 0, errors.New(github.Describe(err))
		}
		return int64(found.GetStargazersCount()), nil
	}
}
