package download

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
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

// setCommon sets the header fields that the responses 200 and 304 share.
func (a answer) setCommon(h http.Header) {
	answers.SetFields(h, answers.AnyOrigin...)
	answers.SetFields(h, a.tags...)
	a.caching.SetHeader(h)
	h.Set("Etag", a.tag)
}

// sendNotModified sends 304 with the fields that a cache updates, and without those that describe a body (RFC 9110 §15.4.5). It
// returns the outcome for the metrics.
func (a answer) sendNotModified(w http.ResponseWriter) outcome {
	a.setCommon(w.Header())
	w.WriteHeader(http.StatusNotModified)
	return outNotModified
}

// formatDisposition returns the Content-Disposition field by which a client saves the archive under a name (RFC 6266). Names and
// versions that the bot publishes are ASCII. For other names, "filename" is an approximation and "filename*" (RFC 8187) the name. An
// underscore replaces each control character, each character that has a meaning in paths, and what is not UTF-8.
func formatDisposition(filename string) string {
	const hex = "0123456789ABCDEF"
	var plain, extended strings.Builder
	exact := true
	for _, r := range strings.ToValidUTF8(filename, "_") {
		if r < ' ' || 0x7f <= r && r < 0xa0 || strings.ContainsRune(`/\:*?"<>|`, r) {
			r = '_'
		}
		if r > 0x7e || r == '%' { // some clients decode "%" in either
			exact = false
			plain.WriteByte('_')
		} else {
			plain.WriteRune(r)
		}
		for _, b := range []byte(string(r)) {
			if isAttrChar(b) {
				extended.WriteByte(b)
			} else {
				extended.Write([]byte{'%', hex[b>>4], hex[b&15]})
			}
		}
	}
	d := `attachment; filename="` + plain.String() + `"`
	if !exact {
		d += "; filename*=UTF-8''" + extended.String()
	}
	return d
}

// isAttrChar reports whether a byte needs no percent-encoding in a parameter value of RFC 8187 (§3.2.1, attr-char).
func isAttrChar(b byte) bool {
	return '0' <= b && b <= '9' || 'A' <= b && b <= 'Z' || 'a' <= b && b <= 'z' || strings.IndexByte("!#$&+-.^_`|~", b) >= 0
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
// errors of the store, and logs them at most once a second.
func (h *Handler) failureOf(t target, err error) failure {
	var f failure
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, kvstore.ErrCorrupt):
		h.metrics.corrupt.Inc()
	default:
		h.metrics.unreadable.Inc()
	}
	if n, ok := h.logged.Allow(); ok {
		h.logger.Error("download: couldn't make an archive", "package", t.pkg, "version", t.version, "err", err, "alike", n)
	}
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
	s := &sender{place: place, w: w, begin: begin, Writer: answers.NewWriter(w, r.ProtoMajor, answers.Pace{Stall: answers.StallTimeout, Least: leastRate}, func() bool { return h.isFull() || answers.IsScarce(r.Context()) })}
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

	byOutcome           [len(formats) + 1][outcomes]prometheus.Counter
	sent                [len(formats) + 1]prometheus.Counter
	corrupt, unreadable prometheus.Counter
}

// newMetrics returns the metrics of downloads, each at 0 and not registered.
func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "larder", Subsystem: "downloads", Name: name, Help: help}, labels)
	}
	m := &metrics{
		requests:  counter("requests_total", `Requests for whole releases, by archive format ("none" where the request names none) and outcome.`, "format", "outcome"),
		sentBytes: counter("sent_bytes_total", "Bytes of archives sent.", "format"),
		errors:    counter("errors_total", "Failed archives: store (unreadable), corrupt (a checksum failed).", "kind"),
		making:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "larder", Subsystem: "downloads", Name: "in_progress", Help: "Archives being made."}),
	}
	for f := range m.byOutcome {
		name := format(f).String()
		for o := range outcomes {
			m.byOutcome[f][o] = m.requests.WithLabelValues(name, o.String())
		}
		m.sent[f] = m.sentBytes.WithLabelValues(name)
	}
	m.corrupt, m.unreadable = m.errors.WithLabelValues("corrupt"), m.errors.WithLabelValues("store")
	return m
}

// countOutcome counts a response with the outcome o to a request for an archive of the format f, which is zero if the request
// names none.
func (m *metrics) countOutcome(f format, o outcome) { m.byOutcome[f][o].Inc() }

// register registers the metrics with to.
func (m *metrics) register(to prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{m.requests, m.sentBytes, m.errors, m.making} {
		if err := to.Register(c); err != nil {
			return err
		}
	}
	return nil
}
