package bot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
)

// A Regenerator makes the files of releases again from their upstream, as a bot made them, for a
// repair of a store that has lost them. It publishes nothing. It puts what it makes into a store of
// its own, and returns contents only by the hash that the repair wants.
type Regenerator struct {
	bot    *Bot
	store  *kvstore.Store
	source *replication.Store
	dir    string

	mu       sync.Mutex
	releases map[[2]string]func() error // each makes a release once, and returns the result
	fetched  atomic.Int64               // releases
	received atomic.Int64               // bytes of their archives
}

// NewRegenerator returns a Regenerator, which downloads releases from upstream again to make their lost files. It opens a
// temporary store and log in a new folder in o.TempDir, which must be set; Close removes that folder. It ignores Store, Log,
// Catalogue and Runtime in the options.
func NewRegenerator(o Options) (_ *Regenerator, err error) {
	if err := os.MkdirAll(o.TempDir, 0o700); err != nil {
		return nil, fmt.Errorf("bot: %w", err)
	}
	r := &Regenerator{releases: make(map[[2]string]func() error)}
	if r.dir, err = os.MkdirTemp(o.TempDir, "regenerate-"); err != nil {
		return nil, fmt.Errorf("bot: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(r.dir))
		}
	}()
	if r.store, err = kvstore.Open(filepath.Join(r.dir, "store"), kvstore.Options{CacheBytes: 8 << 20, Logger: o.Logger}); err != nil {
		return nil, err
	}
	o.Store, o.Catalogue, o.Runtime, o.TempDir = r.store, nil, nil, filepath.Join(r.dir, "downloads")
	if o.Log, err = logs.Open(r.store); err == nil {
		r.bot, err = New(o)
	}
	if err != nil {
		return nil, errors.Join(err, r.store.Close())
	}
	r.source = replication.FromStore(r.store, r.Name())
	return r, nil
}

// Name implements [replication.Contents]. It returns "upstream", for messages.
func (r *Regenerator) Name() string { return "upstream" }

// Spent returns how many releases were downloaded from upstream until now, and how many bytes their archives have together.
func (r *Regenerator) Spent() (requests, bytes int64) { return r.fetched.Load(), r.received.Load() }

// Close ends the child processes, closes the temporary store, and removes its folder. No other method may be running or follow.
func (r *Regenerator) Close() error {
	r.bot.Close()
	return errors.Join(r.store.Close(), os.RemoveAll(r.dir))
}

// Content implements [replication.Contents]: it returns the wanted file or manifest from its release. The first call for a
// release makes the release again from upstream, in r's own store; later calls wait for that and use the result, also a failure,
// even if only the ctx of the first call ended. The error wraps [fs.ErrNotExist] if w is neither a file nor a manifest, if
// upstream lacks the version, or if the release that was made lacks the content.
func (r *Regenerator) Content(ctx context.Context, w replication.Wanted) (replication.Found, error) {
	e := w.Entry
	isManifest := w.File == nil && w.Hash == e.Manifest && (e.Kind == logs.Processed || e.Kind.Publishes())
	if w.File == nil && !isManifest {
		return replication.Found{}, fmt.Errorf("an upstream has no package JSON, no differences and no reasons: %w", fs.ErrNotExist)
	}
	id := [2]string{e.Package, e.Version}
	r.mu.Lock()
	if r.releases[id] == nil {
		r.releases[id] = sync.OnceValue(func() error { return r.regenerate(ctx, w) })
	}
	made := r.releases[id]
	r.mu.Unlock()
	if err := made(); err != nil {
		return replication.Found{}, fmt.Errorf("%s %s could not be made again: %w", e.Package, e.Version, err)
	}
	found, err := r.source.Content(ctx, w)
	if err != nil {
		return found, fmt.Errorf("%s %s was made again, and this did not come out the same: %w", e.Package, e.Version, err)
	}
	return found, nil
}

// regenerate makes the release of w again from upstream, stores its contents in r's own store, and counts the download for Spent.
func (r *Regenerator) regenerate(ctx context.Context, w replication.Wanted) error {
	size, err := r.bot.Publisher.Regenerate(ctx, w)
	if size > 0 {
		r.fetched.Add(1)
		r.received.Add(size)
	}
	return err
}
