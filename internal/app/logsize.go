package app

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/answers"
)

// A program that publishes through one node gets the number of log entries afterwards. A request with that number gets a
// response that covers at least these entries, from any node.

// sizeField is the header field with the number.
const sizeField = "Larder-Log-Size"

const (
	arrivalTimeout = 2 * time.Second // until entries that another node published must have arrived here
	maxWaiting     = 256             // requests that wait for it at once
)

// Written is the response of an operation that may have published, and its JSON form.
type Written struct {
	// LogSize is how many entries the log has.
	LogSize int64 `json:"log_size"`
}

// reportLogSize changes the operations in all that publish one release, so that after success they report as an event, a note for
// people, how many entries the log has. A program may send that number with its next request, in [sizeField], so that any node has these entries.
func reportLogSize(all operations) {
	for _, name := range []string{string(OpAdd), string(opImport)} {
		next := all[name]
		all[name] = func(ctx context.Context, request api.OperationRequest, report func(any)) (any, error) {
			result, err := next(ctx, request, report)
			if size := logSizeOf(result); err == nil && size > 0 {
				report(sources.Event{Kind: sources.Note, Reason: fmt.Sprintf("the log now has %d entries; send %s: %d with a request, and any node responds with at least these", size, sizeField, size)})
			}
			return result, err
		}
	}
}

// logSizeOf returns the number of log entries that the result of an operation has, 0 if it has none. A result from another node
// is a json.RawMessage, of which only log_size is read.
func logSizeOf(result any) int64 {
	switch result := result.(type) {
	case Written:
		return result.LogSize
	case *Withdrawn:
		return result.LogSize
	case json.RawMessage:
		var w Written
		_ = json.Unmarshal(result, &w) // a result that is not an object reports no size
		return w.LogSize
	}
	return 0
}

// newWritten returns the response to an operation that may have published entries: the size of the log.
func (w *Writer) newWritten() Written { return Written{w.folder.log.Checkpoint().Size} }

// delayForLogSize returns a handler that delays a request with the header field [sizeField] until the site serves that many log
// entries, and then passes it to next, or sends the error of [published.awaitLogSize].
func (p *published) delayForLogSize(next http.Handler) http.Handler {
	places := answers.NewShares(maxWaiting)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if failure := p.awaitLogSize(r, places); failure != nil {
			failure.Send(w, r.Method == http.MethodHead, r.Header["Accept"])
			return
		}
		next.ServeHTTP(w, r)
	})
}

// awaitLogSize waits until the site serves as many log entries as a request names in [sizeField]. Except for files below
// /ajax/, it also waits for the index of libraries. It returns nil then, and at once without the field. It returns the response
// to send, 400 if the field is invalid, and 503 if the wait takes longer than arrivalTimeout, fails, or cannot begin because
// too many requests wait for new entries. places limits these, also for each client.
func (p *published) awaitLogSize(r *http.Request, places *answers.Shares) *answers.Failure {
	named := r.Header[sizeField]
	if len(named) == 0 {
		return nil
	}
	size, err := strconv.ParseInt(named[0], 10, 64)
	if len(named) > 1 || err != nil || size < 0 {
		return &answers.Failure{Status: http.StatusBadRequest, Message: sizeField + " must be a number of log entries."}
	}
	ctx, stop := context.WithTimeout(r.Context(), arrivalTimeout)
	defer stop()
	if p.folder.log.Checkpoint().Size < size {
		var leave func()
		if ctx, leave, err = places.Enter(ctx, r.RemoteAddr, 0); err == nil {
			defer leave()
		}
	}
	if err == nil {
		err = p.follower.Wait(ctx, size)
	}
	if err == nil && !strings.HasPrefix(r.URL.Path, "/ajax/") { // pages and API read the index
		err = p.libraries.Wait(ctx, size)
	}
	if err == nil {
		return nil
	}
	return &answers.Failure{
		Status: http.StatusServiceUnavailable, Retry: 1,
		Message: fmt.Sprintf("This node has %d log entries so far, and the request asks for at least %d; try again, or ask another node.", p.folder.log.Checkpoint().Size, size),
	}
}
