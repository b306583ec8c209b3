package waitingroom

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A mirror is an upstream that notes what arrives, and answers as it is asked to.
type mirror struct {
	*httptest.Server
	mu      sync.Mutex
	arrived string
}

// fromProxies are fields that each proxy writes by itself. How a body is framed is between two
// neighbours (RFC 9112 §6): nginx counts what comes in chunks if it comes at once.
var fromProxies = []string{"Content-Length", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Connection"}

func newMirror(t *testing.T) *mirror {
	m := &mirror{}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var text strings.Builder
		fmt.Fprintf(&text, "%s %s\nhost %s\nbody %x %v\ntrailer %v\n", r.Method, r.RequestURI, r.Host, sha256.Sum256(body), err, r.Trailer)
		writeHeader(&text, r.Header, fromProxies)
		m.mu.Lock()
		m.arrived = text.String()
		m.mu.Unlock()
		respond(w, r)
	}))
	t.Cleanup(m.Close)
	return m
}

func writeHeader(w io.Writer, h http.Header, but []string) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if !slices.Contains(but, name) {
			fmt.Fprintf(w, "%s: %q\n", name, h[name])
		}
	}
}

// respond answers in the way that the request names.
func respond(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h["Date"] = []string{"Wed, 26 May 2027 19:51:00 GMT"}
	h.Set("Content-Type", "text/plain")
	switch r.Header.Get("Answer") {
	case "chunked":
		for i := range 3 {
			fmt.Fprintf(w, "part %d;", i)
			_ = http.NewResponseController(w).Flush()
		}
	case "untyped":
		h["Content-Type"] = nil
		io.WriteString(w, "<html>guess what")
	case "empty":
		w.WriteHeader(http.StatusNoContent)
	case "not modified":
		h.Set("Etag", `W/"a"`)
		h["Content-Type"] = nil
		w.WriteHeader(http.StatusNotModified)
	case "range":
		h.Set("Content-Range", "bytes 1-3/9")
		h.Set("Accept-Ranges", "bytes")
		w.WriteHeader(http.StatusPartialContent)
		io.WriteString(w, "bcd")
	case "coded":
		h.Set("Content-Encoding", "br")
		h.Set("Vary", "Accept-Encoding, Cookie")
		h.Add("Vary", "Origin")
		w.Write([]byte{0x0b, 0x02, 0x80, 'x', 'y', 'z', 0x03})
	case "elsewhere":
		h.Set("Location", "/there/%2F?x=1;y")
		h.Add("Set-Cookie", "a=1; Path=/")
		h.Add("Set-Cookie", "b=2; Secure")
		w.WriteHeader(http.StatusFound)
	case "large":
		h.Set("Content-Length", "300000")
		io.WriteString(w, strings.Repeat("0123456789", 30000))
	case "teapot":
		h.Set("X-Strange", "caf\xe9")
		h.Set("Www-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusTeapot)
		io.WriteString(w, "short and stout")
	case "broken":
		w.WriteHeader(http.StatusInternalServerError)
		io.WriteString(w, "sorry")
	default:
		h.Set("Content-Length", "2")
		h.Set("Link", "</a.css>; rel=preload")
		io.WriteString(w, "ok")
	}
}

// An exchange is a request of the suite.
type exchange struct {
	method, target, fields, cookie, body string
}

// write writes it as bytes, with the ticket among its cookies, if there is one.
func (e exchange) write(host, ticket string) string {
	cookie := e.cookie
	switch {
	case ticket == "":
	case cookie == "":
		cookie = ticket
	case len(e.target)%2 == 0:
		cookie += "; " + ticket
	default:
		cookie = ticket + "; " + cookie
	}
	head := e.method + " " + e.target + " HTTP/1.1\r\nHost: " + host + "\r\n" + e.fields
	if cookie != "" {
		head += "Cookie: " + cookie + "\r\n"
	}
	return head + e.body
}

// exchanges are requests of every kind.
func exchanges() []exchange {
	targets := []string{
		"/", "/a", "/?a=1;b=2", "/?q=100%&x=1", "/?", "/??", "/?%", "/?a=%zz", "/?a=b&a=c&&", "/?=", "/?a+b=%20", "/?a=b#", "/?\"'<>", "/?[]{}|^`",
		"/a%2Fb", "/a%2fb", "/%41", "/a%20b", "/a+b", "/a;b=c", "/a;b=c?d;e", "/a,b", "/a:b@c", "/~a", "/a//b", "/a/./b", "/a/../b", "//a", "//a//b", "/a/", "/a//",
		"/a\"b", "/a'b", "/a<b>", "/a|b", "/a^b", "/a`b", "/a{b}", "/a[b]", "/a\\b", "/caf\xc3\xa9", "/caf%C3%A9", "/%E2%82%AC?%E2%82%AC=\xe2\x82\xac", "/a%25b", "/a%252Fb",
		"/!$&'()*+,;=:@", "/a?b?c", "/a?b/c", "/a?/../b", "/.well-known/x", "/a.b.c", "/" + strings.Repeat("long/", 200), "/?" + strings.Repeat("q=1&", 400),
	}
	fields := []string{
		"Accept: text/html\r\n", "Accept-Encoding: gzip, br;q=0.5\r\n", "Range: bytes=1-3\r\n", "If-None-Match: W/\"a\"\r\n", "X-Twice: 1\r\nX-Twice: 2\r\n", "X-Empty:\r\n",
		"Authorization: Basic YTpi\r\n", "X-Odd: a, b;c=\"d,e\"\r\n", "User-Agent: curl/8\r\n", "Origin: https://a.example\r\nSec-Fetch-Dest: image\r\n", "Cache-Control: no-cache\r\nPragma: no-cache\r\n",
		"If-Modified-Since: Wed, 26 May 2027 19:51:00 GMT\r\n", "X-Latin: caf\xe9\r\n", "Content-Type: application/json\r\n", "Referer: http://x/?a;b\r\n", "Accept-Language: de\r\nDNT: 1\r\n",
	}
	answers := []string{"", "chunked", "untyped", "empty", "not modified", "range", "coded", "elsewhere", "large", "teapot", "broken"}
	cookies := []string{"", "a=1", "a=1;b=2", "a=1; b=2; ", "a=\"x y\"; b", ";a=1", "a=1;;b=2", "a==; =b"}
	bodies := []string{
		"\r\n", "Content-Length: 0\r\n\r\n", "Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"Content-Length: 100000\r\n\r\n" + strings.Repeat("0123456789", 10000), "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	}
	methods := []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "QUERY"}
	var all []exchange
	add := func(e exchange) { all = append(all, e) }
	for _, target := range targets {
		add(exchange{"GET", target, "", "", "\r\n"})
		add(exchange{"POST", target, "", "a=1", bodies[2]})
	}
	for _, method := range methods {
		for i, answer := range answers {
			add(exchange{method, "/x?" + answer[:min(1, len(answer))], "Answer: " + answer + "\r\n", cookies[i%len(cookies)], "\r\n"})
		}
		for i, body := range bodies {
			if method != "HEAD" && method != "GET" {
				add(exchange{method, "/y", "Answer: " + answers[i] + "\r\n", "", body})
			}
		}
	}
	for i, field := range fields {
		for _, cookie := range cookies {
			add(exchange{"GET", targets[i], field, cookie, "\r\n"})
		}
		for _, answer := range answers {
			add(exchange{methods[i%2], "/z", field + "Answer: " + answer + "\r\n", "", "\r\n"})
		}
	}
	return all
}

// exchange sends a request over a connection of its own, and tells what arrived and what came back.
func (m *mirror) exchange(t *testing.T, network, address, request string) string {
	t.Helper()
	m.mu.Lock()
	m.arrived = "nothing\n"
	m.mu.Unlock()
	conn, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go io.WriteString(conn, request) //nolint:errcheck // the answer tells
	method, _, _ := strings.Cut(request, " ")
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return fmt.Sprintf("no answer: %v", err)
	}
	body, err := io.ReadAll(res.Body)
	m.mu.Lock()
	defer m.mu.Unlock()
	var text strings.Builder
	fmt.Fprintf(&text, "%s--\n%s %d %v\nbody %d %x %v\n", m.arrived, res.Proto, res.StatusCode, res.ContentLength, len(body), sha256.Sum256(body), err)
	writeHeader(&text, res.Header, []string{"Date", "Server", "Connection", "Cache-Control"})
	return text.String()
}

// startNginx starts nginx as a plain reverse proxy, "" where there is none.
func startNginx(t *testing.T, upstream string) (socket string) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		program = "/usr/sbin/nginx"
		if _, err := os.Stat(program); err != nil {
			return ""
		}
	}
	dir := t.TempDir()
	socket = filepath.Join(dir, "s")
	if len(socket) > 100 { // the longest name of a socket
		short, err := os.MkdirTemp("", "n")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(short) })
		socket = filepath.Join(short, "s")
	}
	conf := fmt.Sprintf(`daemon off; master_process off; worker_processes 1; error_log stderr error; pid %[1]s/pid;
events {}
http {
	access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/c;
	merge_slashes off; large_client_header_buffers 4 32k; client_max_body_size 0;
	server {
		listen unix:%[2]s;
		location / {
			proxy_pass http://%[3]s; proxy_http_version 1.1; proxy_set_header Host $http_host; proxy_set_header Connection "";
			proxy_request_buffering off; proxy_buffering off; proxy_redirect off;
		}
	}
}
`, dir, socket, upstream)
	file := filepath.Join(dir, "conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "-p", dir, "-c", file, "-e", "stderr")
	var output strings.Builder
	cmd.Stderr = &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
			return socket
		}
		select {
		case <-ended:
			t.Fatalf("nginx does not start: %s", output.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestTransparency sends requests of every kind through nginx, as a plain reverse proxy, and
// through a room with an admitted ticket: what arrives and what comes back must be the same.
// Where there is no nginx, what it did when it was recorded (LARDER_RECORD=1) counts.
func TestTransparency(t *testing.T) {
	const recorded = "testdata/nginx.txt"
	m := newMirror(t)
	h := open(t, small(1, "  upstream: "+m.URL+"\n"))
	u := h.user()
	u.get("/")
	ticket := cookieName("") + "=" + u.cookie()
	address := strings.TrimPrefix(h.url, "http://")
	socket := startNginx(t, strings.TrimPrefix(m.URL, "http://"))
	text, err := os.ReadFile(recorded)
	if err != nil && os.Getenv("LARDER_RECORD") == "" {
		t.Fatal(err)
	}
	known := strings.Fields(string(text))
	var sums strings.Builder
	all := exchanges()
	for i, e := range all {
		got := m.exchange(t, "tcp", address, e.write("shop.example", ticket))
		sum := func(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s)))[:16] }
		if socket == "" {
			if i >= len(known) || known[i] != sum(got) {
				t.Errorf("%d: %.200q is not as nginx would have it:\n%s", i, e.write("h", ""), got)
			}
			continue
		}
		want := m.exchange(t, "unix", socket, e.write("shop.example", ""))
		sums.WriteString(sum(want) + "\n")
		if got != want {
			t.Errorf("%d: %.200q\nthrough the room:\n%s\nthrough nginx:\n%s", i, e.write("h", ""), got, want)
		}
	}
	t.Logf("%d requests, nginx at %q", len(all), cmp.Or(socket, "no place"))
	if os.Getenv("LARDER_RECORD") != "" && socket != "" {
		if err := os.WriteFile(recorded, []byte(sums.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
