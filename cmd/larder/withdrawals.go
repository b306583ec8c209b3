package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot/withdrawal"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/server/cachetag"
	"github.com/larder-cdn/larder/server/purge"
)

// What `larder withdraw` and `larder restore` ask.
type (
	withdrawRequest struct {
		Package string `json:"package"`
		Version string `json:"version"`
		Reason  string `json:"reason"`
		Erase   bool   `json:"erase,omitempty"`
	}
	restoreRequest struct {
		Package string `json:"package"`
		Version string `json:"version"`
		Reason  string `json:"reason"`
	}
)

// withdrawn is what they tell, and its JSON form.
type withdrawn struct {
	// Release is what was withdrawn or restored; nil where only files were erased, because the release was withdrawn
	// before.
	Release *withdrawal.Outcome `json:"release,omitempty"`
	Erasure *withdrawal.Erasure `json:"erasure,omitempty"`
	// Prefix is what the addresses of the release's files begin with, a path where the host is not known.
	Prefix string `json:"prefix"`
	Tag    string `json:"tag"` // of the answers with its files, where --cache-tags is not none
	Hook   string `json:"hook,omitempty"`
}

// What the purge hook does about a withdrawal.
const (
	hookCalled = "called" // by this process
	hookLater  = "later"  // by the next process that serves
)

// withdraw has a release not be served any longer. When it returns, that is so everywhere.
func (f *folder) withdraw(ctx context.Context, r withdrawRequest, assetBase string) (*withdrawn, error) {
	desk := withdrawal.New(f.store, f.log, time.Now)
	answer, err := f.aboutWithdrawal(r.Package, r.Version, assetBase)
	if err != nil {
		return nil, err
	}
	switch out, err := desk.Withdraw(ctx, r.Package, r.Version, r.Reason); {
	case err == nil:
		answer.Release = &out
	case !errors.Is(err, withdrawal.ErrAlready) || !r.Erase:
		return nil, err
	}
	if err := f.inForce(ctx); err != nil {
		return nil, err
	}
	if r.Erase {
		erasure, err := desk.Erase(ctx, r.Package, r.Version, r.Reason)
		if err != nil && answer.Release != nil {
			err = fmt.Errorf("%s %s is withdrawn (log entry %d), but its files could not be erased: %w", r.Package, r.Version, answer.Release.Entry, err)
		}
		if err != nil {
			return nil, err
		}
		answer.Erasure = &erasure
	}
	return answer, nil
}

// restore has a withdrawn release be served again.
func (f *folder) restore(ctx context.Context, r restoreRequest, assetBase string) (*withdrawn, error) {
	answer, err := f.aboutWithdrawal(r.Package, r.Version, assetBase)
	if err != nil {
		return nil, err
	}
	out, err := withdrawal.New(f.store, f.log, time.Now).Restore(ctx, r.Package, r.Version, r.Reason)
	if err != nil {
		return nil, err
	}
	answer.Release = &out
	return answer, f.inForce(ctx)
}

func (f *folder) aboutWithdrawal(name, version, assetBase string) (*withdrawn, error) {
	a := &withdrawn{Prefix: assetBase + library.AssetPath(name, version, ""), Tag: cachetag.Version(name, version)}
	known, err := purge.Known(f.store)
	switch {
	case f.purging:
		a.Hook = hookCalled
	case known:
		a.Hook = hookLater
	}
	return a, err
}

// inForce returns when whoever serves from this folder goes by all that is in the log.
func (f *folder) inForce(ctx context.Context) error {
	if f.follower == nil {
		return nil
	}
	return f.follower.wait(ctx, f.log.Checkpoint().Size)
}

// A follower has those who keep something of releases in memory forget it when a release is withdrawn or restored.
type follower struct {
	store     *kvstore.Store
	log       *logs.Log
	forget    func(name, version string)
	libraries *library.Index
	logger    *slog.Logger

	mu      sync.Mutex
	seen    int64         // entries of the log that were heard of
	changed chan struct{} // closed when there are more
}

// newFollower returns a follower of what comes from now on. Whoever forgets must not have begun to remember.
func newFollower(f *folder, forget func(name, version string), libraries *library.Index, logger *slog.Logger) *follower {
	return &follower{
		store: f.store, log: f.log, forget: forget, libraries: libraries, logger: logger,
		seen: f.log.Checkpoint().Size, changed: make(chan struct{}),
	}
}

// run follows the log until ctx ends.
func (f *follower) run(ctx context.Context) {
	for seen := f.seen; ; {
		checkpoint, err := f.log.Wait(ctx, seen)
		if err != nil {
			return
		}
		for e, err := range logs.Entries(f.store, seen) {
			if err != nil {
				// It may be a withdrawal, so all is forgotten, of whichever release.
				f.logger.Error("an entry of the log cannot be read; `larder fsck` tells more", "err", err)
				f.forget("", "")
				break
			}
			switch e.Kind {
			case logs.Withdrawn, logs.Restored, logs.Erased:
				f.forget(e.Package, e.Version)
			}
			seen = e.Index + 1
		}
		seen = max(seen, checkpoint.Size)
		f.mu.Lock()
		f.seen = seen
		close(f.changed)
		f.changed = make(chan struct{})
		f.mu.Unlock()
	}
}

// indexPatience is how long a command waits for search and pages, which may still be reading all libraries. Nothing
// that is withdrawn is told by them as if it were not: releases are looked up.
const indexPatience = 10 * time.Second

// wait returns when so many entries have been heard of.
func (f *follower) wait(ctx context.Context, entries int64) error {
	for {
		f.mu.Lock()
		seen, changed := f.seen, f.changed
		f.mu.Unlock()
		if seen >= entries {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	patient, cancel := context.WithTimeout(ctx, indexPatience)
	defer cancel()
	if err := f.libraries.Wait(patient, entries); err != nil && ctx.Err() == nil {
		f.logger.Warn("search and lists may show for a while what was withdrawn", "err", err)
	}
	return ctx.Err()
}

// checkPurging returns an error where the purge hook wants to know what nobody has said.
func (s *settings) checkPurging() error {
	if s.purgeHook != "" && s.hook.NeedsHost() && s.assetBase == "" {
		return usageError{fmt.Errorf("%s needs --asset-base too: under which address the cache in front has the files", s.origin("purge-hook"))}
	}
	return nil
}

// purge has the cache in front told of withdrawals, where there is a hook.
func (p *daemon) purge(ctx context.Context, group *errgroup.Group) error {
	if p.settings.purgeHook == "" {
		return nil
	}
	purger, err := purge.New(purge.Options{
		Store: p.folder.store, Log: p.folder.log, Hook: p.settings.hook, UserAgent: "larder/" + version(),
		URLs: p.settings.servedURLs, Logger: p.logger.With("part", "purge"),
	})
	if err != nil {
		return err
	}
	p.folder.purging = true
	p.metrics.purges(p.folder.store)
	group.Go(func() error {
		purger.Run(ctx)
		return nil
	})
	return nil
}

// servedURLs returns where a release's files, its archives and what the API says of it are found, as far as caches keep
// them: under the asset base, and under the other addresses of this service. Where no address is known, the host is
// made up.
func (s *settings) servedURLs(name, version string, files []string) []string {
	release := []string{
		"/download/" + url.PathEscape(name) + "/" + url.PathEscape(version) + ".tar.gz",
		"/download/" + url.PathEscape(name) + "/" + url.PathEscape(version) + ".zip",
		"/libraries/" + url.PathEscape(name) + "/" + url.PathEscape(version),
		"/libraries/" + url.PathEscape(name),
	}
	bases := []string{s.assetBase}
	switch {
	case !s.hook.NeedsHost() || s.assetBase == "":
		bases = []string{"http://larder.invalid"}
	case s.siteBase != "" && s.siteBase != s.assetBase:
		bases = append(bases, s.siteBase)
	}
	var urls []string
	for _, file := range files {
		urls = append(urls, bases[0]+library.AssetPath(name, version, file))
	}
	for _, base := range bases {
		for _, path := range release {
			urls = append(urls, base+path)
		}
	}
	if s.apiHost != "" && s.hook.NeedsHost() {
		scheme, _, _ := strings.Cut(bases[0], "://")
		for _, path := range release[2:] {
			urls = append(urls, scheme+"://"+s.apiHost+path)
		}
	}
	return urls
}
