package server_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/server"
)

// A slowClient pauses before each step of its connection: TLS handshake, HTTP/2 preface, request.
type slowClient struct {
	net.Conn
	config *tls.Config // nil without TLS
	pause  time.Duration
}

// get takes the steps, and returns the body of the response.
func (c *slowClient) get(path string) (body string, err error) {
	stream := c.Conn
	if c.config != nil {
		time.Sleep(c.pause)
		secure := tls.Client(stream, c.config)
		if err := secure.Handshake(); err != nil {
			return "", fmt.Errorf("TLS handshake: %w", err)
		}
		stream = secure
	}
	request := httptest.NewRequest(http.MethodGet, "https://example.com"+path, nil)
	request.RequestURI = ""
	if c.config != nil && c.config.NextProtos != nil {
		time.Sleep(c.pause)
		conn, err := testkit.SpeakHTTP2(stream)
		if err != nil {
			return "", fmt.Errorf("HTTP/2 preface: %w", err)
		}
		defer conn.Close()
		time.Sleep(c.pause)
		return readBody(conn.RoundTrip(request))
	}
	time.Sleep(c.pause)
	if err := request.Write(stream); err != nil {
		return "", err
	}
	return readBody(http.ReadResponse(bufio.NewReader(stream), request))
}

func readBody(r *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return string(body), errors.Join(err, errorOf(r))
}

func errorOf(r *http.Response) error {
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	return nil
}

// slowProtocols are the configurations of clients.
func slowProtocols(trusted *tls.Config) map[string]*tls.Config {
	overHTTP2 := trusted.Clone()
	overHTTP2.NextProtos = []string{"h2"}
	return map[string]*tls.Config{"HTTP/1.1": nil, "TLS": trusted, "HTTP/2": overHTTP2}
}

// TestStopServesSlowClients stops a server between any two steps of a client that pauses before each: the client is served.
func TestStopServesSlowClients(t *testing.T) {
	store, both := fixture(t), trustedCertificate(t)
	for protocol, config := range slowProtocols(both) {
		for _, path := range []string{"/ajax/libs/demo/1.0.0/demo.js", "/elsewhere"} { // of the lane, and of net/http
			for _, pause := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond, 3 * time.Second, 5 * time.Second} {
				for _, stop := range []time.Duration{0, pause / 2, pause * 3 / 2, pause * 5 / 2} {
					if stop > pause && config == nil || stop > 2*pause && config.NextProtos == nil {
						continue // the client has been served
					}
					t.Run(fmt.Sprintf("%s %s pausing %v stopped after %v", protocol, path, pause, stop), func(t *testing.T) {
						bubble.Test(t, func(t *testing.T) {
							assets := newAssets(t, server.Options{Store: store})
							listener := make(pipes)
							o := server.HTTPOptions{Lane: assets}
							if config != nil {
								o.TLS = both
							}
							s := server.NewHTTPServer(server.Route(assets, echo), o)
							go s.Serve(listener)
							ours, theirs := net.Pipe()
							listener <- theirs
							synctest.Wait() // until it is accepted
							client := slowClient{newBuffered(ours), config, pause}
							var done sync.WaitGroup
							done.Go(func() {
								if body, err := client.get(path); err != nil || body == "" {
									t.Errorf("the response is %q, %v", body, err)
								}
								ours.Close()
							})
							time.Sleep(stop)
							if cut, err := s.Stop(30 * time.Second); cut > 0 || err != nil {
								t.Errorf("%d clients were cut off, %v", cut, err)
							}
							close(listener)
							done.Wait()
							synctest.Wait()
						})
					})
				}
			}
		}
	}
}

// trustedCertificate is for both ends.
func trustedCertificate(t *testing.T) *tls.Config {
	s := httptest.NewTLSServer(nil)
	t.Cleanup(s.Close)
	trusted := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	return &tls.Config{Certificates: s.TLS.Certificates, RootCAs: trusted, ServerName: "example.com"}
}

// A buffered connection reads ahead, as a socket does.
type buffered struct {
	net.Conn
	mu      sync.Mutex
	arrived sync.Cond
	bytes   []byte
	err     error
}

func (b *buffered) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.bytes) == 0 && b.err == nil {
		b.arrived.Wait()
	}
	if len(b.bytes) == 0 {
		return 0, b.err
	}
	n := copy(p, b.bytes)
	b.bytes = b.bytes[n:]
	return n, nil
}

func newBuffered(c net.Conn) *buffered {
	b := &buffered{Conn: c}
	b.arrived.L = &b.mu
	go func() {
		for p := make([]byte, 4<<10); ; {
			n, err := c.Read(p)
			b.mu.Lock()
			b.bytes, b.err = append(b.bytes, p[:n]...), err
			b.arrived.Broadcast()
			b.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return b
}

// TestRelinquish has the successor answer requests that come late on connections of a server which had to give up what it uses.
// The server answers the others.
func TestRelinquish(t *testing.T) {
	store, both := fixture(t), trustedCertificate(t)
	for protocol, config := range slowProtocols(both) {
		for _, path := range []string{"/ajax/libs/demo/1.0.0/demo.js", "/elsewhere"} {
			t.Run(protocol+" "+path, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					assets := newAssets(t, server.Options{Store: store})
					listener := make(pipes)
					o := server.HTTPOptions{Lane: assets, Successor: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						io.WriteString(w, "the successor")
					})}
					if config != nil {
						o.TLS = both
					}
					s := server.NewHTTPServer(server.Route(assets, echo), o)
					go s.Serve(listener)
					var clients sync.WaitGroup
					for _, pause := range []time.Duration{200 * time.Millisecond, 3 * time.Second} {
						ours, theirs := net.Pipe()
						listener <- theirs
						clients.Go(func() {
							client := slowClient{newBuffered(ours), config, pause}
							body, err := client.get(path)
							if late := pause > time.Second; err != nil || (body == "the successor") != late {
								t.Errorf("a client that pauses %v gets %q, %v", pause, body, err)
							}
							ours.Close()
						})
					}
					synctest.Wait() // until both are accepted
					ctx, cancel := context.WithTimeout(t.Context(), 1200*time.Millisecond)
					defer cancel()
					began := time.Now()
					if err := s.Relinquish(ctx); err == nil || time.Since(began) != 1200*time.Millisecond {
						t.Errorf("it ends with %v after %v", err, time.Since(began))
					}
					if cut, err := s.Stop(15 * time.Second); cut > 0 || err != nil {
						t.Errorf("%d clients were cut off, %v", cut, err)
					}
					close(listener)
					clients.Wait()
					synctest.Wait()
				})
			})
		}
	}
}

// TestStopOfIdleConnections stops a server whose clients have been answered, and one without clients: that takes a second, or as
// long as the options say, and no time.
func TestStopOfIdleConnections(t *testing.T) {
	store := fixture(t)
	for _, test := range []struct {
		path    string // of the lane, or of net/http
		clients int
		o       server.HTTPOptions
		want    time.Duration
	}{
		{"", 0, server.HTTPOptions{}, 0},
		{"/ajax/libs/demo/1.0.0/demo.js", 2, server.HTTPOptions{}, time.Second},
		{"/elsewhere", 2, server.HTTPOptions{}, time.Second},
		{"/elsewhere", 2, server.HTTPOptions{IdleAtEnd: -1}, 0},
	} {
		bubble.Test(t, func(t *testing.T) {
			assets := newAssets(t, server.Options{Store: store})
			listener := make(pipes)
			test.o.Lane = assets
			s := server.NewHTTPServer(server.Route(assets, echo), test.o)
			go s.Serve(listener)
			for range test.clients {
				ours, theirs := net.Pipe()
				listener <- theirs
				fmt.Fprint(ours, ask("GET", test.path)+"\r\n")
				if _, err := readBody(http.ReadResponse(bufio.NewReader(ours), nil)); err != nil {
					t.Error(err)
				}
			}
			synctest.Wait()
			began := time.Now()
			if cut, err := s.Stop(15 * time.Second); cut > 0 || err != nil || time.Since(began) != test.want {
				t.Errorf("%d clients after %q: %d were cut off, %v, after %v; want %v", test.clients, test.path, cut, err, time.Since(began), test.want)
			}
			close(listener)
			synctest.Wait()
		})
	}
}

// stopping runs a test with a server on pipes whose handler is echo, and which the test stops. The lane has the assets.
func stopping(t *testing.T, o server.HTTPOptions, test func(t *testing.T, s *server.Server, connect func() net.Conn)) {
	store := fixture(t)
	bubble.Test(t, func(t *testing.T) {
		o.Lane = newAssets(t, server.Options{Store: store})
		listener := make(pipes)
		s := server.NewHTTPServer(server.Route(o.Lane.(*server.Assets), http.HandlerFunc(upgradeOrEcho)), o)
		go s.Serve(listener)
		test(t, s, func() net.Conn {
			ours, theirs := net.Pipe()
			listener <- theirs
			return ours
		})
		close(listener)
		synctest.Wait()
	})
}

// upgradeOrEcho is echo, slowly where the path says so, and for /upgraded a protocol in which the server is silent.
func upgradeOrEcho(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/slow":
		http.NewResponseController(w).Flush() // the client is not told that the connection ends
		time.Sleep(5 * time.Second)
	case "/upgraded":
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: silence\r\nConnection: Upgrade\r\n\r\n")
		io.Copy(io.Discard, conn)
		return
	}
	echo.ServeHTTP(w, r)
}

// A client whose next request has begun is not idle: it is served, whoever has answered the one before.
func TestStopServesLaterRequests(t *testing.T) {
	for _, path := range []string{"/ajax/libs/demo/1.0.0/demo.js", "/elsewhere"} { // of the lane, and of net/http
		t.Run(path, func(t *testing.T) {
			stopping(t, server.HTTPOptions{}, func(t *testing.T, s *server.Server, connect func() net.Conn) {
				c := newBuffered(connect())
				defer c.Close()
				from := bufio.NewReader(c)
				whole := ask("GET", path) + "\r\n"
				fmt.Fprint(c, whole)
				if _, err := readBody(http.ReadResponse(from, nil)); err != nil {
					t.Fatal(err)
				}
				fmt.Fprint(c, whole[:10])
				synctest.Wait()
				var stopped sync.WaitGroup
				stopped.Go(func() {
					if cut, err := s.Stop(15 * time.Second); cut > 0 || err != nil {
						t.Errorf("%d clients were cut off, %v", cut, err)
					}
				})
				time.Sleep(3 * time.Second)
				fmt.Fprint(c, whole[10:])
				if _, err := readBody(http.ReadResponse(from, nil)); err != nil {
					t.Errorf("the second request: %v", err)
				}
				stopped.Wait()
			})
		})
	}
}

// A response that was being sent when the server began to end has not told its client so. The client has time to make the request
// that it makes after such a response.
func TestStopServesRequestAfterLongResponse(t *testing.T) {
	stopping(t, server.HTTPOptions{}, func(t *testing.T, s *server.Server, connect func() net.Conn) {
		c := newBuffered(connect())
		defer c.Close()
		from := bufio.NewReader(c)
		fmt.Fprint(c, ask("GET", "/slow")+"\r\n")
		synctest.Wait()
		var stopped sync.WaitGroup
		stopped.Go(func() {
			if cut, err := s.Stop(15 * time.Second); cut > 0 || err != nil {
				t.Errorf("%d clients were cut off, %v", cut, err)
			}
		})
		for i, path := range []string{"/slow", "/elsewhere"} {
			if i > 0 {
				time.Sleep(500 * time.Millisecond)
				fmt.Fprint(c, ask("GET", path)+"\r\n")
			}
			r, err := http.ReadResponse(from, nil)
			if _, err := readBody(r, err); err != nil || r.Close != (i > 0) {
				t.Errorf("%s: %v", path, err)
			}
		}
		stopped.Wait()
	})
}

// A connection that has had no request does not make a server that ends wait as long as one that goes on.
func TestStopOfUnusedConnections(t *testing.T) {
	trusted := trustedCertificate(t)
	for protocol, test := range map[string]struct {
		config *tls.Config
		path   string        // of a request of which one byte comes
		want   time.Duration // at most
	}{
		"HTTP/1.1": {nil, "", 6 * time.Second},
		"TLS":      {trusted, "", 6 * time.Second},
		"HTTP/2":   {slowProtocols(trusted)["HTTP/2"], "", 7 * time.Second},
	} {
		t.Run(protocol, func(t *testing.T) {
			o := server.HTTPOptions{}
			if test.config != nil {
				o.TLS = trusted
			}
			stopping(t, o, func(t *testing.T, s *server.Server, connect func() net.Conn) {
				var c net.Conn = newBuffered(connect())
				defer c.Close()
				if test.config != nil {
					secure := tls.Client(c, test.config)
					if err := secure.Handshake(); err != nil {
						t.Fatal(err)
					}
					c = secure
				}
				if protocol == "HTTP/2" {
					conn, err := testkit.SpeakHTTP2(c)
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
				}
				synctest.Wait()
				began := time.Now()
				if cut, err := s.Stop(15 * time.Second); cut > 0 || err != nil || time.Since(began) > test.want {
					t.Errorf("%d clients were cut off, %v, after %v", cut, err, time.Since(began))
				}
			})
		})
	}
}

// A connection that a handler has taken from net/http ends when the server leaves, and no handler is left over.
func TestUpgradedConnectionsEnd(t *testing.T) {
	stopping(t, server.HTTPOptions{}, func(t *testing.T, s *server.Server, connect func() net.Conn) {
		upgrade := func() (net.Conn, *bufio.Reader) {
			c := newBuffered(connect())
			fmt.Fprint(c, ask("GET", "/upgraded")+"Connection: Upgrade\r\nUpgrade: silence\r\n\r\n")
			return c, bufio.NewReader(c)
		}
		c, from := upgrade()
		defer c.Close()
		if r, err := http.ReadResponse(from, nil); err != nil || r.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%v, %v", r, err)
		}
		gone, _ := upgrade()
		gone.Close() // it is not to be remembered
		time.Sleep(time.Hour)
		began := time.Now()
		s.Leave()
		<-s.Settled()
		if _, err := from.ReadByte(); err != io.EOF {
			t.Errorf("then reading ends with %v", err)
		}
		late, from := upgrade()
		defer late.Close()
		io.Copy(io.Discard, from)
		if cut, err := s.Stop(15 * time.Second); cut > 0 || err != nil || time.Since(began) > 0 {
			t.Errorf("%d clients were cut off, %v, after %v", cut, err, time.Since(began))
		}
	})
}
