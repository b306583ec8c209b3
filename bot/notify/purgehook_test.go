package notify

import (
	"strings"
	"testing"
)

func TestParsePurgeHook(t *testing.T) {
	const target = "https://cdn.example.com/base/ajax/libs/a/1.0.0/b%20c.js"
	for _, tt := range []struct {
		hook, method, url string
		each, host        bool
	}{
		{"https://hooks.example.com/larder?key=1", "POST", "https://hooks.example.com/larder?key=1", false, true},
		{"PUT http://127.0.0.1:9000/", "PUT", "http://127.0.0.1:9000/", false, true},
		{"{url}", "PURGE", target, true, true},
		{"PURGE {url}?now=1", "PURGE", target + "?now=1", true, true},
		{"GET https://user:secret@api.example.com/purge?zone=3&url={url}", "GET", "https://user:secret@api.example.com/purge?zone=3&url=https%3A%2F%2Fcdn.example.com%2Fbase%2Fajax%2Flibs%2Fa%2F1.0.0%2Fb%2520c.js", true, true},
		{"POST https://api.example.com/purge/{url}", "POST", "https://api.example.com/purge/https:%2F%2Fcdn.example.com%2Fbase%2Fajax%2Flibs%2Fa%2F1.0.0%2Fb%2520c.js", true, true},
		{"http://varnish:6081{path}", "PURGE", "http://varnish:6081/base/ajax/libs/a/1.0.0/b%20c.js", true, false},
		{"BAN http://varnish:6081/?path={path}", "BAN", "http://varnish:6081/?path=%2Fbase%2Fajax%2Flibs%2Fa%2F1.0.0%2Fb%2520c.js", true, false},
	} {
		h, err := ParsePurgeHook(tt.hook)
		if err != nil {
			t.Errorf("%s: %v", tt.hook, err)
			continue
		}
		got, err := h.expand(target)
		if err != nil || got.String() != tt.url || h.method != tt.method || h.PerURL() != tt.each || h.NeedsHost() != tt.host {
			t.Errorf("%s: %s %v, %v, each %v, host %v", tt.hook, h.method, got, err, h.PerURL(), h.NeedsHost())
		}
	}
	for _, hook := range []string{
		"", "  ", "example.com/purge", "ftp://example.com/secret", "purge {url}", "GET https://example.com/secret", "PURGE https://example.com/secret",
		"https:///secret", "https://example.com/secret{file}", "PURGE {url} now", "{url", "http://[::1/secret", "http://exa mple.com/", "http://example.com/%zzsecret", "http://example.com/secret/{path}",
	} {
		h, err := ParsePurgeHook(hook)
		if err == nil {
			t.Errorf("%q is %+v", hook, h)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error gives it away: %v", hook, err)
		}
	}
}
