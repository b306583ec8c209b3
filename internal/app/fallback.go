package app

import (
	"context"
	"path/filepath"

	"github.com/larder-cdn/larder/bot/fallback"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/verify"
)

// checkFallback finds mistakes in the settings of other origins, which only a process asks that serves and has a bot.
func checkFallback(s *settings.Settings) error {
	for _, origin := range s.Fallback {
		if err := fallback.Check(origin); err != nil {
			return settings.Mistakef("%s: %q %w", s.Origin("fallback"), origin, err)
		}
	}
	if s.FallbackKey != "" {
		if err := verify.CheckKey(s.FallbackKey); err != nil {
			return settings.Mistakef("%s: %w", s.Origin("fallback-key"), err)
		}
	}
	return nil
}

// fallback looks for releases elsewhere that are not here.
func (f *filling) fallback() part {
	var asking *fallback.Fallback
	return part{
		name: "fallback",
		start: func(context.Context) error {
			keys, err := f.settings.KeyFolder()
			if err != nil {
				return err
			}
			asking, err = fallback.New(fallback.Options{
				Bot: f.Bot, Store: f.folder.store, Origins: f.settings.Fallback, Key: f.settings.FallbackKey,
				Known: filepath.Join(keys, "fallback-known-logs"), Quota: f.settings.FallbackQuota,
				Allow: f.settings.AllowHosts, UserAgent: agent(), Logger: f.logger.With("part", "fallback"),
			})
			if err == nil {
				f.serving.elsewhere = asking.Answer
			}
			return err
		},
		run: func(ctx context.Context) error { return until(asking.Run)(ctx) },
		stop: func() error {
			asking.Close()
			return nil
		},
	}
}
