// Package rendering has documents that strangers wrote turned into what pages show, in worker processes, and caches that.
//
// It guarantees that the serving process parses no such document: what is not cached is queued, and its page shows plain text until a worker
// has rendered it. Queue and cache are bounded; clients share the queue. What comes of a document is cached under its inputs and the renderer's version, in this store
// only: it is part of no manifest, log or content, and comes from no other Larder. It is checked when it is made and when it is read.
//
// The package must not know what pages look like, or how worker processes are run.
package rendering

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/prepared"
	"github.com/larder-cdn/larder/kvstore"
)

// Options configures a Renderer. Store and Render are required.
type Options struct {
	// Store has the cache. Where nothing can be written to it, the cache is in memory only.
	Store *kvstore.Store
	// Render renders one document in a worker process that works for no other owner. A *document.RefusedError says that it cannot
	// be rendered later either, and is cached. After another error the document is rendered again when it is requested, but not within
	// [retryAfter].
	Render func(ctx context.Context, owner string, r document.Request) (document.Result, error)
	// MaxBytes bounds the cache, in bytes; default 256 MiB.
	MaxBytes int64
	// Logger gets what goes wrong. Default: nothing is logged.
	Logger *slog.Logger
}

// A Renderer has documents rendered. It is safe for concurrent use.
type Renderer struct {
	render func(ctx context.Context, owner string, r document.Request) (document.Result, error)
	logger *slog.Logger
	cache  cache
	recent prepared.Cache[string, *entry]    // by key
	failed prepared.Cache[string, time.Time] // by key: when rendering failed for a reason that may pass
	now    func() time.Time
	wake   chan struct{} // holds a value when a document was queued

	mu    sync.Mutex
	queue queue
}

// A Document is one that may have to be rendered.
type Document struct {
	Key document.Key
	// Owner is the release that it is of.
	Owner string
	// Request reads it. It is called by the worker's turn if the result is not cached, so that a document that waits takes no memory.
	Request func(ctx context.Context) (document.Request, error)
	Kind    document.Kind
}

// An entry is what is cached of a document: a result, or why rendering failed.
type entry struct {
	result  document.Result
	refused string
}

func (e entry) value() (document.Result, error) {
	if e.refused != "" {
		return document.Result{}, &document.RefusedError{Reason: e.refused}
	}
	return e.result, nil
}

// A PendingError says that a document waits to be rendered.
type PendingError struct {
	// Done is closed when it has been rendered or given up; nil where the queue is full, or rendering it failed a moment ago.
	Done <-chan struct{}

	leave func()
}

// Leave says that the client has gone. A document that no other client waits for is removed from the queue.
func (e *PendingError) Leave() {
	if e.leave != nil {
		e.leave()
	}
}

func (*PendingError) Error() string { return "it is not rendered yet" }

const (
	maxRecent     = 500
	maxRecentSize = 16 << 20
	maxFailed     = 1000
	// retryAfter is how long a document whose rendering failed is not queued again, so that one that always ends its worker does not
	// occupy it.
	retryAfter = time.Minute
)

// New returns a renderer. What is queued is rendered while its part runs.
func New(o Options) *Renderer {
	x := &Renderer{
		render: o.Render, logger: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), wake: make(chan struct{}, 1),
		queue: queue{jobs: map[document.Key]*job{}, lines: map[netip.Prefix][]*job{}}, now: time.Now,
		cache: cache{store: o.Store, most: cmp.Or(o.MaxBytes, 256<<20)},
	}
	x.recent.Most, x.recent.MostBytes = maxRecent, maxRecentSize
	x.failed.Most, x.failed.MostBytes = maxFailed, maxFailed
	return x
}

// Part renders what is queued, until the role ends.
func (x *Renderer) Part() parts.Part {
	return parts.Part{Name: "renderer", Run: parts.RunUntilDone(x.Run)}
}

// Run renders what is queued, until ctx ends.
func (x *Renderer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		x.mu.Lock()
		j := x.queue.next()
		x.mu.Unlock()
		if j != nil {
			if _, err := x.renderNow(ctx, j.Document); err != nil && !errors.As(err, new(*document.RefusedError)) && ctx.Err() == nil {
				x.postpone(j.Key)
				x.logger.Warn("couldn't render a document; it is tried again when its page is requested", "of", j.Owner, "kind", j.Kind, "after", retryAfter, "err", err)
			}
			x.mu.Lock()
			x.queue.end(j)
			x.mu.Unlock()
			continue
		}
		select {
		case <-x.wake:
		case <-ctx.Done():
		}
	}
}

// Get returns what comes of a document, or a *document.RefusedError. What is not cached is queued for the client, with a *PendingError.
func (x *Renderer) Get(client netip.Prefix, d Document) (document.Result, error) {
	if e, ok := x.lookup(d); ok {
		return e.value()
	}
	if at, ok := x.failed.Kept(string(d.Key[:])); ok && x.now().Sub(at) < retryAfter {
		return document.Result{}, &PendingError{}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	j := x.queue.add(client, d)
	if j == nil {
		return document.Result{}, &PendingError{}
	}
	select {
	case x.wake <- struct{}{}:
	default:
	}
	return document.Result{}, &PendingError{Done: j.done, leave: func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.queue.leave(client, j)
	}}
}

// Render is Get for a caller who waits until the document is rendered.
func (x *Renderer) Render(ctx context.Context, d Document) (document.Result, error) {
	if e, ok := x.lookup(d); ok {
		return e.value()
	}
	return x.renderNow(ctx, d)
}

func (x *Renderer) lookup(d Document) (entry, bool) {
	if e, ok := x.recent.Kept(string(d.Key[:])); ok {
		return *e, true
	}
	e, ok := x.cache.get(d.Kind, d.Key)
	if ok {
		x.remember(d.Key, e)
	}
	return e, ok
}

// postpone has a document not be queued for retryAfter.
func (x *Renderer) postpone(key document.Key) {
	x.failed.Forget(func(k string) bool { return k == string(key[:]) })
	_, _ = x.failed.Get(string(key[:]), func() (time.Time, int, error) { return x.now(), 1, nil })
}

func (x *Renderer) remember(key document.Key, e entry) {
	_, _ = x.recent.Get(string(key[:]), func() (*entry, int, error) { return &e, len(e.result.Markup) + len(e.refused) + 200, nil })
}

// renderNow renders a document and caches what comes of it.
func (x *Renderer) renderNow(ctx context.Context, d Document) (document.Result, error) {
	if e, ok := x.lookup(d); ok { // rendered while it waited
		return e.value()
	}
	request, err := d.Request(ctx)
	if err != nil {
		return document.Result{}, err
	}
	start := time.Now()
	result, err := x.render(ctx, d.Owner, request)
	var refused *document.RefusedError
	e := entry{result: result}
	switch {
	case errors.As(err, &refused):
		e.refused = refused.Reason
		x.logger.Info("a document cannot be rendered; its page shows plain text", "of", d.Owner, "kind", d.Kind, "file", request.Name, "why", refused.Reason, "took", time.Since(start).Round(time.Millisecond))
	case err != nil:
		return document.Result{}, err
	}
	if err := x.cache.put(d.Key, e); err != nil {
		x.logger.Debug("a rendered document is cached in memory only", "err", err)
	}
	x.remember(d.Key, e)
	return e.value()
}
