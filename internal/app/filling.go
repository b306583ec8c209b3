package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/larder-cdn/larder/api/site"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/discovery"
	"github.com/larder-cdn/larder/bot/fallback"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/verify"
)

// openFiller opens the bot and the watcher of its catalogue, which it does not run, and adds their metrics, status and
// examinations to the run. After a reload of the configuration the catalogue is read again. The bot is closed with w.
func (r *roleRun) openFiller(w *Writer) (*filler, error) {
	f, err := w.filler.get()
	if err != nil {
		return nil, err
	}
	r.subscribe(func(context.Context, *settings.Settings) error {
		f.watcher.Refresh()
		return nil
	})
	r.metrics.MustRegister(f.bot.Collector(), f.bot.UpstreamCollector())
	r.console.addExamination(func(ctx context.Context, e *examination) {
		if status, err := w.folder.readStatus(""); err == nil {
			e.examineUpstreams(ctx, w.folder, status)
		}
	})
	f.watcher.Register(r.metrics)
	unprotected := worker.Unprotected()
	for _, lack := range unprotected {
		r.logger.Warn("this system restricts the child processes that read files from upstream less than others do", "lacks", lack)
	}
	r.console.addStatus(func(s *Status) {
		state := f.watcher.State()
		s.Catalogue, s.Unprotected = &state, unprotected
		if feed, ok := f.bot.Feed(); ok {
			s.Feed = &feed
		}
	})
	return f, nil
}

// addToSite adds to the options of a site what the bot has for visitors: the catalogue, drafts of package JSONs and releases
// from fallback origins. It adds incoming webhooks, which secret authenticates, unless secret is "". The catalogue and its
// webhook are left out if the catalogue can never change. The site notifies the bot of files in demand.
func (f *filler) addToSite(r *roleRun, folder *Reader, site *siteOptions, secret string) (err error) {
	site.hot = f.bot.Prioritize
	logger := r.logger.With("part", "hook")
	if secret != "" {
		site.hooks[discovery.ReleaseHookPath] = f.bot.ReleaseHook(secret, logger)
	}
	if !f.watcher.Static() {
		site.pages.Catalogue = f.describeCatalogue
		if secret != "" {
			site.hooks[bot.CatalogueHookPath] = f.watcher.Hook(secret, logger)
		}
	}
	site.pages.Draft, err = newDraftWriter(r.settings, r.logger.With("part", "site"))
	if err != nil {
		return err
	}
	return r.addFallback(f, folder, site)
}

// runOnce has the bot read the catalogue and make a single pass, and calls filled with the summary of the pass, also after an
// error of it. If that succeeded, the bot compares published releases with their upstreams as far as that is due. In any case
// runOnce then calls beforeEnd, unless ctx has ended. A failed release is an error. It never returns nil: after a pass without
// failures it returns [parts.ErrDone], which ends the role. If the catalogue cannot be read and the bot has no
// last valid one, it returns that error at once.
func (f *filler) runOnce(ctx context.Context, filled func(sources.Summary), beforeEnd func(context.Context) error) error {
	// The error was logged, unless it repeats; the last valid catalogue, if any, stays in use.
	if err := f.watcher.Poll(ctx, f.bot.SetCatalogue); err != nil && f.watcher.State().Changed.IsZero() {
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
	fillBackoff     = time.Minute
	diskFullBackoff = 20 * time.Second
)

// runBot runs the bot until ctx ends. If the bot fails because the disk is full, or if serve says that the process also serves,
// it logs the error and starts the bot again after a backoff. It returns other errors of the bot, and nil if the bot ended
// without one.
func (f *filler) runBot(ctx context.Context, serve bool, logger *slog.Logger) error {
	for {
		err := f.bot.Run(ctx)
		full := errors.Is(err, kvstore.ErrDiskFull)
		if err == nil || ctx.Err() != nil || !serve && !full {
			return err
		}
		backoff := fillBackoff
		if full {
			backoff = diskFullBackoff
		}
		logger.Error("the bot stopped; it starts again", "err", err, "after", backoff)
		if retry.Sleep(ctx, backoff) != nil {
			return nil
		}
	}
}

// newCatalogueWatcher returns the watcher of the catalogue that the settings name, with the git client of c. It sends the token
// of the settings to GitHub only. dir is the folder for a copy of the last valid catalogue of a remote source. An error names
// the setting.
func newCatalogueWatcher(s *settings.Settings, dir string, c *bot.Clients, logger *slog.Logger) (*bot.CatalogueWatcher, error) {
	watcher, err := bot.NewCatalogueWatcher(bot.CatalogueOptions{
		Source: s.Catalogue, Dir: dir, Git: c.Git, Interval: min(s.Interval, 5*time.Minute), Logger: logger,
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
	return watcher, nil
}

// describeCatalogue returns what the site displays of the catalogue: the number of packages, the first 12 characters of the
// commit, when the last poll succeeded, since when polls fail, and the first line of why each file is refused, but not its source.
func (f *filler) describeCatalogue() site.Catalogue {
	s := f.watcher.State()
	shown := site.Catalogue{Packages: s.Packages, Commit: s.Commit[:min(len(s.Commit), 12)], Checked: s.Checked, Failing: s.Since}
	for _, refused := range s.Refused {
		first, _, _ := strings.Cut(refused.Reason, "\n")
		shown.Refused = append(shown.Refused, first)
	}
	return shown
}

// RunIfWorker runs the worker of a bot if args, those of this process, are those with which a bot starts one: it runs the jobs
// from standard input, ends the process, and never returns. Otherwise it returns false. A program with a bot calls it before
// anything else.
func RunIfWorker(args []string) bool {
	if len(args) < 2 || args[1] != worker.Argument {
		return false
	}
	worker.RunChild()
	return true
}

// checkFallback returns a mistake in the settings of fallback origins, from which missing releases are fetched; nil for none.
// Only a process that serves and has a bot uses these settings.
func checkFallback(s *settings.Settings) error {
	if err := fallback.CheckOrigins(s.Fallback); err != nil {
		return settings.Mistakef("%s: %w", s.Origin("fallback"), err)
	}
	for name, key := range map[string]string{"fallback-key": s.FallbackKey, "fallback-root": s.FallbackRoot} {
		if key == "" {
			continue
		}
		if err := verify.CheckKey(key); err != nil {
			return settings.Mistakef("%s: %w", s.Origin(name), err)
		}
	}
	if s.FallbackKey != "" && s.FallbackRoot != "" {
		return settings.Mistakef("%s counts in place of %s: give one of the two", s.Origin("fallback-root"), s.Origin("fallback-key"))
	}
	return nil
}

// addFallback has the site request missing releases from the fallback origins in the settings. It adds the part that has the
// bot of f fetch these releases into the store, and its status, readiness notes and metrics. It does nothing if the settings
// name no origin.
func (r *roleRun) addFallback(f *filler, folder *Reader, site *siteOptions) error {
	c := r.settings
	if len(c.Fallback) == 0 {
		return nil
	}
	asking, err := fallback.New(fallback.Options{
		Bot: f.bot, Store: folder.store, Origins: c.Fallback, Key: c.FallbackKey, Root: c.FallbackRoot,
		Known: filepath.Join(c.KeyFolder(), "fallback-known-logs"), Quota: c.FallbackQuota,
		Allow: c.AllowHosts, UserAgent: UserAgent(), Logger: r.logger.With("part", "fallback"),
	})
	if err != nil {
		return err
	}
	site.elsewhere = asking.Answer
	r.console.addStatus(func(s *Status) {
		state := asking.State()
		s.Fallback = &state
	})
	r.supervisor.readiness.addCheck(func(report *readinessReport) {
		for _, o := range asking.State().Origins {
			if o.Stale != "" {
				report.addNote("withdrawals of " + o.Origin + " may be missing here: " + o.Stale)
			}
		}
	})
	if err := r.metrics.Register(asking.Collector()); err != nil {
		return err
	}
	r.parts.Add(asking.Part())
	return nil
}
