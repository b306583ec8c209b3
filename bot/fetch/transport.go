package fetch

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Validators are what a server gave to recognise an answer by. They are for sending back, not for
// reading; the zero value asks unconditionally.
type Validators struct {
	ETag, LastModified string
}

// TransportOptions say what a transport may do.
type TransportOptions struct {
	// Authorization gives the Authorization header's value for a URL, or "". It may be nil.
	Authorization func(*url.URL) string
	// Trusted says whether a URL is one that the operator named, as Options.Allow does for hosts. It may
	// be nil.
	Trusted func(*url.URL) bool
	// Limit is the most bytes that the body of an answer may have; default 64 MiB.
	Limit int64
}

// Transport returns a transport for clients of protocols over HTTP that need more than Get. It has the
// client's address rules, for each request anew and so for each redirect that its caller follows; its
// bounds on how slow an answer may be, and its bound on how many are under way, until a body is closed.
// A request is sent once, with no credentials but those of o. Errors of a body are an [*Error], too.
func (c *Client) Transport(o TransportOptions) http.RoundTripper {
	if o.Limit <= 0 {
		o.Limit = 64 << 20
	}
	return &transport{client: c, o: o}
}

type transport struct {
	client *Client
	o      TransportOptions
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	c := t.client
	abandon := func(err error) (*http.Response, error) {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, c.failure(r.URL, err)
	}
	select {
	case c.slots <- struct{}{}:
	case <-r.Context().Done():
		return abandon(context.Cause(r.Context()))
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	stall := time.AfterFunc(c.o.Stall, func() {
		cancel(fmt.Errorf("%w: less than %d bytes a second for %v", errSlow, minRate, c.o.Stall))
	})
	end := func() {
		stall.Stop()
		cancel(nil)
		<-c.slots
	}
	sent := r.Clone(ctx)
	sent.Header.Set("User-Agent", c.o.UserAgent)
	sent.Header.Del("Authorization")
	if t.o.Authorization != nil {
		if value := t.o.Authorization(r.URL); value != "" {
			sent.Header.Set("Authorization", value)
		}
	}
	response, err := c.guard.send(sent, c.guard.allowed(r.URL) || t.o.Trusted != nil && t.o.Trusted(r.URL))
	if err != nil {
		err = cause(ctx, err)
		end()
		return abandon(err)
	}
	if response.ContentLength > t.o.Limit {
		response.Body.Close()
		end()
		return nil, c.failure(r.URL, tooLarge(t.o.Limit))
	}
	bounded := &body{ctx: ctx, r: response.Body, limit: t.o.Limit, stall: stall, timeout: c.o.Stall}
	bounded.step = int64(minRate * c.o.Stall.Seconds())
	stall.Reset(c.o.Stall) // the answer is there
	response.Body = &transportBody{body: bounded, client: c, at: r.URL, close: response.Body, end: end}
	response.Request = r
	return response, nil
}

// transportBody is a bounded body that somebody else closes.
type transportBody struct {
	body   *body
	client *Client
	at     *url.URL
	close  io.Closer
	end    func() // nil once it is closed
}

func (b *transportBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err != nil && err != io.EOF {
		err = b.client.failure(b.at, err)
	}
	return n, err
}

func (b *transportBody) Close() error {
	if b.end == nil {
		return nil
	}
	err := b.close.Close()
	b.end()
	b.end = nil
	return err
}

// StatusError makes an [*Error] of an answer that is none, for who uses a [Client.Transport].
func (c *Client) StatusError(r *http.Response) error { return c.statusFailure(r.Request.URL, r) }
