package server_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/larder-cdn/larder/server"
)

func TestRedirectToHTTPS(t *testing.T) {
	usual, other := &net.TCPAddr{Port: 443}, &net.TCPAddr{Port: 8443}
	for _, tt := range []struct {
		public             *net.TCPAddr
		method, host, path string
		want               string // where it leads
		status             int
	}{
		{usual, "GET", "cdn.example.com", "/ajax/libs/a/1/a%20b.js?x=1", "https://cdn.example.com/ajax/libs/a/1/a%20b.js?x=1", 308},
		{usual, "HEAD", "CDN.example.com:80", "/", "https://cdn.example.com/", 308},
		{other, "GET", "cdn.example.com", "/", "https://cdn.example.com/", 308}, // the ports are forwarded
		{other, "GET", "cdn.example.com:8080", "/", "https://cdn.example.com:8443/", 308},
		{usual, "GET", "[::1]:80", "/", "https://[::1]/", 308},
		{other, "GET", "[::1]:80", "/", "https://[::1]:8443/", 308},
		{other, "GET", "[::1]", "/", "https://[::1]/", 308},
		{usual, "GET", "cdn.example.com", "//evil.example/", "https://cdn.example.com//evil.example/", 308},
		{usual, "GET", "evil example", "/", "", 400},
		{usual, "GET", "cdn.example.com@evil.example", "/", "", 400},
		{usual, "POST", "cdn.example.com", "/hooks/release", "", 403},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(tt.method, "http://placeholder"+tt.path, nil)
		r.Host = tt.host
		server.RedirectToHTTPS(tt.public).ServeHTTP(w, r)
		if got := w.Header().Get("Location"); w.Code != tt.status || got != tt.want {
			t.Errorf("%s %s of %s with port %d: %d to %q, want %d to %q", tt.method, tt.path, tt.host, tt.public.Port, w.Code, got, tt.status, tt.want)
		}
		if got := w.Header().Get("Cache-Control"); w.Code == http.StatusPermanentRedirect && got != "no-store" {
			t.Errorf("caches may keep it: %q", got)
		}
	}
}
