package requests

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
)

func TestClientOf(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.7:1234": "192.0.2.7/32", "[::ffff:192.0.2.7]:1": "192.0.2.7/32", "[2001:db8:1:2:3:4:5:6]:1": "2001:db8:1:2::/64", "[fe80::1%eth0]:1": "fe80::/64", "@": "", "": "",
	} {
		got, ok := ClientOf(remote)
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("%s: got %s, want %s", remote, got, want)
		}
	}
}

func TestWhoAsks(t *testing.T) {
	const proxy, other = "10.0.0.1:5000", "203.0.113.9:5000"
	type fields map[string][]string
	for _, tt := range []struct {
		name     string
		trusted  []string
		field    string
		peer     string
		fields   fields
		tls      bool
		want     string
		scheme   string
		wantHost string
	}{
		{"directly", nil, "", other, nil, false, other, "http", ""},
		{"directly, over TLS", nil, "", other, nil, true, other, "https", ""},
		{"a client that claims to be another", nil, "", other, fields{"X-Forwarded-For": {"1.2.3.4"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"evil.example"}}, false, other, "http", ""},
		{"that beside a proxy", []string{"10.0.0.0/8"}, "", other, fields{"X-Forwarded-For": {"1.2.3.4"}}, false, other, "http", ""},
		{"one proxy", []string{"10.0.0.0/8"}, "", proxy, fields{"X-Forwarded-For": {"198.51.100.7"}, "X-Forwarded-Proto": {"https"}}, false, "198.51.100.7:0", "https", ""},
		{"TLS between proxy and us only", []string{"10.0.0.0/8"}, "", proxy, fields{"X-Forwarded-For": {"198.51.100.7"}, "X-Forwarded-Proto": {"http"}}, true, "198.51.100.7:0", "http", ""},
		{"its host", []string{"10.0.0.1"}, "", proxy, fields{"X-Forwarded-For": {"198.51.100.7"}, "X-Forwarded-Host": {"cdn.example.com"}}, false, "198.51.100.7:0", "http", "cdn.example.com"},
		{"no host that is one", []string{"10.0.0.1"}, "", proxy, fields{"X-Forwarded-For": {"198.51.100.7"}, "X-Forwarded-Host": {"a b"}}, false, "198.51.100.7:0", "http", ""},
		{"a client that claims, through a proxy", []string{"10.0.0.0/8"}, "", proxy, fields{"X-Forwarded-For": {"1.2.3.4, 198.51.100.7"}}, false, "198.51.100.7:0", "http", ""},
		{"on a line of its own", []string{"10.0.0.0/8"}, "", proxy, fields{"X-Forwarded-For": {"1.2.3.4", "198.51.100.7"}}, false, "198.51.100.7:0", "http", ""},
		{"two proxies", []string{"10.0.0.0/8"}, "", proxy, fields{"X-Forwarded-For": {"1.2.3.4, 198.51.100.7, 10.9.9.9"}}, false, "198.51.100.7:0", "http", ""},
		{"only proxies", []string{"10.0.0.0/8"}, "", proxy, fields{"X-Forwarded-For": {"10.2.2.2, 10.9.9.9"}}, false, "10.2.2.2:0", "http", ""},
		{"with ports", []string{"10.0.0.0/8"}, "", proxy, fields{"X-Forwarded-For": {"198.51.100.7:1234"}}, false, "198.51.100.7:0", "http", ""},
		{"IPv6 without brackets", []string{"10.0.0.0/8"}, "", proxy, fields{"X-Forwarded-For": {"2001:db8::7"}}, false, "[2001:db8::7]:0", "http", ""},
		{"IPv6 in brackets", []string{"10.0.0.0/8"}, "", proxy, fields{"X-Forwarded-For": {"[2001:db8::7]"}}, false, "[2001:db8::7]:0", "http", ""},
		{"IPv4 in IPv6", []string{"::ffff:10.0.0.0/104"}, "", "[::ffff:10.0.0.1]:1", fields{"X-Forwarded-For": {"::ffff:198.51.100.7"}}, false, "198.51.100.7:0", "http", ""},
		{"what cannot be read", []string{"10.0.0.0/8"}, "", proxy, fields{"X-Forwarded-For": {"198.51.100.7, unknown"}}, false, proxy, "http", ""},
		{"what cannot be read behind a proxy", []string{"10.0.0.0/8"}, "", proxy, fields{"X-Forwarded-For": {"198.51.100.7, x, 10.9.9.9"}}, false, "10.9.9.9:0", "http", ""},
		{"a proxy that says nothing", []string{"10.0.0.0/8"}, "", proxy, nil, false, proxy, "http", ""},
		{"an empty element", []string{"10.0.0.0/8"}, "", proxy, fields{"X-Forwarded-For": {"198.51.100.7,"}}, false, proxy, "http", ""},
		{"another field", []string{"10.0.0.0/8"}, "cf-connecting-ip", proxy, fields{"X-Forwarded-For": {"1.2.3.4"}, "Cf-Connecting-Ip": {"198.51.100.7"}}, false, "198.51.100.7:0", "http", ""},
		{"the field that is not read", []string{"10.0.0.0/8"}, "", proxy, fields{"Forwarded": {"for=1.2.3.4"}}, false, proxy, "http", ""},
		{"Forwarded", []string{"10.0.0.0/8"}, "Forwarded", proxy, fields{"Forwarded": {`for=1.2.3.4, for="[2001:db8::7]:80";proto=https;host=cdn.example.com`}, "X-Forwarded-Proto": {"http"}}, false, "[2001:db8::7]:0", "https", "cdn.example.com"},
		{"Forwarded, two proxies", []string{"10.0.0.0/8"}, "Forwarded", proxy, fields{"Forwarded": {"For=198.51.100.7;Proto=HTTPS", "for=10.9.9.9;proto=http"}}, false, "198.51.100.7:0", "https", ""},
		{"Forwarded, a comma in quotes", []string{"10.0.0.0/8"}, "Forwarded", proxy, fields{"Forwarded": {`for=198.51.100.7;ext="a, for=1.2.3.4"`}}, false, "198.51.100.7:0", "http", ""},
		{"Forwarded, hidden", []string{"10.0.0.0/8"}, "Forwarded", proxy, fields{"Forwarded": {"for=198.51.100.7, for=_hidden"}}, false, proxy, "http", ""},
		{"Forwarded, an open quote", []string{"10.0.0.0/8"}, "Forwarded", proxy, fields{"Forwarded": {`for=1.2.3.4", for="198.51.100.7`}}, false, proxy, "http", ""},
		{"a Unix socket", []string{"unix:"}, "", "@", fields{"X-Forwarded-For": {"198.51.100.7"}}, false, "198.51.100.7:0", "http", ""},
		{"a Unix socket that is not trusted", []string{"10.0.0.0/8", "0.0.0.0/0", "::/0"}, "", "@", fields{"X-Forwarded-For": {"198.51.100.7"}}, false, "@", "http", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := NewProxies(tt.trusted, tt.field)
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest("GET", "http://larder.example/", nil)
			r.RemoteAddr = tt.peer
			if tt.tls {
				r.TLS = &tls.ConnectionState{}
			}
			for name, lines := range tt.fields {
				r.Header[name] = lines
			}
			r.Header.Set("X-Real-IP", "1.2.3.4")
			called := false
			p.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				called = true
				if tt.wantHost == "" {
					tt.wantHost = "larder.example"
				}
				if r.RemoteAddr != tt.want || Scheme(r) != tt.scheme || r.Host != tt.wantHost {
					t.Errorf("%s, %s, %s; want %s, %s, %s", r.RemoteAddr, Scheme(r), r.Host, tt.want, tt.scheme, tt.wantHost)
				}
				if len(r.Header) != 0 {
					t.Errorf("passed on: %v", r.Header)
				}
			})).ServeHTTP(nil, r)
			if !called {
				t.Error("not answered")
			}
		})
	}
}

func TestBadProxies(t *testing.T) {
	for _, text := range []string{"", "10.0.0.0/33", "example.com", "fe80::1%eth0", "unix", "::ffff:0.0.0.0/64"} {
		if _, err := NewProxies([]string{text}, ""); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if _, err := NewProxies(nil, "a b"); err == nil {
		t.Error("a field with a space is taken")
	}
}

func TestProxiesTrust(t *testing.T) {
	p, err := NewProxies([]string{"10.0.0.0/8", "::1"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for peer, want := range map[string]bool{"10.1.1.1": true, "::ffff:10.1.1.1": true, "::1": true, "11.1.1.1": false} {
		if p.Trust(netip.MustParseAddr(peer)) != want {
			t.Errorf("%v: %v", peer, !want)
		}
	}
	if p.Trust(netip.Addr{}) {
		t.Error("a peer without an address is trusted")
	}
}

// FuzzForwarded holds that no field makes a client of what is none, or has claims passed on.
func FuzzForwarded(f *testing.F) {
	f.Add("198.51.100.7, 10.0.0.2", "https", "a.example", false)
	f.Add(`for="[2001:db8::7]:80";proto=https`, "", "", true)
	f.Fuzz(func(t *testing.T, list, proto, host string, rfc bool) {
		field := ""
		if rfc {
			field = forwarded
		}
		p, err := NewProxies([]string{"10.0.0.0/8"}, field)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", "http://larder.example/", nil)
		r.RemoteAddr = "10.0.0.1:1"
		r.Header = http.Header{p.field: {list}, "X-Forwarded-Proto": {proto}, "X-Forwarded-Host": {host}}
		p.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			at, err := netip.ParseAddrPort(r.RemoteAddr)
			if err != nil || at.Addr() != normalizeAddr(at.Addr()) || len(r.Header) != 0 || Scheme(r) != "http" && Scheme(r) != "https" {
				t.Errorf("%s %s %v", r.RemoteAddr, Scheme(r), r.Header)
			}
		})).ServeHTTP(nil, r)
	})
}

// The lane asks with lines of the field where net/http's handlers ask with a request.
func TestClientOfAConnection(t *testing.T) {
	proxies, err := NewProxies([]string{"10.0.0.0/8", "unix:"}, "")
	if err != nil {
		t.Fatal(err)
	}
	none, err := NewProxies(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		proxies *Proxies
		remote  string
		lines   []string
		want    string
	}{
		{proxies, "10.0.0.1:80", []string{"203.0.113.9, 198.51.100.3"}, "198.51.100.3"},
		{proxies, "10.0.0.1:80", []string{"203.0.113.9", "198.51.100.3, 10.1.1.1"}, "198.51.100.3"},
		{proxies, "10.0.0.1:80", []string{"nonsense"}, "10.0.0.1"},
		{proxies, "10.0.0.1:80", nil, "10.0.0.1"},
		{proxies, "192.0.2.1:80", []string{"198.51.100.3"}, "192.0.2.1"},
		{proxies, "@", []string{"198.51.100.3"}, "198.51.100.3"},
		{none, "@", []string{"198.51.100.3"}, "invalid IP"},
		{none, "[2001:db8::1]:80", []string{"198.51.100.3"}, "2001:db8::1"},
		{nil, "", nil, "invalid IP"},
	} {
		if got := test.proxies.Client(test.remote, test.lines); got.String() != test.want {
			t.Errorf("%s with %q is %v, want %s", test.remote, test.lines, got, test.want)
		}
	}
	if proxies.Field() != "x-forwarded-for" || none.Field() != "" {
		t.Errorf("the fields are %q and %q", proxies.Field(), none.Field())
	}
}
