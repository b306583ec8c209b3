package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// named answers with its name.
type named string

func (n *named) ServeHTTP(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, string(*n)) }

// Late requests wait for the next handler, are refused when there will be none, and end with their clients.
func TestSuccession(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newSuccessor()
		ask := func(ctx context.Context) func() *httptest.ResponseRecorder {
			w, done := httptest.NewRecorder(), make(chan struct{})
			go func() {
				defer close(done)
				s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			}()
			synctest.Wait()
			return func() *httptest.ResponseRecorder {
				<-done
				return w
			}
		}
		first, second := named("first"), named("second")
		early := ask(t.Context())
		s.set(&first)
		if got := early().Body.String(); got != "first" {
			t.Errorf("a request that waited gets %q", got)
		}
		s.set(&second)
		s.remove(&first) // whose place is taken
		if got := ask(t.Context())().Body.String(); got != "second" {
			t.Errorf("then a request gets %q", got)
		}
		s.remove(&second)
		gone, leave := context.WithCancel(t.Context())
		left, late := ask(gone), ask(t.Context())
		leave()
		if got := left().Body.String(); got != "" {
			t.Errorf("a client that has gone gets %q", got)
		}
		s.end()
		if got := late(); got.Code != http.StatusServiceUnavailable || got.Header().Get("Retry-After") == "" {
			t.Errorf("a request that nobody will answer gets %d, %v", got.Code, got.Header())
		}
	})
}

// The process that has taken over sees a forwarded request as the first process saw it.
func TestForwarding(t *testing.T) {
	data, quiet := t.TempDir(), slog.New(slog.DiscardHandler)
	l, err := api.ListenAdmin(data)
	if err != nil {
		t.Fatal(err)
	}
	tell := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		w.Header().Set("X-Seen", "yes")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, r.Method, " ", r.RequestURI, " ", r.URL.EscapedPath(), " ", r.URL.RawQuery, " ", r.Host, " ", r.RemoteAddr, " ", r.TLS != nil, " ", string(body), " ", err)
		for _, name := range []string{"X-Forwarded-For", "Forwarded", "Cookie", "Accept-Encoding", "User-Agent", forwardTarget, forwardHost, forwardClient, forwardTLS} {
			fmt.Fprint(w, " ", name, r.Header[name])
		}
	}
	next := &http.Server{Handler: newAdminServer(t.Context(), nil, http.NotFoundHandler(), acceptForwarded(http.HandlerFunc(tell)), quiet).Handler}
	go next.Serve(l) //nolint:errcheck // it ends with Close
	defer next.Close()
	for _, target := range []string{"http://a.example/a//b/../%2F?x=1;y&z=%zz", "https://a.example/"} {
		direct, across := httptest.NewRecorder(), httptest.NewRecorder()
		for w, h := range map[*httptest.ResponseRecorder]http.Handler{direct: http.HandlerFunc(tell), across: newForwarder(data, quiet)} {
			r := httptest.NewRequest("POST", target, strings.NewReader("body"))
			r.RequestURI = strings.TrimPrefix(strings.TrimPrefix(target, "https://a.example"), "http://a.example")
			r.RemoteAddr = "192.0.2.7:1234"
			for name, lines := range map[string][]string{"X-Forwarded-For": {"198.51.100.1", "198.51.100.2"}, "Forwarded": {"for=x"}, "Cookie": {"a=b"}} {
				r.Header[name] = lines
			}
			h.ServeHTTP(w, r)
		}
		if across.Code != direct.Code || across.Body.String() != direct.Body.String() || across.Header().Get("X-Seen") != "yes" {
			t.Errorf("%s: %d %s\nforwarded: %d %s", target, direct.Code, direct.Body, across.Code, across.Body)
		}
		claims := httptest.NewRequest("GET", "http://a.example/", nil)
		claims.Header.Set(forwardTLS, "1")
		claims.Header.Set(forwardClient, "127.0.0.1:1")
		w := httptest.NewRecorder()
		claims.RequestURI = "/"
		newForwarder(data, quiet).ServeHTTP(w, claims)
		if got := w.Body.String(); !strings.Contains(got, claims.RemoteAddr+" false") {
			t.Errorf("a client chooses its own address: %s", got)
		}
	}
}
