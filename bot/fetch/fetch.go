// Package fetch downloads what strangers name over HTTP: tarballs, packuments, repositories.
//
// It guarantees:
//
//   - https only, and never from an address that is private, loopback, link-local, multicast or
//     otherwise special. The address is checked right before each connection, after name resolution, and
//     for every redirect. No spelling of a host and no change of the DNS evades that. Only what the
//     operator allows is exempt ([Options].Allow, [Request].Trusted), and may then use http too.
//   - Credentials are sent only where they belong: they are looked up for each URL, and never sent after a
//     redirect has left the first URL's origin.
//   - No response is longer than the caller's limit, and none may stall or trickle: its rate must be at least
//     4 KiB a second, so even the longest one ends.
//   - Network failures, 5xx and 429 are tried again with exponential backoff and full jitter, no
//     sooner than the server asks for with Retry-After. Only GET exists, but for protocols over HTTP
//     that need more: what they send through [Client.Transport] is sent once, under the same rules.
//   - Every failure is an [Error] that says whether trying again later can help; URLs in errors carry no
//     credentials and no query.
//
// A proxy from the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY) or from [Network] is configured by the operator
// and may have any address. The connection is then to the proxy, so the target's name is resolved and checked
// here before the request goes to the proxy, unless the operator allows the host. The proxy resolves the name
// again: only its own rules can exclude a name that changes.
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
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
)

// Options configures a [Client]. The zero value is valid.
type Options struct {
	// UserAgent is sent with every request; default "larder".
	UserAgent string
	// Allow names hosts that the operator trusts, as "host" (any port) or "host:port". They may have any
	// address, and http is allowed.
	Allow []string
	// Concurrency limits the requests at once, including their bodies; default 8.
	Concurrency int
	// Tries is how often a request is made before its failure is reported; default 4.
	Tries int
	// Pause is the longest pause before the second try, doubled for each further one up to MaxPause; the
	// pause taken is a random part of it. Defaults 1 s and 1 min.
	Pause, MaxPause time.Duration
	// Stall limits how long a request waits for a response, redirects included, and for as many bytes of the body as 4 KiB a second
	// are in that time; default 1 min. So a body may pause, but not trickle.
	Stall time.Duration
	// Network is how hosts are reached.
	Network
	// Logger gets failed tries that will be repeated; default none.
	Logger *slog.Logger

	// Now, Random (in [0, 1)) and Sleep replace the clock and randomness in tests. The defaults are the real ones.
	Now    func() time.Time
	Random func() float64
	Sleep  func(context.Context, time.Duration) error

	resolver *net.Resolver // for tests; nil is the system's
}

// Network is how a [Client] reaches hosts.
type Network struct {
	// Proxy chooses the proxy for a request, nil for none; default http.ProxyFromEnvironment. A proxy
	// may have any address.
	Proxy func(*http.Request) (*url.URL, error)
	// RootCAs are the certificate authorities to trust; default the system's.
	RootCAs *x509.CertPool
	// Unverified is not empty if every certificate is accepted. It names the setting that says so, for one warning in
	// the log.
	Unverified string
}

// minRate is the least average rate of a body, in bytes a second, so that no slow server occupies one of the few slots for
// long. Eight requests at once reach it on a line of 256 kbit/s.
const minRate = 4 << 10

// Request is a request for one URL.
type Request struct {
	URL string
	// Header is sent along, to redirect targets too. It must not hold credentials.
	Header http.Header
	// Authorization returns the Authorization header's value for a URL, or "". It may be nil.
	Authorization func(*url.URL) string
	// Trusted says whether a URL is one that the operator named, as Options.Allow does for hosts. It may
	// be nil.
	Trusted func(*url.URL) bool
	// Limit limits the bytes of the decoded body; default 64 MiB.
	Limit int64
}

// Response is a response with status 2xx, or 304 to a conditional request.
type Response struct {
	Status int
	Header http.Header
	// URL is the URL that responded, after redirects.
	URL *url.URL
	// Body is the body. A short or stalled one fails with an error after which the request is tried again.
	Body io.Reader
}

// Client sends requests. It is safe for concurrent use.
type Client struct {
	o     Options
	allow map[string]bool // "host" or "host:port", lower case
	transports
	slots chan struct{}

	mu      sync.Mutex
	derived []*Client // that Close closes, too
}

// New returns a client, with the defaults for options that are zero. It returns an error only if the options are invalid.
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
	allow, err := parseAllowed(o.Allow)
	if err != nil {
		return nil, err
	}
	return &Client{o: o, allow: allow, transports: newTransports(&o), slots: make(chan struct{}, o.Concurrency)}, nil
}

// With returns a client that reaches hosts as n says, and as c does where n has no setting. Both clients share the limit of concurrent
// requests. Closing c closes both.
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
	derived := &Client{o: o, allow: c.allow, transports: newTransports(&o), slots: c.slots}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.derived = append(c.derived, derived)
	return derived
}

// Close closes the idle connections of c and of the clients that were derived from it. They can still be used.
func (c *Client) Close() {
	c.Reconnect()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, derived := range c.derived {
		derived.Close()
	}
}

// Get sends the request, again after each temporary failure up to Options.Tries times, and passes the response to read, which must not use its body
// after it has returned. If the body breaks off, the try has failed like any other, so Get may call read several times, each time with a complete new
// response. Any other error of read, unless it is a temporary *[Error], ends the request and is returned unchanged. Get waits between tries; if the
// server asks for more than Options.MaxPause, it returns the error at once. Errors of the client are *[Error].
func (c *Client) Get(ctx context.Context, r Request, read func(*Response) error) error {
	r.Limit = cmp.Or(r.Limit, 64<<20)
	target, err := url.Parse(r.URL)
	if err != nil {
		// url.Error repeats the URL, which may hold credentials.
		return &Error{URL: "a malformed URL", Err: errMalformed}
	}
	for try := 1; ; try++ {
		err := c.tryOnce(ctx, &r, target, read)
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

// tryOnce sends the request once, follows up to five redirects, and passes a successful response to read. It sends credentials until the first
// redirect to another origin; an http.Client would keep them on the way to subdomains, other ports and plain http. It returns an *[Error] if the
// request fails, or the body breaks off, is too long or too slow; else the error of read.
func (c *Client) tryOnce(ctx context.Context, r *Request, target *url.URL, read func(*Response) error) error {
	atHome := true // no redirect has left the first origin yet
	options := TransportOptions{Trusted: r.Trusted, Limit: r.Limit, Authorization: func(u *url.URL) string {
		if !atHome || r.Authorization == nil {
			return ""
		}
		return r.Authorization(u)
	}}
	client := http.Client{Transport: c.Transport(options), CheckRedirect: func(next *http.Request, via []*http.Request) error {
		next.Response.Body.Close() // else the client reads it first, however slow it is
		atHome = atHome && SameOrigin(next.URL, target)
		next.Header.Del("Referer")
		if len(via) > maxRedirects {
			return fmt.Errorf("%w: more than %d in a row", errRedirect, maxRedirects)
		}
		return nil
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return c.newError(target, err)
	}
	maps.Copy(request.Header, r.Header)
	response, err := client.Do(request)
	if failure, ok := errors.AsType[*Error](err); ok {
		return failure
	}
	if errors.Is(err, errRedirect) {
		return c.newError(target, errors.Unwrap(err)) // the client puts the URL in front
	}
	if err != nil { // which quotes the Location
		return c.newError(target, errLocation)
	}
	defer response.Body.Close()
	at := response.Request.URL
	switch {
	case response.StatusCode/100 == 2, response.StatusCode == http.StatusNotModified:
	case isRedirect(response.StatusCode): // without a Location
		return c.newError(at, errLocation)
	default:
		return c.newStatusError(at, response)
	}
	body := response.Body.(*body)
	err = read(&Response{Status: response.StatusCode, Header: response.Header, URL: at, Body: body})
	return cmp.Or(body.err, err)
}

// isRedirect reports whether the http.Client follows responses with a status.
func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// The causes of an [Error] on which callers decide.
var (
	// ErrNotFound: the server has no such resource (404, 410, 451).
	ErrNotFound = errors.New("not found")
	// ErrForbidden: the address rules forbid requests to this address. Only the operator can allow them.
	ErrForbidden = errors.New("forbidden address")
	// ErrTooLarge: the response is longer than the request's limit.
	ErrTooLarge = errors.New("too large")
)

var (
	errSlow      = errors.New("too slow")
	errMalformed = errors.New("not a URL")
)

// Error says which URL could not be fetched, why, and when a retry may succeed.
type Error struct {
	// URL is the address that failed, after redirects, without credentials and query.
	URL string
	// Status is the status of the response, 0 if there was none.
	Status int
	// Temporary means that the same request may succeed later.
	Temporary bool
	// RetryAt is when the server accepts the next request, a day ahead at most; zero if the server does not say.
	RetryAt time.Time
	// Err is the cause.
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("couldn't get %s: %v", e.URL, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// RetryAt returns the time before which a server does not accept another request, if err contains one. It is at most one day ahead.
func RetryAt(err error) (time.Time, bool) {
	var e *Error
	if errors.As(err, &e) && !e.RetryAt.IsZero() {
		return e.RetryAt, true
	}
	return time.Time{}, false
}

// newSizeError returns the error of a body with over limit bytes.
func newSizeError(limit int64) error { return fmt.Errorf("%w: over %d bytes", ErrTooLarge, limit) }

// Redact returns a URL without user, password, query and fragment, which may contain secrets.
func Redact(u *url.URL) string {
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return shown.String()
}

// newError returns err as the *Error of a try at a URL that received no complete response. It is temporary unless err is a forbidden address, too
// many bytes, a bad redirect or a wrong certificate.
func (c *Client) newError(at *url.URL, err error) error {
	var certificate *tls.CertificateVerificationError
	permanent := errors.Is(err, ErrForbidden) || errors.Is(err, ErrTooLarge) || errors.Is(err, errRedirect) ||
		errors.As(err, &certificate)
	return &Error{URL: Redact(at), Temporary: !permanent, Err: err}
}

// newStatusError returns the *Error of a response whose status is a failure. It is [ErrNotFound] for 404, 410 and 451. It is temporary for 408, 425,
// 429 and 5xx but 501 and 505, and then has the time of Retry-After.
func (c *Client) newStatusError(at *url.URL, r *http.Response) error {
	e := &Error{URL: Redact(at), Status: r.StatusCode}
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
		e.RetryAt = parseRetryAfter(r.Header.Get("Retry-After"), c.o.Now())
	}
	return e
}

// longestWait bounds what a server may ask for, so that a mistake of its own does not lock it out for years.
const longestWait = 24 * time.Hour

// parseRetryAfter parses a Retry-After header: seconds or a date (RFC 9110 §10.2.3). It returns a time that is at most one day after now, and the
// zero time for a past date and for any other value.
func parseRetryAfter(value string, now time.Time) time.Time {
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

// LocalError is the error of a download that could not be written to the disk. The disk is full or broken (errors.Is with
// syscall.ENOSPC and so on tells which), and other downloads fail too until the operator repairs that.
type LocalError struct {
	// Err is the cause, without the file's name.
	Err error
}

func (e *LocalError) Error() string { return fmt.Sprintf("couldn't write the download: %v", e.Err) }

func (e *LocalError) Unwrap() error { return e.Err }

// NewLocalError returns err, which must not be nil, as a *LocalError. It leaves out the file's name that an *fs.PathError has: the outcome
// of a release is published, and the folders of this machine are not.
func NewLocalError(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return &LocalError{Err: err}
}

// Truncate empties a file and moves to its beginning. Its error is a *[LocalError].
func Truncate(f *os.File) error {
	_, err := f.Seek(0, io.SeekStart)
	if err == nil {
		err = f.Truncate(0)
	}
	if err != nil {
		return NewLocalError(err)
	}
	return nil
}

// LocalWriter returns a writer whose errors are *LocalError, so that they differ from errors of reading the body.
func LocalWriter(w io.Writer) io.Writer { return localWriter{w} }

type localWriter struct{ io.Writer }

// Write writes p to the underlying writer. An error is a *[LocalError].
func (w localWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		err = NewLocalError(err)
	}
	return n, err
}
