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
	standard := map[string]string{"http": "80", "https": "443"}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), standard[u.Scheme]))
}

// notPublic are networks that the methods of [netip.Addr] do not recognize: those of this host, of carriers, of tests, reserved
// ones, and those of addresses that embed others.
var notPublic = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("fec0::/10"), netip.MustParsePrefix("2002::/16")}

// isPublic reports whether an IP address may be one on the public internet: none of this host, a private network, a link,
// multicast, a carrier (100.64.0.0/10) or tests of networks (198.18.0.0/15), nor any other in notPublic, which has NAT64
// (64:ff9b::/96, 64:ff9b:1::/48) and 6to4 (2002::/16). An IPv4 address in IPv6 (::ffff:) counts as IPv4. Networks for documentation, such
// as 192.0.2.0/24, count as public.
func isPublic(a netip.Addr) bool {
	a = a.Unmap()
	for _, p := range notPublic {
		if p.Contains(a) {
			return false
		}
	}
	return a.IsGlobalUnicast() && !a.IsPrivate()
}
