package waitingroom

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// riddle is a challenge of an operator's, whole: a visitor solves a sum and gets a cookie with the
// solution's number, by which one ticket is had. It is what docs/waiting-room.md describes. One that keeps out more than
// the simplest programs asks a harder question; the rest stays.
type riddle struct {
	secret []byte

	mu   sync.Mutex
	used map[string]bool
}

func newRiddle() *riddle { return &riddle{secret: []byte(rand.Text()), used: map[string]bool{}} }

func (r *riddle) sign(what string) string {
	mac := hmac.New(sha256.New, r.secret)
	io.WriteString(mac, what)
	return what + "." + hex.EncodeToString(mac.Sum(nil))
}

// ServeHTTP has two paths: Larder asks /check, and the visitor sends the form to /solve, which a rule has bypass the room.
func (r *riddle) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/solve" {
		id, _, _ := strings.Cut(req.FormValue("riddle"), ".")
		if r.sign(id) != req.FormValue("riddle") || req.FormValue("sum") != fmt.Sprint(sum(id)) {
			http.Error(w, "That is not the sum. Please go back and try again.", http.StatusForbidden)
			return
		}
		http.SetCookie(w, &http.Cookie{Name: "solved", Value: r.sign("solved-" + id), Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
		http.Redirect(w, req, "/", http.StatusSeeOther)
		return
	}
	if c, err := req.Cookie("solved"); err == nil {
		id, _, _ := strings.Cut(c.Value, ".")
		r.mu.Lock()
		fresh := r.sign(id) == c.Value && strings.HasPrefix(id, "solved-") && !r.used[id]
		r.used[id] = true // for one ticket
		r.mu.Unlock()
		if fresh {
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
	id := rand.Text()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(http.StatusForbidden)
	fmt.Fprintf(w, `<!doctype html><html lang="en"><title>One question</title><form action="/solve" method="post"><input type="hidden" name="riddle" value="%s"><label>%s <input name="sum"></label> <button>Go on</button></form>`, r.sign(id), question(id))
}

func question(id string) string { return fmt.Sprintf("%d and %d make", id[0]%10, id[1]%10) }
func sum(id string) int         { return int(id[0]%10) + int(id[1]%10) }

// solve is what a person does with the page.
func (u *user) solve(shown *reply) *reply {
	u.Helper()
	_, signed, _ := strings.Cut(shown.body, `name="riddle" value="`)
	signed, _, _ = strings.Cut(signed, `"`)
	if len(signed) < 10 {
		u.Fatalf("there is no riddle: %s", shown.body)
	}
	form := url.Values{"riddle": {signed}, "sum": {fmt.Sprint(sum(signed))}}
	req, err := http.NewRequest(http.MethodPost, u.url+"/solve", strings.NewReader(form.Encode()))
	if err != nil {
		u.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if r := u.send(req); r.StatusCode != http.StatusSeeOther {
		u.Fatalf("the solution: %d %s", r.StatusCode, r.body)
	}
	return u.get("/")
}

// TestChallenge has visitors solve the riddle before they get a ticket, once.
func TestChallenge(t *testing.T) {
	asked := newRiddle()
	server := httptest.NewServer(asked)
	defer server.Close()
	h := open(t, small(2, "  challenge: "+server.URL+"/check\n  rules: [{path: /solve}]\n  subresources: {paths: [/assets/]}\n"))
	shop := h.origin
	h.origin = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/solve" {
			asked.ServeHTTP(w, r)
			return
		}
		shop(w, r)
	}
	first, second, third := h.user(), h.user(), h.user()
	shown := first.get("/")
	if shown.StatusCode != http.StatusForbidden || !strings.Contains(shown.body, "One question") || first.cookie() != "" || shown.Header.Get("Cache-Control") != private {
		t.Fatalf("a new visitor gets %d %v %s", shown.StatusCode, shown.Header, shown.body)
	}
	if !first.solve(shown).in() || !second.solve(second.get("/")).in() {
		t.Fatal("visitors who solved the riddle are not in, although there is room")
	}
	if r := third.solve(third.get("/")); r.in() || third.cookie() == "" {
		t.Fatalf("a third one is in, or has no ticket: %d %s", r.StatusCode, r.body)
	}
	for range 3 { // with a ticket there is no question
		h.pass(10 * time.Second)
		if r := third.get("/"); r.in() || r.StatusCode != http.StatusOK {
			t.Errorf("one who waits: %d %s", r.StatusCode, r.body)
		}
		if r := first.get("/"); !r.in() {
			t.Errorf("one who is in: %d", r.StatusCode)
		}
	}
	// Without a ticket the solution is worth nothing any more, whatever is done with the old ticket.
	waiting := third.cookie()
	solution := ""
	at, _ := url.Parse(h.url)
	for _, c := range third.client.Jar.Cookies(at) {
		if c.Name == "solved" {
			solution = c.Value
		}
	}
	again := h.user()
	again.client.Jar.SetCookies(at, []*http.Cookie{{Name: "solved", Value: solution, Path: "/"}})
	if r := again.get("/"); r.StatusCode != http.StatusForbidden || again.cookie() != "" {
		t.Errorf("a solution for a second ticket: %d", r.StatusCode)
	}
	stale := h.user()
	h.pass(time.Hour) // the ticket has lost its place
	for range 3 {
		stale.set(waiting)
		if r := stale.get("/"); r.StatusCode != http.StatusForbidden {
			t.Errorf("a ticket that is over brings a new one: %d", r.StatusCode)
		}
	}
	part := h.user()
	part.header.Set("Sec-Fetch-Dest", "script")
	if r := part.get("/assets/a.js"); r.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a part of a page for an address that has proven nothing: %d", r.StatusCode)
	}
	if r := h.user().do(http.MethodHead, "/"); r.StatusCode != http.StatusForbidden || r.body != "" {
		t.Errorf("HEAD: %d %q", r.StatusCode, r.body)
	}
	if s, _ := h.rooms.Status("shop"); s.Queued > 1 {
		t.Errorf("%d wait, one did", s.Queued)
	}
}

// TestChallengeAsks holds what a challenge hears of a visitor, and what becomes of its answers.
func TestChallengeAsks(t *testing.T) {
	var heard http.Header
	status, body := http.StatusNoContent, ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard = r.Header.Clone()
		heard.Set("Test-Target", r.Method+" "+r.URL.String())
		w.Header().Set("Location", "https://check.example/")
		w.Header().Set("Set-Cookie", "nonce=1")
		w.Header().Set("X-Internal", "secret")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	h := open(t, small(9, "  challenge: "+server.URL+"/check?room=shop\n"))
	u := h.user()
	req, _ := http.NewRequest(http.MethodPost, h.url+"/pay?a=1;b=%zz", strings.NewReader("body"))
	for name, value := range map[string]string{
		"Accept": browserAccept, "Cookie": "solved=1; " + cookieName("") + "=forged", "X-Token": "mine", "Range": "bytes=0-1", "X-Forwarded-For": "192.0.2.9", "X-Forwarded-Uri": "/free", "X-Real-IP": "192.0.2.9",
	} {
		req.Header.Set(name, value)
	}
	if r := u.send(req); !r.in() {
		t.Errorf("one of whom the challenge approves: %d %s", r.StatusCode, r.body)
	}
	for name, want := range map[string]string{
		"Test-Target": "GET /check?room=shop", "Cookie": "solved=1", "X-Token": "mine", "Range": "", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Uri": "/pay?a=1;b=%zz",
		"X-Forwarded-Method": "POST", "X-Real-Ip": "", "X-Forwarded-Host": strings.TrimPrefix(h.url, "http://"), "Content-Length": "",
	} {
		if got := heard.Get(name); got != want {
			t.Errorf("the challenge hears %s: %q, want %q", name, got, want)
		}
	}
	heard = nil
	if r := u.get("/"); !r.in() || heard != nil {
		t.Errorf("one with a ticket is asked about again: %v", heard)
	}
	for _, c := range []struct{ says, want int }{{302, 302}, {401, 401}, {403, 403}, {429, 429}, {304, 304}, {500, 503}, {502, 503}} {
		status, body = c.says, ""
		if c.says != http.StatusNotModified {
			body = strings.Repeat("x", mostChallenge+5)
		}
		fresh := h.user()
		r := fresh.get("/")
		if r.StatusCode != c.want || fresh.cookie() != "" || r.Header.Get("X-Internal") != "" || r.Header.Get("Cache-Control") != private || len(r.body) > mostChallenge {
			t.Errorf("the challenge says %d: %d %v, %d bytes", c.says, r.StatusCode, r.Header, len(r.body))
		}
		if c.want != 503 && (r.Header.Get("Location") == "" || r.Header.Get("Set-Cookie") != "nonce=1") {
			t.Errorf("the challenge says %d: %v", c.says, r.Header)
		}
	}
	server.Close()
	if r := h.user().get("/"); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") != "5" {
		t.Errorf("no challenge answers: %d %v", r.StatusCode, r.Header)
	}
	if s, _ := h.rooms.Status("shop"); s.Active != 1 {
		t.Errorf("%d are in", s.Active)
	}
}

// stuck is a visitor's connection that takes nothing until it is freed.
type stuck struct {
	http.ResponseWriter
	freed, writes chan struct{}
}

func (s stuck) Write(p []byte) (int, error) {
	s.writes <- struct{}{}
	<-s.freed
	return len(p), nil
}

func newcomer(ip string) *http.Request {
	req := httptest.NewRequest(http.MethodGet, "http://shop.example/", nil)
	req.RemoteAddr = ip + ":1000"
	return req
}

func checksAt(t *testing.T, server *httptest.Server) *challenge {
	t.Helper()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return newChallengeClient(at, slog.New(slog.NewTextHandler(t.Output(), nil)))
}

// TestChallengeSlowVisitors has as many visitors as there are places take nothing of their answers: others get theirs.
func TestChallengeSlowVisitors(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "One question", http.StatusForbidden)
	}))
	defer server.Close()
	c := checksAt(t, server)
	freed, writes := make(chan struct{}), make(chan struct{}, challengesAtOnce)
	var running sync.WaitGroup
	defer running.Wait()
	defer close(freed)
	for range challengesAtOnce {
		running.Go(func() { c.checkVisitor(stuck{httptest.NewRecorder(), freed, writes}, newcomer("192.0.2.1")) })
	}
	for range challengesAtOnce {
		<-writes
	}
	for _, ip := range []string{"192.0.2.1", "192.0.2.2"} {
		w := httptest.NewRecorder()
		if c.checkVisitor(w, newcomer(ip)); w.Code != http.StatusForbidden || w.Body.String() != "One question\n" {
			t.Errorf("a visitor from %s: %d %q", ip, w.Code, w.Body)
		}
	}
}

// TestChallengeShares has one client ask for all places at once: it gets no more, and another gets one of them.
func TestChallengeShares(t *testing.T) {
	asked, freed := make(chan struct{}, challengesAtOnce), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Forwarded-For") == "192.0.2.1" {
			asked <- struct{}{}
			<-freed
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	c := checksAt(t, server)
	var running sync.WaitGroup
	defer running.Wait()
	defer close(freed)
	failed := make(chan int, challengesAtOnce)
	for range challengesAtOnce {
		running.Go(func() {
			w := httptest.NewRecorder()
			if !c.checkVisitor(w, newcomer("192.0.2.1")) {
				failed <- w.Code
			}
		})
	}
	for range challengesAtOnce {
		<-asked
	}
	w := httptest.NewRecorder()
	if c.checkVisitor(w, newcomer("192.0.2.1")) || w.Code != http.StatusServiceUnavailable {
		t.Errorf("the client has more than all places: %d", w.Code)
	}
	if w := httptest.NewRecorder(); !c.checkVisitor(w, newcomer("192.0.2.2")) {
		t.Fatalf("another client: %d", w.Code)
	}
	if code := <-failed; code != http.StatusServiceUnavailable {
		t.Errorf("the request that gave way: %d", code)
	}
}

// TestChallengeConnection has the challenge be asked over one connection, whatever it writes in its answers.
func TestChallengeConnection(t *testing.T) {
	var connections atomic.Int32
	status := http.StatusOK
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, strings.Repeat("x", 3000))
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	c := checksAt(t, server)
	for _, status = range []int{200, 200, 403, 403, 500, 500, 200} {
		if c.checkVisitor(httptest.NewRecorder(), newcomer("192.0.2.1")) != (status == 200) {
			t.Error(status)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}
