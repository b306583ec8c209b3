// Package client says which client a request is from, and shares what is scarce among clients.
//
// A client is an IPv4 address or an IPv6 /64, which is what a subscriber gets. It is the address of the connection,
// unless that is of a proxy that the operator trusts: then it is what the proxy says. [Proxies.Handler] stands in front
// of everything that answers, and has Request.RemoteAddr be the client's; so limits, waiting rooms and logs need not know
// of proxies, and no claim of a client about itself gets past it.
//
// The package must not know what is answered.
package client

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Of returns the client at a remote address, host and port. False: the address is none of a network, as that of a Unix
// socket. All of these are one client.
func Of(remote string) (client netip.Prefix, ok bool) {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}, false
	}
	return At(at.Addr()), true
}

// At returns the client at an address.
func At(addr netip.Addr) netip.Prefix {
	addr = plain(addr)
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	client, _ := addr.Prefix(bits) // an address that is none has none
	return client
}

// plain returns an address without what makes two of one: zones, and IPv4 in IPv6.
func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// Scheme returns how the client asked, "https" or "http": over the connection, or as a trusted proxy says.
func Scheme(r *http.Request) string {
	if scheme, ok := r.Context().Value(schemeKey{}).(string); ok {
		return scheme
	}
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

type schemeKey struct{}

// DefaultField is the field that proxies tell clients in if nothing else is said.
const DefaultField = "X-Forwarded-For"

// forwarded is the field of RFC 7239.
const forwarded = "Forwarded"

// Claims are the fields in which proxies tell who asked and how. What clients say in them of themselves is not passed on.
var claims = []string{
	forwarded, DefaultField, "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Server", "X-Forwarded-Ssl", "X-Forwarded-Scheme",
	"X-Real-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "Fastly-Client-Ip",
}

// Tell puts into the header of a request to an upstream who asks in r, and how: the address, scheme and host, in the
// X-Forwarded fields. What the client claims about itself goes, also in fields whose names some servers read as the same,
// such as X_Real_IP.
func Tell(h http.Header, r *http.Request) {
	for name := range h {
		if slices.Contains(claims, textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-"))) {
			delete(h, name)
		}
	}
	if at, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		h.Set(DefaultField, plain(at.Addr()).String())
	}
	h.Set("X-Forwarded-Proto", Scheme(r))
	h.Set("X-Forwarded-Host", r.Host)
}

// Proxies are the proxies that the operator trusts. The zero value trusts none.
type Proxies struct {
	networks []netip.Prefix
	unix     bool
	field    string
}

// NewProxies returns the proxies at these addresses: networks such as 10.0.0.0/8, single addresses, or "unix:" for
// what connects to a Unix socket. They tell the client in a field: a list of addresses, each appended by the proxy that
// saw it, or Forwarded (RFC 7239). Default: [DefaultField].
func NewProxies(addresses []string, field string) (*Proxies, error) {
	if field == "" {
		field = DefaultField
	}
	if !httpguts.ValidHeaderFieldName(field) {
		return nil, fmt.Errorf("%q is no name of a field", field)
	}
	p := &Proxies{field: textproto.CanonicalMIMEHeaderKey(field)}
	for _, text := range addresses {
		if text == "unix:" {
			p.unix = true
			continue
		}
		network, err := netip.ParsePrefix(text)
		if err != nil {
			addr, single := netip.ParseAddr(text)
			if single != nil || addr.Zone() != "" {
				return nil, fmt.Errorf("%q is neither a network such as 10.0.0.0/8, an address, nor unix: for Unix sockets", text)
			}
			network = netip.PrefixFrom(addr, addr.BitLen())
		}
		if addr := network.Addr(); addr.Is4In6() {
			if network.Bits() < 96 {
				return nil, fmt.Errorf("%q covers more than the addresses of IPv4; write it as such a network, or as one of IPv6", text)
			}
			network = netip.PrefixFrom(addr.Unmap(), network.Bits()-96)
		}
		p.networks = append(p.networks, network.Masked())
	}
	return p, nil
}

// Trust reports whether the peer of a connection is one of them.
func (p *Proxies) Trust(peer netip.Addr) bool {
	peer = plain(peer)
	return slices.ContainsFunc(p.networks, func(n netip.Prefix) bool { return n.Contains(peer) })
}

// Handler calls next with the client's address in RemoteAddr, the requested host in Host, and [Scheme], and without the
// fields in which proxies name these.
func (p *Proxies) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.relays(r) {
			r = p.seen(r)
		}
		for _, field := range claims {
			delete(r.Header, field)
		}
		delete(r.Header, p.field)
		next.ServeHTTP(w, r)
	})
}

// Field is the name of the field in which they tell the client, in lower case; "" where none is trusted.
func (p *Proxies) Field() string {
	if p == nil || len(p.networks) == 0 && !p.unix {
		return ""
	}
	return strings.ToLower(p.field)
}

// Client returns the client of a connection from remote. If remote is a trusted proxy, lines are its values of the field that
// names the client. The result is invalid if that is not an IP address.
func (p *Proxies) Client(remote string, lines []string) netip.Addr {
	var at netip.AddrPort
	network := strings.Contains(remote, ":") // else a Unix socket's
	if network {
		at, _ = netip.ParseAddrPort(remote)
	}
	if len(lines) == 0 || p == nil || network && !p.Trust(at.Addr()) || !network && !p.unix {
		return at.Addr()
	}
	list := lines[0]
	if len(lines) > 1 {
		list = strings.Join(lines, ",")
	}
	if said, _, _ := p.last(nil, list); said.IsValid() {
		return said
	}
	return at.Addr()
}

// relays reports whether a trusted proxy sent r.
func (p *Proxies) relays(r *http.Request) bool {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return p.unix && !strings.Contains(r.RemoteAddr, ":")
	}
	return p.Trust(at.Addr())
}

// seen returns r as the outermost trusted proxy saw it.
func (p *Proxies) seen(r *http.Request) *http.Request {
	list := strings.Join(r.Header[p.field], ",")
	client, scheme, host := p.last(r.Header, list)
	ctx := r.Context()
	if scheme == "http" || scheme == "https" {
		ctx = context.WithValue(ctx, schemeKey{}, scheme)
	}
	seen := r.WithContext(ctx)
	if client.IsValid() {
		seen.RemoteAddr = netip.AddrPortFrom(client, 0).String()
	}
	if host != "" && httpguts.ValidHostHeader(host) {
		seen.Host = host
	}
	return seen
}

// last walks the list from its end, where the proxy next to us wrote, past the addresses that are trusted. It returns
// the first that is not, or else the last that can be read; none where the list has none.
func (p *Proxies) last(h http.Header, list string) (client netip.Addr, scheme, host string) {
	if p.field != forwarded {
		scheme, host = lastOf(h["X-Forwarded-Proto"]), lastOf(h["X-Forwarded-Host"])
	}
	for rest, more := list, true; more; {
		var element string
		if rest, element, more = cutLast(rest); p.field == forwarded {
			pairs, ok := parsePairs(element)
			if !ok {
				return client, scheme, host
			}
			element = pairs["for"]
			scheme, host = strings.ToLower(pairs["proto"]), pairs["host"]
		}
		addr, ok := parseNode(element)
		if !ok {
			return client, scheme, host
		}
		if client = plain(addr); !p.Trust(addr) {
			return client, scheme, host
		}
	}
	return client, scheme, host
}

// lastOf is what the proxy next to us said: the last member of a list.
func lastOf(lines []string) string {
	_, last, _ := cutLast(strings.Join(lines, ","))
	return strings.ToLower(strings.TrimSpace(last))
}

// cutLast cuts the last member off a list. Commas in quotes do not count.
func cutLast(list string) (rest, last string, more bool) {
	quoted := false
	for i := len(list) - 1; i >= 0; i-- {
		switch {
		case list[i] == '"':
			quoted = !quoted
		case list[i] == ',' && !quoted:
			return list[:i], strings.TrimSpace(list[i+1:]), true
		}
	}
	return "", strings.TrimSpace(list), false
}

// parsePairs reads an element of Forwarded (RFC 7239 §4). Quoted values with a backslash are not understood: no address
// and no host needs one.
func parsePairs(element string) (map[string]string, bool) {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(element, ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		name = strings.ToLower(name)
		if quoted, begins := strings.CutPrefix(value, `"`); begins {
			if value, begins = strings.CutSuffix(quoted, `"`); !begins {
				return nil, false
			}
		}
		if _, twice := pairs[name]; !ok || twice || !httpguts.ValidHeaderFieldName(name) || strings.ContainsAny(value, `"\`) {
			return nil, false
		}
		pairs[name] = value
	}
	return pairs, true
}

// parseNode reads an address, with a port or without, IPv6 in brackets or not (RFC 7239 §6). Names that hide an address
// are none.
func parseNode(text string) (netip.Addr, bool) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at.Addr(), true
	}
	if inner, ok := strings.CutPrefix(text, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); !ok {
			return netip.Addr{}, false
		}
		text = inner
	}
	addr, err := netip.ParseAddr(text)
	return addr, err == nil
}
