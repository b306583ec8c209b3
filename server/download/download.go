// Package download serves complete releases as archives:
// /download/{package}/{version}.tar.gz and .zip.
//
// The handler makes an archive while it sends it, from the manifest and the contents of the store. The archive has the
// release's files in the byte order of their paths, in one folder {package}-{version}, so two releases can be
// extracted side by side. Every file has mode 0644 and the time at which upstream published the release.
//
// What it guarantees:
//
//   - The same release gives the same bytes, at any time and on any node, in whatever encodings its contents are stored. So
//     an archive has a strong entity tag that is known before the archive is made, and HEAD and 304 cost a look-up.
//   - Every file is compared with the hash in the manifest while it is sent. If a file is damaged, the connection ends in the
//     middle of the archive, or the response is 503 if nothing was sent yet. No complete response differs from the release.
//   - Memory is bounded: at most Options.AtOnce archives are made at a time, and each holds its manifest, one content in its
//     stored encoding and a decoder's window.
//     A client that keeps others waiting must take 128 KiB a second on average.
//   - A withdrawn release is not served. An archive whose sending began before the
//     withdrawal is sent to its end.
//
// What it does not guarantee: there are no ranges, because the middle of an archive cannot be made without its beginning; the
// handler ignores a Range field, as RFC 9110 §14.2 permits. It knows the length beforehand only of small archives, so a client
// of HTTP/1.0 detects an incomplete archive by its format alone, which both formats permit. A path with a slash at its end
// is not that of an archive.
//
// The package must not know where releases come from, nor how assets are served.
package download

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server"
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
	// Leaving is closed when the process is about to end or to be replaced: no archive is started from then on, and
	// running ones are finished. Default: never.
	Leaving <-chan struct{}
	// CacheTags adds the header fields by whose tags a CDN can purge responses.
	// Default: none.
	CacheTags server.CacheTags
	// Logger gets failures of the store; it has to bound what repeats. Default: nothing is
	// logged.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: none.
	Registerer prometheus.Registerer
}

// Handler serves complete releases. It is an http.Handler for every path that begins
// with [Prefix].
type Handler struct {
	o       Options
	slots   *answers.Shares // in which archives are made
	metrics *metrics
}

// New returns the handler that serves the releases in Options.Store as archives. It returns an error if the metrics cannot be
// registered.
func New(o Options) (*Handler, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	return &Handler{o: o, slots: answers.NewShares(cmp.Or(o.AtOnce, 4)), metrics: m}, nil
}

// ServeHTTP implements http.Handler. It uses the path as the client sent it, so a router in front must neither clean it nor
// redirect. If an archive breaks off, it panics with http.ErrAbortHandler, so that the client notices.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, out := h.serve(w, r)
	h.metrics.requests.WithLabelValues(t.format.String(), out.String()).Inc()
	if out == outBroken || out == outLeft {
		// Returning would end the body properly, and the client would take what
		// it has for all of it.
		panic(http.ErrAbortHandler)
	}
}

// serve responds to a request. It returns the archive that the request names, zero if it names none or is not a GET or HEAD, and
// the outcome of the response, both for the metrics.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request) (target, outcome) {
	if requests.LineTooLong(r) {
		return target{}, targetTooBig.send(w, r)
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodOptions:
		answers.RespondPreflight(w)
		return target{}, outPreflight
	default:
		return target{}, wrongMethod.send(w, r)
	}
	t, err := parseTarget(requests.RawPath(r.URL))
	if err != nil {
		return target{}, h.failureOf(t, err).send(w, r)
	}
	v, err := h.lookup(t)
	if err != nil {
		return t, h.failureOf(t, err).send(w, r)
	}
	a := newAnswer(t, v, h.o.CacheTags)
	fields := requests.FieldsOf(r.Header)
	switch {
	case fields.PreconditionFailed(a.tag, a.released):
		return t, preconditionFailed.send(w, r)
	case fields.NotModified(a.tag, a.released):
		a.setCommon(w.Header())
		w.WriteHeader(http.StatusNotModified)
		return t, outNotModified
	case r.Method == http.MethodHead:
		a.setFields(w)
		w.WriteHeader(http.StatusOK)
		return t, outHead
	}
	return t, h.sendArchive(w, r, t, v, a)
}

// lookup returns the version whose archive t names. The error says why it is not served: a failure (noPackage, noVersion, or 410
// with the reason of the withdrawal), or an error of the store.
func (h *Handler) lookup(t target) (views.Version, error) {
	v, err := views.LookupVersion(h.o.Store, t.pkg, t.version)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return v, h.explainAbsence(t)
	case err != nil:
		return v, fmt.Errorf("download: couldn't look the version up: %w", err)
	case v.Withdrawn != nil:
		return v, failure{&answers.Failure{Status: http.StatusGone, Message: "Version withdrawn: " + v.Withdrawn.Reason}, outWithdrawn}
	}
	return v, nil
}

// explainAbsence returns why the version of t does not exist: noVersion if its package exists, else noPackage. A package
// without a package JSON may have versions, because an operator can import releases of it. It may also return an error of the
// store.
func (h *Handler) explainAbsence(t target) error {
	_, err := views.LookupPackage(h.o.Store, t.pkg)
	switch {
	case err == nil:
		return noVersion
	case !errors.Is(err, kvstore.ErrNotFound):
		return fmt.Errorf("download: couldn't look the package up: %w", err)
	}
	for _, err := range h.o.Store.Scan(kvstore.Versions, kvstore.Range{Prefix: kvstore.Prefix(t.pkg)}) {
		if err != nil {
			return fmt.Errorf("download: couldn't look for versions of the package: %w", err)
		}
		return noVersion
	}
	return noPackage
}

// sendArchive waits for a slot, and then makes the archive of the version v and sends it to the client, with the header fields a.
// It sends a failure instead if no slot becomes free in time, if Options.Leaving is closed, or if the archive fails before
// anything was sent. It returns the outcome for the metrics. After outBroken and outLeft the caller must abort the connection.
func (h *Handler) sendArchive(w http.ResponseWriter, r *http.Request, t target, v views.Version, a answer) outcome {
	ctx, leave, err := h.slots.Enter(r.Context(), r.RemoteAddr, slotWait)
	switch {
	case errors.Is(err, answers.ErrNoPlace):
		return busy.send(w, r)
	case err != nil:
		return outLeft
	}
	defer leave()
	select {
	case <-h.o.Leaving:
		return leaving.send(w, r)
	default:
	}
	// A client that takes nothing must not keep a place that another needs.
	defer context.AfterFunc(ctx, func() { _ = http.NewResponseController(w).SetWriteDeadline(time.Now()) })()
	h.metrics.making.Inc()
	defer h.metrics.making.Dec()

	to := h.newSender(ctx, w, r, func() { a.setFields(w) })
	defer func() { h.metrics.sentBytes.WithLabelValues(t.format.String()).Add(float64(to.Sent)) }()
	files, err := h.readRelease(t, v)
	if err == nil {
		err = h.makeArchive(ctx, to, t.format, files)
	}
	if err == nil {
		err = to.finish()
	}
	switch {
	case err == nil:
		return outSent
	case to.Err != nil || ctx.Err() != nil:
		return outLeft
	}
	f := h.failureOf(t, err) // which logs it
	if to.begun {
		return outBroken
	}
	return f.send(w, r)
}

// slotWait is how long a request waits for a slot before the response is 503.
const slotWait = time.Second
