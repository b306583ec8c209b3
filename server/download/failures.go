package download

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

const (
	noStore = "no-store"
	// absentFor is how long caches may believe that something is not there.
	absentFor = time.Hour
	// retryAfter is what a 503 asks for, in seconds.
	retryAfter = "5"
)

// errBusy is returned where it is not a request's turn.
var errBusy = errors.New("too many archives are being made")

// A withdrawnError says that the version was withdrawn.
type withdrawnError struct{ views.Withdrawal }

func (e *withdrawnError) Error() string { return fmt.Sprintf("withdrawn by log entry %d", e.Entry) }

// A failure is an answer that is not the archive. It has the shape of the API's
// errors.
type failure struct {
	status  int
	message string
	outcome outcome
}

var (
	badPath            = failure{http.StatusBadRequest, `The path is malformed: it has a "." or ".." segment, an encoded slash, a backslash, a NUL or a bad percent-encoding.`, outRefused}
	noEndpoint         = failure{http.StatusNotFound, "Endpoint not found", outNotFound}
	noPackage          = failure{http.StatusNotFound, "Library not found", outNotFound}
	noVersion          = failure{http.StatusNotFound, "Version not found", outNotFound}
	wrongMethod        = failure{http.StatusMethodNotAllowed, "Releases can be read only: use GET, HEAD or OPTIONS.", outRefused}
	preconditionFailed = failure{http.StatusPreconditionFailed, "The archive is not in the state that If-Match or If-Unmodified-Since asks for.", outRefused}
	targetTooBig       = failure{http.StatusRequestURITooLong, fmt.Sprintf("The request line is over %d bytes.", maxRequestLine), outRefused}
	busy               = failure{http.StatusServiceUnavailable, "Too many archives are being made at the moment. Try again later.", outBusy}
	busyWithYours      = failure{http.StatusTooManyRequests, "You are being sent other archives. Try again when they are complete.", outBusy}
	unavailable        = failure{http.StatusServiceUnavailable, "The release cannot be read at the moment. Try again later.", outFailed}
)

// failureOf maps what can go wrong below to an answer, in this one place, and logs
// what an operator should know.
func (h *Handler) failureOf(t target, err error) failure {
	var withdrawn *withdrawnError
	switch {
	case errors.Is(err, errMalformed):
		return badPath
	case errors.Is(err, errNoEndpoint):
		return noEndpoint
	case errors.Is(err, errNoPackage):
		return noPackage
	case errors.Is(err, errNoVersion):
		return noVersion
	case errors.As(err, &withdrawn):
		return failure{http.StatusGone, "Version withdrawn: " + withdrawn.Reason, outWithdrawn}
	case errors.Is(err, errBusy):
		return busy
	case errors.Is(err, kvstore.ErrCorrupt):
		h.metrics.corrupt.Inc()
	default:
		h.metrics.unreadable.Inc()
	}
	h.log(t, err)
	return unavailable
}

// log logs a line a second at most: a damaged release that is asked for again and
// again must not fill the disk.
func (h *Handler) log(t target, err error) {
	now, last := time.Now().UnixNano(), h.logged.Load()
	if now-last < int64(time.Second) || !h.logged.CompareAndSwap(last, now) {
		h.held.Add(1)
		return
	}
	h.logger.Error("download: couldn't make an archive", "package", t.pkg, "version", t.version, "err", err, "alike", h.held.Swap(0))
}

func (f failure) send(w http.ResponseWriter, r *http.Request) outcome {
	body, err := json.Marshal(struct {
		Error   bool   `json:"error"`
		Status  int    `json:"status"`
		Message string `json:"message"`
	}{true, f.status, f.message})
	if err != nil {
		panic(err) // there is nothing in it that does not encode
	}
	h := w.Header()
	crossOrigin(h)
	h.Set("Cache-Control", noStore)
	switch f.status {
	case http.StatusNotFound:
		h.Set("Cache-Control", fmt.Sprintf("public, max-age=%d", int(absentFor.Seconds())))
		h.Set("Expires", time.Now().Add(absentFor).UTC().Format(http.TimeFormat))
	case http.StatusMethodNotAllowed:
		h.Set("Allow", allowedMethods)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		h.Set("Retry-After", retryAfter)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(f.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // who is gone needs no answer
	}
	return f.outcome
}
