package waitingroom

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestOriginDown has visitors come while the site behind a room is down: they wait, read why, and use no slot.
func TestOriginDown(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	h := open(t, small(1, "  upstream: http://"+address+"\n"))
	german := h.user()
	german.header.Set("Accept-Language", "de")
	first := german.get("/")
	if first.StatusCode != http.StatusOK || !strings.Contains(first.body, "Die Seite ist im Moment nicht erreichbar.") || !strings.Contains(first.body, "Sie behalten Ihren Platz") {
		t.Fatalf("a visitor of a site that is down gets %d %s", first.StatusCode, first.body)
	}
	if s, _ := h.rooms.Status("shop"); s.Active != 0 || !s.OriginDown {
		t.Errorf("while the site is down: %+v", s)
	}
	if r := h.user().do(http.MethodPost, "/"); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
		t.Errorf("a form for a site that is down gets %d", r.StatusCode)
	}

	listener, err = net.Listen("tcp", address)
	if err != nil {
		t.Skipf("the port was taken meanwhile: %v", err)
	}
	site := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "origin")
	})}}
	site.Start()
	german.enterWithin(3)
	if s, _ := h.rooms.Status("shop"); s.Active != 1 || s.OriginDown {
		t.Errorf("with the site up again: %+v", s)
	}

	site.Close()
	r := german.get("/")
	if r.StatusCode != http.StatusBadGateway || !strings.Contains(r.body, "<h1>Die Seite ist im Moment nicht erreichbar.") || r.Header.Get("Refresh") == "" {
		t.Errorf("a visitor who is in gets %d %s", r.StatusCode, r.body)
	}
}

// TestOriginErrors has a site respond with errors to those who are in: no visitor is admitted until that is over.
func TestOriginErrors(t *testing.T) {
	t.Parallel()
	var failing atomic.Bool
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if failing.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		io.WriteString(w, "origin")
	}))
	defer site.Close()
	h, in := admitted(t, site.URL)
	failing.Store(true)
	for range 2 * errorMinimum {
		in.get("/")
	}
	if r := h.user().get("/"); strings.Contains(r.body, "cannot be reached") {
		t.Fatal("a client that provokes errors closes the room for others")
	}
	for i := range errorClients - 1 {
		in.header.Set("Test-From", fmt.Sprintf("203.0.113.%d", i))
		in.get("/")
	}
	late := h.user()
	waits := late.get("/")
	if waits.in() || !strings.Contains(waits.body, "cannot be reached") {
		t.Fatalf("a visitor of a site that fails gets %s", waits.body)
	}
	failing.Store(false)
	h.pass(2*errorWindow + time.Second)
	late.enterWithin(3)
}

// enterWithin has a waiting user check in, and fails the test unless one of the check-ins admits the user.
func (u *user) enterWithin(checkIns int) {
	u.Helper()
	for range checkIns {
		r := u.get("/")
		if r.in() {
			return
		}
		u.pass(r.refresh())
	}
	u.Fatalf("the user still waits after %d check-ins", checkIns)
}
