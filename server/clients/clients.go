// Package clients bounds what each client has under way at once, so that one cannot take
// all that there is for everybody.
//
// A client is an IPv4 address, or an IPv6 /64, which is what a subscriber gets. Addresses
// that are not of the internet (loopback, private, link-local) have no bound: there is a
// proxy behind them, with many clients that cannot be told apart, or the operator.
//
// It must not know what is under way.
package clients

import (
	"net/netip"
	"sync"
)

// A Bound is safe for concurrent use.
type Bound struct {
	most int

	mu  sync.Mutex
	has map[netip.Prefix]int
}

// NewBound returns a bound of so many things for each client.
func NewBound(most int) *Bound {
	return &Bound{most: most, has: make(map[netip.Prefix]int)}
}

// Enter reports whether the client at a remote address, host and port, may have one more
// thing under way. Then leave must be called once, when it is done.
func (b *Bound) Enter(remote string) (leave func(), ok bool) {
	client, known := clientAt(remote)
	if !known {
		return func() {}, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has[client] >= b.most {
		return nil, false
	}
	b.has[client]++
	return func() { b.leave(client) }, true
}

func (b *Bound) leave(client netip.Prefix) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has[client]--; b.has[client] == 0 {
		delete(b.has, client)
	}
}

// clientAt returns who is at an address, if that is one of the internet.
func clientAt(remote string) (netip.Prefix, bool) {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}, false
	}
	addr := at.Addr().Unmap()
	if addr.IsLoopback() || addr.IsPrivate() || addr.IsLinkLocalUnicast() {
		return netip.Prefix{}, false
	}
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	client, err := addr.WithZone("").Prefix(bits)
	return client, err == nil
}
