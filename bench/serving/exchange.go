package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// browser is what Chrome sends with a script of another site, in its order, but
// Host, Connection and the conditions.
var browser = [][2]string{
	{"sec-ch-ua-platform", `"Windows"`},
	{"User-Agent", "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/138.0.0.0 Safari/537.36"},
	{"sec-ch-ua", `"Not)A;Brand";v="8", "Chromium";v="138", "Google Chrome";v="138"`},
	{"sec-ch-ua-mobile", "?0"},
	{"Accept", "*/*"},
	{"Sec-Fetch-Site", "cross-site"},
	{"Sec-Fetch-Mode", "no-cors"},
	{"Sec-Fetch-Dest", "script"},
	{"Referer", "https://www.example.com/"},
	{"Accept-Encoding", "gzip, deflate, br, zstd"},
	{"Accept-Language", "en-US,en;q=0.9"},
}

// A request is one that is asked of every server alike.
type request struct {
	Method string
	Path   string
	// Conditional sends back the validators of the server's own 200.
	Conditional bool
}

// validators are the fields that a conditional request sends back.
type validators struct{ etag, modified string }

func validatorsOf(h http.Header) validators {
	return validators{h.Get("Etag"), h.Get("Last-Modified")}
}

// wire is the request as it goes over an HTTP/1.1 connection. Without encoding it
// accepts no coding but identity.
func (q request) wire(host string, v validators, closing bool, encoding string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: %s\r\n", q.Method, q.Path, host, map[bool]string{false: "keep-alive", true: "close"}[closing])
	for _, field := range browser {
		if field[0] == "Accept-Encoding" {
			field[1] = encoding
		}
		fmt.Fprintf(&b, "%s: %s\r\n", field[0], field[1])
	}
	if q.Conditional {
		fmt.Fprintf(&b, "If-None-Match: %s\r\nIf-Modified-Since: %s\r\n", v.etag, v.modified)
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

const chrome = "gzip, deflate, br, zstd"

// An answer is what a server said, whole.
type answer struct {
	status int
	header http.Header
	body   []byte
	length int // of head and body on the wire
}

// A connection asks one server for one thing after the other.
type connection struct {
	host   string
	conn   net.Conn
	read   counting
	reader *bufio.Reader
}

type counting struct {
	io.Reader
	n int
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

func dial(ctx context.Context, address string, secure bool) (*connection, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if secure {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // on loopback, with a certificate of our own
	}
	c := &connection{host: address, conn: conn, read: counting{Reader: conn}}
	c.reader = bufio.NewReaderSize(&c.read, 64<<10)
	return c, nil
}

// ask sends one request and reads the answer.
func (c *connection) ask(q request, v validators, closing bool, encoding string) (*answer, error) {
	if err := c.conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(q.wire(c.host, v, closing, encoding)); err != nil {
		return nil, err
	}
	before := c.read.n - c.reader.Buffered()
	response, err := http.ReadResponse(c.reader, &http.Request{Method: q.Method})
	if err != nil {
		return nil, fmt.Errorf("%s %s at %s: %w", q.Method, q.Path, c.host, err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s at %s: %w", q.Method, q.Path, c.host, err)
	}
	return &answer{response.StatusCode, response.Header, body, c.read.n - c.reader.Buffered() - before}, nil
}

func (c *connection) close() { _ = c.conn.Close() }

// askHTTP2 asks over HTTP/2. The answer's length is unknown.
func askHTTP2(ctx context.Context, client *http.Client, url string, q request, v validators) (*answer, error) {
	r, err := http.NewRequestWithContext(ctx, q.Method, url+q.Path, nil)
	if err != nil {
		return nil, err
	}
	for _, field := range browser {
		r.Header.Set(field[0], field[1])
	}
	if q.Conditional {
		r.Header.Set("If-None-Match", v.etag)
		r.Header.Set("If-Modified-Since", v.modified)
	}
	response, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.ProtoMajor != 2 {
		return nil, errors.New(url + " does not speak HTTP/2")
	}
	body, err := io.ReadAll(response.Body)
	return &answer{status: response.StatusCode, header: response.Header, body: body}, err
}

func newHTTP2Client(secure bool) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP2(secure)
	p.SetUnencryptedHTTP2(!secure)
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, Protocols: p, DisableCompression: true,
	}}
}
