package waitingroom

import (
	"bufio"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// admitted is a house in front of an upstream, with a user who is in.
func admitted(t *testing.T, upstream string, more ...string) (*house, *user) {
	t.Helper()
	h := open(t, small(5, append([]string{"  upstream: " + upstream + "\n"}, more...)...))
	u := h.user()
	if r := u.get("/"); r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	return h, u
}

// TestClaims holds a room to telling the upstream who asks, and to passing on nothing that
// clients claim about themselves.
func TestClaims(t *testing.T) {
	var got http.Header
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got = r.Header }))
	defer upstream.Close()
	h, u := admitted(t, upstream.URL)
	claims := []string{
		"X-Forwarded-For", "x-forwarded-for", "X_Forwarded_For", "X-Real-IP", "X_Real_IP", "x_real-ip", "True-Client-IP", "CF-Connecting-IP", "Forwarded", "X-Forwarded-Proto", "X-Forwarded-Host",
		"X-Forwarded-Port", "X-Client-IP", "X-Forwarded-Scheme", "X-Forwarded-Ssl",
	}
	for _, name := range claims {
		u.header[name] = []string{"203.0.113.9"}
	}
	u.header.Set("X-Forwarded", "kept")
	u.get("/")
	for name, values := range got {
		if strings.Contains(strings.Join(values, " "), "203.0.113.9") {
			t.Errorf("%s: %s is passed on", name, values)
		}
	}
	host := strings.TrimPrefix(h.url, "http://")
	for name, want := range map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": host, "X-Forwarded": "kept"} {
		if !slices.Equal(got[name], []string{want}) {
			t.Errorf("%s: %q, want %s", name, got[name], want)
		}
	}
}

// TestTrailers sends fields after the body, both ways.
func TestTrailers(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", body, r.Trailer)
		w.Header().Set("X-Sum", "answer")
		w.Header().Set(http.TrailerPrefix+"X-Late", "unannounced")
	}))
	defer upstream.Close()
	_, u := admitted(t, upstream.URL)
	req, _ := http.NewRequest(http.MethodPost, u.url+"/", io.MultiReader(strings.NewReader("body")))
	req.Trailer = http.Header{"X-Check": {"request"}}
	r := u.send(req)
	if r.body != "body map[X-Check:[request]]" || r.Trailer.Get("X-Sum") != "answer" || r.Trailer.Get("X-Late") != "unannounced" {
		t.Errorf("%s; trailer %v", r.body, r.Trailer)
	}
}

// TestInformational has answers come before the answer (RFC 9110 §15.2).
func TestInformational(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		body, _ := io.ReadAll(r.Body)
		w.Write(body)
	}))
	defer upstream.Close()
	_, u := admitted(t, upstream.URL)
	req, _ := http.NewRequest(http.MethodPost, u.url+"/", strings.NewReader("after 100"))
	req.Header.Set("Expect", "100-continue")
	var hints []string
	continued := false
	r := u.send(req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got100Continue: func() { continued = true },
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			if code == http.StatusEarlyHints {
				hints = append(hints, h.Get("Link"))
			}
			return nil
		},
	})))
	if r.body != "after 100" || !slices.Equal(hints, []string{"</a.css>; rel=preload"}) || !continued {
		t.Errorf("%q, hints %q, 100: %v", r.body, hints, continued)
	}
}

// TestBothWays has a client and an upstream talk in turns over one request.
func TestBothWays(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		_ = c.EnableFullDuplex()
		in := bufio.NewReader(r.Body)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			io.WriteString(w, "re: "+line)
			_ = c.Flush()
		}
	}))
	defer upstream.Close()
	_, u := admitted(t, upstream.URL)
	reader, writer := io.Pipe()
	req, _ := http.NewRequest(http.MethodPost, u.url+"/", reader)
	go io.WriteString(writer, "0\n")
	res, err := u.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answers := bufio.NewReader(res.Body)
	for i := range 5 {
		if line, err := answers.ReadString('\n'); err != nil || line != fmt.Sprintf("re: %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
		fmt.Fprintf(writer, "%d\n", i+1)
	}
	writer.Close()
	if rest, err := io.ReadAll(answers); err != nil || string(rest) != "re: 5\n" {
		t.Errorf("%q, %v", rest, err)
	}
}

// TestUnwantedBody has an upstream answer before it has read a body: the client gets the answer,
// and the server does not take the rest for another request.
func TestUnwantedBody(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		io.WriteString(w, r.URL.Path)
	}))
	defer upstream.Close()
	_, u := admitted(t, upstream.URL)
	for _, framing := range []string{"Transfer-Encoding: chunked\r\n\r\n2a\r\n", "Content-Length: 42\r\n\r\n"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(u.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /first HTTP/1.1\r\nHost: h\r\nCookie: %s=%s\r\n%sGET /x HTTP/1.1\r\nHost: h\r\n\r\n", cookieName(""), u.cookie(), framing)
		conn.(*net.TCPConn).CloseWrite()
		answers, _ := io.ReadAll(conn)
		conn.Close()
		if n := strings.Count(string(answers), "HTTP/1.1 "); n > 1 || strings.Contains(string(answers), "/x") {
			t.Errorf("%q: %d answers: %s", framing, n, answers)
		}
	}
}

// TestUpgrade has a client change the protocol, as WebSockets do.
func TestUpgrade(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "echo" {
			return
		}
		conn, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-Query: "+r.URL.RawQuery+"\r\nCf-Waiting-Room-Command: none\r\n\r\n")
		line, _ := in.ReadString('\n')
		io.WriteString(conn, strings.ToUpper(line))
	}))
	defer upstream.Close()
	_, u := admitted(t, upstream.URL)
	conn, err := net.Dial("tcp", strings.TrimPrefix(u.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /socket?a;b HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\nCookie: %s=%s\r\n\r\n", cookieName(""), u.cookie())
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("X-Query") != "a;b" || res.Header["Cf-Waiting-Room-Command"] != nil {
		t.Fatalf("%v, %v", res, err)
	}
	io.WriteString(conn, "hello\n")
	if line, err := in.ReadString('\n'); err != nil || line != "HELLO\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// TestProtocols has upstreams speak what they can.
func TestProtocols(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", r.Proto, r.RequestURI, body)
	})
	plain := httptest.NewUnstartedServer(handler)
	plain.Config.Protocols = new(http.Protocols)
	plain.Config.Protocols.SetUnencryptedHTTP2(true)
	plain.Start()
	defer plain.Close()
	secure := httptest.NewUnstartedServer(handler)
	secure.EnableHTTP2 = true
	secure.StartTLS()
	defer secure.Close()
	old := httptest.NewServer(handler)
	defer old.Close()
	var authority bytes.Buffer
	for line := range strings.SplitSeq(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})), "\n") {
		fmt.Fprintf(&authority, "    %s\n", line)
	}
	for upstream, proto := range map[string]string{
		strings.Replace(plain.URL, "http", "h2c", 1):             "HTTP/2.0",
		secure.URL + "\n  upstream_ca: |\n" + authority.String(): "HTTP/2.0",
		old.URL: "HTTP/1.1",
	} {
		h, u := admitted(t, upstream)
		front := httptest.NewUnstartedServer(h.rooms.Handler(http.NotFoundHandler()))
		front.EnableHTTP2 = true
		front.StartTLS()
		for _, client := range []*http.Client{u.client, front.Client()} {
			at := u.url
			if client != u.client {
				at = front.URL
			}
			for _, target := range []string{"/a%2Fb?a=1;b=2", "/?q=100%&x=1", "/a|b?", "//a"} {
				req, err := http.NewRequest(http.MethodPost, at, strings.NewReader("body"))
				if err != nil {
					t.Fatal(err)
				}
				path, query, forced := strings.Cut(target, "?")
				req.URL = &url.URL{Scheme: req.URL.Scheme, Host: req.URL.Host, Opaque: path, RawQuery: query, ForceQuery: forced}
				if strings.HasPrefix(path, "//") {
					req.URL.Opaque, req.URL.Path = "", path
				}
				req.Header.Set("Cookie", cookieName("")+"="+u.cookie())
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if want := proto + " " + target + " body"; string(body) != want {
					t.Errorf("%.30s: %q, want %q", upstream, body, want)
				}
			}
		}
		front.Close()
	}
	if r := open(t, small(1, "  upstream: "+secure.URL+"\n")).user().get("/"); r.StatusCode != http.StatusBadGateway || r.Header.Get("Cache-Control") != "private, no-store" {
		t.Errorf("an upstream of an authority that is not trusted: %d %v", r.StatusCode, r.Header)
	}
}

// TestSeveralUpstreams has servers fail: the others answer, whatever the method and body.
func TestSeveralUpstreams(t *testing.T) {
	var asked [3]atomic.Int64
	var ill atomic.Bool
	servers := make([]*httptest.Server, 3)
	var urls []string
	for i := range servers {
		servers[i] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/health" {
				if ill.Load() && i == 0 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				return
			}
			asked[i].Add(1)
			io.Copy(w, r.Body)
		}))
		defer servers[i].Close()
		urls = append(urls, servers[i].URL)
	}
	h, u := admitted(t, "["+strings.Join(urls, ", ")+"]", "  upstream_health: /health\n")
	post := func(n int) {
		t.Helper()
		for range n {
			req, _ := http.NewRequest(http.MethodPost, u.url+"/", strings.NewReader("body"))
			if r := u.send(req); r.body != "body" {
				t.Fatalf("%d %q", r.StatusCode, r.body)
			}
		}
	}
	counts := func() (n [3]int64) {
		for i := range asked {
			n[i] = asked[i].Swap(0)
		}
		return n
	}
	counts()
	post(9)
	if n := counts(); n != [3]int64{3, 3, 3} {
		t.Errorf("in turn: %v", n)
	}
	balancer := h.rooms.currentRooms().byName["shop"].upstream
	ill.Store(true)
	balancer.checkAll(t.Context())
	post(6)
	if n := counts(); n != [3]int64{0, 3, 3} {
		t.Errorf("while one is ill: %v", n)
	}
	ill.Store(false)
	balancer.checkAll(t.Context())
	servers[1].Close()
	post(6)
	if n := counts(); n[1] != 0 || n[0]+n[2] != 6 || n[0] == 0 || n[2] == 0 {
		t.Errorf("while one is gone: %v", n)
	}
	if !balancer.servers[0].isHealthy(h.Now()) || balancer.servers[1].isHealthy(h.Now()) || !balancer.servers[1].isHealthy(h.Now().Add(rest+time.Second)) {
		t.Error("a server that is gone gets requests, or never again")
	}
	servers[0].Close()
	servers[2].Close()
	req, _ := http.NewRequest(http.MethodPost, u.url+"/", strings.NewReader("body"))
	if r := u.send(req); r.StatusCode != http.StatusBadGateway {
		t.Errorf("without any: %d", r.StatusCode)
	}
}

// TestHideTickets holds a room to changing nothing but tickets of what a client keeps.
func TestHideTickets(t *testing.T) {
	for line, want := range map[string]string{
		"a=1;b=2": "a=1;b=2", "__larder_room=x": "", "a=1; __larder_room=x": "a=1", "__larder_room_y=x; a=1;;b": "a=1;;b", "a=1;__larder_room=x;b=2": "a=1;b=2",
		"__larder_roomy=1": "__larder_roomy=1", " __larder_room =x; a": "a", "a=__larder_room": "a=__larder_room", "__larder_room; __larder_room_b": "",
	} {
		h := http.Header{"Cookie": {line, "c=3"}}
		removeTickets(h)
		var all []string
		if want != "" {
			all = append(all, want)
		}
		if all = append(all, "c=3"); !slices.Equal(h["Cookie"], all) {
			t.Errorf("%q: %q, want %q", line, h["Cookie"], all)
		}
	}
}
