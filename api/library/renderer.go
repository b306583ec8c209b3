package library

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
)

// RendererOptions configures a Renderer. Store and Render are required.
type RendererOptions struct {
	// Store has the cache. If it is read-only, results are read from it, and new ones are cached in memory only.
	Store *kvstore.Store
	// Render renders one document of the release owner (NAME@VERSION) in a worker process that works for no other owner. The
	// renderer caches a *document.RefusedError, after which the document is not rendered again. After another error a later
	// request renders it; [Renderer.Get] does not queue it within [retryAfter].
	Render func(ctx context.Context, owner string, r document.Request) (document.Result, error)
	// MaxBytes bounds the cache, in bytes; default 256 MiB.
	MaxBytes int64
	// Logger logs failures. Default: nothing is logged.
	Logger *slog.Logger
}

// A Renderer renders documents that strangers wrote for pages, in worker processes, and caches the results. The serving process
// parses no such document. A document that is not cached is queued, and its page shows plain text until a worker has rendered
// it. Queue and cache are bounded, and clients share the queue. A result is cached under its inputs and the renderer's version,
// in this store only: it is part of no manifest, log or content, and is copied from no other Larder. It is checked when it is
// made and when it is read. A Renderer is safe for concurrent use.
type Renderer struct {
	render func(ctx context.Context, owner string, r document.Request) (document.Result, error)
	logger *slog.Logger
	cache  renderCache
	recent answers.Cache[string, *entry]    // by key
	failed answers.Cache[string, time.Time] // by key: when rendering failed with an error that is not cached
	now    func() time.Time
	wake   chan struct{} // holds a value when a document was queued

	mu    sync.Mutex
	queue renderQueue
}

// A RenderRequest is a request to render a document.
type RenderRequest struct {
	Key document.Key
	// Owner names the release that has the document: NAME@VERSION.
	Owner string
	// Request reads the document. The renderer calls it right before rendering, so that a queued document takes little
	// memory.
	Request func(ctx context.Context) (document.Request, error)
	Kind    document.Kind
}

// An entry is a cached result, or the reason why a document was refused.
type entry struct {
	result  document.Result
	refused string
}

// resultOrRefusal returns the result of the entry, or if the document was refused, a *document.RefusedError with the reason.
func (e entry) resultOrRefusal() (document.Result, error) {
	if e.refused != "" {
		return document.Result{}, &document.RefusedError{Reason: e.refused}
	}
	return e.result, nil
}

// A PendingError is the error of [Renderer.Get] for a document that is not rendered yet.
type PendingError struct {
	// Done is closed when the document has been rendered, rendering it has failed, or no client waits for it any more. It is
	// nil if the document was not queued, because the queue or the client's line is full, or rendering failed within
	// [retryAfter].
	Done <-chan struct{}

	leave func()
}

// Leave removes the client for which Get returned the error from those that wait for the document, because the client has
// disconnected. A document that no client waits for leaves the queue; one that is being rendered does not. Further calls do
// nothing.
func (e *PendingError) Leave() {
	if e.leave != nil {
		e.leave()
	}
}

// Error says that the document is not rendered yet.
func (*PendingError) Error() string { return "the document is not rendered yet" }

const (
	maxRecent     = 500
	maxRecentSize = 16 << 20
	maxFailed     = 1000
	// retryAfter is how long a document is not queued again after rendering failed, so that one that always crashes its worker
	// does not occupy it.
	retryAfter = time.Minute
)

// NewRenderer returns a renderer. Documents that Get has queued are rendered only while its Run, or its Part, runs; Render needs
// neither.
func NewRenderer(o RendererOptions) *Renderer {
	x := &Renderer{
		render: o.Render, logger: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), wake: make(chan struct{}, 1),
		queue: renderQueue{jobs: map[document.Key]*job{}, lines: map[netip.Prefix][]*job{}}, now: time.Now,
		cache: renderCache{kv: o.Store, most: cmp.Or(o.MaxBytes, 256<<20)},
	}
	x.recent.Most, x.recent.MostBytes = maxRecent, maxRecentSize
	x.failed.Most, x.failed.MostBytes = maxFailed, maxFailed
	return x
}

// Part returns a [parts.Part] that renders queued documents until its context ends.
func (x *Renderer) Part() parts.Part {
	return parts.Part{Name: "renderer", Run: parts.RunUntilDone(x.Run)}
}

// Run renders queued documents, one after the other, until ctx ends, and caches the results. It logs a failure, after which
// Get does not queue the document within retryAfter.
func (x *Renderer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		x.mu.Lock()
		j := x.queue.takeNext()
		x.mu.Unlock()
		if j != nil {
			if _, err := x.renderNow(ctx, j.RenderRequest); err != nil && !errors.As(err, new(*document.RefusedError)) && ctx.Err() == nil {
				x.postpone(j.Key)
				x.logger.Warn("couldn't render a document; it is tried again when its page is requested", "of", j.Owner, "kind", j.Kind, "after", retryAfter, "err", err)
			}
			x.mu.Lock()
			x.queue.endJob(j)
			x.mu.Unlock()
			continue
		}
		select {
		case <-x.wake:
		case <-ctx.Done():
		}
	}
}

// Get returns the cached result of a document, or a *document.RefusedError if it was refused. If neither is cached, it
// queues the document for the client, so that Run renders it, and returns a *PendingError without waiting. It does not queue
// it if the queue or the client's line is full or rendering it failed within retryAfter.
func (x *Renderer) Get(client netip.Prefix, d RenderRequest) (document.Result, error) {
	if e, ok := x.lookUp(d); ok {
		return e.resultOrRefusal()
	}
	if at, ok := x.failed.Cached(string(d.Key[:])); ok && x.now().Sub(at) < retryAfter {
		return document.Result{}, &PendingError{}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	j := x.queue.add(client, d)
	if j == nil {
		return document.Result{}, &PendingError{}
	}
	retry.Wake(x.wake)
	return document.Result{}, &PendingError{Done: j.done, leave: func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.queue.leave(client, j)
	}}
}

// Render returns the result of a document, or a *document.RefusedError if it was refused. If neither is cached, it renders
// the document now, beside the queue, waits for that, and caches the result. Other errors are returned and not cached.
func (x *Renderer) Render(ctx context.Context, d RenderRequest) (document.Result, error) {
	if e, ok := x.lookUp(d); ok {
		return e.resultOrRefusal()
	}
	return x.renderNow(ctx, d)
}

// lookUp returns the cached result or refusal of a document, from memory or else from the store, from which it is cached in
// memory; false if none is cached.
func (x *Renderer) lookUp(d RenderRequest) (entry, bool) {
	if e, ok := x.recent.Cached(string(d.Key[:])); ok {
		return *e, true
	}
	e, ok := x.cache.load(d.Kind, d.Key)
	if ok {
		x.remember(d.Key, e)
	}
	return e, ok
}

// postpone records that rendering a document has failed just now, so that Get does not queue it within retryAfter.
func (x *Renderer) postpone(key document.Key) {
	x.failed.Remove(func(k string) bool { return k == string(key[:]) })
	_, _ = x.failed.Get(string(key[:]), func() (time.Time, int, error) { return x.now(), 1, nil })
}

// remember caches the result or refusal of a document in memory, unless it has one already.
func (x *Renderer) remember(key document.Key, e entry) {
	_, _ = x.recent.Get(string(key[:]), func() (*entry, int, error) { return &e, len(e.result.Markup) + len(e.refused) + 200, nil })
}

// renderNow renders a document, unless its result has been cached meanwhile, and returns the result. It caches that, or the
// reason why the document was refused, in memory and in the store, and logs a refusal. If the store takes nothing, it logs
// that and continues. Other errors are returned and not cached.
func (x *Renderer) renderNow(ctx context.Context, d RenderRequest) (document.Result, error) {
	if e, ok := x.lookUp(d); ok { // rendered while it waited
		return e.resultOrRefusal()
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
	if err := x.cache.store(d.Key, e); err != nil {
		x.logger.Debug("a rendered document is cached in memory only", "err", err)
	}
	x.remember(d.Key, e)
	return e.resultOrRefusal()
}
