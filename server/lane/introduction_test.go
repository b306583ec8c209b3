package lane_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server/lane"
)

const second = "\r\n\r\n\x00\r\nQUIT\n"

// TestProxyProtocol has a handler of net/http tell whose a connection is: 127.0.0.4 is a proxy that is trusted.
func TestProxyProtocol(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, secure *tls.Config) {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		proxies, err := requests.NewProxies([]string{"127.0.0.4"}, "")
		if err != nil {
			t.Fatal(err)
		}
		l := lane.New(lane.Limit(tcp.(*net.TCPListener), 100), lane.Options{
			Handler: teller{}, TLS: secure, Logger: slog.New(slog.DiscardHandler), Proxies: proxies, ProxyProtocol: true,
			HeaderTimeout: time.Minute, IdleTimeout: time.Minute, WriteTimeout: time.Minute, StallTimeout: time.Minute,
		})
		t.Cleanup(l.Abort)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RemoteAddr) })}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
		for _, tt := range []struct{ name, source, header, want string }{
			{"version 1", "127.0.0.4", "PROXY TCP4 198.51.100.7 127.0.0.1 1234 443\r\n", "198.51.100.7:1234"},
			{"version 1, IPv6", "127.0.0.4", "PROXY TCP6 2001:db8::7 2001:db8::1 1234 443\r\n", "[2001:db8::7]:1234"},
			{"version 1, unknown", "127.0.0.4", "PROXY UNKNOWN\r\n", "127.0.0.4:"},
			{"version 2", "127.0.0.4", second + "\x21\x11\x00\x0c\xc6\x33\x64\x07\x7f\x00\x00\x01\x04\xd2\x01\xbb", "198.51.100.7:1234"},
			{"version 2, with more", "127.0.0.4", second + "\x21\x11\x00\x10\xc6\x33\x64\x07\x7f\x00\x00\x01\x04\xd2\x01\xbb\x04\x00\x01\x00", "198.51.100.7:1234"},
			{"version 2, its own", "127.0.0.4", second + "\x20\x00\x00\x00", "127.0.0.4:"},
			{"none from a proxy", "127.0.0.4", "", ""},
			{"broken", "127.0.0.4", "PROXY TCP4 198.51.100.7\r\n", ""},
			{"too long", "127.0.0.4", "PROXY TCP4 " + strings.Repeat("1", 200) + "\r\n", ""},
			{"too long, version 2", "127.0.0.4", second + "\x21\x11\xff\xff", ""},
			{"none from a client", "127.0.0.2", "", "127.0.0.2:"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := from(t, tt.source, tcp.Addr().String(), tt.header)
				if secure != nil {
					c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
				}
				io.WriteString(c, "GET /else HTTP/1.1\r\nHost: larder.example\r\n\r\n")
				got := ""
				if answer, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
					b, _ := io.ReadAll(answer.Body)
					got = string(b)
				}
				if tt.want == "" && got != "" || !strings.HasPrefix(got, tt.want) {
					t.Errorf("%q is from %q, want %q", tt.header, got, tt.want)
				}
			})
		}
		if c := from(t, "127.0.0.2", tcp.Addr().String(), "PROXY TCP4 198.51.100.7 127.0.0.1 1234 443\r\n"+small); secure == nil {
			if answer, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && answer.StatusCode != http.StatusBadRequest {
				t.Errorf("a client that is no proxy may say who it is: %s", answer.Status)
			}
		}
	})
}

// TestGreedyClientBehindProxy has one client take more connections than there are places, through a trusted proxy that
// tells whose they are.
func TestGreedyClientBehindProxy(t *testing.T) {
	const most = 50
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	proxies, err := requests.NewProxies([]string{"127.0.0.4"}, "")
	if err != nil {
		t.Fatal(err)
	}
	l := lane.New(lane.Limit(tcp.(*net.TCPListener), most), lane.Options{
		Handler: sender{}, Logger: slog.New(slog.DiscardHandler), Proxies: proxies, ProxyProtocol: true,
		HeaderTimeout: time.Minute, IdleTimeout: time.Minute, WriteTimeout: time.Minute, StallTimeout: time.Minute,
	})
	t.Cleanup(l.Abort)
	for range most * 3 / 2 {
		from(t, "127.0.0.4", tcp.Addr().String(), "PROXY TCP4 198.51.100.7 127.0.0.1 1234 443\r\n")
	}
	for range most / 2 {
		if !isAnswered(from(t, "127.0.0.4", tcp.Addr().String(), "PROXY TCP4 198.51.100.8 127.0.0.1 1234 443\r\n"+small)) {
			t.Fatal("a client with few connections is not answered")
		}
	}
}

// A teller leaves all to net/http.
type teller struct{}

func (teller) Answer(*lane.Exchange) bool { return false }
