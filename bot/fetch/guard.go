package fetch

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

const maxRedirects = 5

var (
	errRedirect = errors.New("bad redirect")
	errLocation = fmt.Errorf("%w: no usable Location", errRedirect)
)

// transports are pools of connections, one for each degree of trust, so that no connection opened for a trusted request can serve
// another.
type transports struct {
	strict  *http.Transport // checks each address as it is dialled
	trusted *http.Transport // dials anything
	proxied *http.Transport // dials the operator's proxy
}

// parseAllowed returns the hosts of Options.Allow in the form of hostKey. It returns an error if one is malformed.
func parseAllowed(hosts []string) (map[string]bool, error) {
	allow := make(map[string]bool)
	for _, host := range hosts {
		if host == "" || strings.ContainsAny(host, "/@ \t") {
			return nil, fmt.Errorf("allowed host %q: want a host or host:port, without scheme and path", host)
		}
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			name, port = strings.Trim(host, "[]"), ""
		}
		allow[hostKey(name, port)] = true
	}
	return allow, nil
}

// unverified are the settings of which the log has said that they accept every certificate.
var unverified sync.Map

// newTransports returns transports with the resolver, the proxy and the TLS settings of the options. If these accept every
// certificate, it logs a warning, once in the process for each setting that says so.
func newTransports(o *Options) transports {
	if o.Unverified != "" && o.Logger.Enabled(context.Background(), slog.LevelWarn) {
		if _, said := unverified.LoadOrStore(o.Unverified, true); !said {
			o.Logger.Warn("certificates are not verified", "setting", o.Unverified)
		}
	}
	transport := func(dial *net.Dialer) *http.Transport {
		dial.Timeout = 15 * time.Second
		return &http.Transport{
			DialContext:            dial.DialContext,
			ForceAttemptHTTP2:      true,
			TLSClientConfig:        &tls.Config{RootCAs: o.RootCAs, InsecureSkipVerify: o.Unverified != "", MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    15 * time.Second,
			MaxIdleConnsPerHost:    o.Concurrency,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 256 << 10,
		}
	}
	made := transports{
		strict:  transport(&net.Dialer{Control: checkDial, Resolver: o.resolver}),
		trusted: transport(&net.Dialer{Resolver: o.resolver}),
		proxied: transport(&net.Dialer{}),
	}
	made.proxied.Proxy = o.Proxy
	return made
}

// Reconnect closes the idle connections of c, but not of clients that [Client.With] derived from it, so that the next requests open new ones, perhaps
// to another server of a pool.
func (c *Client) Reconnect() {
	c.strict.CloseIdleConnections()
	c.trusted.CloseIdleConnections()
	c.proxied.CloseIdleConnections()
}

// send sends a request once, through the operator's proxy if there is one for it, and returns [ErrForbidden] if the rules forbid the address. trusted
// says that the operator named the URL; then it may have any address, and http. For a URL that is not trusted, send resolves and checks the host
// before it asks a proxy.
func (c *Client) send(request *http.Request, trusted bool) (*http.Response, error) {
	at := request.URL
	switch {
	case at.Scheme != "https" && !(at.Scheme == "http" && trusted):
		return nil, fmt.Errorf("%w: %q is not https (an operator can allow the host)", ErrForbidden, at.Scheme)
	case at.Hostname() == "":
		return nil, fmt.Errorf("%w: no host", ErrForbidden)
	case at.User != nil:
		return nil, fmt.Errorf("%w: a user or password in the URL", ErrForbidden)
	}
	proxy, err := c.o.Proxy(request)
	if err != nil {
		// Not err itself: it quotes the setting, which may hold a password.
		return nil, errors.New("the proxy settings in the environment are no URLs")
	}
	if proxy != nil {
		if !trusted {
			if err := c.checkHost(request.Context(), at.Hostname()); err != nil {
				return nil, err
			}
		}
		return c.proxied.RoundTrip(request)
	}
	if trusted {
		return c.trusted.RoundTrip(request)
	}
	return c.strict.RoundTrip(request)
}

// allowsHost reports whether the operator allows the host of a URL to have any address.
func (c *Client) allowsHost(u *url.URL) bool {
	return c.allow[hostKey(u.Hostname(), "")] || c.allow[hostKey(u.Hostname(), portOf(u))]
}

// checkHost resolves a host before a proxy does, and returns an error unless each of its addresses is on the public Internet.
func (c *Client) checkHost(ctx context.Context, host string) error {
	if address, err := netip.ParseAddr(host); err == nil {
		return checkAddress(address)
	}
	addresses, err := c.o.resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return fmt.Errorf("couldn't check the address before asking the proxy (an operator can allow the host): %w", err)
	}
	for _, address := range addresses {
		if err := checkAddress(address); err != nil {
			return err
		}
	}
	return nil
}

// checkDial is the Control function of a net.Dialer. It checks right before the connection that it is over TCP and to a public address.
func checkDial(network, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !strings.HasPrefix(network, "tcp") {
		return fmt.Errorf("%w: %s over %s", ErrForbidden, address, network)
	}
	return checkAddress(to.Addr())
}

// public knows IANA's registries of special addresses. The one denied here on top is public by its
// number, but inside one large cloud it is the machine's own metadata service.
var public = ssrf.New(ssrf.WithDeniedV4Prefixes(netip.MustParsePrefix("168.63.129.16/32")))

// checkAddress returns an error unless an address is on the public Internet.
func checkAddress(address netip.Addr) error {
	inner := address.Unmap()
	if ssrf.IPv6NAT64Prefix.Contains(inner) {
		// NAT64 embeds an IPv4 address (RFC 6052). That address decides.
		bytes := inner.As16()
		inner, _ = netip.AddrFromSlice(bytes[12:])
	}
	if err := public.SafeAddr(inner); err != nil {
		return fmt.Errorf("%w: %s is not public (an operator can allow the host)", ErrForbidden, address)
	}
	return nil
}

// SameOrigin reports whether two URLs have the same scheme, host and port (RFC 6454).
func SameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && hostKey(a.Hostname(), portOf(a)) == hostKey(b.Hostname(), portOf(b))
}

// portOf returns the port of a URL, the default one of its scheme if it names none.
func portOf(u *url.URL) string {
	switch port := u.Port(); {
	case port != "":
		return port
	case u.Scheme == "https":
		return "443"
	case u.Scheme == "http":
		return "80"
	}
	return ""
}

// hostKey returns a host, or host:port if port is not empty, in one canonical form: in lower case and without a dot at the end of the host.
func hostKey(host, port string) string {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if port == "" {
		return host
	}
	return net.JoinHostPort(host, port)
}

// Validators are what a server gave to recognise a response by. They are for sending back, not for
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
	// Limit is the most bytes that the body of a response may have; default 64 MiB.
	Limit int64
}

// Transport returns a transport for clients of protocols over HTTP that Get does not support. It applies the client's rules for addresses
// to each request, and so to each redirect that its caller follows. It also applies the limits of slow responses and of concurrent
// requests, which last until the body is closed. It sends a request once, with no credentials but those of o. Errors of a body are an
// [*Error], too.
func (c *Client) Transport(o TransportOptions) http.RoundTripper {
	o.Limit = cmp.Or(o.Limit, 64<<20)
	return &transport{client: c, o: o}
}

type transport struct {
	client *Client
	o      TransportOptions
}

// RoundTrip implements http.RoundTripper. It waits for a place within the client's limit of concurrent requests, which it gives back when the body is
// closed or the request has failed. It replaces the User-Agent and Authorization of the request. A response with any status is returned; errors are
// *[Error].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	c := t.client
	abandon := func(err error) (*http.Response, error) {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, c.newError(r.URL, err)
	}
	select {
	case c.slots <- struct{}{}:
	case <-r.Context().Done():
		return abandon(context.Cause(r.Context()))
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	wait := c.o.Stall
	if r.Response != nil { // a redirect, whose response took a part of the time
		if redirect, ok := r.Response.Body.(*body); ok {
			wait = redirect.wait
		}
	}
	started := time.Now()
	stall := time.AfterFunc(wait, func() {
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
	response, err := c.send(sent, c.allowsHost(r.URL) || t.o.Trusted != nil && t.o.Trusted(r.URL))
	if err != nil {
		err = cmp.Or(context.Cause(ctx), err)
		end()
		return abandon(err)
	}
	if response.StatusCode/100 == 2 && response.ContentLength > t.o.Limit { // the status of others says more than their size
		response.Body.Close()
		end()
		return nil, c.newError(r.URL, newSizeError(t.o.Limit))
	}
	stall.Reset(c.o.Stall) // the response is there
	response.Body = &body{
		ctx: ctx, client: c, at: r.URL, from: response.Body, limit: t.o.Limit,
		wait: wait - time.Since(started), stall: stall, end: end,
	}
	response.Request = r
	return response, nil
}

// body bounds a response's body in bytes and in time: each step of it has to come within Options.Stall. The user of the transport closes it.
type body struct {
	ctx      context.Context
	client   *Client
	at       *url.URL
	from     io.ReadCloser
	limit    int64
	read     int64
	wait     time.Duration // how long the response may take to which this one redirects
	stall    *time.Timer
	reported int64  // read when the timer was last set back
	err      error  // the first failure, kept in case the reader rewords it
	end      func() // nil once it is closed
}

// Read implements io.Reader. It fails if the body is longer than its limit or its context has ended, and returns the same error from then on. Errors,
// except io.EOF, are *[Error]. Each step of bytes that has come sets the timer back that ends a slow response.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.from.Read(p)
	b.read += int64(n)
	switch {
	case b.read > b.limit:
		b.err = b.client.newError(b.at, newSizeError(b.limit))
		return 0, b.err
	case err != nil && err != io.EOF:
		b.err = b.client.newError(b.at, cmp.Or(context.Cause(b.ctx), err))
		return n, b.err
	}
	if stall := b.client.o.Stall; b.read-b.reported >= int64(minRate*stall.Seconds()) {
		b.reported = b.read
		b.stall.Reset(stall)
	}
	return n, err
}

// Close closes the body and gives its place back to the client. A second call does nothing.
func (b *body) Close() error {
	if b.end == nil {
		return nil
	}
	err := b.from.Close()
	b.end()
	b.end = nil
	return err
}

// StatusError returns the [*Error] of a response whose status is a failure, for users of [Client.Transport]. It does not close the body.
func (c *Client) StatusError(r *http.Response) error { return c.newStatusError(r.Request.URL, r) }
