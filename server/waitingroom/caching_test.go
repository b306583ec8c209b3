package waitingroom

import (
	"io"
	"net/http"
	"testing"
	"time"
)

// TestCaching holds a room to leaving to browsers what the origin says of its answers.
func TestCaching(t *testing.T) {
	h := open(t, small(1, "  rules:\n    - {path: /free/}\n    - {path: /monitored/, header: {X-Monitor: '*'}}\n"))
	said := http.Header{}
	h.origin = func(w http.ResponseWriter, _ *http.Request) {
		for name, values := range said {
			w.Header()[name] = values
		}
		io.WriteString(w, "origin")
	}
	u := h.user()
	for _, c := range []struct{ origin, want string }{
		{"public, max-age=31536000, immutable", "private, max-age=31536000, immutable"},
		{"max-age=60, s-maxage=600, stale-while-revalidate=30", "private, max-age=60, stale-while-revalidate=30"},
		{"no-cache", "private, no-cache"},
		{"no-store", "private, no-store"},
		{"PUBLIC , Proxy-Revalidate, Max-Age=5", "private, Max-Age=5"},
		{`private="set-cookie, x", no-cache="a, \"b", must-revalidate`, `private, no-cache="a, \"b", must-revalidate`},
		{"", "private"},
		{",, ,", "private"},
	} {
		said = http.Header{
			"Cache-Control": {c.origin}, "Expires": {"Wed, 26 May 2027 20:51:00 GMT"}, "Cdn-Cache-Control": {"max-age=9"}, "Surrogate-Control": {"max-age=9"},
			"Etag": {`"a"`}, "Vary": {"Accept-Encoding"},
		}
		h.pass(time.Minute) // the next request renews the session
		first, second := u.get("/"), u.get("/")
		if got := first.Header; first.Header["Set-Cookie"] == nil || got.Get("Cache-Control") != "private, no-store" || got["Expires"] != nil || got["Cdn-Cache-Control"] != nil {
			t.Errorf("an answer that sets a ticket: %v", got)
		}
		got := second.Header
		if got["Set-Cookie"] != nil || len(got["Cache-Control"]) != 1 || got.Get("Cache-Control") != c.want || got.Get("Expires") == "" || got["Cdn-Cache-Control"] != nil || got["Surrogate-Control"] != nil || got.Get("Etag") != `"a"` {
			t.Errorf("%q: %v, want %q", c.origin, got, c.want)
		}
	}
	said = http.Header{"Cache-Control": {"public, s-maxage=60"}, "Cdn-Cache-Control": {"max-age=9"}}
	if got := h.user().get("/free/x").Header; got.Get("Cache-Control") != "public, s-maxage=60" || got.Get("Cdn-Cache-Control") != "max-age=9" {
		t.Errorf("what bypasses the room for everybody: %v", got)
	}
	monitor := h.user()
	monitor.header.Set("X-Monitor", "1")
	if got := monitor.get("/monitored/x").Header; got.Get("Cache-Control") != "private" || got["Cdn-Cache-Control"] != nil {
		t.Errorf("what bypasses the room for some: %v", got)
	}
	if got := h.user().get("/").Header; got.Get("Cache-Control") != "private, no-store" {
		t.Errorf("the page: %v", got)
	}
}
