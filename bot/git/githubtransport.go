package git

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
)

// The headers in which GitHub reports its rate limits,
// https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api.
const (
	limitHeader     = "X-RateLimit-Limit"
	remainingHeader = "X-RateLimit-Remaining"
	resetHeader     = "X-RateLimit-Reset" // seconds since 1970, by GitHub's clock
	retryHeader     = "Retry-After"       // seconds
)

const (
	answerTime  = time.Minute // the time limit of a response, with its body
	answerSize  = 64 << 20    // the size limit of a response
	leastWait   = time.Minute // where GitHub does not say how long
	longestWait = time.Hour   // after which GitHub is queried again: its longest window
)

// githubTransport sends requests with the token, and no sooner than GitHub wants them.
type githubTransport struct {
	base      http.RoundTripper
	host      string // that gets the token
	userAgent string
	token     string
	pause     time.Duration
	logger    *slog.Logger

	mu    sync.Mutex
	until time.Time // when the next request may be sent
	write time.Time // when the next request that changes something may be sent
}

// RoundTrip implements http.RoundTripper. It waits until GitHub's rate limits permit a request, or until the request's context
// ends, and sends the request again when a response says that a limit was exceeded. It refuses hosts other than that of the API.
func (t *githubTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	if r.URL.Host != t.host {
		return nil, fmt.Errorf("github: %s is not the host of the API", r.URL.Host)
	}
	if r.Body != nil && r.GetBody == nil {
		return nil, errors.New("github: a request with a body that can be sent only once")
	}
	for attempt := 0; ; attempt++ {
		if err := t.waitForTurn(r.Context(), r.Method != http.MethodGet && r.Method != http.MethodHead); err != nil {
			return nil, err
		}
		response, body, err := t.send(r)
		if err != nil {
			return nil, err
		}
		if !t.recordLimits(response, body, attempt) {
			// The library would refuse the next request, which this transport delays.
			for _, name := range []string{limitHeader, remainingHeader, resetHeader} {
				response.Header.Del(name)
			}
			return response, nil
		}
	}
}

// send sends a request once, with token and User-Agent, and reads the complete response. Both have a time limit, and the body a
// size limit. It returns the body also in response.Body.
func (t *githubTransport) send(r *http.Request) (*http.Response, []byte, error) {
	ctx, cancel := context.WithTimeoutCause(r.Context(), answerTime, fmt.Errorf("no answer within %s", answerTime))
	defer cancel()
	sent := r.Clone(ctx)
	if r.GetBody != nil {
		var err error
		if sent.Body, err = r.GetBody(); err != nil {
			return nil, nil, err
		}
	}
	sent.Header.Set("User-Agent", t.userAgent)
	if t.token != "" {
		sent.Header.Set("Authorization", "Bearer "+t.token)
	}
	response, err := t.base.RoundTrip(sent)
	if err != nil {
		return nil, nil, cmp.Or(context.Cause(ctx), err)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, answerSize+1))
	response.Body.Close()
	switch {
	case err != nil:
		return nil, nil, cmp.Or(context.Cause(ctx), err)
	case len(body) > answerSize:
		return nil, nil, fmt.Errorf("github: an answer of more than %d MiB", answerSize>>20)
	}
	response.Body, response.Request = io.NopCloser(bytes.NewReader(body)), r
	return response, body, nil
}

// waitForTurn waits until the rate limits allow a request, or returns the error of ctx. write says that the request changes
// something: between two of these is a pause.
func (t *githubTransport) waitForTurn(ctx context.Context, write bool) error {
	for {
		t.mu.Lock()
		now, at := time.Now(), t.until
		if write && t.write.After(at) {
			at = t.write
		}
		if !at.After(now) {
			if write {
				t.write = now.Add(t.pause)
			}
			t.mu.Unlock()
			return ctx.Err()
		}
		t.mu.Unlock()
		if err := retry.Sleep(ctx, at.Sub(now)); err != nil {
			return err
		}
	}
}

// recordLimits records until when a response of GitHub with this body wants no further requests. It reports whether GitHub
// refused the request because a rate limit was exceeded. attempt is how often this request was refused before.
func (t *githubTransport) recordLimits(response *http.Response, body []byte, attempt int) (over bool) {
	h := response.Header
	used := h.Get(remainingHeader) == "0"
	after, err := strconv.ParseUint(h.Get(retryHeader), 10, 31)
	hasAfter := err == nil
	switch response.StatusCode {
	case http.StatusTooManyRequests:
		over = true
	case http.StatusForbidden:
		over = used || hasAfter || bytes.Contains(bytes.ToLower(body), []byte("rate limit")) || bytes.Contains(body, []byte("#abuse-rate-limits"))
	}
	var wait time.Duration
	switch {
	case over && hasAfter:
		wait = time.Duration(after) * time.Second
	case used:
		wait = untilReset(h)
	}
	if over && wait <= 0 {
		wait = min(leastWait<<min(attempt, 10), longestWait)
	}
	if wait = min(wait, longestWait); wait <= 0 {
		return over
	}
	until := time.Now().Add(wait)
	t.mu.Lock()
	later := until.After(t.until)
	if later {
		t.until = until
	}
	t.mu.Unlock()
	if later {
		limit := "secondary" // GitHub's name of the limits on abuse; the primary one counts requests
		if used {
			limit = "primary"
		}
		t.logger.Info("waiting until GitHub takes more requests", "limit", limit, "wait", wait.Round(time.Second))
	}
	return over
}

// untilReset returns how long the present window of the primary rate limit still lasts by the header of a response; a minute if
// it does not say.
func untilReset(h http.Header) time.Duration {
	reset, err := strconv.ParseInt(h.Get(resetHeader), 10, 64)
	if err != nil {
		return leastWait
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return time.Unix(reset, 0).Sub(now) + time.Second // both are rounded
}
