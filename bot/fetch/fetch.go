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
// A proxy from the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY) or from [Network] is the operator's word and
// is used, whatever its address. The address dialled is then the proxy's, so the target's name is resolved
// and checked here before the proxy is asked, unless the operator allows the host. The proxy resolves the name
// again: only its own rules can keep a changing name out.
//
// The package must not know what a package or a registry is.
package fetch

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
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
	// Network is how hosts are reached.
	Network
	// Logger gets failed tries that will be repeated; default none.
	Logger *slog.Logger

	// Now, Random (in [0, 1)) and Sleep stand in for the clock and chance; the defaults are the real ones.
	Now    func() time.Time
	Random func() float64
	Sleep  func(context.Context, time.Duration) error

	resolver *net.Resolver // for tests; nil is the system's
}

// Network is how a [Client] reaches hosts.
type Network struct {
	// Proxy chooses the proxy for a request, nil for none; default http.ProxyFromEnvironment. It is the operator's
	// word: a proxy may have any address.
	Proxy func(*http.Request) (*url.URL, error)
	// RootCAs are the certificate authorities to trust; default the system's.
	RootCAs *x509.CertPool
	// Unverified accepts every certificate where it is not empty. It names the setting that says so, for a warning
	// in the log, given once.
	Unverified string
}

// minRate is what a body must bring on average, in bytes a second, so that no server holds one of the few
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

	mu      sync.Mutex
	derived []*Client // that Close closes, too
}

// New makes a client; the only errors are about what o says.
func New(o Options) (*Client, error) {
	o.UserAgent = cmp.Or(o.UserAgent, "larder")
	o.Concurrency = cmp.Or(o.Concurrency, 8)
	o.Tries = cmp.Or(o.Tries, 4)
	o.Pause = cmp.Or(o.Pause, time.Second)
	o.MaxPause = cmp.Or(o.MaxPause, time.Minute)
	o.Stall = cmp.Or(o.Stall, time.Minute)
	if o.Proxy == nil {
		o.Proxy = http.ProxyFromEnvironment
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	if o.Sleep == nil {
		o.Sleep = retry.Sleep
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

// With returns a client that reaches hosts in the way n says, and as c does where n says nothing. Both together have
// no more requests under way than c may have alone, and c's Close closes both.
func (c *Client) With(n Network) *Client {
	o := c.o
	if n.Proxy != nil {
		o.Proxy = n.Proxy
	}
	if n.RootCAs != nil {
		o.RootCAs = n.RootCAs
	}
	if n.Unverified != "" {
		o.Unverified = n.Unverified
	}
	derived := &Client{o: o, guard: c.guard.with(&o), slots: c.slots}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.derived = append(c.derived, derived)
	return derived
}

// Reconnect closes idle connections, so that the next requests open others: to another server of a pool, perhaps.
func (c *Client) Reconnect() { c.guard.close() }

// Close closes idle connections.
func (c *Client) Close() {
	c.guard.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, derived := range c.derived {
		derived.Close()
	}
}

// Get makes the request and hands the answer to read, which must return before the answer's body is
// over and done with. A body that breaks off is a failed try like any other, so read may be called
// several times and has to start again each time. Any other error of read's ends the request and is
// returned as it is; the client's own are *[Error].
func (c *Client) Get(ctx context.Context, r Request, read func(*Response) error) error {
	r.Limit = cmp.Or(r.Limit, 64<<20)
	target, err := url.Parse(r.URL)
	if err != nil {
		// url.Error repeats the URL, which may hold credentials.
		return &Error{URL: "a malformed URL", Err: errMalformed}
	}
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
		pause := time.Duration(c.o.Random() * float64(retry.Doubled(try, c.o.Pause, c.o.MaxPause)))
		if !failure.RetryAt.IsZero() {
			asked := failure.RetryAt.Sub(c.o.Now())
			if asked > c.o.MaxPause {
				return err // too long to hold a slot: the caller schedules the next attempt
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

// What an [Error] is about, where a caller decides on it.
var (
	// ErrNotFound: the server says that there is no such thing (404, 410, 451).
	ErrNotFound = errors.New("not found")
	// ErrForbidden: the address rules forbid to ask there. Only the operator can allow it.
	ErrForbidden = errors.New("forbidden address")
	// ErrTooLarge: the answer is longer than the request's limit.
	ErrTooLarge = errors.New("too large")
)

var (
	errSlow      = errors.New("too slow")
	errMalformed = errors.New("not a URL")
)

// Error says what could not be got, why, and whether it may be had later.
type Error struct {
	// URL is the place that failed, after redirects, without credentials and query.
	URL string
	// Status is the answer's status, 0 where none came.
	Status int
	// Temporary means that the same request may succeed later.
	Temporary bool
	// RetryAt is when the server wants to be asked again, a day ahead at most; zero where it did not say.
	RetryAt time.Time
	// Err is the cause.
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("couldn't get %s: %v", e.URL, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// RetryAt gives the time before which a server does not want to be asked again, as far as err says so: a
// day ahead at most, whatever the server says.
func RetryAt(err error) (time.Time, bool) {
	var e *Error
	if errors.As(err, &e) && !e.RetryAt.IsZero() {
		return e.RetryAt, true
	}
	return time.Time{}, false
}

func tooLarge(limit int64) error { return fmt.Errorf("%w: over %d bytes", ErrTooLarge, limit) }

// Show writes a URL for people: without user, password, query and fragment, any of which may be a secret.
func Show(u *url.URL) string {
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return shown.String()
}

// failure makes an Error of a try that got no answer, or no whole one.
func (c *Client) failure(at *url.URL, err error) error {
	var certificate *tls.CertificateVerificationError
	permanent := errors.Is(err, ErrForbidden) || errors.Is(err, ErrTooLarge) || errors.Is(err, errRedirect) ||
		errors.As(err, &certificate)
	return &Error{URL: Show(at), Temporary: !permanent, Err: err}
}

// statusFailure makes an Error of an answer that is none.
func (c *Client) statusFailure(at *url.URL, r *http.Response) error {
	e := &Error{URL: Show(at), Status: r.StatusCode}
	text := fmt.Sprintf("%d %s", r.StatusCode, http.StatusText(r.StatusCode))
	e.Err = errors.New(text)
	switch r.StatusCode {
	case http.StatusNotFound, http.StatusGone, http.StatusUnavailableForLegalReasons:
		e.Err = fmt.Errorf("%w (%s)", ErrNotFound, text)
	case http.StatusUnauthorized, http.StatusForbidden:
		e.Err = fmt.Errorf("%s (are the credentials for it configured and valid?)", text)
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		e.Temporary = true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
	default:
		e.Temporary = r.StatusCode >= 500
	}
	if e.Temporary {
		e.RetryAt = retryAt(r.Header.Get("Retry-After"), c.o.Now())
	}
	return e
}

// longestWait bounds what a server may ask for, so that a mistake of its own does not lock it out for years.
const longestWait = 24 * time.Hour

// retryAt reads a Retry-After header: seconds or a date (RFC 9110 §10.2.3).
func retryAt(value string, now time.Time) time.Time {
	latest := now.Add(longestWait)
	seconds, err := strconv.ParseUint(value, 10, 64)
	switch {
	case err == nil && seconds < uint64(longestWait/time.Second):
		return now.Add(time.Duration(seconds) * time.Second)
	case err == nil, errors.Is(err, strconv.ErrRange):
		return latest
	}
	at, err := http.ParseTime(value)
	switch {
	case err != nil, !at.After(now):
		return time.Time{}
	case at.After(latest):
		return latest
	}
	return at
}

// cause prefers why a context ended over that it ended.
func cause(ctx context.Context, err error) error {
	if because := context.Cause(ctx); because != nil {
		return because
	}
	return err
}

// LocalError says that a download could not be written down. The fault is this machine's, not the
// server's: the disk is full or broken (errors.Is tells which, as with syscall.ENOSPC), and other
// downloads fail like this one until the operator repairs that.
type LocalError struct {
	// Err is the cause, without the file's name.
	Err error
}

func (e *LocalError) Error() string { return fmt.Sprintf("couldn't write the download: %v", e.Err) }

func (e *LocalError) Unwrap() error { return e.Err }

// NewLocalError leaves out the name of the file: what becomes of a release is published, this machine's
// folders are not.
func NewLocalError(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return &LocalError{Err: err}
}

// LocalWriter marks the errors of a file being written, among those of the body being read.
func LocalWriter(w io.Writer) io.Writer { return localWriter{w} }

type localWriter struct{ io.Writer }

func (w localWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		err = NewLocalError(err)
	}
	return n, err
}
