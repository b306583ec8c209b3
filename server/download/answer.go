package download

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server"
)

// An answer has the header fields of an archive, which are known before the archive is made.
type answer struct {
	tag         string
	released    time.Time // to the second; zero where upstream does not say
	contentType string
	disposition string
	tags        []answers.Field
	caching     answers.Caching
}

// newAnswer returns the header fields of the response with the archive t of the version v. tags says whether the fields with cache tags
// are among them, by which a CDN purges the response.
func newAnswer(t target, v views.Version, tags server.CacheTags) answer {
	// 16 bytes of the manifest's hash, which covers every byte of every file,
	// the format, and the form that the archive has in it.
	const manifestBytes = 16
	caching := answers.CacheImmutable(answers.Forever)
	if v.Mirror.Provisional() {
		caching = answers.Provisional
	}
	return answer{
		caching:     caching,
		tag:         `"` + base64.RawURLEncoding.EncodeToString(v.Manifest[:manifestBytes]) + t.format.suffix() + "." + archiveForm + `"`,
		released:    v.Released.UTC().Truncate(time.Second),
		contentType: t.format.contentType(),
		disposition: formatDisposition(t.filename()),
		tags:        tags.Fields(t.pkg, t.version),
	}
}

// setFields sets the header fields of a 200 response with the archive, without Content-Length.
func (a answer) setFields(w http.ResponseWriter) {
	h := w.Header()
	a.setCommon(h)
	h.Set("Content-Type", a.contentType)
	h.Set("Content-Disposition", a.disposition)
	if !a.released.IsZero() {
		h.Set("Last-Modified", a.released.Format(http.TimeFormat))
	}
	h.Set("Accept-Ranges", "none")
}

// setCommon sets the header fields that the responses 200 and 304 share: those that a cache updates (RFC 9110 §15.4.5), and none that
// describes a body.
func (a answer) setCommon(h http.Header) {
	answers.SetFields(h, answers.AnyOrigin...)
	answers.SetFields(h, a.tags...)
	a.caching.SetHeader(h)
	h.Set("Etag", a.tag)
}

// formatDisposition returns the Content-Disposition field by which a client saves the archive under a name (RFC 6266). Names and
// versions that the bot publishes are ASCII. For other names, "filename" is an approximation and "filename*" (RFC 8187) the name. An
// underscore replaces each control character, each character that has a meaning in paths, and what is not UTF-8.
func formatDisposition(filename string) string {
	safe := strings.Map(func(r rune) rune {
		if r < ' ' || 0x7f <= r && r < 0xa0 || strings.ContainsRune(`/\:*?"<>|`, r) {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(filename, "_"))
	plain := strings.Map(func(r rune) rune {
		if r > 0x7e || r == '%' { // some clients decode "%" in either
			return '_'
		}
		return r
	}, safe)
	d := `attachment; filename="` + plain + `"`
	if plain != safe {
		d += "; filename*=UTF-8''" + strings.ReplaceAll(url.QueryEscape(safe), "+", "%20")
	}
	return d
}

// Prefix is the path of complete releases: Prefix + package + "/" + version + ".tar.gz"
// or ".zip".
const Prefix = "/download/"

// A target is the archive that a request names.
type target struct {
	pkg, version string
	format       format
}

// rootFolder returns the name of the one folder at the top of the archive, such as jquery-4.0.0. It does not change package and version,
// in which parseTarget allows no slash.
func (t target) rootFolder() string { return t.pkg + "-" + t.version }

// filename returns the name under which a client saves the archive, such as jquery-4.0.0.zip.
func (t target) filename() string { return t.rootFolder() + t.format.suffix() }

// parseTarget parses the percent-encoded path of a request, which names the package, version and format of an archive. It removes the
// format's suffix once; the rest is the version, which may end in such a suffix too. The error is badPath for a path with malformed or
// ambiguous encoding, and noEndpoint for one that does not name an archive.
func parseTarget(escaped string) (target, error) {
	rest, ok := strings.CutPrefix(escaped, Prefix)
	if !ok {
		return target{}, noEndpoint
	}
	var names []string
	for segment := range strings.SplitSeq(rest, "/") {
		name, err := text.DecodePathName(segment)
		if err == text.ErrMalformedPath {
			return target{}, badPath
		}
		names = append(names, name)
	}
	if len(names) != 2 || names[0] == "" {
		return target{}, noEndpoint
	}
	for _, f := range formats {
		version, ok := strings.CutSuffix(names[1], f.suffix())
		switch {
		case !ok:
			continue
		case version == "." || version == "..":
			return target{}, badPath
		case version == "":
			return target{}, noEndpoint
		}
		return target{pkg: names[0], version: version, format: f}, nil
	}
	return target{}, noEndpoint
}

// A failure is a response that is not the archive, and its outcome for the metrics. It is an error, too.
type failure struct {
	*answers.Failure
	outcome outcome
}

var (
	badPath            = failure{answers.BadPath, outRefused}
	noEndpoint         = failure{answers.NoEndpoint, outNotFound}
	noPackage          = failure{answers.NoLibrary, outNotFound}
	noVersion          = failure{answers.NoVersion, outNotFound}
	wrongMethod        = failure{answers.WrongMethod, outRefused}
	targetTooBig       = failure{answers.LineTooLong, outRefused}
	preconditionFailed = failure{&answers.Failure{Status: http.StatusPreconditionFailed, Message: "The archive is not in the state that If-Match or If-Unmodified-Since asks for."}, outRefused}
	busy               = failure{&answers.Failure{Status: http.StatusServiceUnavailable, Message: "Too many archives are being made at the moment. Try again later.", Retry: 5}, outBusy}
	leaving            = failure{&answers.Failure{Status: http.StatusServiceUnavailable, Message: "The service is about to restart, so no archive is begun. Try again in a few seconds.", Retry: 2}, outBusy}
	unavailable        = failure{&answers.Failure{Status: http.StatusServiceUnavailable, Message: "The release cannot be read at the moment. Try again later.", Retry: 5}, outFailed}
)

// failureOf returns the response to a request for the archive t after err: err itself if that is a failure, else unavailable. It counts
// errors of the store, and logs them.
func (h *Handler) failureOf(t target, err error) failure {
	var f failure
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, kvstore.ErrCorrupt):
		h.metrics.errors.WithLabelValues("corrupt").Inc()
	default:
		h.metrics.errors.WithLabelValues("store").Inc()
	}
	h.o.Logger.Error("download: couldn't make an archive", "package", t.pkg, "version", t.version, "err", err)
	return unavailable
}

// send sends the failure as a JSON response, and returns its outcome for the metrics.
func (f failure) send(w http.ResponseWriter, r *http.Request) outcome {
	answers.SetFields(w.Header(), answers.AnyOrigin...)
	f.SendJSON(w, r)
	return f.outcome
}

// leastRate is the least average rate of a client, in bytes a second, while others have to wait. It is higher than for assets: there are
// few slots, and a client holds one for a complete release.
const leastRate = 128 << 10

// A sender writes an archive to a client.
type sender struct {
	*answers.Writer
	place  context.Context // ends when another client needs the place
	buffer *bufio.Writer
	w      http.ResponseWriter
	begin  func() // sets the header fields
	begun  bool   // whether anything was sent, headers included
}

// newSender returns the writer of the archive that the request gets. It buffers 64 KiB, and calls begin, which sets the header fields,
// and then sends status 200 before the first bytes. It cuts off a client that is too slow while others wait. place is the context that
// ends when the request loses its slot.
func (h *Handler) newSender(place context.Context, w http.ResponseWriter, r *http.Request, begin func()) *sender {
	s := &sender{place: place, w: w, begin: begin, Writer: answers.NewWriter(w, r.ProtoMajor, answers.Pace{Stall: answers.StallTimeout, Least: leastRate}, func() bool { return h.slots.Full() || answers.IsScarce(r.Context()) })}
	s.buffer = bufio.NewWriterSize(chunks{s}, answers.Chunk)
	return s
}

// Write implements io.Writer. It buffers data and sends it in pieces of 64 KiB; finish sends the last one. Nothing is sent before the
// first piece is complete, not even the head, so that the response to an early error still has an error status. It waits for the
// client, and returns an error once the request has lost its slot.
func (s *sender) Write(data []byte) (int, error) { return s.buffer.Write(data) }

// finish sends the buffered rest of the archive. If nothing was sent yet, it sets Content-Length first. It returns the error of sending.
func (s *sender) finish() error {
	if !s.begun {
		s.w.Header().Set("Content-Length", strconv.Itoa(s.buffer.Buffered()))
	}
	return s.buffer.Flush()
}

// chunks is the destination of a sender's buffer.
type chunks struct{ *sender }

// Write implements io.Writer for a sender's buffer. It sends data to the client, and the head with status 200 before the first bytes. It
// returns an error once the request has lost its slot.
func (s chunks) Write(data []byte) (int, error) {
	if s.place.Err() != nil {
		return 0, context.Cause(s.place)
	}
	if !s.begun {
		s.begun = true
		s.begin()
		s.w.WriteHeader(http.StatusOK)
	}
	return s.Writer.Write(data)
}

// An outcome is the result of a request, for the metrics.
type outcome int

const (
	outSent        outcome = iota // the whole archive
	outHead                       // 200 to HEAD
	outNotModified                // 304
	outPreflight                  // 204 to OPTIONS
	outNotFound                   // 404
	outWithdrawn                  // 410
	outRefused                    // 400, 405, 412, 414
	outBusy                       // 503: no slot became free in time, or the process is about to end
	outFailed                     // 503: the store failed
	outBroken                     // the store failed in the middle of the archive
	outLeft                       // the client left, stalled, or lost its slot to another one
	outcomes
)

// String returns the outcome as the value of the metrics' label.
func (o outcome) String() string {
	return [outcomes]string{"sent", "head", "not_modified", "preflight", "not_found", "withdrawn", "refused", "busy", "failed", "broken", "left"}[o]
}

// metrics are the metrics of downloads.
type metrics struct {
	requests, sentBytes, errors *prometheus.CounterVec
	making                      prometheus.Gauge
}

// newMetrics returns the metrics of downloads, each at 0, and registers them with to unless that is nil.
func newMetrics(to prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "larder", Subsystem: "downloads", Name: name, Help: help}, labels)
	}
	m := &metrics{
		requests:  counter("requests_total", `Requests for whole releases, by archive format ("none" where the request names none) and outcome.`, "format", "outcome"),
		sentBytes: counter("sent_bytes_total", "Bytes of archives sent.", "format"),
		errors:    counter("errors_total", "Failed archives: store (unreadable), corrupt (a checksum failed).", "kind"),
		making:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "larder", Subsystem: "downloads", Name: "in_progress", Help: "Archives being made."}),
	}
	for f := range format(len(formats) + 1) {
		for o := range outcomes {
			m.requests.WithLabelValues(f.String(), o.String())
		}
		m.sentBytes.WithLabelValues(f.String())
	}
	m.errors.WithLabelValues("corrupt")
	m.errors.WithLabelValues("store")
	if to == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.sentBytes, m.errors, m.making} {
		if err := to.Register(c); err != nil {
			return nil, fmt.Errorf("download: couldn't register the metrics: %w", err)
		}
	}
	return m, nil
}
