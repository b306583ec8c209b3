package fetch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func TestCheckAddress(t *testing.T) {
	for address, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1": true, "::ffff:8.8.8.8": true, "64:ff9b::8.8.8.8": true, "172.32.0.1": true,

		"127.0.0.1": false, "127.9.9.9": false, "::1": false, "::ffff:127.0.0.1": false, // loopback
		"0.0.0.0": false, "::": false, // this machine, too
		"10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false, "::ffff:10.0.0.1": false, // private
		"100.64.0.1": false, "100.100.100.200": false, // carrier-grade NAT, a cloud's metadata
		"169.254.169.254": false, "fe80::1": false, "fe80::1%eth0": false, // link-local, metadata
		"fd00:ec2::254": false, "fc00::1": false, // unique local, metadata
		"224.0.0.1": false, "ff02::1": false, // multicast
		"255.255.255.255": false, "240.0.0.1": false, "198.18.0.1": false, "192.0.2.1": false, "2001:db8::1": false,
		"168.63.129.16": false, "192.0.0.192": false, // metadata at unusual places
		"64:ff9b::127.0.0.1": false, "64:ff9b::a00:1": false, "64:ff9b:1::1": false, // NAT64
		"2002:7f00:1::": false, "2001:0:1::": false, // 6to4, Teredo
	} {
		if err := checkAddress(netip.MustParseAddr(address)); (err == nil) != want || err != nil && !errors.Is(err, ErrForbidden) {
			t.Errorf("%s: %v, want allowed: %v", address, err, want)
		}
	}
}

// names is a DNS server on loopback that answers each question with the next of the given addresses,
// over and over.
func names(t *testing.T, addresses ...string) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for asked := 0; ; {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
					Body:   &dnsmessage.AResource{A: netip.MustParseAddr(addresses[asked%len(addresses)]).As4()},
				}}
				asked++
			}
			if packed, err := m.Pack(); err == nil {
				conn.WriteTo(packed, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// TestAddressRules asks for this machine in every spelling; nothing may arrive.
func TestAddressRules(t *testing.T) {
	var arrived atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			arrived.Add(1)
		}
	}
	s.StartTLS()
	defer s.Close()
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	c := client(t, Options{resolver: names(t, "127.0.0.1")})
	for _, host := range []string{
		"127.0.0.1", "0x7f000001", "0x7f.1", "0.0.0.0", "localhost", "LOCALHOST", "localhost.", "rebinding.example", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "①②⑦.0.0.1",
	} {
		_, err := text(c, Request{URL: "https://" + host + ":" + port + "/"})
		if !errors.Is(err, ErrForbidden) || temporary(err) {
			t.Errorf("%s: %v", host, err)
		}
	}
	// Numbers that old resolvers take for addresses are no names to Go's.
	for _, host := range []string{"127.1", "2130706433", "0177.0.0.1", "017700000001", "127.0.0.1.", "0"} {
		if _, err := text(c, Request{URL: "https://" + host + ":" + port + "/"}); err == nil {
			t.Errorf("%s is reached", host)
		}
	}
	if n := arrived.Load(); n != 0 {
		t.Errorf("%d connections arrived", n)
	}
	for _, target := range []string{"http://8.8.8.8/", "ftp://8.8.8.8/", "//8.8.8.8/", "/x", "https:///x", "https:x", "", "file:///etc/passwd", "https://u@8.8.8.8/", "gopher://8.8.8.8/"} {
		if _, err := text(c, Request{URL: target}); !errors.Is(err, ErrForbidden) {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// TestTrustIsNotPooled makes sure that a connection opened for a trusted request serves no other.
func TestTrustIsNotPooled(t *testing.T) {
	s := secure(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "x") })
	c := client(t, Options{}, s)
	c.allow = nil
	trusted := Request{URL: s.URL, Trusted: func(u *url.URL) bool { return true }}
	if _, err := text(c, trusted); err != nil {
		t.Fatal(err)
	}
	if _, err := text(c, Request{URL: s.URL}); !errors.Is(err, ErrForbidden) {
		t.Errorf("after a trusted request every request may: %v", err)
	}
}

func TestAllow(t *testing.T) {
	s := plain(t, func(w http.ResponseWriter, r *http.Request) {})
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	for _, test := range []struct {
		allow, host string
		want        bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1:" + port, "127.0.0.1", true},
		{"LocalHost", "localhost", true},
		{"localhost", "LOCALHOST.", true},
		{"127.0.0.1:1", "127.0.0.1", false},
		{"localhost", "127.0.0.1", false},
		{"host", "localhost", false},
	} {
		c := client(t, Options{Allow: []string{test.allow}, Tries: 1, resolver: names(t, "127.0.0.1")})
		_, err := text(c, Request{URL: "http://" + test.host + ":" + port + "/"})
		if (err == nil) != test.want {
			t.Errorf("allowing %s, %s: %v, want %v", test.allow, test.host, err, test.want)
		}
	}
	for _, bad := range []string{"", "https://a", "a/b", "u@a", "a b"} {
		if _, err := New(Options{Allow: []string{bad}}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestProxy(t *testing.T) {
	var asked []string
	s := plain(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.Host)
		w.WriteHeader(http.StatusBadGateway)
	})
	proxy, _ := url.Parse(s.URL)
	use := func(*http.Request) (*url.URL, error) { return proxy, nil }

	// The proxy's own address needs no permission, the target's does.
	c := client(t, Options{Network: Network{Proxy: use}, Tries: 1, resolver: names(t, "8.8.8.8")})
	if _, err := text(c, Request{URL: "https://public.example/"}); err == nil || errors.Is(err, ErrForbidden) {
		t.Errorf("public: %v", err)
	}
	if got, want := strings.Join(asked, ","), "CONNECT public.example:443"; got != want {
		t.Errorf("the proxy was asked %q, want %q", got, want)
	}
	asked = nil
	c = client(t, Options{Network: Network{Proxy: use}, Tries: 1, resolver: names(t, "10.0.0.1"), Allow: []string{"inside.example"}})
	for _, host := range []string{"private.example", "127.0.0.1", "[::1]"} {
		if _, err := text(c, Request{URL: "https://" + host + "/"}); !errors.Is(err, ErrForbidden) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if len(asked) != 0 {
		t.Errorf("the proxy was asked %q", asked)
	}
	if _, err := text(c, Request{URL: "https://inside.example/"}); errors.Is(err, ErrForbidden) || len(asked) != 1 {
		t.Errorf("allowed: %v", err)
	}

	broken := func(*http.Request) (*url.URL, error) { return nil, errors.New("user:secret@proxy") }
	c = client(t, Options{Network: Network{Proxy: broken}, Tries: 1})
	if _, err := text(c, Request{URL: "https://public.example/"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("broken: %v", err)
	}
}
