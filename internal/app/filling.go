package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/larder-cdn/larder/api/site"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/catalogue"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
)

// openFiller opens the bot and its catalogue.
func (r *roleRun) openFiller(w *Writer) (*filler, error) {
	f, err := w.filler.get()
	if err != nil {
		return nil, err
	}
	r.subscribe(func(context.Context, *settings.Settings) error {
		f.keeper.Refresh()
		return nil
	})
	r.metrics.MustRegister(f.bot.Collector())
	f.keeper.Register(r.metrics)
	unprotected := worker.Unprotected()
	for _, lack := range unprotected {
		r.logger.Warn("this system restricts the child processes that read files from upstream less than others do", "lacks", lack)
	}
	r.console.addStatus(func(s *Status) {
		state := f.keeper.State()
		s.Catalogue, s.Unprotected = &state, unprotected
		if feed, ok := f.bot.Feed(); ok {
			s.Feed = &feed
		}
	})
	return f, nil
}

// showOnSite shows visitors the catalogue, drafts package JSONs for them, and receives webhooks with a secret, "" for none. The bot is
// notified of files in demand.
func (f *filler) showOnSite(r *roleRun, site *siteOptions, secret string) (err error) {
	site.hot = f.bot.Hot
	logger := r.logger.With("part", "hook")
	if secret != "" {
		site.hooks[bot.ReleaseHookPath] = f.bot.ReleaseHook(secret, logger)
	}
	if !f.keeper.Static() {
		site.pages.Catalogue = f.shownCatalogue
		if secret != "" {
			site.hooks[catalogue.HookPath] = f.keeper.Hook(secret, logger)
		}
	}
	site.pages.Draft, err = newDrafts(r.settings, r.logger.With("part", "site"))
	return err
}

// addToSite adds what the bot has for visitors to a site: the catalogue, and releases from other origins.
func (f *filler) addToSite(r *roleRun, folder *Reader, site *siteOptions, secret string) error {
	if err := f.showOnSite(r, site, secret); err != nil {
		return err
	}
	return r.addFallback(f, folder, site)
}

// passOnce makes a single pass, notifies filled, calls beforeEnd, and ends the role.
func (f *filler) passOnce(ctx context.Context, filled func(bot.Summary), beforeEnd func(context.Context) error) error {
	if err := f.lookOnce(ctx); err != nil {
		return err
	}
	summary, err := f.bot.Once(ctx)
	filled(summary)
	if err == nil {
		_, err = f.bot.Audit(ctx)
	}
	if err == nil && summary.Failed > 0 {
		err = fmt.Errorf("%d failed and will be tried again; `larder status` shows why", summary.Failed)
	}
	if ctx.Err() == nil {
		err = errors.Join(err, beforeEnd(ctx))
	}
	if err == nil {
		err = parts.ErrDone
	}
	return err
}

// The backoff of a bot that could not go on where the process serves, and where the disk is full.
const (
	fillAgain    = time.Minute
	fillWhenFull = 20 * time.Second
)

// keepFilling runs the bot until ctx ends. What stops the bot is no reason to stop serving: it starts again after a while. A
// full disk is no reason to end a process at all, because the operator may make room.
func (f *filler) keepFilling(ctx context.Context, serve bool, logger *slog.Logger) error {
	for {
		err := f.bot.Run(ctx)
		full := errors.Is(err, kvstore.ErrDiskFull)
		if err == nil || ctx.Err() != nil || !serve && !full {
			return err
		}
		pause := fillAgain
		if full {
			pause = fillWhenFull
		}
		logger.Error("the bot stopped; it starts again", "err", err, "after", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// newKeeper returns what keeps the catalogue of the settings.
func newKeeper(s *settings.Settings, dir string, c *bot.Clients, logger *slog.Logger) (*catalogue.Keeper, error) {
	keeper, err := catalogue.New(catalogue.Options{
		Source: s.Catalogue, Dir: dir, Git: c.Git, Interval: s.CatalogueInterval, Logger: logger,
		Token: func(at *url.URL) string {
			if s.Token == "" || !git.IsGitHubHost(s.GitHubURL, at.Host) {
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

// lookOnce brings the bot's catalogue up to date for a single pass.
func (f *filler) lookOnce(ctx context.Context) error {
	err := f.keeper.Look(ctx, f.bot.SetCatalogue)
	if err != nil && !f.keeper.State().Changed.IsZero() {
		return nil // it is logged; the last valid catalogue stays in use
	}
	return err
}

// shownCatalogue returns what the site displays of the catalogue: its content, not its source.
func (f *filler) shownCatalogue() site.Catalogue {
	s := f.keeper.State()
	shown := site.Catalogue{Packages: s.Packages, Commit: s.Commit[:min(len(s.Commit), 12)], Checked: s.Checked, Failing: s.Since}
	for _, refused := range s.Refused {
		first, _, _ := strings.Cut(refused.Reason, "\n")
		shown.Refused = append(shown.Refused, first)
	}
	return shown
}

// Child reports whether these are the arguments of a process that a bot has started, for heavy work on strangers' bytes,
// after it has done that work. A program with a bot calls it first.
func Child(args []string) bool {
	if len(args) < 2 || args[1] != worker.Argument {
		return false
	}
	worker.Main()
	return true
}
