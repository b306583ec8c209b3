// Package fetch gets over HTTP what strangers name: tarballs, packuments, repositories.
//
// What it guarantees:
//
//   - https only, and never from an address that is private, loopback, link-local, multicast or
//     otherwise special. The address is checked when it is dialled, after name resolution, for every
//     redirect anew; no spelling of a host and no change of the DNS gets around it. Only what the
//     operator allows is exempt ([Options].Allow, [Request].Trusted), and may then use http too.
//   - Credentials are never sent to a place they are not meant for: they are asked for each URL, and
//     not at all once a redirect has left the first URL's origin.
//   - No answer is longer than the caller's limit, and none may stall or trickle: it has to keep up a
//     rate of 4 KiB a second, so even the longest one ends.
//   - Network failures, 5xx and 429 are tried again with exponential backoff and full jitter, no
//     sooner than the server asks for with Retry-After. Only GET exists, but for protocols over HTTP
//     that need more: what they send through [Client.Transport] is sent once, under the same rules.
//   - Every failure is an [Error] that says whether trying again later can help; URLs in errors carry no
//     credentials and no query.
//
// A proxy from the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY) is the operator's word and is used.
// The address dialled is then the proxy's, so the target's name is resolved and checked here before the
// proxy is asked. The proxy resolves it again: only its own rules can keep a changing name out.
//
// The package must not know what a package or a registry is.
package fetch

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Options says how a [Client] behaves. The zero value is good for use.
type Options struct {
	// UserAgent is sent with every request; default "larder".
	UserAgent string
	// Allow names hosts that the operator trusts, as "host" (any port) or "host:port". They may have any
	// address and may be asked over http.
	Allow []string
	// Concurrency is the most requests under way at once, their bodies included; default 8.
	Concurrency int
	// Tries is how often a request is made before its failure is reported; default 4.
	Tries int
	// Pause is the longest pause before the second try, doubled for each further one up to MaxPause; the
	// pause taken is a random part of it. Defaults 1 s and 1 min.
	Pause, MaxPause time.Duration
	// Stall is how long a request may go without an answer, and a body without bringing what 4 KiB a
	// second would bring in that time; default 1 min. So a body may pause, but not trickle.
	Stall time.Duration
	// Proxy chooses the proxy for a request; default http.ProxyFromEnvironment.
	Proxy func(*http.Request) (*url.URL, error)
	// RootCAs are the certificate authorities to trust; default the system's.
	RootCAs *x509.CertPool
	// Logger is told about tries that failed and will be repeated; default none.
	Logger *slog.Logger

	// Now, Random (in [0, 1)) and Sleep stand in for the clock and chance; the defaults are the real ones.
	Now    func() time.Time
	Random func() float64
	Sleep  func(context.Context, time.Duration) error

	resolver *net.Resolver // for tests; nil is the system's
}

// minRate is what a body must bring on average, in bytes a second, so that nobody holds one of the few
// slots for long with little. Eight requests at once keep it up on a line of 256 kbit/s.
const minRate = 4 << 10

// Request is what to get.
type Request struct {
	URL string
	// Header is sent along, to redirect targets too. It must not hold credentials.
	Header http.Header
	// Authorization gives the Authorization header's value for a URL, or "". It may be nil.
	Authorization func(*url.URL) string
	// Trusted says whether a URL is one that the operator named, as Options.Allow does for hosts. It may
	// be nil.
	Trusted func(*url.URL) bool
	// Limit is the most bytes the body may have, after any Content-Encoding is undone; default 64 MiB.
	Limit int64
}

// Response is an answer: 2xx, or 304 to a conditional request.
type Response struct {
	Status int
	Header http.Header
	// URL is where the answer came from, after redirects.
	URL *url.URL
	// Body gives the body's bytes; a short or stalled one fails with an error that is tried again.
	Body io.Reader
}

// Client gets things. It is safe for concurrent use.
type Client struct {
	o     Options
	guard *guard
	slots chan struct{}
}

// New makes a client; the only errors are about what o says.
func New(o Options) (*Client, error) {
	if o.UserAgent == "" {
		o.UserAgent = "larder"
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 8
	}
	if o.Tries <= 0 {
		o.Tries = 4
	}
	if o.Pause <= 0 {
		o.Pause = time.Second
	}
	if o.MaxPause <= 0 {
		o.MaxPause = time.Minute
	}
	if o.Stall <= 0 {
		o.Stall = time.Minute
	}
	if o.Proxy == nil {
		o.Proxy = http.ProxyFromEnvironment
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	if o.Sleep == nil {
		o.Sleep = sleep
	}
	if o.resolver == nil {
		o.resolver = net.DefaultResolver
	}
	guard, err := newGuard(&o)
	if err != nil {
		return nil, err
	}
	return &Client{o: o, guard: guard, slots: make(chan struct{}, o.Concurrency)}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.guard.close() }

// Get makes the request and hands the answer to read, which must return before the answer's body is
// over and done with. A body that breaks off is a failed try like any other, so read may be called
// several times and has to begin anew each time. Any other error of read's ends the request and is
// returned as it is; the client's own are *[Error].
func (c *Client) Get(ctx context.Context, r Request, read func(*Response) error) error {
	if r.Limit <= 0 {
		r.Limit = 64 << 20
	}
	target, err := url.Parse(r.URL)
	if err != nil {
		// url.Error repeats the URL, which may hold credentials.
		return &Error{URL: "a malformed URL", Err: errMalformed}
	}
	pauses := &backoff.ExponentialBackOff{InitialInterval: c.o.Pause, Multiplier: 2, MaxInterval: c.o.MaxPause}
	pauses.Reset()
	for try := 1; ; try++ {
		err := c.try(ctx, &r, target, read)
		if err == nil {
			return nil
		}
		failure, ok := err.(*Error)
		if !ok || !failure.Temporary || try >= c.o.Tries || ctx.Err() != nil {
			return err
		}
		// Full jitter: many clients that failed together must not come back together.
		pause := time.Duration(c.o.Random() * float64(pauses.NextBackOff()))
		if !failure.RetryAt.IsZero() {
			asked := failure.RetryAt.Sub(c.o.Now())
			if asked > c.o.MaxPause {
				return err // whoever schedules the request knows better what to do meanwhile
			}
			pause += max(asked, 0)
		}
		c.o.Logger.Debug("fetch failed, will try again", "url", failure.URL, "try", try, "pause", pause, "err", failure.Err)
		if c.o.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// try makes the request once, within the bound on concurrency.
func (c *Client) try(ctx context.Context, r *Request, target *url.URL, read func(*Response) error) error {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return c.failure(target, context.Cause(ctx))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(c.o.Stall, func() {
		cancel(fmt.Errorf("%w: less than %d bytes a second for %v", errSlow, minRate, c.o.Stall))
	})
	defer stall.Stop()

	response, err := c.follow(ctx, r, target)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	at := response.Request.URL
	if response.StatusCode/100 != 2 && response.StatusCode != http.StatusNotModified {
		return c.statusFailure(at, response)
	}
	if response.ContentLength > r.Limit {
		return c.failure(at, tooLarge(r.Limit))
	}
	body := &body{ctx: ctx, r: response.Body, limit: r.Limit, stall: stall, timeout: c.o.Stall}
	body.step = int64(minRate * c.o.Stall.Seconds())
	stall.Reset(c.o.Stall) // the answer is there
	err = read(&Response{Status: response.StatusCode, Header: response.Header, URL: at, Body: body})
	if body.err != nil {
		return c.failure(at, body.err)
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// body bounds a response's body in bytes and in time: each step of it has to come within the timeout.
type body struct {
	ctx      context.Context
	r        io.Reader
	limit    int64
	read     int64
	stall    *time.Timer
	timeout  time.Duration
	step     int64 // how many bytes set the stall timer back
	reported int64 // read when they last did
	err      error // the first failure, kept in case the reader rewords it
}

func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.r.Read(p)
	b.read += int64(n)
	switch {
	case b.read > b.limit:
		b.err = tooLarge(b.limit)
		return 0, b.err
	case err != nil && err != io.EOF:
		b.err = err
		if cause := context.Cause(b.ctx); cause != nil {
			b.err = cause
		}
		return n, b.err
	}
	if b.read-b.reported >= b.step {
		b.reported = b.read
		b.stall.Reset(b.timeout)
	}
	return n, err
}
