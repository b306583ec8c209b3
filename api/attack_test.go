package api

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestCachePoisoning holds that no header of another client decides what a client gets of the API.
func TestCachePoisoning(t *testing.T) {
	poison := []string{
		"X-Forwarded-Host: p0ison.example", "X-Forwarded-Proto: p0ison", "X-Forwarded-Prefix: /p0ison", "Forwarded: host=p0ison.example", "X-Host: p0ison.example", "X-Original-URL: /p0ison", "X-Rewrite-URL: /p0ison",
		"X-HTTP-Method-Override: DELETE", "Origin: https://p0ison.example", "Referer: https://p0ison.example/", "Accept: p0ison/p0ison", "Cookie: p0ison=1", "Authorization: Basic p0ison", "User-Agent: p0ison", "Range: bytes=0-1",
		`If-None-Match: "p0ison"`, "Content-Type: text/p0ison", "X-Real-IP: p0ison", "Access-Control-Request-Headers: p0ison", "Host: p0ison.example", "Host: api.p0ison.example",
	}
	for name, configured := range map[string]bool{"with bases": true, "without": false} {
		s := newService(t, func(o *PublicOptions) {
			if !configured {
				o.AssetBase, o.SiteBase, o.APIHost = "", "", ""
			}
		})
		for _, target := range []string{
			"/libraries", "/libraries?search=jquery&limit=3", "/libraries/jquery", "/libraries/jquery?fields=versions,latest", "/libraries/jquery/3.7.1", "/opensearch.xml", "/openapi.json", "/logs.atom", "/logs", "/health", "/libraries/none", "/whatever",
		} {
			ask := func(header ...string) string {
				w := httptest.NewRecorder()
				r := newRequest("GET", target, append([]string{"Host: larder.example"}, header...)...)
				s.handler.ServeHTTP(w, r)
				h := w.Result().Header
				for _, name := range []string{"Date", "Age", "Expires", "Last-Modified"} {
					h.Del(name)
				}
				return fmt.Sprint(w.Code, h, w.Body)
			}
			for _, header := range poison {
				ask(header)
			}
			before := ask()
			for _, header := range poison {
				ask(header)
			}
			if after := ask(); after != before || strings.Contains(after, "p0ison") {
				t.Errorf("%s, %s: what others send changes the response\n%.300s\n%.300s", name, target, before, after)
			}
		}
	}
}
