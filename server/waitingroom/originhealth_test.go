package waitingroom

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
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

// TestProbesTogether has a site with one server that accepts connections and several that never do: one attempt, to all at once, does
// for all visitors.
func TestProbesTogether(t *testing.T) {
	t.Parallel()
	site, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer site.Close()
	servers := []string{}
	for range 4 { // their backlog is full, so a connection is neither accepted nor refused
		servers = append(servers, "http://"+fullListener(t))
	}
	servers = append(servers, "http://"+site.Addr().String())
	h := open(t, small(1, fmt.Sprintf("  upstream: [%s]\n", strings.Join(servers, ", "))))
	up := h.rooms.currentRooms().byName["shop"].upstream
	underWay := make(chan struct{})
	up.health.probing = underWay
	if up.startConnecting() != underWay {
		t.Error("a second attempt starts while one is under way")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	up.probe(gone, true) // does not wait for a client that has gone
	up.health.probing = nil
	over := up.startConnecting()
	<-over
	if up.health.down.Load() {
		t.Error("the servers that do not accept connections use up the time of the one that does")
	}
}

// fullListener returns the address of a socket whose backlog is full.
func fullListener(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
	for { // until the kernel takes no more
		conn, err := net.DialTimeout("tcp", address, 100*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = conn.Close() })
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
