package server_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/server"
)

// h2Patience is how long a test waits for what ought to happen at once.
const h2Patience = time.Minute

// A framed is a client of HTTP/2 that sends whatever frames it is told to. What it writes
// waits until flush.
type framed struct {
	net.Conn
	*http2.Framer
	out     *bufio.Writer
	fields  bytes.Buffer
	hpack   *hpack.Encoder
	decoder *hpack.Decoder
	answers map[uint32]*h2Answer // by stream, as far as collect has read
}

// dialFramed connects, from another address of the loopback where from names one, and sends
// the preface with those settings.
func dialFramed(tb testing.TB, address, from string, config *tls.Config, settings ...http2.Setting) *framed {
	tb.Helper()
	dialer := net.Dialer{Timeout: h2Patience}
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	if config != nil {
		config = config.Clone()
		config.NextProtos, config.ServerName = []string{"h2"}, "127.0.0.1"
		conn = tls.Client(conn, config)
	}
	c := newFramed(conn, settings...)
	tb.Cleanup(func() { conn.Close() })
	return c
}

func newFramed(conn net.Conn, settings ...http2.Setting) *framed {
	c := &framed{Conn: conn, out: bufio.NewWriterSize(conn, 16<<10), decoder: hpack.NewDecoder(4096, nil), answers: map[uint32]*h2Answer{}}
	c.Framer = http2.NewFramer(c.out, bufio.NewReader(conn))
	c.AllowIllegalWrites = true
	c.hpack = hpack.NewEncoder(&c.fields)
	io.WriteString(c.out, http2.ClientPreface)
	c.WriteSettings(settings...)
	return c
}

// block is the header block of a request with more fields.
func (c *framed) block(method, path string, fields ...string) []byte {
	c.fields.Reset()
	fields = append([]string{":method", method, ":scheme", "http", ":authority", "x", ":path", path}, fields...)
	for i := 0; i < len(fields); i += 2 {
		c.hpack.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(c.fields.Bytes())
}

// ask sends a request in one frame.
func (c *framed) ask(stream uint32, end bool, method, path string, fields ...string) error {
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.block(method, path, fields...), EndStream: end, EndHeaders: true})
}

// until reads frames until one is as wanted, and acknowledges settings meanwhile.
func (c *framed) until(tb testing.TB, wanted func(http2.Frame) bool) {
	tb.Helper()
	if err := c.out.Flush(); err != nil {
		tb.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(h2Patience))
	for {
		f, err := c.ReadFrame()
		if err != nil {
			tb.Fatal(err)
		}
		if s, ok := f.(*http2.SettingsFrame); ok && !s.IsAck() {
			c.WriteSettingsAck()
			if err := c.out.Flush(); err != nil {
				tb.Fatal(err)
			}
		}
		if wanted(f) {
			return
		}
	}
}

// echoed sends a PING and reads until it is answered: what was sent before is done with.
func (c *framed) echoed(tb testing.TB, also func(http2.Frame)) {
	tb.Helper()
	data := [8]byte{'e', 'c', 'h', 'o'}
	c.WritePing(false, data)
	c.until(tb, func(f http2.Frame) bool {
		if also != nil {
			also(f)
		}
		p, ok := f.(*http2.PingFrame)
		return ok && p.IsAck() && p.Data == data
	})
}

// A target is a server that is attacked, with clients that only want files of it.
type target struct {
	testing.TB
	address  string
	config   *tls.Config // of clients; nil without TLS
	registry *prometheus.Registry
	others   []*http.Client // over HTTP/2 and HTTP/1.1
	holding  atomic.Int64   // requests for /hold that are being handled
	held     atomic.Int64   // the most of them at a time
	release  chan struct{}
}

// newTarget serves the store over TLS or h2c. The handler behind answers /hold only when the
// test ends, however its clients fare.
func newTarget(tb testing.TB, secure bool, o server.Options) *target {
	tb.Helper()
	g := &target{TB: tb, registry: prometheus.NewRegistry(), release: make(chan struct{})}
	o.Registerer = g.registry
	assets := newAssets(tb, o)
	h := server.HTTPOptions{Lane: assets, H2C: true}
	if secure {
		config, roots := selfSigned(tb.(*testing.T))
		h.TLS, g.config = config, &tls.Config{RootCAs: roots}
	}
	tb.Cleanup(func() {
		for _, c := range g.others {
			c.CloseIdleConnections()
		}
	})
	g.address = serveOn(tb, server.Route(assets, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/hold" {
			io.WriteString(w, "a page")
			return
		}
		now := g.holding.Add(1)
		defer g.holding.Add(-1)
		for {
			most := g.held.Load()
			if now <= most || g.held.CompareAndSwap(most, now) {
				break
			}
		}
		<-g.release
	})), h)
	tb.Cleanup(func() { close(g.release) }) // before the server is closed
	for _, two := range []bool{true, false} {
		p := new(http.Protocols)
		p.SetHTTP1(!two)
		p.SetHTTP2(two && secure)
		p.SetUnencryptedHTTP2(two && !secure)
		g.others = append(g.others, &http.Client{Timeout: h2Patience, Transport: &http.Transport{Protocols: p, TLSClientConfig: g.config.Clone(), DisableCompression: true}})
	}
	return g
}

func (g *target) dial(settings ...http2.Setting) *framed {
	g.Helper()
	return dialFramed(g, g.address, "", g.config, settings...)
}

func (g *target) url(path string) string {
	if g.config != nil {
		return "https://" + g.address + path
	}
	return "http://" + g.address + path
}

// serveOthers asks for a file over both protocols, n times each, and now and then over a new connection.
func (g *target) serveOthers(n int, path string, want []byte) {
	g.Helper()
	for i := range n {
		for _, c := range g.others {
			if i%8 == 7 {
				c.CloseIdleConnections()
			}
			r, err := c.Get(g.url(path))
			if err != nil {
				g.Fatalf("another client, request %d: %v", i, err)
			}
			got, err := io.ReadAll(r.Body)
			r.Body.Close()
			if err != nil || r.StatusCode != http.StatusOK || !bytes.Equal(got, want) {
				g.Fatalf("another client, request %d: %s, %d of %d bytes, %v", i, r.Status, len(got), len(want), err)
			}
		}
	}
}

// gauge is the value of one of the server's metrics.
func (g *target) gauge(name string) float64 {
	return counter(g.TB.(*testing.T), g.registry, name, "", "")
}

// eventually waits until a condition holds.
func (g *target) eventually(what string, ok func() bool) {
	g.Helper()
	for deadline := time.Now().Add(h2Patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			g.Fatalf("%s: not after %v", what, h2Patience)
		}
	}
}

// demoJS is a file of the fixture, as it is without a coding.
var demoJS = sync.OnceValue(func() []byte { return testkit.Releases()[0].Files["demo.js"] })

// eachTransport runs a test over h2c and TLS.
func eachTransport(t *testing.T, test func(t *testing.T, secure bool)) {
	t.Run("h2c", func(t *testing.T) { test(t, false) })
	t.Run("TLS", func(t *testing.T) { test(t, true) })
}

// An h2Answer is one whole answer.
type h2Answer struct {
	status int
	fields []string // "name: value"
	body   []byte
	reset  http2.ErrCode
	done   bool
}

// collect reads until n streams in all have ended, one way or the other.
func (c *framed) collect(tb testing.TB, n int) {
	tb.Helper()
	of := func(f http2.Frame) *h2Answer {
		id := f.Header().StreamID
		if c.answers[id] == nil {
			c.answers[id] = new(h2Answer)
		}
		return c.answers[id]
	}
	ended := 0
	for _, a := range c.answers {
		if a.done {
			ended++
		}
	}
	end := func(a *h2Answer) {
		if !a.done {
			a.done = true
			ended++
		}
	}
	c.until(tb, func(f http2.Frame) bool {
		switch f := f.(type) {
		case *http2.HeadersFrame:
			fields, err := c.decoder.DecodeFull(f.HeaderBlockFragment())
			if err != nil {
				tb.Fatal(err)
			}
			for _, field := range fields {
				if field.Name == ":status" {
					of(f).status, _ = strconv.Atoi(field.Value)
				}
			}
			if f.StreamEnded() {
				end(of(f))
			}
		case *http2.DataFrame:
			of(f).body = append(of(f).body, f.Data()...)
			if f.StreamEnded() {
				end(of(f))
			}
		case *http2.RSTStreamFrame:
			if !of(f).done {
				of(f).reset = f.ErrCode
			}
			end(of(f))
		case *http2.GoAwayFrame:
			tb.Fatalf("GOAWAY %v %q", f.ErrCode, f.DebugData())
		}
		return ended >= n
	})
}
