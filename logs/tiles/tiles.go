package tiles

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzhttp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// Options are the options of the handler.
type Options struct {
	// Store holds the entries, the tree and what the entries name. Required.
	Store Store
	// Signer has the signed checkpoint. Required.
	Signer Signer
	// KeyList reads the list of the log's keys that an offline root key has signed, or returns [fs.ErrNotExist]. Default: there
	// is no list.
	KeyList func() ([]byte, error)
	// Turns bound how many proofs of releases and files are made at a time, and share that among clients. Default: as
	// many as half of the processors.
	Turns *answers.Shares
	// Logger gets what goes wrong. Required.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: none.
	Registerer prometheus.Registerer
}

// A Signer has the methods of a [signing.Signer] that the handler calls.
type Signer interface {
	Checkpoint() (signing.Signed, error)
	SignedInStore() logs.Checkpoint
	Key() string
	KeyChanges() ([]signing.KeyChange, error)
}

// New returns the handler of all paths below [Prefix], and registers its metrics in o.Registerer, if that is set. The
// handler compresses bundles of entries, contents and proofs of live releases.
func New(o Options) (http.Handler, error) {
	o.Turns = cmp.Or(o.Turns, answers.NewTurns(answers.PageProcessors()))
	h := &handler{Options: o, requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "larder_log_requests_total",
		Help: `Requests for the log, by what was asked for ("none" where there is no such thing) and status.`,
	}, []string{"what", "status"})}
	if o.Registerer != nil {
		if err := o.Registerer.Register(h.requests); err != nil {
			return nil, err
		}
	}
	compressing, err := gzhttp.NewWrapper()
	if err != nil {
		return nil, err
	}
	compressed := compressing(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, Prefix+"tile/entries/") || strings.HasPrefix(r.URL.Path, Prefix+"content/") || strings.HasPrefix(r.URL.Path, LivePrefix) { // hashes alone do not get any smaller
			compressed.ServeHTTP(w, r)
		} else {
			h.ServeHTTP(w, r)
		}
	}), nil
}

// Route returns a handler that calls log for paths below [Prefix], and rest for all others. It does not change the paths.
func Route(log, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, Prefix) {
			log.ServeHTTP(w, r)
		} else {
			rest.ServeHTTP(w, r)
		}
	})
}

type handler struct {
	Options
	requests *prometheus.CounterVec
	trees    fileTrees
}

// ServeHTTP implements http.Handler and counts the request. Pages of any origin may read the response.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A verifier may be a script in a page of another origin.
	answers.SetFields(w.Header(), answers.AnyOrigin...)
	answers.NoStore.SetHeader(w.Header())
	t := parsePath(requests.RawPath(r.URL))
	status := h.respond(w, r, t)
	h.requests.WithLabelValues(t.kind.String(), strconv.Itoa(status)).Inc()
}

// respond sends the response for a target and returns the HTTP status: 404 for what the signed log does not have, and 503
// while the log is not signed or the store lacks what was signed. If signing is refused, it compares tiles, entries and
// contents with the signed tree first.
func (h *handler) respond(w http.ResponseWriter, r *http.Request, t target) int {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodOptions:
		answers.RespondPreflight(w)
		return http.StatusNoContent
	default:
		return sendFailure(w, r, answers.WrongMethod)
	}
	if t.kind == noKind {
		return fail(w, r, http.StatusNotFound, "The log has no such path")
	}
	signed, refused := h.Signer.Checkpoint()
	switch {
	case t.kind == key && h.Signer.Key() != "":
		return send(w, answers.Plain, []byte(h.Signer.Key()+"\n"))
	case t.kind == keys && h.Signer.Key() != "":
		return h.sendKeys(w, r)
	case t.kind == keyList:
		return h.sendKeyList(w, r)
	case signed.Note == nil:
		return fail(w, r, http.StatusServiceUnavailable, "The log is not signed: "+publicReason(refused))
	}
	if t.kind == checkpoint {
		return sendCheckpoint(w, r, signed.Note)
	}
	if t.kind == live || t.kind == proof {
		_, leave, err := h.Turns.Enter(r.Context(), r.RemoteAddr, answers.TurnTimeout)
		if err != nil {
			return sendFailure(w, r, &answers.Failure{Status: http.StatusServiceUnavailable, Message: "Too many proofs are being made; try again soon", Retry: 1})
		}
		defer leave()
		return h.sendProof(w, r, t, signed, refused)
	}
	if !t.isWithin(signed.Size) {
		return fail(w, r, http.StatusNotFound, fmt.Sprintf("The log has %d entries, so it does not have all of that", signed.Size))
	}
	held := h.Signer.SignedInStore()
	if refused != nil && !t.isWithin(held.Size) {
		return fail(w, r, http.StatusServiceUnavailable, "That part of the log is not here: "+publicReason(refused))
	}
	data, err := h.read(t)
	if errors.Is(err, errNotNamed) {
		return fail(w, r, http.StatusNotFound, fmt.Sprintf("Entry %d names no such content", t.n))
	}
	if err == nil && refused != nil {
		err = h.compareWithTree(t, data, held)
	}
	if err != nil {
		return h.failReading(w, r, err)
	}
	t.caching().SetHeader(w.Header())
	return send(w, "application/octet-stream", data)
}

// CheckpointTag returns the entity tag of a signed checkpoint, in quotes, which is derived from the hash of the note with
// all its signatures. By it, followers detect each second whether there is another one.
func CheckpointTag(note []byte) string {
	sum := sha256.Sum256(note)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:18]) + `"`
}

// sendCheckpoint sends the signed checkpoint, or 304 if the request's If-None-Match has its tag, and returns the HTTP
// status.
func sendCheckpoint(w http.ResponseWriter, r *http.Request, note []byte) int {
	tag := CheckpointTag(note)
	w.Header().Set("Etag", tag)
	if fields := requests.FieldsOf(r.Header); fields.IfNoneMatch != nil && fields.NotModified(tag, time.Time{}) {
		w.WriteHeader(http.StatusNotModified)
		return http.StatusNotModified
	}
	return send(w, answers.Plain, note)
}

// failReading logs an error of reading the log, sends 503 without that error, and returns the HTTP status.
func (h *handler) failReading(w http.ResponseWriter, r *http.Request, err error) int {
	h.Logger.Error("couldn't read the log", "path", r.URL.Path, "err", err)
	return fail(w, r, http.StatusServiceUnavailable, "That part of the log cannot be read")
}

// Keys is the body of /log/keys. The changes' signatures lead a client that has pinned an earlier key to the present one: see
// [signing.Follow].
type Keys struct {
	Origin  string              `json:"origin"`
	Key     string              `json:"key"`
	Changes []signing.KeyChange `json:"changes"` // oldest first
}

// sendKeys sends the log's key and its changes, and returns the HTTP status.
func (h *handler) sendKeys(w http.ResponseWriter, r *http.Request) int {
	changes, err := h.Signer.KeyChanges()
	if err != nil {
		return h.failReading(w, r, err)
	}
	data, err := encodeKeys(h.Signer.Key(), changes)
	if err != nil {
		return h.failReading(w, r, err)
	}
	return send(w, answers.JSON, data)
}

// encodeKeys returns the log's verifier key, whose name is the log's origin, and its changes, as [Keys] in JSON.
func encodeKeys(key string, changes []signing.KeyChange) ([]byte, error) {
	origin, _, _ := strings.Cut(key, "+")
	return json.Marshal(Keys{origin, key, append([]signing.KeyChange{}, changes...)})
}

// sendKeyList sends the list of keys that a root key has signed, or 404 if there is none, and returns the HTTP status.
func (h *handler) sendKeyList(w http.ResponseWriter, r *http.Request) int {
	list, err := []byte(nil), fs.ErrNotExist
	if h.KeyList != nil {
		list, err = h.KeyList()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail(w, r, http.StatusNotFound, "The log has no list of keys that a root key has signed")
	case err != nil:
		return h.failReading(w, r, err)
	}
	return send(w, answers.Plain, list)
}

// send sends data with its content type and length, and returns the HTTP status 200, also if the client has left.
func send(w http.ResponseWriter, contentType string, data []byte) int {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.Write(data) // the client may have left
	return http.StatusOK
}

// fail sends a failure with a message, with 503 also the time after which to try again, and returns its HTTP status.
func fail(w http.ResponseWriter, r *http.Request, status int, message string) int {
	f := &answers.Failure{Status: status, Message: message}
	if status == http.StatusServiceUnavailable {
		f.Retry = retryAfter
	}
	return sendFailure(w, r, f)
}

// retryAfter is how many seconds a client should wait after a failure.
const retryAfter = 60

// sendFailure sends a failure as JSON and returns its HTTP status.
func sendFailure(w http.ResponseWriter, r *http.Request, f *answers.Failure) int {
	f.SendJSON(w, r)
	return f.Status
}

// publicReason returns why the log is not signed, as clients may see it: the reason of a [signing.RefusedError], that
// witnesses are awaited for nil, and only a reference to the operator's log for any other error.
func publicReason(err error) string {
	if err == nil {
		return "its first checkpoint waits for witnesses"
	}
	var refused *signing.RefusedError
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return "the operator's log says why"
}
