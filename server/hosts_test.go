package server_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/server"
)

// TestHosts asks hosts for paths that are theirs and for others.
func TestHosts(t *testing.T) {
	assets := newAssets(t, server.Options{Store: fixture(t)})
	site := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "site") })
	const file = "/ajax/libs/demo/1.0.0/tiny.txt"
	for _, tt := range []struct {
		name                         string
		filesBase, siteBase, apiHost string
		host, has, hasNot            string
	}{
		{"files", "https://files.test/x", "https://site.test", "", "files.test", file + " /log/checkpoint", "/ /library/demo /libraries /robots.txt /download/demo/1.0.0.zip /logs /api /x" + file},
		{"files on a port", "https://files.test", "https://site.test:8443", "", "FILES.test:1", file, "/"},
		{"files, name of a root", "https://files.test.", "https://site.test", "", "files.test", file, "/"},
		{"site", "https://files.test", "https://site.test", "", "site.test", "/ /library/demo /libraries /robots.txt /download/demo/1.0.0.zip /log/checkpoint", file + " /ajax/libs/ /ajax //ajax/libs/x /x/../ajax/libs/x"},
		{"site, name of a root", "https://files.test", "https://site.test", "", "Site.Test.:80", "/", file},
		{"site, odd port", "https://files.test", "https://site.test", "", "site.test:x", "/", file},
		{"files, odd port", "https://files.test", "https://site.test", "", "files.test:x", file, "/"},
		{"site, by address", "http://[::1]:80", "http://[::2]", "", "[::2]:80", "/", file},
		{"files, by address", "http://[::1]:80", "http://[::2]", "", "[::1]", file, "/"},
		{"an address", "https://files.test", "https://site.test", "", "127.0.0.1:8080", "/ " + file, ""},
		{"no host", "https://files.test", "https://site.test", "", "", "/ " + file, ""},
		{"the API's", "https://files.test", "https://site.test", "api.test", "api.test", "/ " + file, ""},
		{"files and the API", "https://files.test", "https://site.test", "files.test:80", "files.test", "/ " + file, ""},
		{"site, files with the API", "https://files.test", "https://site.test", "files.test", "site.test", "/", file},
		{"site and the API", "https://files.test", "https://site.test", "site.test", "site.test", "/", file},
		{"one name", "https://one.test:1", "https://one.test:2", "", "one.test:2", "/ " + file, ""},
		{"no base of files", "", "https://site.test", "", "site.test", "/ " + file, ""},
		{"no base of the site", "https://files.test", "", "", "files.test", "/ " + file, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := server.NewHosts(tt.filesBase, tt.siteBase, tt.apiHost, "/log/").Handler(server.Route(assets, site))
			ask := func(target, accept string) *http.Response {
				r := httptest.NewRequest("GET", "http://x"+target, nil)
				r.Host = tt.host
				r.Header.Set("Accept", accept)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				return w.Result()
			}
			for target := range strings.FieldsSeq(tt.has) {
				if r := ask(target, ""); r.StatusCode != 200 {
					t.Errorf("%s: %d", target, r.StatusCode)
				}
			}
			for target := range strings.FieldsSeq(tt.hasNot) {
				for accept, contentType := range map[string]string{"*/*": "text/plain; charset=utf-8", "application/json": "application/json"} {
					r := ask(target, accept)
					if r.StatusCode != 404 || r.Header.Get("Cache-Control") != "no-store" || r.Header.Get("Content-Type") != contentType || r.Header.Get("Access-Control-Allow-Origin") != "*" {
						t.Errorf("%s: %d %v", target, r.StatusCode, r.Header)
					}
				}
			}
		})
	}
}
