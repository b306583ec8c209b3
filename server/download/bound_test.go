package download_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/larder-cdn/larder/server/download"
)

// held is a client that takes nothing of an archive until it is let go.
type held struct {
	*httptest.ResponseRecorder
	begun, free chan struct{}
}

func (h *held) WriteHeader(status int) {
	h.begun <- struct{}{}
	<-h.free
	h.ResponseRecorder.WriteHeader(status)
}

// TestArchivesAreShared has a client take all turns while no other wants one. The next client takes its newest.
func TestArchivesAreShared(t *testing.T) {
	h := newHandler(t, download.Options{Store: openStore(t, big()), AtOnce: 2})
	ask := func(w http.ResponseWriter, remote string) (aborted bool) {
		defer func() { aborted = recover() == http.ErrAbortHandler }()
		r := httptest.NewRequest("GET", bigTarGzip, nil)
		r.RemoteAddr = remote
		h.ServeHTTP(w, r)
		return false
	}
	type slow struct {
		*held
		aborted chan bool
	}
	begin := func(remote string) slow {
		s := slow{&held{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}, make(chan bool, 1)}
		go func() { s.aborted <- ask(s.held, remote) }()
		<-s.begun
		return s
	}
	first, second := begin("203.0.113.7:1000"), begin("203.0.113.7:1001")
	third := httptest.NewRecorder()
	ask(third, "203.0.113.7:1002")
	wantStatus(t, third.Result(), http.StatusServiceUnavailable)
	if third.Header().Get("Retry-After") == "" || third.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%v", third.Header())
	}
	other := httptest.NewRecorder()
	if ask(other, "203.0.113.8:1000") {
		t.Error("the other client's archive was cut off")
	}
	wantStatus(t, other.Result(), http.StatusOK)
	close(first.free)
	close(second.free)
	if <-first.aborted || !<-second.aborted {
		t.Error("the newest of the two has to give way, and it only")
	}
}
