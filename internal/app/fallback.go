package app

import (
	"path/filepath"

	"github.com/larder-cdn/larder/bot/fallback"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/verify"
)

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

// addFallback has the site request missing releases from the fallback origins in the settings, if there are any. It adds a part
// to the run that has the bot of f fetch these releases into the store, and its status, readiness notes and metrics.
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
