package app

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/server"
)

// Requests of `larder withdraw` and `larder withdraw --undo`.
type (
	// WithdrawRequest names a release to withdraw. The log publishes the reason.
	WithdrawRequest struct {
		Package string `json:"package"`
		Version string `json:"version"`
		Reason  string `json:"reason"`
		Erase   bool   `json:"erase,omitempty"` // contents of the release that nothing else needs are removed from the store, too
	}
	// RestoreRequest names a withdrawn release to restore.
	RestoreRequest struct {
		Package string `json:"package"`
		Version string `json:"version"`
		Reason  string `json:"reason"`
		// Override is why it is served although the policy of its package requires an attestation that it does not have; "" if it
		// needs one.
		Override string `json:"override,omitempty"`
	}
)

// Operations that withdraw and restore.
const (
	OpWithdraw Operation[WithdrawRequest, any, *Withdrawn] = "withdraw"
	OpRestore  Operation[RestoreRequest, any, *Withdrawn]  = "restore"
)

// Withdrawn is their response, and its JSON form.
type Withdrawn struct {
	// Release is what was withdrawn or restored; nil if only files were erased, because the release was withdrawn before.
	Release *bot.WithdrawalOutcome `json:"release,omitempty"`
	Erasure *bot.Erasure           `json:"erasure,omitempty"` // what was erased; nil if that was not requested
	// Prefix is the beginning of the URLs of the release's files, or of their paths if the host is not known.
	Prefix string `json:"prefix"`
	Tag    string `json:"tag"`            // cache tag of the responses with its files
	Hook   string `json:"hook,omitempty"` // HookCalled or HookLater; "" if the data folder has no purge hook
	Written
}

// When the purge hook is called after a withdrawal.
const (
	HookCalled = "called" // by this process
	HookLater  = "later"  // by the next process that serves
)

// withdrawals withdraws and restores releases.
type withdrawals struct {
	writer  *Writer
	inForce func(ctx context.Context) error // waits until the site serves the state of the last log entry
	purging bool                            // this process calls the purge hook
}

// addOperations adds to all the operations that withdraw and restore releases. They return when the site serves the change. If
// that wait fails, they return an error, although the release is withdrawn or restored.
func (w withdrawals) addOperations(all operations) {
	addRequest(all, OpWithdraw, func(ctx context.Context, q WithdrawRequest) (*Withdrawn, error) {
		done, err := w.newResponse(q.Package, q.Version)
		if err != nil {
			return nil, err
		}
		done.Release, done.Erasure, err = w.newService().WithdrawAndErase(ctx, q.Package, q.Version, q.Reason, q.Erase, w.inForce)
		done.Written = w.writer.newWritten()
		return done, err
	})
	addRequest(all, OpRestore, func(ctx context.Context, q RestoreRequest) (*Withdrawn, error) {
		done, err := w.newResponse(q.Package, q.Version)
		if err != nil {
			return nil, err
		}
		policy, err := ingest.CheckRestored(w.writer.folder.store, q.Package, q.Version, q.Override)
		if err != nil {
			return nil, err
		}
		out, err := w.newService().Restore(ctx, q.Package, q.Version, q.Reason, policy)
		if err != nil {
			return nil, err
		}
		done.Release, done.Written = &out, w.writer.newWritten()
		return done, w.inForce(ctx)
	})
}

// newService returns the service that withdraws and restores releases in the store and the log of the Writer.
func (w withdrawals) newService() *bot.WithdrawalService {
	return bot.NewWithdrawalService(w.writer.folder.store, w.writer.folder.log, time.Now)
}

// newResponse returns the part of the response to a withdrawal or restoration of a package's version that is known before it:
// the prefix of the release's URLs, its cache tag, and whether and when the purge hook is called. It does not check that the
// release exists; the error is that of reading the store.
func (w withdrawals) newResponse(name, version string) (*Withdrawn, error) {
	done := &Withdrawn{Prefix: w.writer.folder.assetBase + library.AssetPath(name, version, ""), Tag: server.VersionCacheTag(name, version)}
	known, err := notify.HasPurgeHook(w.writer.folder.store)
	switch {
	case w.purging:
		done.Hook = HookCalled
	case known:
		done.Hook = HookLater
	}
	return done, err
}

// checkPurgeHook returns a mistake if the purge hook, which purges withdrawn releases from caches, needs the setting --asset-base
// and that is not set; nil otherwise.
func checkPurgeHook(s *settings.Settings) error {
	if s.PurgeHook != "" && s.Hook.NeedsHost() && s.AssetBase == "" {
		return settings.Mistakef("%s needs --asset-base too: under which address the cache in front has the files", s.Origin("purge-hook"))
	}
	return nil
}

// addPurgeHook has the outbox send withdrawals from now on to the purge hook, if the settings name one, and registers its
// metrics. If it cannot be recorded from which log entry on, it logs that. The error is that of opening the outbox.
func (r *roleRun) addPurgeHook(ctx context.Context, folder *Reader) error {
	if r.settings.PurgeHook == "" {
		return nil
	}
	o, err := folder.outbox.get()
	if err != nil {
		return err
	}
	if err := o.Webhooks.AddPurgeHook(ctx); err != nil { // such as a full disk, with which nothing can be withdrawn either
		r.logger.Warn("couldn't record from which log entry on the purge hook receives withdrawals; restart when the cause is repaired", "err", err)
	}
	r.metrics.MustRegister(notify.PurgesCollector(folder.store))
	return nil
}

// purgeOptions returns the options of the outbox for the purge hook of the settings: the hook, and the URLs and the cache tag of
// a release.
func purgeOptions(s *settings.Settings) notify.PurgeOptions {
	return notify.PurgeOptions{Hook: s.Hook, URLs: func(name, version string, files []string) ([]string, string) {
		return servedURLs(s, name, version, files), server.VersionCacheTag(name, version)
	}}
}

// servedURLs returns the URLs of the release version of the package name that caches may have, in this order: its files, by
// their paths in files, under the asset base; then its archives and the API's responses about it under the asset base and the
// site base; then these responses under the API host. If the purge hook needs no host, all are at the host larder.invalid
// instead; if it needs one, the caller has checked that the asset base is set.
func servedURLs(c *settings.Settings, name, version string, files []string) []string {
	release := []string{
		"/download/" + url.PathEscape(name) + "/" + url.PathEscape(version) + ".tar.gz",
		"/download/" + url.PathEscape(name) + "/" + url.PathEscape(version) + ".zip",
		"/libraries/" + url.PathEscape(name) + "/" + url.PathEscape(version),
		"/libraries/" + url.PathEscape(name),
	}
	bases := []string{c.AssetBase}
	switch {
	case !c.Hook.NeedsHost() || c.AssetBase == "":
		bases = []string{"http://larder.invalid"}
	case c.SiteBase != "" && c.SiteBase != c.AssetBase:
		bases = append(bases, c.SiteBase)
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
	if c.APIHost != "" && c.Hook.NeedsHost() {
		scheme, _, _ := strings.Cut(bases[0], "://")
		for _, path := range release[2:] {
			urls = append(urls, scheme+"://"+c.APIHost+path)
		}
	}
	return urls
}
