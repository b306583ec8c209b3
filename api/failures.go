package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/kvstore"
)

// A failure is an answer that is not what was asked for.
type failure struct {
	status     int
	message    string
	cached     caching
	retryAfter int    // seconds, 0 for none
	ref        string // under which the log tells more, "" where there is nothing to tell
}

func (f *failure) Error() string { return f.message }

var (
	noEndpoint = &failure{status: http.StatusNotFound, message: "Endpoint not found", cached: oneHour}
	noLibrary  = &failure{status: http.StatusNotFound, message: "Library not found", cached: oneHour}
	noVersion  = &failure{status: http.StatusNotFound, message: "Version not found", cached: oneHour}

	queryTooLong = &failure{status: http.StatusRequestURITooLong, message: "The query is over " + strconv.Itoa(maxQuery) + " bytes", cached: notCached}
	badQuery     = &failure{status: http.StatusBadRequest, message: "The query has a malformed percent-encoding or is not UTF-8", cached: notCached}
	badLimit     = &failure{status: http.StatusBadRequest, message: "limit must be a whole number", cached: notCached}
	badHost      = &failure{status: http.StatusBadRequest, message: "The Host header is missing or malformed", cached: notCached}

	notReady = &failure{status: http.StatusServiceUnavailable, message: "The libraries are still being read", cached: notCached, retryAfter: 5}
	busy     = &failure{status: http.StatusServiceUnavailable, message: "There are too many large answers on their way", cached: notCached, retryAfter: 1}
	// changing is for the moment between a withdrawal and the index's having heard of it.
	changing = &failure{status: http.StatusServiceUnavailable, message: "The library is just changing", cached: notCached, retryAfter: 1}
)

func withdrawn(e *library.WithdrawnError) *failure {
	return &failure{status: http.StatusGone, message: "Version withdrawn: " + e.Reason, cached: notCached}
}

// damaged is the answer where the store has lost what was asked for: as of assets, which may be there all the same.
func damaged(ref string) *failure {
	return &failure{status: http.StatusServiceUnavailable, message: "This cannot be read at the moment", cached: notCached, retryAfter: 5, ref: ref}
}

func unexpected(ref string) *failure {
	return &failure{status: http.StatusInternalServerError, message: "An unexpected error occurred", cached: notCached, ref: ref}
}

// fail answers with what err comes to, in this one place. What is nobody's fault but ours gets into the log.
func fail(c *gin.Context, logger *slog.Logger, err error) {
	var known *failure
	var gone *library.WithdrawnError
	switch {
	case errors.As(err, &known):
	case errors.Is(err, library.ErrNoLibrary):
		known = noLibrary
	case errors.Is(err, library.ErrNoVersion):
		known = noVersion
	case errors.As(err, &gone):
		known = withdrawn(gone)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		known = notReady
	default:
		if known = unexpected(rand.Text()); errors.Is(err, kvstore.ErrCorrupt) {
			known = damaged(known.ref)
		}
		logger.Error("request failed", "ref", known.ref, "method", c.Request.Method, "path", c.Request.URL.Path, "err", err)
	}
	known.send(c)
}

// send answers with the one shape of errors.
func (f *failure) send(c *gin.Context) {
	if f.retryAfter > 0 {
		c.Writer.Header().Set("Retry-After", strconv.Itoa(f.retryAfter))
	}
	var w jsonWriter
	w.beginObject()
	w.field("error", true)
	w.field("status", f.status)
	w.field("message", f.message)
	if f.ref != "" {
		w.field("ref", f.ref)
	}
	w.endObject()
	c.Abort()
	send(c, f.status, f.cached, newJSON(w.bytes()))
}

// recovered answers a panic with a 500 whose reference is in the log beside the stack.
func recovered(logger *slog.Logger) gin.HandlerFunc {
	return func(c *gin.Context) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if cause == http.ErrAbortHandler { // how a handler says that the connection is to be cut
				panic(cause)
			}
			ref := rand.Text()
			logger.Error("request panicked", "ref", ref, "method", c.Request.Method, "path", c.Request.URL.Path,
				"panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			if c.Writer.Written() {
				panic(http.ErrAbortHandler) // too late for another answer: let the client see that this one broke off
			}
			for _, name := range []string{"Etag", "Content-Encoding", "Last-Modified"} {
				c.Writer.Header().Del(name) // of the answer that was not to be
			}
			unexpected(ref).send(c)
		}()
		c.Next()
	}
}
