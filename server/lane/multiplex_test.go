package lane_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/lane/h2"
)

// A speller answers over HTTP/2 with the path that it was asked for, but for /else.
type speller struct{}

func (speller) Answer(x *lane.Exchange) bool {
	if strings.HasPrefix(x.Path, "/else") || !x.Ready() {
		return false
	}
	x.Send(h2.AppendStatus(nil, 200), []byte(strings.Clone(x.Path)), nil)
	return true
}

// multiplexing are the options of a lane that speaks HTTP/2 without TLS, too.
func multiplexing(h http.Handler) lane.Options {
	return lane.Options{
		Handler: speller{}, Requests: h, Clear: true, HeaderBytes: 32 << 10, Logger: slog.New(slog.DiscardHandler), Context: context.Background(),
		TooLarge:      http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestHeaderFieldsTooLarge) }),
		HeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, IdleAtEnd: time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second, StallTimeout: 30 * time.Second,
	}
}

// serving returns a client of HTTP/2, and the address that it is for.
func serving(t *testing.T, o lane.Options) (*http.Client, string) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := lane.New(inner, o)
	t.Cleanup(func() {
		l.Abort()
		if err := l.Wait(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return multiplexed(t, o.TLS), map[bool]string{true: "https", false: "http"}[o.TLS != nil] + "://" + inner.Addr().String()
}

func multiplexed(t *testing.T, secure *tls.Config) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DisableCompression: true, ExpectContinueTimeout: time.Minute}
	if secure != nil {
		protocols.SetHTTP2(true)
		transport.TLSClientConfig = secure.Clone()
		transport.TLSClientConfig.NextProtos = nil
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// exchanges are what handlers do with what clients ask.
var exchanges = map[string]struct {
	handler http.HandlerFunc
	request func() *http.Request
}{
	"nothing":        {func(w http.ResponseWriter, r *http.Request) {}, ask1("GET", "")},
	"text":           {func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>") }, ask1("GET", "")},
	"text to HEAD":   {func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>") }, ask1("HEAD", "")},
	"much":           {func(w http.ResponseWriter, r *http.Request) { w.Write(large[:5<<20]) }, ask1("GET", "")},
	"much to HEAD":   {func(w http.ResponseWriter, r *http.Request) { w.Write(large[:1<<20]); w.Write(large[:1<<20]) }, ask1("HEAD", "")},
	"much in pieces": {func(w http.ResponseWriter, r *http.Request) { inPieces(w) }, ask1("GET", "")},
	"a promised size": {func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "3")
		io.WriteString(w, "abc")
	}, ask1("GET", "")},
	"more than promised": {func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "3")
		_, err := io.WriteString(w, "abcd")
		if !errors.Is(err, http.ErrContentLength) {
			panic(err)
		}
		io.WriteString(w, "")
		panic(http.ErrAbortHandler)
	}, ask1("GET", "")},
	"a promise to HEAD": {func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Length", "3") }, ask1("HEAD", "")},
	"no content":        {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) }, ask1("GET", "")},
	"not modified": {func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"a"`)
		w.WriteHeader(304)
		if _, err := w.Write([]byte("x")); err != http.ErrBodyNotAllowed {
			panic(err)
		}
	}, ask1("GET", "")},
	"fields": {func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h["X-Many"] = []string{"a", "b", ""}
		h["x-lower"], h["No Token"], h["X-Line"] = []string{"1"}, []string{"2"}, []string{"a\r\nb"}
		h.Set("Connection", "keep-alive")
		h.Set("Transfer-Encoding", "chunked")
		h.Set("Date", "Thu, 29 Feb 2024 12:30:45 GMT")
		w.WriteHeader(418)
		h.Set("X-Late", "1")
	}, ask1("GET", "")},
	"two statuses": {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(201); w.WriteHeader(202) }, ask1("GET", "")},
	"no sniffing": {func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = nil
		io.WriteString(w, "<html>")
	}, ask1("GET", "")},
	"coded": {func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "br")
		io.WriteString(w, "<html>")
	}, ask1("GET", "")},
	"a flush": {func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "a")
		w.(http.Flusher).Flush()
		io.WriteString(w, "b")
	}, ask1("GET", "")},
	"a flush at first": {func(w http.ResponseWriter, r *http.Request) { w.(http.Flusher).Flush(); io.WriteString(w, "b") }, ask1("GET", "")},
	"trailers": {func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "A, B")
		io.WriteString(w, "body")
		w.Header().Set("A", "1")
		w.Header().Set(http.TrailerPrefix+"C", "3")
	}, ask1("GET", "")},
	"trailers of nothing": {func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "A")
		w.WriteHeader(200)
		w.Header().Set("A", "1")
	}, ask1("GET", "")},
	"a body":              {echo, ask1("POST", "body")},
	"a large body":        {echo, ask1("POST", string(large[:3<<20]))},
	"a body that is left": {func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "no") }, ask1("POST", string(large[:3<<20]))},
	"a body of any size": {echo, func() *http.Request {
		r := ask1("PUT", "")()
		r.Body = io.NopCloser(strings.NewReader("body"))
		r.ContentLength = -1
		return r
	}},
	"a body to go on with": {echo, func() *http.Request { r := ask1("POST", "body")(); r.Header.Set("Expect", "100-continue"); return r }},
	"trailers of a request": {echo, func() *http.Request {
		r := ask1("POST", "")()
		r.Body, r.ContentLength, r.Trailer = io.NopCloser(strings.NewReader("body")), -1, http.Header{"A": nil}
		r.Trailer.Set("A", "1")
		return r
	}},
	"a request's fields": {echo, func() *http.Request {
		r := ask1("GET", "")()
		r.Host = "example.com:1"
		r.Header = http.Header{"Cookie": {"a=b; c=d", "e=f"}, "X-A": {"1", "2"}, "User-Agent": {""}, "Te": {"trailers"}}
		return r
	}},
	"OPTIONS": {echo, ask1("OPTIONS", "")},
	"DELETE":  {echo, ask1("DELETE", "")},
	"an abort": {func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "some")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}, ask1("GET", "")},
	"a panic":             {func(w http.ResponseWriter, r *http.Request) { panic("no") }, ask1("GET", "")},
	"a writer's deadline": {func(w http.ResponseWriter, r *http.Request) { late(w) }, ask1("GET", "")},
}

func ask1(method, body string) func() *http.Request {
	return func() *http.Request {
		var from io.Reader
		if body != "" {
			from = strings.NewReader(body)
		}
		r, err := http.NewRequest(method, "http://x/else?a=%20b", from)
		if err != nil {
			panic(err)
		}
		return r
	}
}

func inPieces(w http.ResponseWriter) {
	for i := range 100 {
		w.Write(large[:i*i])
		if i%7 == 0 {
			http.NewResponseController(w).Flush()
		}
	}
}

// echo answers with what net/http makes of the request.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %v %s %s %d %v %d bytes %v\n", r.Method, r.URL, r.RequestURI, r.Proto, r.Host, r.ContentLength, r.TransferEncoding, len(body), err)
	for _, h := range []http.Header{r.Header, r.Trailer} {
		for _, name := range slices.Sorted(maps.Keys(h)) {
			fmt.Fprintf(w, "%s: %q\n", name, h[name])
		}
	}
	if len(body) < 100 {
		w.Write(body)
	}
}

func late(w http.ResponseWriter) {
	c := http.NewResponseController(w)
	if err := c.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
		panic(err)
	}
	for range 1000 {
		if _, err := w.Write(large[:1<<20]); err != nil {
			return
		}
	}
	panic("it can be written to")
}

// told says all of an answer.
func told(client *http.Client, address string, r *http.Request) string {
	r.URL.Scheme, r.URL.Host, _ = strings.Cut(address, "://")
	if r.Host == "" || r.Host == "x" {
		r.Host = "x.example"
	}
	a, err := client.Do(r)
	if err != nil {
		return "no answer" // the client's words differ with the moment
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %d, %d bytes, error %v\n", a.Proto, a.Status, a.ContentLength, len(body), err != nil)
	if _, ok := a.Header["Date"]; !ok {
		b.WriteString("no date\n")
	} else if !strings.Contains(a.Header.Get("Date"), "2024") {
		a.Header.Del("Date")
	}
	for _, h := range []http.Header{a.Header, a.Trailer} {
		for _, name := range slices.Sorted(maps.Keys(h)) {
			fmt.Fprintf(&b, "%s: %q\n", name, h[name])
		}
	}
	if len(body) < 2000 {
		b.Write(body)
	}
	return b.String()
}

// Whatever a handler does, a client gets what net/http would have sent.
func TestHandlersAnswerAsOverNetHTTP(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, secure *tls.Config) {
		for name, e := range exchanges {
			t.Run(name, func(t *testing.T) {
				o := multiplexing(e.handler)
				if o.TLS = secure; secure != nil {
					o.TLS = secure.Clone()
					o.TLS.NextProtos = []string{"h2"}
				}
				client, address := serving(t, o)
				got := told(client, address, e.request())

				theirs := httptest.NewUnstartedServer(e.handler)
				theirs.Config.Protocols = new(http.Protocols)
				theirs.Config.Protocols.SetUnencryptedHTTP2(true)
				theirs.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
				theirs.Start()
				defer theirs.Close()
				want := told(multiplexed(t, nil), theirs.URL, e.request())
				if got = strings.ReplaceAll(got, "https://", "http://"); got != want {
					t.Errorf("the lane answers %s\nnet/http answers %s", got, want)
				}
			})
		}
	})
}

// A client that goes has its handlers told, and one that does not read or write runs into the
// deadlines that handlers set.
func TestHandlersAreTold(t *testing.T) {
	events := make(chan string, 10)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		switch r.URL.Path {
		case "/else/cancel":
			w.WriteHeader(200)
			c.Flush()
			<-r.Context().Done()
			_, err := w.Write(large)
			events <- fmt.Sprint("cancelled ", err != nil)
		case "/else/slow":
			c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := io.ReadAll(r.Body)
			events <- fmt.Sprint("read ", errors.Is(err, os.ErrDeadlineExceeded))
			c.SetWriteDeadline(time.Now().Add(time.Millisecond))
			for err = nil; err == nil; {
				_, err = w.Write(large)
			}
			events <- fmt.Sprint("written ", errors.Is(err, os.ErrDeadlineExceeded))
		}
	})
	client, address := serving(t, multiplexing(handler))
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, "GET", address+"/else/cancel", nil)
	a, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if got := <-events; got != "cancelled true" {
		t.Error(got)
	}
	a.Body.Close()
	from, to := io.Pipe()
	defer to.Close()
	r, _ = http.NewRequest("POST", address+"/else/slow", from)
	go client.Do(r) // and nothing of the answer is read
	for _, want := range []string{"read true", "written true"} {
		if got := <-events; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A speaker is a client that speaks frames.
type speaker struct {
	*http2.Framer
	net.Conn
	block bytes.Buffer
	coder *hpack.Encoder
}

func speak(c net.Conn) *speaker {
	s := &speaker{Framer: http2.NewFramer(c, c), Conn: c}
	s.coder = hpack.NewEncoder(&s.block)
	io.WriteString(c, http2.ClientPreface)
	s.WriteSettings()
	return s
}

func (s *speaker) ask(id uint32, path string) { s.Write(s.request(id, path)) }

// request returns the frame of a request.
func (s *speaker) request(id uint32, path string) []byte {
	s.block.Reset()
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "x"}, {":path", path}} {
		s.coder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	var frame bytes.Buffer
	http2.NewFramer(&frame, nil).WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: s.block.Bytes(), EndStream: true, EndHeaders: true})
	return frame.Bytes()
}

// hears returns the next frame of a type, nil at the end of the connection.
func (s *speaker) hears(kind http2.FrameType) http2.Frame {
	for {
		f, err := s.ReadFrame()
		if err != nil {
			return nil
		}
		if f.Header().Type == kind {
			return f
		}
	}
}

// Cipher suites that RFC 9113 §9.2.2 forbids are refused; those that it allows are not.
func TestSuitesOfHTTP2(t *testing.T) {
	for suite, want := range map[uint16]http2.ErrCode{
		tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA:          http2.ErrCodeInadequateSecurity,
		tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256:       http2.ErrCodeNo,
		tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256: http2.ErrCodeNo,
	} {
		for _, loops := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, loops %v", tls.CipherSuiteName(suite), loops), func(t *testing.T) {
				o := multiplexing(http.NotFoundHandler())
				o.TLS = certificate(t)
				o.TLS.NextProtos = []string{"h2"}
				inner, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				address := inner.Addr().String()
				if !loops {
					inner = struct{ net.Listener }{inner}
				}
				l := lane.New(inner, o)
				t.Cleanup(l.Abort)
				config := o.TLS.Clone()
				config.MaxVersion, config.CipherSuites = tls.VersionTLS12, []uint16{suite}
				c, err := tls.Dial("tcp", address, config)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				s := speak(c)
				s.ask(1, "/a")
				if want == http2.ErrCodeNo {
					if s.hears(http2.FrameData) == nil {
						t.Error("it is not answered")
					}
					return
				}
				if f, ok := s.hears(http2.FrameGoAway).(*http2.GoAwayFrame); !ok || f.ErrCode != want || f.LastStreamID != 0 {
					t.Errorf("it ends with %v, want %v", f, want)
				}
				if f := s.hears(0xff); f != nil {
					t.Errorf("then comes %v", f)
				}
			})
		}
	}
}
