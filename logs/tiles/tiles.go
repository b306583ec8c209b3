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

// respond sends the response for a target and returns the HTTP status. It logs an error of reading the log, and sends 503 without that error.
func (h *handler) respond(w http.ResponseWriter, r *http.Request, t target) int {
	if r.Method == http.MethodOptions {
		answers.RespondPreflight(w)
		return http.StatusNoContent
	}
	data, err := h.find(r, t)
	if err != nil {
		var failure *answers.Failure
		if !errors.As(err, &failure) {
			h.Logger.Error("couldn't read the log", "path", r.URL.Path, "err", err)
			failure = newFailure(http.StatusServiceUnavailable, "That part of the log cannot be read")
		}
		failure.SendJSON(w, r)
		return failure.Status
	}
	contentType := answers.Plain
	switch t.kind {
	case checkpoint:
		tag := CheckpointTag(data)
		w.Header().Set("Etag", tag)
		if fields := requests.FieldsOf(r.Header); fields.IfNoneMatch != nil && fields.NotModified(tag, time.Time{}) {
			w.WriteHeader(http.StatusNotModified)
			return http.StatusNotModified
		}
	case keys, live:
		contentType = answers.JSON
	case hashes, entries, content:
		contentType = "application/octet-stream"
		t.caching().SetHeader(w.Header())
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.Write(data) // the client may have left
	return http.StatusOK
}

// find returns the body of the response for a target. The error for what the signed log does not have is an [answers.Failure] with 404, and one with
// 503 while the log is not signed or the store lacks what was signed. If signing is refused, find compares tiles, entries and contents with the
// signed tree first.
func (h *handler) find(r *http.Request, t target) ([]byte, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return nil, answers.WrongMethod
	}
	if t.kind == noKind {
		return nil, newFailure(http.StatusNotFound, "The log has no such path")
	}
	signed, refused := h.Signer.Checkpoint()
	switch {
	case t.kind == key && h.Signer.Key() != "":
		return []byte(h.Signer.Key() + "\n"), nil
	case t.kind == keys && h.Signer.Key() != "":
		changes, err := h.Signer.KeyChanges()
		if err != nil {
			return nil, err
		}
		return encodeKeys(h.Signer.Key(), changes)
	case t.kind == keyList:
		return h.readKeyList()
	case signed.Note == nil:
		return nil, newFailure(http.StatusServiceUnavailable, "The log is not signed: "+publicReason(refused))
	case t.kind == checkpoint:
		return signed.Note, nil
	case t.kind == live || t.kind == proof:
		_, leave, err := h.Turns.Enter(r.Context(), r.RemoteAddr, answers.TurnTimeout)
		if err != nil {
			return nil, &answers.Failure{Status: http.StatusServiceUnavailable, Message: "Too many proofs are being made; try again soon", Retry: 1}
		}
		defer leave()
		return h.prove(r, t, signed, refused)
	case !t.isWithin(signed.Size):
		return nil, newFailure(http.StatusNotFound, fmt.Sprintf("The log has %d entries, so it does not have all of that", signed.Size))
	}
	held := h.Signer.SignedInStore()
	if refused != nil && !t.isWithin(held.Size) {
		return nil, newFailure(http.StatusServiceUnavailable, "That part of the log is not here: "+publicReason(refused))
	}
	data, err := h.read(t)
	if err == nil && refused != nil {
		err = h.compareWithTree(t, data, held)
	}
	return data, err
}

// CheckpointTag returns the entity tag of a signed checkpoint, in quotes, which is derived from the hash of the note with
// all its signatures. By it, followers detect each second whether there is another one.
func CheckpointTag(note []byte) string {
	sum := sha256.Sum256(note)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:18]) + `"`
}

// Keys is the body of /log/keys. The changes' signatures lead a client that has pinned an earlier key to the present one: see
// [signing.Follow].
type Keys struct {
	Origin  string              `json:"origin"`
	Key     string              `json:"key"`
	Changes []signing.KeyChange `json:"changes"` // oldest first
}

// encodeKeys returns the log's verifier key, whose name is the log's origin, and its changes, as [Keys] in JSON.
func encodeKeys(key string, changes []signing.KeyChange) ([]byte, error) {
	origin, _, _ := strings.Cut(key, "+")
	return json.Marshal(Keys{origin, key, append([]signing.KeyChange{}, changes...)})
}

// readKeyList returns the list of keys that a root key has signed. The error is an [answers.Failure] with 404 if there is none.
func (h *handler) readKeyList() ([]byte, error) {
	list, err := []byte(nil), fs.ErrNotExist
	if h.KeyList != nil {
		list, err = h.KeyList()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, newFailure(http.StatusNotFound, "The log has no list of keys that a root key has signed")
	}
	return list, err
}

// newFailure returns a failure with a message, with 503 also the time after which to try again.
func newFailure(status int, message string) *answers.Failure {
	f := &answers.Failure{Status: status, Message: message}
	if status == http.StatusServiceUnavailable {
		f.Retry = retryAfter
	}
	return f
}

// retryAfter is how many seconds a client should wait after a failure.
const retryAfter = 60

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
