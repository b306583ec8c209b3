package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/larder-cdn/larder/api/site"
	"github.com/larder-cdn/larder/bot/catalogue"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/github"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
)

// filling is a running process that fills its folder.
type filling struct {
	*working
	serving *serving // the site of the same process, if that serves
	*filler
	secret string // of webhooks; "" for none
}

// openBot opens the bot and its catalogue.
func (f *filling) openBot(context.Context) (err error) {
	if f.filler, err = f.writer.filler.get(); err != nil {
		return err
	}
	f.refresh = f.keeper.Refresh
	f.metrics.backlog(f.Bot)
	f.metrics.catalogue(f.keeper)
	unprotected := worker.Unprotected()
	for _, lack := range unprotected {
		f.logger.Warn("this system keeps less than others from the child processes that read strangers' files", "lacks", lack)
	}
	f.tell = append(f.tell, func(s *Status) {
		state := f.keeper.State()
		s.Catalogue, s.Unprotected = &state, unprotected
		if feed, ok := f.Feed(); ok {
			s.Feed = &feed
		}
	})
	return nil
}

// showOnSite tells visitors of the catalogue, drafts package JSONs for them, and takes word of pushes. The bot hears which
// files are in demand.
func (f *filling) showOnSite(context.Context) (err error) {
	site := f.serving
	site.hot = f.Hot
	logger := f.logger.With("part", "hook")
	if f.secret != "" {
		site.hooks[releasePath] = releaseHook(f.Bot, f.secret, logger)
	}
	if !f.keeper.Static() {
		site.pages.Catalogue = f.shownCatalogue
		if f.secret != "" {
			site.hooks[hookPath] = catalogueHook(f.keeper, f.secret, logger)
		}
	}
	site.pages.Draft, err = newDrafts(f.settings, f.logger.With("part", "site"))
	return err
}

// once makes a single pass, and ends the process.
func (f *filling) once(ctx context.Context) error {
	if err := f.lookOnce(ctx); err != nil {
		return err
	}
	summary, err := f.Bot.Once(ctx)
	f.Filled(summary)
	if err == nil {
		_, err = f.Audit(ctx)
	}
	if err == nil && summary.Failed > 0 {
		err = fmt.Errorf("%d failed and will be tried again; `larder status` tells why", summary.Failed)
	}
	for _, do := range f.beforeEnd {
		if ctx.Err() == nil {
			err = errors.Join(err, do(ctx))
		}
	}
	if err == nil {
		err = errDone
	}
	return err
}

// fillAgain is how long a bot that could not go on rests where the process serves, and fillWhenFull where the disk is full.
const (
	fillAgain    = time.Minute
	fillWhenFull = 20 * time.Second
)

// keepFilling runs the bot until ctx ends. What stops the bot is no reason to stop serving: it starts again after a while. A
// full disk is no reason to end a process at all, because the operator may make room.
func (f *filling) keepFilling(ctx context.Context) error {
	for {
		err := f.Bot.Run(ctx)
		full := errors.Is(err, kvstore.ErrDiskFull)
		if err == nil || ctx.Err() != nil || !f.Serve && !full {
			return err
		}
		pause := fillAgain
		if full {
			pause = fillWhenFull
		}
		f.logger.Error("the bot stopped; it starts again", "err", err, "after", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// keep keeps the catalogue up to date.
func (f *filling) keep(ctx context.Context) { f.keeper.Run(ctx, f.SetCatalogue) }

// newGit returns what reads git repositories, and GitHub for it.
func newGit(s *settings.Settings, getter *fetch.Client, logger *slog.Logger) (*git.Client, error) {
	hub, err := github.New(github.Options{URL: s.GitHubURL, Token: s.Token, UserAgent: agent(), Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("%s, or the token in %s: %w", s.Origin("github-url"), s.TokenFrom, err)
	}
	return git.New(git.Options{Fetch: getter, GitHub: hub}), nil
}

// newKeeper returns what keeps the catalogue of the settings.
func newKeeper(s *settings.Settings, dir string, g *git.Client, logger *slog.Logger) (*catalogue.Keeper, error) {
	keeper, err := catalogue.New(catalogue.Options{
		Source: s.Catalogue, Dir: dir, Git: g, Interval: s.CatalogueInterval, Logger: logger,
		Token: func(at *url.URL) string {
			if s.Token == "" || !github.IsHost(s.GitHubURL, at.Host) {
				return ""
			}
			return s.Token
		},
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Origin("catalogue"), err)
	}
	return keeper, nil
}

// hookPath is where the git host says that the catalogue was pushed to.
const hookPath = "/hooks/catalogue"

// mostPushed is the most bytes that a push event may have here. GitHub's tell of two thousand commits at most.
const mostPushed = 8 << 20

// catalogueHook is the webhook that has the catalogue looked at.
func catalogueHook(keeper *catalogue.Keeper, secret string, logger *slog.Logger) http.Handler {
	return &github.Webhook{
		Secret: secret, MaxBytes: mostPushed, Logger: logger,
		Take: func(d github.Delivery) (int, string) { return pushed(d, keeper.State().Branch, keeper.Refresh) },
	}
}

// pushed takes a webhook's event, and has the catalogue looked at where the event is about its branch, "" for any.
func pushed(d github.Delivery, branch string, look func()) (status int, message string) {
	switch d.Event {
	case "ping":
		return http.StatusOK, "the secret is right"
	case "push":
		to, ok := github.PushedBranch(d.Payload)
		if !ok || branch != "" && to != branch {
			return http.StatusOK, "nothing to do: it is not a push to the branch of the catalogue"
		}
		look()
		return http.StatusAccepted, "the catalogue is about to be looked at"
	}
	return http.StatusOK, "nothing to do for such an event; push is the one that is wanted"
}

// lookOnce brings the bot's catalogue up to date for a single pass.
func (f *filler) lookOnce(ctx context.Context) error {
	err := f.keeper.Look(ctx, f.SetCatalogue)
	if err != nil && !f.keeper.State().Changed.IsZero() {
		return nil // the log tells; the last good one is still good
	}
	return err
}

// shownCatalogue is what visitors may know of it: what is in it, not where it is.
func (f *filler) shownCatalogue() site.Catalogue {
	s := f.keeper.State()
	shown := site.Catalogue{Packages: s.Packages, Commit: s.Commit[:min(len(s.Commit), 12)], Checked: s.Checked, Failing: s.Since}
	for _, refused := range s.Refused {
		first, _, _ := strings.Cut(refused.Reason, "\n")
		shown.Refused = append(shown.Refused, first)
	}
	return shown
}
