package answers

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestLacking(t *testing.T) {
	handler := UnavailableIfNotFound(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/here":
			CacheFor(Forever).WithExpires().SetHeader(w.Header())
			_, _ = io.WriteString(w, "here")
		case "/endpoint":
			NoEndpoint.SendJSON(w, r)
		default:
			http.NotFound(w, r)
		}
	}))
	for _, tt := range []struct {
		path, accept string
		status       int
		contentType  string
	}{
		{"/here", "", http.StatusOK, ""},
		{"/endpoint", "", http.StatusServiceUnavailable, JSON},
		{"/page", "text/html", http.StatusServiceUnavailable, Plain},
		{"/page", JSON, http.StatusServiceUnavailable, JSON},
	} {
		w := httptest.NewRecorder()
		r := ask(http.MethodGet, "Accept", tt.accept)
		r.URL.Path = tt.path
		handler.ServeHTTP(w, r)
		h := w.Header()
		if w.Code != tt.status || h.Get("Content-Type") != tt.contentType || h.Get("Cache-Control") != "no-store" || h.Get("Expires") != "" {
			t.Errorf("%s: %d %v", tt.path, w.Code, h)
		}
		if missing := tt.status != http.StatusOK; missing != (h.Get("Retry-After") == "60") || missing != strings.Contains(w.Body.String(), Missing.Message) {
			t.Errorf("%s: %v %s", tt.path, h, w.Body)
		}
	}
}
