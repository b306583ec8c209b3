package verify

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Whoever names the wrong file of the key folder does not find its key in the
// message, and from there in a terminal's history or a log.
func TestPrivateKeysAreNotRepeated(t *testing.T) {
	const private = "PRIVATE+KEY+cdn.example.com/log+1a2b3c4d+AXNlY3JldHNlY3JldHNlY3JldHNlY3JldHNlY3I="
	_, witness := parseWitnessKey(private)
	for name, err := range map[string]error{"key": CheckKey(private), "witness": witness} {
		if err == nil || strings.Contains(err.Error(), "AXNl") || !strings.Contains(err.Error(), "log.pub") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFetchURL tests that a URL is requested as it is, also if it ends with a slash.
func TestFetchURL(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(r.URL.Path)) }))
	defer server.Close()
	for _, path := range []string{"/statement", "/statement/"} {
		if got, err := (Options{Client: server.Client()}).fetchURL(t.Context(), server.URL+path, 100); err != nil || string(got) != path {
			t.Errorf("%s: requested %s, %v", path, got, err)
		}
	}
}
