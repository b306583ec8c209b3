package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

const maxRedirects = 5

var errRedirect = errors.New("bad redirect")

// guard makes single requests and holds the address rules. It keeps one pool of connections for each
// degree of trust, so that no connection opened for a trusted request can serve another.
type guard struct {
	allow    map[string]bool // "host" or "host:port", lower case
	strict   *http.Transport // checks each address as it is dialled
	trusted  *http.Transport // dials anything
	proxied  *http.Transport // dials the operator's proxy
	proxy    func(*http.Request) (*url.URL, error)
	resolver *net.Resolver
	agent    string
}

func newGuard(o *Options) (*guard, error) {
	g := &guard{allow: make(map[string]bool), proxy: o.Proxy, resolver: o.resolver, agent: o.UserAgent}
	for _, host := range o.Allow {
		if host == "" || strings.ContainsAny(host, "/@ \t") {
			return nil, fmt.Errorf("allowed host %q: want a host or host:port, without scheme and path", host)
		}
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			name, port = strings.Trim(host, "[]"), ""
		}
		g.allow[hostKey(name, port)] = true
	}
	transport := func(dial *net.Dialer) *http.Transport {
		dial.Timeout = 15 * time.Second
		return &http.Transport{
			DialContext:            dial.DialContext,
			ForceAttemptHTTP2:      true,
			TLSClientConfig:        &tls.Config{RootCAs: o.RootCAs, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    15 * time.Second,
			MaxIdleConnsPerHost:    o.Concurrency,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 256 << 10,
		}
	}
	g.strict = transport(&net.Dialer{Control: checkDial, Resolver: o.resolver})
	g.trusted = transport(&net.Dialer{Resolver: o.resolver})
	g.proxied = transport(&net.Dialer{})
	g.proxied.Proxy = o.Proxy
	return g, nil
}

func (g *guard) close() {
	g.strict.CloseIdleConnections()
	g.trusted.CloseIdleConnections()
	g.proxied.CloseIdleConnections()
}

// follow makes the request and follows redirects. It does so itself, not with http.Client, which keeps
// credentials on the way to subdomains, other ports and plain http.
func (c *Client) follow(ctx context.Context, r *Request, target *url.URL) (*http.Response, error) {
	at := target
	atHome := true // no redirect has left the first origin yet
	for range maxRedirects + 1 {
		response, err := c.guard.get(ctx, r, at, atHome)
		if err != nil {
			return nil, c.failure(at, cause(ctx, err))
		}
		switch response.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
			http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		default:
			return response, nil
		}
		response.Body.Close()
		next, err := at.Parse(response.Header.Get("Location"))
		if err != nil || response.Header.Get("Location") == "" {
			return nil, c.failure(at, fmt.Errorf("%w: no usable Location", errRedirect))
		}
		at = next
		atHome = atHome && SameOrigin(at, target)
	}
	return nil, c.failure(target, fmt.Errorf("%w: more than %d in a row", errRedirect, maxRedirects))
}

// get makes one request to one place.
func (g *guard) get(ctx context.Context, r *Request, at *url.URL, atHome bool) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	for name, values := range r.Header {
		request.Header[name] = values
	}
	request.Header.Set("User-Agent", g.agent)
	if atHome && r.Authorization != nil {
		if value := r.Authorization(at); value != "" {
			request.Header.Set("Authorization", value)
		}
	}
	return g.send(request, g.allowed(at) || r.Trusted != nil && r.Trusted(at))
}

// send sends a request where the address rules let it.
func (g *guard) send(request *http.Request, trusted bool) (*http.Response, error) {
	at := request.URL
	switch {
	case at.Scheme != "https" && !(at.Scheme == "http" && trusted):
		return nil, fmt.Errorf("%w: %q is not https (an operator can allow the host)", ErrForbidden, at.Scheme)
	case at.Hostname() == "":
		return nil, fmt.Errorf("%w: no host", ErrForbidden)
	case at.User != nil:
		return nil, fmt.Errorf("%w: a user or password in the URL", ErrForbidden)
	}
	proxy, err := g.proxy(request)
	if err != nil {
		// Not err itself: it quotes the setting, which may hold a password.
		return nil, errors.New("the proxy settings in the environment are no URLs")
	}
	if proxy != nil {
		if !trusted {
			if err := g.checkHost(request.Context(), at.Hostname()); err != nil {
				return nil, err
			}
		}
		return g.proxied.RoundTrip(request)
	}
	if trusted {
		return g.trusted.RoundTrip(request)
	}
	return g.strict.RoundTrip(request)
}

func (g *guard) allowed(u *url.URL) bool {
	return g.allow[hostKey(u.Hostname(), "")] || g.allow[hostKey(u.Hostname(), port(u))]
}

// checkHost checks a host that a proxy is going to resolve: each of its addresses has to pass.
func (g *guard) checkHost(ctx context.Context, host string) error {
	if address, err := netip.ParseAddr(host); err == nil {
		return checkAddress(address)
	}
	addresses, err := g.resolver.LookupNetIP(ctx, "ip", host)
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

// checkDial is a net.Dialer's Control: it sees the address as it is about to be connected to.
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

func checkAddress(address netip.Addr) error {
	inner := address.Unmap()
	if ssrf.IPv6NAT64Prefix.Contains(inner) {
		// Where there is only IPv6, every IPv4 host has such an address; the IPv4 one counts (RFC 6052).
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
	return a.Scheme == b.Scheme && hostKey(a.Hostname(), port(a)) == hostKey(b.Hostname(), port(b))
}

func port(u *url.URL) string {
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

// hostKey writes host and port in one way.
func hostKey(host, port string) string {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if port == "" {
		return host
	}
	return net.JoinHostPort(host, port)
}
