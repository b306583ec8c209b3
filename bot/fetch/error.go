package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

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
