package waitingroom

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
)

// A challenge is a service of the operator's that a room queries about each new visitor before
// there is a ticket: whether a cookie or a header of the request proves what the operator wants
// proven. The room sends no query about a visitor who has a ticket.
type challenge struct {
	url    *url.URL
	client *http.Client
	places *answers.Shares // of questions under way
	logger *slog.Logger
}

const (
	// challengesAtOnce bounds the questions under way of a room.
	challengesAtOnce = 256
	// challengeTimeout is how long a response may take.
	challengeTimeout = 5 * time.Second
	// mostChallenge is how many bytes of a response a visitor gets. Each who takes them slowly has them in memory.
	mostChallenge = 128 << 10
	// mostUnread is how many bytes are read of a response that no visitor gets, to use the connection again.
	mostUnread = 4 << 10
)

// newChallengeClient returns a client of the operator's service at a URL, which decides whether a new visitor of a room may have
// a ticket. The client follows no redirects.
func newChallengeClient(at *url.URL, logger *slog.Logger) *challenge {
	transport := &http.Transport{MaxIdleConnsPerHost: challengesAtOnce, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10}
	return &challenge{url: at, logger: logger, places: answers.NewShares(challengesAtOnce), client: &http.Client{
		Transport: transport, Timeout: challengeTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// notAsked are fields that are about the body, the connection or the cache of the visitor's request, not about the visitor.
var notAsked = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect", "Content-Length", "Content-Encoding",
	"Accept-Encoding", "Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
}

// answered are the fields that a visitor gets of a response that is not 2xx.
var answered = []string{"Content-Type", "Content-Language", "Content-Security-Policy", "Location", "Set-Cookie", "Www-Authenticate", "Retry-After", "Refresh", "Referrer-Policy"}

// checkVisitor queries the operator's service about a visitor, and reports whether the visitor may have a ticket: the service
// responds 2xx. If not, checkVisitor has responded: with the service's response, such as a form, or with 503 if the service
// failed or too many queries are under way. It logs failures of the service.
func (c *challenge) checkVisitor(w http.ResponseWriter, req *http.Request) bool {
	res, body, err := c.requestChallenge(req)
	switch {
	case err != nil:
		crowded := errors.Is(err, answers.ErrNoPlace) || errors.Is(err, answers.ErrLost)
		if !crowded && req.Context().Err() == nil {
			c.logger.Error("waitingroom: the challenge of a room does not answer, so no new visitor gets a ticket", "challenge", c.url.Host, "err", err)
		}
		sendChallengeFailure(w, req)
		return false
	case res.StatusCode >= 500:
		c.logger.Error("waitingroom: the challenge of a room fails, so no new visitor gets a ticket", "challenge", c.url.Host, "status", res.StatusCode)
		sendChallengeFailure(w, req)
		return false
	case res.StatusCode >= 200 && res.StatusCode < 300:
		return true
	}
	h := w.Header()
	for _, name := range answered {
		if values := res.Header[name]; values != nil {
			h[name] = values
		}
	}
	h.Set("Cache-Control", private)
	sendBody(w, req, res.StatusCode, body)
	return false
}

// requestChallenge sends a GET to the operator's service with the header fields of a visitor's request, but for tickets and
// notAsked, and with the client, method and URL of that request, and returns the response, whose body is closed. body is what the
// visitor gets, cut to mostChallenge bytes, in memory so that a slow visitor does not block others; nil for responses that no
// visitor gets (2xx, 5xx). The error may be [answers.ErrNoPlace] or [answers.ErrLost].
func (c *challenge) requestChallenge(req *http.Request) (res *http.Response, body []byte, err error) {
	ctx, leave, err := c.places.Enter(req.Context(), req.RemoteAddr, 0)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	out, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	out.Header = req.Header.Clone()
	for _, name := range notAsked {
		delete(out.Header, name)
	}
	removeTickets(out.Header)
	requests.SetForwarded(out.Header, req)
	out.Header.Set("X-Forwarded-Method", req.Method)
	out.Header.Set("X-Forwarded-Uri", requestTarget(req).RequestURI())
	if res, err = c.client.Do(out); err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	if res.StatusCode < 300 || res.StatusCode >= 500 {
		_, _ = io.CopyN(io.Discard, res.Body, mostUnread)
		return res, nil, nil
	}
	body, err = io.ReadAll(io.LimitReader(res.Body, mostChallenge))
	return res, body, err
}

// sendChallengeFailure responds 503 to a visitor, with a request to come again in a few seconds, because the operator's service
// has failed or too many visitors wait for it.
func sendChallengeFailure(w http.ResponseWriter, req *http.Request) {
	const again = 5 * time.Second
	w.Header().Set("Refresh", strconv.Itoa(roundUpSeconds(again)))
	sendRetryLater(w, req, http.StatusServiceUnavailable, again, "New visitors cannot be let in at the moment.")
}
