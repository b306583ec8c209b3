package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/server/negotiate"
)

const (
	noStore = "no-store"
	// cacheBriefly lets caches absorb a flood of requests for what is not there, and
	// forget it soon after it is.
	cacheBriefly = "public, max-age=10"
	// retryAfter is what a 503 asks for, in seconds.
	retryAfter = "5"
)

// A failure is an answer that is not the asset.
type failure struct {
	status  int
	message string
	entry   *int64   // of the log, where one says why
	cache   string   // Cache-Control
	vary    bool     // whether the URL has codings
	fields  []*field // of this kind of failure only
}

var (
	badPath      = failure{status: http.StatusBadRequest, message: `The path is malformed: it has a "." or ".." segment, a backslash, a NUL or a bad percent-encoding.`, cache: noStore}
	notFound     = failure{status: http.StatusNotFound, message: "No such file. Names, versions and paths are case-sensitive, and versions are exact.", cache: cacheBriefly}
	wrongMethod  = failure{status: http.StatusMethodNotAllowed, message: "Assets can be read only: use GET, HEAD or OPTIONS.", cache: noStore, fields: []*field{newField("Allow", allowedMethods)}}
	targetTooBig = failure{status: http.StatusRequestURITooLong, message: fmt.Sprintf("The request line is over %d bytes.", maxRequestLine), cache: noStore}
	unavailable  = failure{status: http.StatusServiceUnavailable, message: "The file cannot be read at the moment. Try again later.", cache: noStore, fields: []*field{newField("Retry-After", retryAfter)}}
	overloaded   = failure{status: http.StatusServiceUnavailable, message: "Too much is being sent at the moment. Try again later.", cache: noStore, fields: []*field{newField("Retry-After", "1")}}
)

// notAcceptable says which codings there are (RFC 9110 §15.5.7). It varies even
// where identity is the only one.
func notAcceptable(f *asset) failure {
	var names []string
	for _, r := range f.representations {
		names = append(names, r.coding.String())
	}
	return failure{
		status:  http.StatusNotAcceptable,
		message: "Accept-Encoding refuses every coding of this file: " + strings.Join(names, ", ") + ".",
		cache:   noStore,
		vary:    true,
	}
}

func preconditionFailed(r *representation) failure {
	return failure{status: http.StatusPreconditionFailed, message: "The file is not in the state that If-Match or If-Unmodified-Since asks for.", cache: noStore, vary: r.vary}
}

func rangeNotSatisfiable(r *representation) failure {
	size := strconv.FormatInt(r.length, 10)
	return failure{
		status:  http.StatusRequestedRangeNotSatisfiable,
		message: "The range lies outside of the " + size + " bytes that there are in this coding.",
		cache:   noStore,
		vary:    r.vary,
		fields:  []*field{newField("Content-Range", "bytes */"+size)},
	}
}

func gone(e *withdrawnError) failure {
	return failure{
		status:  http.StatusGone,
		message: fmt.Sprintf("This version was withdrawn (log entry %d): %s", e.Entry, e.Reason),
		entry:   &e.Entry,
		cache:   noStore,
	}
}

// failureOf maps what can go wrong below to an answer, in this one place.
func (a *Assets) failureOf(t target, err error) failure {
	var withdrawn *withdrawnError
	switch {
	case errors.Is(err, errMalformed):
		return badPath
	case errors.Is(err, errNoFile):
		return notFound
	case errors.As(err, &withdrawn):
		return gone(withdrawn)
	case errors.Is(err, errBusy):
		a.metrics.busy.Inc()
		return overloaded
	case errors.Is(err, kvstore.ErrCorrupt):
		a.metrics.corrupt.Inc()
	default:
		a.metrics.unreadable.Inc()
	}
	if n, ok := a.logged.next(); ok {
		a.logger.Error("server: couldn't read an asset", "asset", t.key, "err", err, "alike", n)
	}
	return unavailable
}

// send writes the failure as text or as JSON, whichever the lines of Accept prefer, or only
// its head.
func (f failure) send(w http.ResponseWriter, head bool, accept []string) int64 {
	h := w.Header()
	for _, field := range crossOrigin {
		h[field.name] = field.value
	}
	for _, field := range f.fields {
		h[field.name] = field.value
	}
	contentType, body := textPlain, []byte(f.message+"\n")
	if negotiate.PrefersJSON(accept) {
		contentType, body = "application/json", f.json()
	}
	vary := "Accept"
	if f.vary {
		vary = "Accept-Encoding, Accept"
	}
	h.Set("Vary", vary)
	h.Set("Cache-Control", f.cache)
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(f.status)
	if head {
		return 0
	}
	n, _ := w.Write(body)
	return int64(n)
}

// json has the shape of the API's errors.
func (f failure) json() []byte {
	body, err := json.Marshal(struct {
		Error    bool   `json:"error"`
		Status   int    `json:"status"`
		Message  string `json:"message"`
		LogEntry *int64 `json:"logEntry,omitempty"`
	}{true, f.status, f.message, f.entry})
	if err != nil {
		return []byte(`{"error":true}` + "\n") // cannot happen: there is nothing in it that does not encode
	}
	return append(body, '\n')
}
