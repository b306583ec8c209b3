package download

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server/cachetag"
	"github.com/larder-cdn/larder/server/clients"
	"github.com/larder-cdn/larder/server/negotiate"
)

// Options says what archives are made from and how many at a time. Only Store is
// required.
type Options struct {
	// Store has the releases.
	Store *kvstore.Store
	// AtOnce is how many archives are made at a time, half of them at most for one
	// client. Default 4. Each takes a
	// processor while its client is fast, and the memory of its largest content in
	// its stored form, with up to 32 MiB for decoding where that is Brotli only.
	AtOnce int
	// Wait is how long a request waits for its turn before it is answered with 503.
	// Default 1 s.
	Wait time.Duration
	// StallTimeout is how long a client may take for 64 KiB of an archive. Default
	// 30 s. It is then disconnected. Over HTTP/2 that is for all its streams
	// together. While AtOnce archives are being made, a client must also take 128
	// KiB a second on average, after StallTimeout.
	StallTimeout time.Duration
	// CacheTags are the fields that say what an answer is about, for a CDN to purge by.
	// Default: none.
	CacheTags cachetag.Headers
	// Logger gets failures of the store, once a second at most. Default: nothing is
	// logged.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: nobody does.
	Registerer prometheus.Registerer
}

func (o *Options) defaults() {
	o.AtOnce = cmp.Or(o.AtOnce, 4)
	o.Wait = cmp.Or(o.Wait, time.Second)
	o.StallTimeout = cmp.Or(o.StallTimeout, 30*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Handler serves whole releases. It is an http.Handler for every path that begins
// with [Prefix].
type Handler struct {
	store   *kvstore.Store
	wait    time.Duration
	stall   time.Duration
	slots   chan struct{}  // has one for each archive being made
	of      *clients.Bound // of them, for each client
	tags    cachetag.Headers
	metrics *metrics
	logger  *slog.Logger

	logged atomic.Int64 // when the last failure was, in nanoseconds
	held   atomic.Int64 // failures since then that were not logged
}

// New returns a handler for the releases in a store.
func New(o Options) (*Handler, error) {
	if o.Store == nil {
		return nil, errors.New("download: Options.Store is missing")
	}
	o.defaults()
	if o.AtOnce < 0 || o.Wait < 0 || o.StallTimeout < 0 {
		return nil, fmt.Errorf("download: AtOnce is %d, Wait %v and StallTimeout %v; none can be negative", o.AtOnce, o.Wait, o.StallTimeout)
	}
	h := &Handler{
		store: o.Store, wait: o.Wait, stall: o.StallTimeout, logger: o.Logger,
		slots: make(chan struct{}, o.AtOnce), of: clients.NewBound(max(1, o.AtOnce/2)), tags: o.CacheTags, metrics: newMetrics(),
	}
	if o.Registerer != nil {
		if err := h.metrics.register(o.Registerer); err != nil {
			return nil, fmt.Errorf("download: couldn't register the metrics: %w", err)
		}
	}
	return h, nil
}

// cacheForever is 355 days. A published release never changes.
const cacheForever = "public, max-age=30672000, immutable"

const allowedMethods = "GET, HEAD, OPTIONS"

// ServeHTTP implements http.Handler. It looks at the path as it came, so a router
// in front must neither clean it nor redirect.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, out := h.serve(w, r)
	h.metrics.answered(t.format, out)
	if out == outBroken || out == outLeft {
		// Returning would end the body properly, and the client would take what
		// it has for all of it.
		panic(http.ErrAbortHandler)
	}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) (target, outcome) {
	if len(r.Method)+len(r.RequestURI)+len(r.Proto)+len("  ") > maxRequestLine {
		return target{}, targetTooBig.send(w, r)
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodOptions:
		return target{}, preflight(w)
	default:
		return target{}, wrongMethod.send(w, r)
	}
	t, err := parseTarget(rawPath(r.URL))
	if err != nil {
		return target{}, h.failureOf(t, err).send(w, r)
	}
	v, err := h.lookup(t)
	if err != nil {
		return t, h.failureOf(t, err).send(w, r)
	}
	a := newAnswer(t, v, h.tags)
	switch {
	case !negotiate.Match(r.Header["If-Match"], a.tag) || r.Header["If-Match"] == nil && a.changedSince(r.Header["If-Unmodified-Since"]):
		return t, preconditionFailed.send(w, r)
	case !negotiate.NoneMatch(r.Header["If-None-Match"], a.tag) || r.Header["If-None-Match"] == nil && a.unchangedSince(r.Header["If-Modified-Since"]):
		return t, a.sendNotModified(w)
	case r.Method == http.MethodHead:
		a.setFields(w)
		w.WriteHeader(http.StatusOK)
		return t, outHead
	}
	return t, h.sendArchive(w, r, t, v, a)
}

// lookup returns the version that t names, or says why it is not served.
func (h *Handler) lookup(t target) (views.Version, error) {
	v, err := views.LookupVersion(h.store, t.pkg, t.version)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return v, h.absence(t)
	case err != nil:
		return v, fmt.Errorf("download: couldn't look the version up: %w", err)
	case v.Withdrawn != nil:
		return v, &withdrawnError{*v.Withdrawn}
	}
	return v, nil
}

// absence returns why there is no such version. A package without a package JSON
// may have versions: whoever imports releases need not enrol it.
func (h *Handler) absence(t target) error {
	_, err := views.LookupPackage(h.store, t.pkg)
	switch {
	case err == nil:
		return errNoVersion
	case !errors.Is(err, kvstore.ErrNotFound):
		return fmt.Errorf("download: couldn't look the package up: %w", err)
	}
	for _, err := range h.store.Scan(kvstore.Versions, kvstore.Range{Prefix: kvstore.Prefix(t.pkg)}) {
		if err != nil {
			return fmt.Errorf("download: couldn't look for versions of the package: %w", err)
		}
		return errNoVersion
	}
	return errNoPackage
}

// sendArchive answers with the archive, when it is its turn.
func (h *Handler) sendArchive(w http.ResponseWriter, r *http.Request, t target, v views.Version, a answer) outcome {
	leave, ok := h.of.Enter(r.RemoteAddr)
	if !ok {
		return busyWithYours.send(w, r)
	}
	defer leave()
	err := h.acquire(r.Context())
	switch {
	case r.Context().Err() != nil && err != nil:
		return outLeft
	case err != nil:
		return h.failureOf(t, err).send(w, r)
	}
	defer h.release()
	h.metrics.making.Inc()
	defer h.metrics.making.Dec()

	to := h.newSender(w, r, func() { a.setFields(w) })
	defer func() { h.metrics.sent[t.format].Add(float64(to.sent)) }()
	files, err := h.readRelease(t, v)
	if err == nil {
		err = h.makeArchive(r.Context(), to, t.format, files)
	}
	if err == nil {
		err = to.finish()
	}
	switch {
	case err == nil:
		return outSent
	case to.err != nil || r.Context().Err() != nil:
		return outLeft
	}
	f := h.failureOf(t, err) // which logs it
	if to.begun {
		return outBroken
	}
	return f.send(w, r)
}

// acquire waits until another archive may be made.
func (h *Handler) acquire(ctx context.Context) error {
	select {
	case h.slots <- struct{}{}:
		return nil
	default:
	}
	turn := time.NewTimer(h.wait)
	defer turn.Stop()
	select {
	case h.slots <- struct{}{}:
		return nil
	case <-turn.C:
		return errBusy
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *Handler) release() { <-h.slots }

// scarce reports whether whoever comes next would have to wait.
func (h *Handler) scarce() bool { return len(h.slots) == cap(h.slots) }
