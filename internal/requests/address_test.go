package requests

import (
	"crypto/tls"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestOrigin(t *testing.T) {
	for host, want := range map[string]string{
		"larder.example": "http://larder.example", "Larder.EXAMPLE:8080": "http://larder.example:8080", "127.0.0.1": "http://127.0.0.1",
		"[::1]:8080": "http://[::1]:8080", "[::1]": "http://[::1]", "my_host": "http://my_host", "a.b.": "http://a.b.", "a": "http://a",
		"": "", "a b": "", `a"onload="`: "", "a/b": "", "user@host": "", "[::1": "", "[::1]x": "", "[::1%25eth0]": "", "[127.0.0.1]": "", "[]": "", "a:b": "", "a:": "", "a:123456": "",
		"-a": "", "ä": "", "a\x00": "", "a\nb": "", "a?b": "", "a#b": "", `a\b`: "", "a,b": "", strings.Repeat("a", 300): "",
	} {
		r := &http.Request{Host: host}
		got, ok := Origin(r)
		if got != want || ok != (want != "") {
			t.Errorf("%q is %q, %v; want %q", host, got, ok, want)
		}
		r.TLS = &tls.ConnectionState{}
		if got, _ := Origin(r); want != "" && got != strings.Replace(want, "http:", "https:", 1) {
			t.Errorf("%q with TLS is %q", host, got)
		}
	}
}

func TestQuery(t *testing.T) {
	for raw, want := range map[string]url.Values{
		"": {}, "&&": {}, "a": {"a": {""}}, "a=b=c": {"a": {"b=c"}}, "a=1&a=2": {"a": {"1", "2"}}, "a=b;c": {"a": {"b;c"}}, "=x": {"": {"x"}},
		"q=%C3%A9+%26": {"q": {"é &"}}, "q=%ff": {"q": {"%ff"}}, "%ff=q": {"%ff": {"q"}}, "q=%zz": {"q": {"%zz"}}, "%z=q": {"%z": {"q"}}, "q=\xff": {"q": {"\uFFFD"}}, "a=b&c=%": {"a": {"b"}, "c": {"%"}},
		"q=50%+off%21": {"q": {"50% off!"}}, "q=%C3%A9%2": {"q": {"é%2"}}, "q=%2541": {"q": {"%41"}},
	} {
		if got := ParseQuery(raw); !maps.EqualFunc(got, want, slices.Equal[[]string]) {
			t.Errorf("%q is %v, want %v", raw, got, want)
		}
	}
}

// FuzzOrigin holds that an origin is one whatever a Host field says.
func FuzzOrigin(f *testing.F) {
	for _, host := range []string{"a.example:80", "[::1]:80", "a b", `"><script>`, "[", "a@b", "a:"} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		origin, ok := Origin(&http.Request{Host: host})
		if !ok {
			return
		}
		u, err := url.Parse(origin + "/path")
		if err != nil || !strings.EqualFold(u.Host, host) || u.Path != "/path" || u.User != nil || strings.ContainsAny(origin, "\"'<>&\\ \r\n") {
			t.Errorf("the host %q becomes %q: %v", host, origin, err)
		}
	})
}

// FuzzQuery holds that all that is read is text, and as [url.ParseQuery] reads it where
// that reads all of it as text.
func FuzzQuery(f *testing.F) {
	for _, raw := range []string{"a=b&c", "q=%C3%A9+%26", "q=%ff", ";", "a=1&a=2"} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got := ParseQuery(raw)
		for name, values := range got {
			if !utf8.ValidString(name) || !utf8.ValidString(strings.Join(values, "")) {
				t.Errorf("%q has %q: %q, which is not UTF-8", raw, name, values)
			}
		}
		if want, err := url.ParseQuery(raw); err == nil && utf8.ValidString(raw) && isText(want) && !maps.EqualFunc(got, want, slices.Equal[[]string]) {
			t.Errorf("%q is %v, want %v", raw, got, want)
		}
	})
}

func isText(query url.Values) bool {
	for name, values := range query {
		if !utf8.ValidString(name) || slices.ContainsFunc(values, func(v string) bool { return !utf8.ValidString(v) }) {
			return false
		}
	}
	return true
}
