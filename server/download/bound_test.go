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

// TestArchivesOfOneClient has a client of the internet take what one may have.
func TestArchivesOfOneClient(t *testing.T) {
	h := newHandler(t, download.Options{Store: openStore(t, big()), AtOnce: 2})
	ask := func(w http.ResponseWriter, remote string) {
		r := httptest.NewRequest("GET", bigTarGzip, nil)
		r.RemoteAddr = remote
		h.ServeHTTP(w, r)
	}
	slow := &held{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		ask(slow, "203.0.113.7:1000")
	}()
	<-slow.begun
	second := httptest.NewRecorder()
	ask(second, "203.0.113.7:1001")
	wantStatus(t, second.Result(), http.StatusTooManyRequests)
	if second.Header().Get("Retry-After") == "" || second.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%v", second.Header())
	}
	checkError(t, second.Body.Bytes(), http.StatusTooManyRequests, "You are being sent other archives. Try again when they are complete.")
	other := httptest.NewRecorder()
	ask(other, "203.0.113.8:1000")
	wantStatus(t, other.Result(), http.StatusOK)
	close(slow.free)
	<-done
	third := httptest.NewRecorder()
	ask(third, "203.0.113.7:1002")
	wantStatus(t, third.Result(), http.StatusOK)
}
