package lane

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/requests"
)

// chrome is what a browser sends for a script.
const chrome = "GET /ajax/libs/jquery/3.7.1/jquery.min.js HTTP/1.1\r\n" +
	"Host: cdn.example.com\r\n" +
	"Connection: keep-alive\r\n" +
	"sec-ch-ua-platform: \"Linux\"\r\n" +
	"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36\r\n" +
	"sec-ch-ua: \"Chromium\";v=\"130\", \"Google Chrome\";v=\"130\", \"Not?A_Brand\";v=\"99\"\r\n" +
	"sec-ch-ua-mobile: ?0\r\n" +
	"Accept: */*\r\n" +
	"Sec-Fetch-Site: cross-site\r\n" +
	"Sec-Fetch-Mode: no-cors\r\n" +
	"Sec-Fetch-Dest: script\r\n" +
	"Referer: https://www.example.com/articles/2024/11/on-libraries\r\n" +
	"Accept-Encoding: gzip, deflate, br, zstd\r\n" +
	"Accept-Language: en-GB,en-US;q=0.9,en;q=0.8\r\n" +
	"\r\n"

func BenchmarkParse(b *testing.B) {
	for _, head := range []struct{ name, text string }{
		{"browser", chrome},
		{"again", strings.Replace(chrome, "\r\n\r\n", "\r\nIf-None-Match: \"q1Rs0nJ6wZXOG2oQmEYkXw.br.m5lV6Kyn1Zs\"\r\nIf-Modified-Since: Thu, 29 Feb 2024 12:30:45 GMT\r\n\r\n", 1)},
		{"least", "GET /ajax/libs/jquery/3.7.1/jquery.min.js HTTP/1.1\r\nHost: cdn.example.com\r\n\r\n"},
	} {
		b.Run(head.name, func(b *testing.B) {
			text := []byte(head.text)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			var r Request
			for b.Loop() {
				if n, v := r.parse(text); n != len(text) || v != complete {
					b.Fatal(n, v)
				}
			}
		})
	}
}

var (
	plainLine  = regexp.MustCompile(`^(GET|HEAD) ((/(?:[-._~!$&'()*+,;=:@/A-Za-z0-9]|%[0-9A-Fa-f]{2})*)(?:\?(?:[-._~!$&'()*+,;=:@/?A-Za-z0-9]|%[0-9A-Fa-f]{2})*)?) HTTP/1\.1\r$`)
	plainField = regexp.MustCompile("^([-!#$%&'*+.^_`|~0-9A-Za-z]+): *([^\x00-\x1f\x7f]*)\r$")
	plainHost  = regexp.MustCompile(`^[-._:\[\]0-9A-Za-z]+$`)
)

// readPlainly is parse as one would write it first, a line after the other.
func readPlainly(text string) (Request, int, verdict) {
	var r Request
	line, rest, whole := strings.Cut(text, "\n")
	if !whole {
		return r, 0, classifyPartial([]byte(line))
	}
	m := plainLine.FindStringSubmatch(line)
	if m == nil {
		return r, 0, odd
	}
	r.Head, r.Target, r.Path = m[1] == "HEAD", m[2], m[3]
	values := map[string][]string{}
	for {
		if line, rest, whole = strings.Cut(rest, "\n"); !whole {
			return r, 0, partial
		}
		if line == "\r" {
			break
		}
		m := plainField.FindStringSubmatch(line)
		if m == nil {
			return r, 0, odd
		}
		name, value := strings.ToLower(m[1]), strings.TrimRight(m[2], " ")
		values[name] = append(values[name], value)
		switch name {
		case "te", "range", "expect", "upgrade", "trailer", "if-range", "content-length", "http2-settings", "proxy-connection", "transfer-encoding", "larder-log-size":
			return r, 0, odd
		case "accept", "accept-encoding", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since":
			if len(values[name]) > 2 {
				return r, 0, odd
			}
		case "connection":
			switch is := func(s string) bool { return len(value) == len(s) && strings.EqualFold(value, s) }; {
			case is("close"):
				r.closes = true
			case !is("keep-alive"):
				return r, 0, odd
			}
		case "host":
			if !plainHost.MatchString(value) {
				return r, 0, odd
			}
			r.Host = value
		}
	}
	if len(values["host"]) != 1 || len(values["connection"]) > 1 {
		return r, 0, odd
	}
	r.Fields = requests.Fields{
		Accept: values["accept"], AcceptEncoding: values["accept-encoding"], IfMatch: values["if-match"],
		IfNoneMatch: values["if-none-match"], IfModifiedSince: values["if-modified-since"], IfUnmodifiedSince: values["if-unmodified-since"],
	}
	return r, len(text) - len(rest), complete
}

// However a head is cut and whatever is in it, it is taken as if it were read plainly.
func FuzzParse(f *testing.F) {
	f.Add([]byte(chrome))
	f.Add([]byte("HEAD /a%2Fb?c?d=%zz HTTP/1.1\r\nhOST:x\r\n\r\n"))
	for _, field := range []string{
		"a: b", "A: \xff\x80\x81 \xc3\xbc and more", "a: b\x7fc and more", "a: 12345678\x1f", "a\xad-name: b", "a\xff\xad\xadb\x00c: d", "\xad\xad\xad\xad\xad\xad\xad\xad: b", "x_y.z-0123: b", "no-colon-here", "longer-than-all-that-are-known: b", ": b", " folded",
		"\rosts: x", "Content-Length: 5", "content_length: 5", "If-None-Match: \"x\"  ", "Accept: a\r\naccept: b\r\nACCEPT: c", "IF-MATCH: a\r\nIF-UNMODIFIED-SINCE: b\r\nIf-Modified-Since: c", "connection: Close", "Connection: close, x", "Connection: close\r\nConnection: close",
		"Host: y", "Host: x y", "HTTP2-Settings: x", "tE: x",
	} {
		f.Add([]byte("GET /a_b/c@1~x.js?d HTTP/1.1\r\nHost: [::1]:80\r\n" + field + "\r\n\r\nrest"))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		want, length, verdict := readPlainly(string(text))
		var got Request
		_, _ = got.parse([]byte(chrome)) // what came before must not matter
		n, v := got.parse(text)
		if n != length || v != verdict {
			t.Fatalf("%q has %d bytes and is %d, want %d and %d", text, n, v, length, verdict)
		}
		if v != complete {
			return
		}
		seen := Request{Head: got.Head, Target: got.Target, Path: got.Path, Host: got.Host, Fields: got.Fields, closes: got.closes}
		if !reflect.DeepEqual(seen, want) {
			t.Fatalf("%q is read as %+v, want %+v", text, seen, want)
		}
	})
}
