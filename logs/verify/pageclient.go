package verify

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"

	"code.dny.dev/ssrf"
	"golang.org/x/net/http/httpproxy"
)

// newGuardedClient returns a client for addresses that an untrusted page names. It connects only to public IP addresses, to
// the hosts and ports of urls, which the user has named, and to the proxies of the environment. So a page cannot have this
// program send requests into the user's own network. It cannot check what a proxy connects to. Items of urls that are no
// URLs are ignored.
func newGuardedClient(urls []string) *http.Client {
	named := map[string]bool{}
	proxies := httpproxy.FromEnvironment()
	for _, text := range append(urls, proxies.HTTPProxy, proxies.HTTPSProxy) {
		if at, err := url.Parse(text); err == nil && at.Host != "" {
			named[hostPort(at)] = true
		}
	}
	guarded := NewClient()
	transport := guarded.Transport.(*http.Transport)
	strict := &net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !isPublic(at.Addr()) {
			return fmt.Errorf("the address %s is not public, and only the page names it", address)
		}
		return nil
	}}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if named[address] {
			return new(net.Dialer).DialContext(ctx, network, address)
		}
		return strict.DialContext(ctx, network, address)
	}
	return guarded
}

// hostPort returns the host and port of a URL as net.Dial takes them, with the scheme's standard port by default. Without a
// port, any scheme but http and https has an empty one.
func hostPort(u *url.URL) string {
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), defaultPorts[u.Scheme]))
}

// publicAddresses denies IANA's special-purpose addresses and 168.63.129.16, Azure's metadata service.
var publicAddresses = ssrf.New(ssrf.WithDeniedV4Prefixes(netip.MustParsePrefix("168.63.129.16/32")))

// isPublic reports whether an IP address may be one on the public internet. An IPv4 address in IPv6 (::ffff:) counts as IPv4; other
// addresses that embed one (NAT64, 6to4) are not public.
func isPublic(a netip.Addr) bool { return publicAddresses.SafeAddr(a.Unmap()) == nil }
