package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/views"
)

// ContentPrefix is where contents are.
const ContentPrefix = "/content/"

// ContentOptions are the options of the handler.
type ContentOptions struct {
	// Store has the contents. Required.
	Store *kvstore.Store
	// Dictionaries makes the handler list a content's deltas in a field of the response, and send them to clients that have the dictionary.
	Dictionaries bool
	// Logger gets what cannot be read; it has to bound what repeats. Required.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: none.
	Registerer prometheus.Registerer
}

const (
	contentsAtOnce = 64        // that are sent
	contentBytes   = 64 << 20  // of memory for them; a larger one is sent alone
	contentRate    = 128 << 10 // bytes a second that a client must take while others wait
)

// contents is the handler of [NewContents].
type contents struct {
	ContentOptions
	slots    *answers.Shares
	memory   *semaphore.Weighted
	requests *prometheus.CounterVec
}

// NewContents returns the handler of all paths below [ContentPrefix]: contents by the SHA-256 of their bytes, for mirrors and repairs, which follow
// the log and verify what they receive. It serves a content while a live release or an entry of the log names it. It responds 410 to one that only
// withdrawn releases name, so that malware is not published by another way, and 404 to one that nothing names yet. One client gets no more than its
// share. No page can use a content as a script or style: the response has no specific type and no CORS, and other sites may not embed it. Shared
// caches do not store it, because a purge by hash does not exist. It returns an error if the metrics cannot be registered.
func NewContents(o ContentOptions) (http.Handler, error) {
	h := &contents{ContentOptions: o, slots: answers.NewShares(contentsAtOnce), memory: semaphore.NewWeighted(contentBytes), requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "larder_content_requests_total",
		Help: "Requests for contents by hash.",
	}, []string{"status"})}
	if o.Registerer != nil {
		if err := o.Registerer.Register(h.requests); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// RouteContents returns a handler that passes requests below [ContentPrefix] to contents, and others to rest.
func RouteContents(contents, rest http.Handler) http.Handler {
	return routeIf(func(path string) bool { return strings.HasPrefix(path, ContentPrefix) }, contents, rest)
}

var (
	wrongMethod = &answers.Failure{Status: http.StatusMethodNotAllowed, Message: "Contents can only be read: use GET or HEAD.", Fields: []answers.Field{{Name: "Allow", Value: "GET, HEAD"}}}
	badPath     = &answers.Failure{Status: http.StatusNotFound, Message: "A content's path is /content/ and the SHA-256 of its bytes in lower-case hexadecimal."}
	unnamed     = &answers.Failure{Status: http.StatusNotFound, Message: "Nothing that is published has this content."}
	gone        = &answers.Failure{Status: http.StatusGone, Message: "Only releases that were withdrawn have this content."}
	busy        = &answers.Failure{Status: http.StatusServiceUnavailable, Message: "Too many contents are being sent at the moment. Try again later.", Retry: 5}
	unreadable  = &answers.Failure{Status: http.StatusServiceUnavailable, Message: "The content cannot be read at the moment. Try again later.", Retry: 60}
)

// ServeHTTP implements http.Handler: it responds to a request for a content by hash, and counts the response by status. If a body breaks off in the
// middle, it panics with http.ErrAbortHandler, so that the client notices.
func (h *contents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answers.SetFields(w.Header(),
		answers.Field{Name: "X-Content-Type-Options", Value: "nosniff"},
		answers.Field{Name: "Content-Security-Policy", Value: "sandbox"},
		answers.Field{Name: "Cross-Origin-Resource-Policy", Value: "same-origin"})
	recorded := &statusWriter{ResponseWriter: w}
	failure, broken := h.respond(recorded, r)
	if failure != nil {
		failure.SendJSON(recorded, r)
	}
	h.requests.WithLabelValues(strconv.Itoa(recorded.status)).Inc()
	if broken {
		panic(http.ErrAbortHandler) // returning would end the body properly
	}
}

// respond sends a content, a 304, or a range of a content. If it sent nothing, it returns the failure to respond with. broken reports that the client
// received only a part of the body.
func (h *contents) respond(w *statusWriter, r *http.Request) (failure *answers.Failure, broken bool) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return wrongMethod, false
	}
	hash, err := kvstore.ParseHash(strings.TrimPrefix(requests.RawPath(r.URL), ContentPrefix))
	if err != nil || requests.RawPath(r.URL) != ContentPrefix+hash.String() {
		return badPath, false
	}
	standing, err := views.StandingOf(h.Store, hash)
	switch {
	case err != nil:
		return h.logFailure(hash, err), false
	case standing == views.Unnamed:
		return unnamed, false
	case standing == views.NamedOnce:
		return gone, false
	}
	row, err := h.Store.Content(hash)
	if err != nil {
		return h.logFailure(hash, err), false
	}
	form := chooseRepresentation(r, row, hash)
	fields := requests.FieldsOf(r.Header)
	w.Header().Set("Vary", "Accept-Encoding")
	var deltas []kvstore.Delta
	if h.Dictionaries {
		deltas, _ = h.Store.Deltas(hash) // `larder fsck` reports a list that cannot be read
	}
	if len(deltas) > 0 {
		w.Header().Set("Vary", variesByDictionary)
		w.Header().Set(tiles.DictionariesField, tiles.FormatDictionaries(deltas))
		if delta, ok := chooseDelta(r, fields, deltas); ok {
			form = delta
		}
	}
	w.Header().Set("Etag", contentETag(form))
	w.Header().Set("Cache-Control", "private, max-age="+strconv.Itoa(int(answers.Forever.Seconds()))+", immutable")
	for _, known := range append(slices.Clone(row.Representations), identityOf(row, hash), form) {
		if fields.IfNoneMatch != nil && fields.NotModified(contentETag(known), time.Time{}) {
			w.Header().Set("Etag", contentETag(known))
			w.WriteHeader(http.StatusNotModified)
			return nil, false
		}
	}
	return h.send(w, r, hash, form, row.Size)
}

// identityOf returns the content's own bytes as a representation, whether the store has them unencoded or not.
func identityOf(row kvstore.Content, hash kvstore.Hash) kvstore.Representation {
	return kvstore.Representation{Coding: coding.Identity, Length: row.Size, Sum: hash}
}

// chooseRepresentation returns the representation of a content (with the row of the store and its hash) to send by Accept-Encoding; identity if the
// client accepts none. For a range that is identity, so that a client may continue a download whatever encodings the server has by then.
func chooseRepresentation(r *http.Request, row kvstore.Content, hash kvstore.Hash) kvstore.Representation {
	plain := identityOf(row, hash)
	if r.Header.Get("Range") != "" {
		return plain
	}
	all := append(slices.Clone(row.Representations), plain)
	forms := make([]requests.Representation, len(all))
	for i, f := range all {
		forms[i] = requests.Representation{Coding: f.Coding, Length: f.Length}
	}
	if i := requests.ParseAcceptEncoding(r.Header["Accept-Encoding"]).Choose(forms); i >= 0 {
		return all[i]
	}
	return plain
}

// chooseDelta returns the delta of a content to send to a client that accepts dcz and has its dictionary. ok is false if deltas has no such one, or
// if the client requests a range.
func chooseDelta(r *http.Request, fields requests.Fields, deltas []kvstore.Delta) (delta kvstore.Representation, ok bool) {
	if requests.ParseAcceptEncoding(fields.AcceptEncoding).Of(coding.DCZ) == requests.Refused || len(fields.AvailableDictionary) != 1 || r.Header.Get("Range") != "" {
		return kvstore.Representation{}, false
	}
	for _, d := range deltas {
		if requests.FormatDictionary(d.Dictionary) == fields.AvailableDictionary[0] {
			return kvstore.Representation{Coding: coding.DCZ, Length: d.Length, Sum: d.Sum}, true
		}
	}
	return kvstore.Representation{}, false
}

// contentETag returns the entity tag, in quotes, of a representation of a content: part of the SHA-256 of its encoded bytes, so that each encoding
// has its own.
func contentETag(f kvstore.Representation) string {
	return `"` + base64.RawURLEncoding.EncodeToString(f.Sum[:18]) + `"`
}

// send waits for a slot and memory for the client, and sends a content in the representation form, or the range of it that r names; size is that of
// the identity. For HEAD it sends only the head, without waiting. If it sent nothing, it returns the failure to respond with: busy without a slot or
// memory, else that of logFailure. The bool reports that the client received only a part.
func (h *contents) send(w *statusWriter, r *http.Request, hash kvstore.Hash, form kvstore.Representation, size int64) (*answers.Failure, bool) {
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Accept-Ranges", "bytes")
	if form.Coding != coding.Identity {
		header.Set("Content-Encoding", form.Coding.String())
	}
	if r.Method == http.MethodHead {
		header.Set("Content-Length", strconv.FormatInt(form.Length, 10))
		w.WriteHeader(http.StatusOK)
		return nil, false
	}
	ctx, leave, err := h.slots.Enter(r.Context(), r.RemoteAddr, answers.TurnTimeout)
	if err != nil {
		return busy, false
	}
	defer leave()
	weight := min(contentBytes, form.Length)
	if form.Coding == coding.Identity {
		weight = min(contentBytes, 2*size) // decoded from another form
	}
	waiting, stop := context.WithTimeout(ctx, answers.TurnTimeout)
	err = h.memory.Acquire(waiting, weight)
	stop()
	if err != nil {
		return busy, false
	}
	defer h.memory.Release(weight)
	data, err := h.read(hash, &form)
	if err != nil {
		return h.logFailure(hash, err), false
	}
	header.Set("Etag", contentETag(form))
	// A client that takes nothing must not keep a place that another needs.
	defer context.AfterFunc(ctx, func() { _ = http.NewResponseController(w).SetWriteDeadline(time.Now()) })()
	to := answers.NewWriter(w, r.ProtoMajor, answers.Pace{Stall: answers.StallTimeout, Least: contentRate}, func() bool { return h.slots.Full() || answers.IsScarce(r.Context()) })
	if r.Header.Get("Range") != "" {
		http.ServeContent(paced{w, to}, r, "", time.Time{}, bytes.NewReader(data))
		return nil, to.Err != nil
	}
	header.Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(http.StatusOK)
	_, err = to.Write(data)
	return nil, err != nil
}

// paced is a response whose body is written under deadlines.
type paced struct {
	*statusWriter
	to *answers.Writer
}

// Write writes a part of the body to the client under the deadlines of an [answers.Writer].
func (p paced) Write(data []byte) (int, error) { return p.to.Write(data) }

// read returns the bytes of a content in the representation form: decoded for identity, encoded for any other. If the encoding was replaced by a
// smaller one meanwhile, it changes form to that.
func (h *contents) read(hash kvstore.Hash, form *kvstore.Representation) (data []byte, err error) {
	switch form.Coding {
	case coding.Identity:
		return h.Store.Identity(hash)
	case coding.DCZ:
		return h.Store.ReadDelta(hash, form.Sum)
	}
	*form, data, err = h.Store.Coded(hash, form.Coding)
	return data, err
}

// logFailure returns the failure to respond with after err, an error of reading the content: 410 if the content was erased a moment ago, else 503. It
// logs the error then.
func (h *contents) logFailure(hash kvstore.Hash, err error) *answers.Failure {
	if errors.Is(err, kvstore.ErrNotFound) {
		if standing, err := views.StandingOf(h.Store, hash); err == nil && standing != views.NamedLive {
			return gone
		}
	}
	h.Logger.Error("couldn't read a content", "content", hash, "err", err)
	return unreadable
}
