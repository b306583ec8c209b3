package requests

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

// ClientOf returns the client at a remote address, which has a host and a port. ok is false if the address is of no network, such as that of a
// Unix socket. The zero prefix is the client of all such addresses.
func ClientOf(remote string) (client netip.Prefix, ok bool) {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}, false
	}
	return ClientAt(at.Addr()), true
}

// ClientAt returns the client at an address: an IPv4 address (a /32) or the /64 of an IPv6 address; the zero prefix for an invalid
// address.
func ClientAt(addr netip.Addr) netip.Prefix {
	addr = normalizeAddr(addr)
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	client, _ := addr.Prefix(bits) // zero for an invalid address
	return client
}

// normalizeAddr returns an address without its zone, and as IPv4 if it is IPv4 in IPv6.
func normalizeAddr(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// Scheme returns the scheme, "https" or "http", of the request as the client sent it to this server or to a trusted proxy.
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

// DefaultForwardedField is the default field in which proxies name the client.
const DefaultForwardedField = "X-Forwarded-For"

// forwarded is the field of RFC 7239.
const forwarded = "Forwarded"

// forwardingClaims are the fields in which proxies name the client and its protocol. The values that clients themselves send are not passed on.
var forwardingClaims = []string{
	forwarded, DefaultForwardedField, "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Server", "X-Forwarded-Ssl", "X-Forwarded-Scheme",
	"X-Real-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "Fastly-Client-Ip",
}

// SetForwarded sets the X-Forwarded fields in the header of a request to an upstream: the address, scheme and host of the client's request
// r, which [Proxies.Handler] has passed on. It sets no X-Forwarded-For if the client has no IP address. It removes what the client
// claims about itself, also from fields whose names some servers read as the same, such as X_Real_IP.
func SetForwarded(h http.Header, r *http.Request) {
	for name := range h {
		if slices.Contains(forwardingClaims, textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-"))) {
			delete(h, name)
		}
	}
	if at, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		h.Set(DefaultForwardedField, normalizeAddr(at.Addr()).String())
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

// NewProxies returns trusted proxies at addresses: networks such as 10.0.0.0/8, single addresses, or "unix:" for the peers of a Unix
// socket. They name the client in a field of the header: a list of addresses, to which each proxy appends, or Forwarded (RFC 7239). The
// default is [DefaultForwardedField].
func NewProxies(addresses []string, field string) (*Proxies, error) {
	if field == "" {
		field = DefaultForwardedField
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

// Trust reports whether the peer of a connection is a trusted proxy.
func (p *Proxies) Trust(peer netip.Addr) bool {
	peer = normalizeAddr(peer)
	return slices.ContainsFunc(p.networks, func(n netip.Prefix) bool { return n.Contains(peer) })
}

// Handler returns a handler that calls next with the client's address in RemoteAddr, the requested host in Host, and the context for
// [Scheme]. It removes the fields in which proxies name these.
func (p *Proxies) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, relayed := p.peerOf(r.RemoteAddr); relayed {
			r = p.original(r)
		}
		for _, field := range forwardingClaims {
			delete(r.Header, field)
		}
		delete(r.Header, p.field)
		next.ServeHTTP(w, r)
	})
}

// Field returns the lower-case name of the field in which the proxies name the client; "" if no proxy is trusted.
func (p *Proxies) Field() string {
	if p == nil || len(p.networks) == 0 && !p.unix {
		return ""
	}
	return strings.ToLower(p.field)
}

// Client returns the address of the client of a connection from remote. If remote is a trusted proxy, it is the address that lines, the
// values of the field that names the client, have for it, or else the proxy's own. Otherwise lines do not count. A nil p trusts none. The
// result is invalid for a Unix socket without such an address.
func (p *Proxies) Client(remote string, lines []string) netip.Addr {
	peer, relayed := p.peerOf(remote)
	if len(lines) > 0 && relayed {
		if said, _, _ := p.findClient(nil, strings.Join(lines, ",")); said.IsValid() {
			return said
		}
	}
	return peer
}

// peerOf returns the address of the peer of a connection, an invalid one for a Unix socket, and whether it is a trusted proxy. A nil p
// trusts none.
func (p *Proxies) peerOf(remote string) (peer netip.Addr, trusted bool) {
	if !strings.Contains(remote, ":") { // a Unix socket's
		return peer, p != nil && p.unix
	}
	at, err := netip.ParseAddrPort(remote)
	return at.Addr(), err == nil && p != nil && p.Trust(at.Addr())
}

// original returns a copy of r as the client sent it to the outermost trusted proxy: with the client's address, scheme and host
// where the proxies name valid ones.
func (p *Proxies) original(r *http.Request) *http.Request {
	list := strings.Join(r.Header[p.field], ",")
	client, scheme, host := p.findClient(r.Header, list)
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

// findClient reads a list of addresses from its end, which the nearest proxy wrote, until an address that is not trusted, or an element
// that is no address: anyone may have written what is before that. It returns the first address that is not trusted, else the last one
// that it read; an invalid address if it read none. Scheme and host, "" for none, are those in the last element that it parsed of
// Forwarded, or with another field those that the nearest proxy named in X-Forwarded-Proto and X-Forwarded-Host; it does not check them.
func (p *Proxies) findClient(h http.Header, list string) (client netip.Addr, scheme, host string) {
	if p.field != forwarded {
		scheme, host = lastMember(h["X-Forwarded-Proto"]), lastMember(h["X-Forwarded-Host"])
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
		if client = normalizeAddr(addr); !p.Trust(addr) {
			return client, scheme, host
		}
	}
	return client, scheme, host
}

// lastMember returns the last member of the list in the lines of a field, which the nearest proxy wrote, in lower case and without
// spaces around it; "" if it is empty or the field is missing.
func lastMember(lines []string) string {
	_, last, _ := cutLast(strings.Join(lines, ","))
	return strings.ToLower(strings.TrimSpace(last))
}

// cutLast cuts the last member, without spaces around it, off a list. Commas in quotes do not separate. more reports whether rest has
// members.
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

// parsePairs parses an element of Forwarded (RFC 7239 §4) into values by names in lower case. It returns false if it is malformed,
// and for quoted values with a backslash, which no address or host needs.
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

// parseNode parses an address with or without a port, IPv6 in brackets or not (RFC 7239 §6). It refuses names that hide an address.
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
