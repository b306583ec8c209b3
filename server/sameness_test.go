package server_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server"
)

// echo answers with what it was asked, so that a request is compared where it is net/http's, too.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s %q %d %v %v %q %v\n", r.Method, r.RequestURI, r.Proto, r.Host, r.ContentLength, r.TransferEncoding, r.TLS != nil, body, err)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		fmt.Fprintf(&b, "%s: %q\n", name, r.Header[name])
	}
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	io.WriteString(w, b.String())
})

// A script is a connection whose client sends pieces, each as one thing to be read, and
// then nothing more; it remembers what is sent to it.
type script struct {
	pieces [][]byte
	mu     sync.Mutex
	answer bytes.Buffer
	closed chan struct{}
	once   sync.Once
}

func newScript(pieces [][]byte) *script {
	return &script{pieces: pieces, closed: make(chan struct{})}
}

func (s *script) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.pieces[0])
	if s.pieces[0] = s.pieces[0][n:]; len(s.pieces[0]) == 0 {
		s.pieces = s.pieces[1:]
	}
	return n, nil
}

func (s *script) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answer.Write(p)
}

func (s *script) Close() error                     { s.once.Do(func() { close(s.closed) }); return nil }
func (s *script) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *script) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// twoWays returns two functions that give what the server answers to pieces of a
// connection: with the fast lane, and with net/http alone.
func twoWays(tb testing.TB) (lane, alone func(pieces [][]byte) string) {
	assets := newAssets(tb, server.Options{Store: fixture(tb)})
	way := func(o server.HTTPOptions) func(pieces [][]byte) string {
		s := server.NewHTTPServer(apart.Handler(server.Route(assets, echo)), o)
		listener := make(pipes)
		go s.Serve(listener)
		tb.Cleanup(func() {
			close(listener)
			s.Close()
		})
		return func(pieces [][]byte) string {
			conn := newScript(slices.Clone(pieces))
			listener <- conn
			<-conn.closed
			conn.mu.Lock()
			defer conn.mu.Unlock()
			return conn.answer.String()
		}
	}
	return way(server.HTTPOptions{Lane: apart.Lane(assets)}), way(server.HTTPOptions{})
}

// apart are two hosts, which the tests' usual host is none of.
var apart = server.NewHosts("https://files.test", "https://site.test", "", "/log/")

var (
	dates      = regexp.MustCompile(`(?m)^Date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r$`)
	boundaries = regexp.MustCompile(`[A-Z2-7]{26}`)
)

// canonical returns what was answered with the lines of each head in order, and
// without what differs from one time to the next. What begins like an answer ends
// one, as it does one to HEAD.
func canonical(answers string) string {
	var b strings.Builder
	for answers != "" {
		head, rest, ok := strings.Cut(answers, "\r\n\r\n")
		if !ok || !strings.HasPrefix(head, "HTTP/1.") {
			b.WriteString("not an answer: " + answers)
			break
		}
		head = dates.ReplaceAllString(head+"\r\n", "Date: one\r")
		lines := strings.Split(head, "\r\n")
		slices.Sort(lines[1:])
		length := 0
		for _, line := range lines {
			if digits, ok := strings.CutPrefix(line, "Content-Length: "); ok {
				length, _ = strconv.Atoi(digits)
			}
		}
		switch {
		case strings.HasPrefix(rest, "HTTP/1."), strings.Contains(lines[0], " 304 "):
			length = 0
		case length == 0 && strings.Contains(head, "\r\nConnection: close\r\n"):
			length = len(rest)
		}
		length = min(length, len(rest))
		b.WriteString(boundaries.ReplaceAllString(strings.Join(lines, "\n")+"\n\n"+rest[:length]+"\n", "boundary"))
		answers = rest[length:]
	}
	return b.String()
}

// wantSame compares, and tells what was sent where that differs.
func wantSame(t *testing.T, sent any, lane, alone string) {
	t.Helper()
	if lane, alone := canonical(lane), canonical(alone); lane != alone {
		t.Errorf("to %.2000q\nthe lane answers   %.3000q\nnet/http answers   %.3000q", sent, lane, alone)
	}
}

const (
	asset  = "/ajax/libs/demo/1.0.0/"
	hit    = "GET " + asset + "demo.js HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip, deflate, br\r\n"
	simple = hit + "\r\n"
	probe  = "GET " + asset + "tiny.txt?probe HTTP/1.1\r\nHost: x\r\n\r\n"
)

// oddities is what is sent between simple requests, valid, odd and hostile. Where the
// idea is that of a known way of smuggling requests, its name is told.
func oddities() map[string]string {
	all := map[string]string{
		"nothing":                "",
		"a byte":                 "0",
		"three bytes":            "0\r\n",
		"four bytes":             "0\r\n\r",
		"the first bytes":        "GET",
		"hit":                    simple,
		"HEAD":                   "HEAD" + simple[3:],
		"identity":               "GET " + asset + "demo.js HTTP/1.1\r\nHost: x\r\n\r\n",
		"large":                  "GET " + asset + "noise.bin HTTP/1.1\r\nHost: x\r\n\r\n",
		"inflated":               "GET " + asset + "big.js HTTP/1.1\r\nHost: x\r\n\r\n",
		"document":               "GET " + asset + "active/mark.svg HTTP/1.1\r\nHost: x\r\n\r\n",
		"large document":         "GET " + asset + "active/page.html HTTP/1.1\r\nHost: x\r\nAccept-Encoding: br\r\n\r\n",
		"document in gzip":       "GET " + asset + "active/page.html HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n",
		"HEAD of a document":     "HEAD " + asset + "active/page.html HTTP/1.1\r\nHost: x\r\n\r\n",
		"known document":         "GET " + asset + "active/page.html HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\n\r\n",
		"range of a document":    "GET " + asset + "active/page.html HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n\r\n",
		"empty file":             "GET " + asset + "empty.txt HTTP/1.1\r\nHost: x\r\n\r\n",
		"HEAD of nothing":        "HEAD " + asset + "nothing HTTP/1.1\r\nHost: x\r\n\r\n",
		"404":                    "GET " + asset + "nothing HTTP/1.1\r\nHost: x\r\n\r\n",
		"404 as JSON":            "GET " + asset + "nothing HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n",
		"410":                    "GET /ajax/libs/demo/0.9.0/demo.js HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n",
		"other path":             "GET /libraries?a=b HTTP/1.1\r\nHost: x\r\n\r\n",
		"OPTIONS":                "OPTIONS " + asset + "demo.js HTTP/1.1\r\nHost: x\r\n\r\n",
		"OPTIONS *":              "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
		"PUT":                    "PUT " + asset + "demo.js HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
		"POST elsewhere":         "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
		"lower case method":      "get" + simple[3:],
		"method with a space":    " " + simple,
		"empty line before":      "\r\n" + simple,
		"not HTTP":               "hello\r\n\r\n",
		"TLS":                    "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"HTTP/2":                 "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"HTTP/0.9":               "GET " + asset + "demo.js\r\n\r\n",
		"HTTP/1.0":               "GET " + asset + "demo.js HTTP/1.0\r\n\r\n",
		"HTTP/1.0 that stays":    "GET " + asset + "demo.js HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		"HTTP/1.2":               "GET " + asset + "demo.js HTTP/1.2\r\nHost: x\r\n\r\n",
		"HTTP/2.0":               "GET " + asset + "demo.js HTTP/2.0\r\nHost: x\r\n\r\n",
		"http/1.1":               "GET " + asset + "demo.js http/1.1\r\nHost: x\r\n\r\n",
		"two spaces":             "GET  " + asset + "demo.js HTTP/1.1\r\nHost: x\r\n\r\n",
		"two spaces behind":      "GET " + asset + "demo.js  HTTP/1.1\r\nHost: x\r\n\r\n",
		"tab in request line":    "GET\t" + asset + "demo.js HTTP/1.1\r\nHost: x\r\n\r\n",
		"space behind version":   "GET " + asset + "demo.js HTTP/1.1 \r\nHost: x\r\n\r\n",
		"absolute URI":           "GET http://x" + asset + "demo.js HTTP/1.1\r\nHost: x\r\n\r\n",
		"absolute URI elsewhere": "GET http://y" + asset + "demo.js HTTP/1.1\r\nHost: x\r\n\r\n",
		"authority":              "CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
		"no host":                "GET " + asset + "demo.js HTTP/1.1\r\n\r\n",
		"empty host":             "GET " + asset + "demo.js HTTP/1.1\r\nHost:\r\n\r\n",
		"two hosts":              hit + "Host: y\r\n\r\n",
		"two equal hosts":        hit + "Host: x\r\n\r\n",
		"hosts in two cases":     hit + "hOST: x\r\n\r\n",
		"host with a path":       "GET " + asset + "demo.js HTTP/1.1\r\nHost: x/y\r\n\r\n",
		"host with a space":      "GET " + asset + "demo.js HTTP/1.1\r\nHost: x y\r\n\r\n",
		"host with a user":       "GET " + asset + "demo.js HTTP/1.1\r\nHost: a@x\r\n\r\n",
		"host with a port":       "GET " + asset + "demo.js HTTP/1.1\r\nHost: x:99999999\r\n\r\n",
		"host of IPv6":           "GET " + asset + "demo.js HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
		"odd host of IPv6":       "GET " + asset + "demo.js HTTP/1.1\r\nHost: [::1\r\n\r\n",
		"host with high bytes":   "GET " + asset + "demo.js HTTP/1.1\r\nHost: \xff\r\n\r\n",
		"long head":              hit + "A: " + strings.Repeat("a", 5000) + "\r\n\r\n",
		"longer head":            hit + "A: " + strings.Repeat("a", 10000) + "\r\n\r\n",
		"many fields":            hit + strings.Repeat("A: b\r\n", 500) + "\r\n",
		"many Accept-Encoding":   hit + strings.Repeat("Accept-Encoding: br;q=0.1\r\n", 5) + "\r\n",
		"two Accept-Encoding":    hit + "Accept-Encoding: br;q=0, gzip;q=0\r\n\r\n",
		"bare LF":                strings.ReplaceAll(simple, "\r\n", "\n"),
		"bare LF in the end":     hit + "\n",
		"bare LF in a field":     hit + "A: b\nContent-Length: 5\r\n\r\n",
		"bare LF after br":       "GET " + asset + "demo.js HTTP/1.1\r\nHost: x\r\nAccept-Encoding: br\nA: b\r\n\r\n",
		"bare CR":                strings.ReplaceAll(simple, "\r\n", "\r"),
		"bare CR in a value":     hit + "A: b\rc\r\n\r\n",
		"CR before the end":      hit + "A: b\r\r\n\r\n",
		"CR CR LF":               hit + "\r\r\n",
		"CR in the target":       "GET " + asset + "demo.js\r HTTP/1.1\r\nHost: x\r\n\r\n",
		"NUL in the target":      "GET " + asset + "demo.js\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
		"NUL in a value":         hit + "A: b\x00c\r\n\r\n",
		"NUL in a name":          hit + "A\x00: b\r\n\r\n",
		"DEL in a value":         hit + "A: b\x7fc\r\n\r\n",
		"control in a value":     hit + "A: abcdefghijkl\x01mnop\r\n\r\n",
		"tab in a value":         hit + "A: b\tc\r\n\r\n",
		"tabs around a value":    hit + "If-None-Match:\t*\t\r\n\r\n",
		"high bytes in a value":  hit + "Cookie: \xc3\xbc\xff\r\n\r\n",
		"high bytes in a name":   hit + "\xc3\xbc: a\r\n\r\n",
		"fold":                   hit + "A: b\r\n c\r\n\r\n",
		"fold with a tab":        hit + "A: b\r\n\tc\r\n\r\n",
		"fold at first":          "GET " + asset + "demo.js HTTP/1.1\r\n Host: x\r\n\r\n",
		"fold of Host":           "GET " + asset + "demo.js HTTP/1.1\r\nHost:\r\n x\r\n\r\n",
		"fold of a length":       hit + "Content-Length:\r\n 5\r\n\r\nabcde",
		"no colon":               hit + "nothing\r\n\r\n",
		"no name":                hit + ": a\r\n\r\n",
		"space before colon":     hit + "Content-Length : 5\r\n\r\nabcde",
		"tab before colon":       hit + "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
		"odd names":              hit + "A(: b\r\n\r\n",
		"odder names":            hit + "a[b]{c}: b\r\n\r\n",
		"fields that say little": hit + "A!#$%&'*+-.^_`|~9: b\r\nB:\r\nC:    \r\nD: \"\\\r\n\r\n",
		"If-None-Match: *":       hit + "If-None-Match: *\r\n\r\n",
		"HEAD, If-None-Match":    "HEAD" + hit[3:] + "If-None-Match: *\r\n\r\n",
		"If-None-Match: other":   hit + "If-None-Match: \"x\", W/\"y\"\r\n\r\n",
		"two If-None-Match":      hit + "If-None-Match: \"x\"\r\nIf-None-Match: *\r\n\r\n",
		"empty If-None-Match":    hit + "If-None-Match:\r\n\r\n",
		"If-Match":               hit + "If-Match: \"x\"\r\n\r\n",
		"If-Match: *":            hit + "if-match: *\r\n\r\n",
		"If-Modified-Since":      hit + "If-Modified-Since: Thu, 29 Feb 2024 12:30:45 GMT\r\n\r\n",
		"two dates":              hit + strings.Repeat("If-Modified-Since: Thu, 29 Feb 2024 12:30:45 GMT\r\n", 2) + "\r\n",
		"If-Unmodified-Since":    hit + "If-Unmodified-Since: Thu, 29 Feb 2020 12:30:45 GMT\r\n\r\n",
		"406":                    "GET " + asset + "demo.js HTTP/1.1\r\nHost: x\r\nAccept-Encoding: identity;q=0\r\nAccept: application/json\r\n\r\n",
		"Range":                  hit + "Range: bytes=0-9\r\n\r\n",
		"Ranges":                 hit + "Range: bytes=0-9,20-29\r\n\r\n",
		"Range and If-Range":     hit + "Range: bytes=0-9\r\nIf-Range: \"x\"\r\n\r\n",
		"416":                    hit + "Range: bytes=99999999-\r\n\r\n",
		"If-Range alone":         hit + "If-Range: \"x\"\r\n\r\n",
		"Expect":                 hit + "Expect: 100-continue\r\n\r\n",
		"Expect and a body":      hit + "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nabcde",
		"other Expect":           hit + "Expect: miracles\r\n\r\n",
		"Upgrade":                hit + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"Upgrade to h2c":         hit + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n",
		"TE":                     hit + "TE: trailers\r\nConnection: TE\r\n\r\n",
		"Trailer":                hit + "Trailer: Host\r\n\r\n",
		"close":                  hit + "Connection: close\r\n\r\n",
		"CLOSE":                  hit + "Connection: CLOSE\r\n\r\n",
		"HEAD, close":            "HEAD" + hit[3:] + "Connection: close\r\n\r\n",
		"404, close":             "GET " + asset + "nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"keep-alive":             hit + "Connection: keep-alive\r\n\r\n",
		"keep-alive, close":      hit + "Connection: keep-alive, close\r\n\r\n",
		"close, twice":           hit + "Connection: keep-alive\r\nConnection: close\r\n\r\n",
		"odd Connection":         hit + "Connection: Host, Accept-Encoding\r\n\r\n",
		"empty Connection":       hit + "Connection:\r\n\r\n",
		"Proxy-Connection":       hit + "Proxy-Connection: close\r\n\r\n",

		"length":                   hit + "Content-Length: 5\r\n\r\nabcde",
		"length 0":                 hit + "Content-Length: 0\r\n\r\n",
		"length of a request":      hit + "Content-Length: " + strconv.Itoa(len(simple)) + "\r\n\r\n" + simple,
		"length with a plus":       hit + "Content-Length: +5\r\n\r\nabcde",
		"negative length":          hit + "Content-Length: -5\r\n\r\nabcde",
		"hexadecimal length":       hit + "Content-Length: 0x5\r\n\r\nabcde",
		"length with a space":      hit + "Content-Length: 5 \r\n\r\nabcde",
		"length in parts":          hit + "Content-Length: 5 5\r\n\r\nabcde",
		"list of lengths":          hit + "Content-Length: 5, 5\r\n\r\nabcde",
		"empty length":             hit + "Content-Length:\r\n\r\n",
		"huge length":              hit + "Content-Length: 99999999999999999999\r\n\r\nabcde",
		"two lengths":              hit + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
		"two equal lengths":        hit + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde",
		"lengths in two cases":     hit + "Content-Length: 5\r\ncontent-length: 50\r\n\r\nabcde",
		"length with an underline": hit + "Content_Length: 5\r\n\r\n",
		"chunked":                  hit + "Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
		"chunked elsewhere":        "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nabcde\r\n0\r\nA: b\r\n\r\n",
		"odd chunks":               "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\nabcde\n0\n\n",
		"CL.TE":                    "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
		"CL.TE of an asset":        hit + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
		"TE.CL":                    "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n5c\r\nGPOST / HTTP/1.1\r\n\r\n0\r\n\r\n",
		"TE.CL of an asset":        hit + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n" + simple + "0\r\n\r\n",
		"CL.0":                     "POST " + asset + "demo.js HTTP/1.1\r\nHost: x\r\nContent-Length: " + strconv.Itoa(len(simple)) + "\r\n\r\n" + simple,
		"0.CL":                     hit + "Content-Length:\t5\r\n\r\nabcde",
		"length only in a query":   "GET " + asset + "demo.js?Content-Length:%205 HTTP/1.1\r\nHost: x\r\n\r\n",
	}
	for i, value := range []string{"xchunked", "chunked, identity", "identity", "chunked, chunked", "gzip, chunked", "\"chunked\"", "chunked;a=b", " chunked", "\tchunked", "chunked\t", "\x0bchunked", "chunked\x00", "CHUNKED", "chun ked", "", ",chunked", "chunked\r\nTransfer-Encoding: identity", "x\r\nTransfer-Encoding: chunked", "\r\n chunked", "chunked\r\nA: b"} {
		all[fmt.Sprintf("TE.TE %d", i)] = hit + "Transfer-Encoding: " + value + "\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
	}
	for i, name := range []string{"Transfer-Encoding ", " Transfer-Encoding", "Transfer_Encoding", "Transfer-Encoding\x00", "\x00Transfer-Encoding", "Transfer\r-Encoding", "X: y\nTransfer-Encoding", "Transfer-\xc4\x96ncoding", "transfer-encoding"} {
		all[fmt.Sprintf("TE.name %d", i)] = hit + name + ": chunked\r\n\r\n0\r\n\r\n"
	}
	for _, host := range []string{"files.test", "Files.Test:8443", "files.test.", "site.test", "SITE.test", "site.test:80", "site.test.:80", "site.test..", "xsite.test", "site.testx", "[site.test]", "site.test:"} {
		for _, target := range []string{asset + "demo.js", asset + "nothing", "/ajax/libs", "/libraries", "/log/checkpoint"} {
			all["host "+host+" "+target] = "GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
		}
		all["forwarded "+host] = hit + "X-Forwarded-Host: " + host + "\r\n\r\n"
		all["from "+host] = strings.Replace(hit, "Host: x", "Host: "+host, 1) + "x-forwarded-HOST: files.test\r\nForwarded: host=x\r\n\r\n"
		all["absolute "+host] = "GET http://" + host + asset + "demo.js HTTP/1.1\r\nHost: x\r\n\r\n"
		all["HEAD, host "+host] = "HEAD" + strings.Replace(hit, "Host: x", "Host: "+host, 1)[3:] + "Accept: application/json\r\n\r\n"
	}
	for i, target := range []string{
		"", "/", "*", "//" + asset, asset, asset + "../1.0.0/demo.js", asset + "./demo.js", asset + "%2e%2e/demo.js", asset + "a/..%2fdemo.js", asset + "a//demo.js", asset + "demo%2ejs",
		asset + "%64emo.js", asset + "demo.js%", asset + "demo.js%2", asset + "demo.js%zz", asset + "demo.js?%zz", asset + "demo.js?a%", asset + "demo.js?", asset + "demo.js?a=b&c", asset + "demo.js??",
		asset + "demo.js#a", asset + "demo.js#", asset + "demo.js?a#b", asset + "odd/a%20b.js", asset + "odd/a+b.js", asset + "odd/a%2Bb.js", asset + "odd/a@b~c!$&'.js", asset + "odd/ünïcødé-文.js", asset + "odd/%C3%BCn%C3%AFc%C3%B8d%C3%A9-%E6%96%87.js",
		asset + "odd/100%25.js", asset + "odd/%2541.js", asset + "odd/%41.js", asset + "odd/who%3Fwhat%231.js", asset + "odd/semi;colon.js", asset + "odd/...dots...js", asset + "\xff", asset + "%ff", asset + "%00", asset + "a\\b", asset + "a%5Cb", asset + "a|b", asset + "a\"b", asset + "a<b>", asset + "a^b`c{d}", asset + "a[b]",
		"/ajax/libs", "/ajax/libs/", "/ajax/libs/demo", "/ajax/libs/demo/", "/ajax/libs/demo/1.0.0", "/ajax/libs//1.0.0/demo.js", "/ajax/libs/demo%2F1.0.0/demo.js", "/%61jax/libs/demo/1.0.0/demo.js", "/ajax%2Flibs/demo/1.0.0/demo.js", "/x/../ajax/libs/demo/1.0.0/demo.js", "/AJAX/libs/demo/1.0.0/demo.js", "/ajax/libs/../../x", "/ajax/libs/demo/%31.0.0/demo.js",
		"ajax/libs/demo/1.0.0/demo.js", "http:" + asset + "demo.js", "http://[::1" + asset + "demo.js", "///" + asset + "demo.js", asset + strings.Repeat("a", 3900), asset + strings.Repeat("a", 9000),
	} {
		all[fmt.Sprintf("target %d", i)] = "GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n"
	}
	return all
}

// Whatever is sent, simple or hostile, whole or in pieces, is answered the same with the
// fast lane and without it.
func TestLaneAnswersAsNetHTTP(t *testing.T) {
	lane, alone := twoWays(t)
	for name, odd := range oddities() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, all := range []string{odd, odd + probe, simple + odd, simple + odd + probe, odd[:len(odd)/2], strings.TrimSuffix(odd, "\n")} {
				for _, size := range []int{len(all), 1000, 50, 1} {
					if size == 1 && len(all) > 5000 {
						continue
					}
					pieces := slices.Collect(slices.Chunk([]byte(all), max(1, size)))
					wantSame(t, pieces, lane(pieces), alone(pieces))
				}
			}
		})
	}
}

func FuzzLaneAnswersAsNetHTTP(f *testing.F) {
	lane, alone := twoWays(f)
	for _, odd := range oddities() {
		if len(odd) < 1000 {
			f.Add([]byte(odd+probe), uint16(100))
			f.Add([]byte(simple+odd), uint16(100))
		}
	}
	f.Fuzz(func(t *testing.T, sent []byte, size uint16) {
		if len(sent) > 16<<10 {
			t.Skip("long enough")
		}
		pieces := slices.Collect(slices.Chunk(sent, max(1, int(size))))
		wantSame(t, pieces, lane(pieces), alone(pieces))
	})
}

// The same over real connections, where what is sent may arrive in any pieces.
func TestLaneAnswersAsNetHTTPOverLoopback(t *testing.T) {
	assets := newAssets(t, server.Options{Store: fixture(t)})
	config, roots := selfSigned(t)
	proxies, err := requests.NewProxies([]string{"127.0.0.1"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, secure := range map[string]*tls.Config{"plain": nil, "TLS": config} {
		t.Run(name, func(t *testing.T) {
			way := func(o server.HTTPOptions) func(string) string {
				o.TLS = secure
				address := serveOn(t, proxies.Handler(apart.Handler(server.Route(assets, echo))), o)
				return func(sent string) string {
					conn, err := net.Dial("tcp", address)
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
					if secure != nil {
						conn = tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
					}
					_ = conn.SetDeadline(time.Now().Add(time.Minute))
					go func() {
						io.WriteString(conn, sent)
						conn.(interface{ CloseWrite() error }).CloseWrite()
					}()
					answers, err := io.ReadAll(conn)
					if os.IsTimeout(err) { // a reset is the end, too
						t.Errorf("after %d bytes: %v", len(answers), err)
					}
					return string(answers)
				}
			}
			lane, alone := way(server.HTTPOptions{Lane: apart.Lane(assets)}), way(server.HTTPOptions{})
			for name, odd := range oddities() {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					sent := simple + odd + probe
					wantSame(t, sent, lane(sent), alone(sent))
				})
			}
		})
	}
}
