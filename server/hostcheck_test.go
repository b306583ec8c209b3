package server_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/server"
)

// TestHTTP2RefusesAsHTTP1 sends requests whose Host or Expect HTTP/1.1 may refuse, over both versions, to servers with the fast lane and
// without it. All must decide alike, because a proxy in front may change the version.
func TestHTTP2RefusesAsHTTP1(t *testing.T) {
	status := regexp.MustCompile(`(?m):status: (\d+)`)
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "host %q", r.Host) })
	assets := newAssets(t, server.Options{Store: fixture(t)})
	handler := server.Route(assets, echo)
	type request struct{ method, target, host, fields string }
	var all []request
	for _, host := range []string{"x", "x.example:80", "[::1]:8080", "X_y-z.", "x/y", "a b", "a@x", `a"b`, "a<b", "a\\b", "a#b", "a?b", "x^", "x`", "{x}", "x|y", "\xff", "ünï", "x%20y", "!$&'()*+,;=~"} {
		for _, target := range []string{demoPath, "/libraries", "*"} {
			method := map[bool]string{true: "OPTIONS", false: "GET"}[target == "*"]
			all = append(all, request{method, target, host, ""})
		}
	}
	for _, expect := range []string{"100-continue", "100-Continue", "miracles", "100-continue, miracles", "miracles, 100-continue", "100", "", "100-continue\nexpect: miracles", "miracles\nexpect: 100-continue"} {
		for _, target := range []string{demoPath, "/libraries"} {
			all = append(all, request{"GET", target, "x", "expect: " + expect}, request{"HEAD", target, "x", "expect: " + expect})
		}
	}
	for _, fast := range []bool{true, false} {
		o := server.HTTPOptions{H2C: true}
		if fast {
			o.Lane = assets
		}
		address := serveOn(t, handler, o)
		for _, r := range all {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", r.method, r.target, r.host)
			if r.fields != "" {
				head += strings.ReplaceAll(r.fields, "\n", "\r\n") + "\r\n"
			}
			io.WriteString(conn, head+"\r\n")
			text, _ := io.ReadAll(conn)
			conn.Close()
			var one string
			fmt.Sscanf(string(text), "HTTP/1.1 %s", &one)
			said := h2Sent(t, address, nil, h2Exchange{fields: fmt.Sprintf(":method: %s\n:scheme: http\n:authority: %s\n:path: %s\n%s", r.method, r.host, r.target, r.fields)})
			two := ""
			if strings.Contains(r.host, "@") && strings.HasPrefix(said, "stream 1: \nreset: PROTOCOL_ERROR") { // RFC 9113 §8.3.1
				two = "400"
			} else if found := status.FindStringSubmatch(said); found != nil && strings.HasPrefix(said, "stream 1:") {
				two = found[1]
			}
			if one == "" || one != two {
				t.Errorf("with the fast lane %v, %q: HTTP/1.1 responds %q, HTTP/2 %.200q", fast, r, one, said)
			}
		}
		// Nothing at all names the host.
		if said := h2Sent(t, address, nil, h2Exchange{fields: ":method: GET\n:scheme: http\n:path: /libraries"}); !strings.Contains(said, ":status: 400") || !strings.Contains(said, "missing required Host header") {
			t.Errorf("no host: %q", said)
		}
		// net/http does not check the host of a target in absolute form.
		for _, host := range []string{`a"b`, "a<b"} {
			r, err := http.ReadResponse(dial(t, "http://"+address, "GET http://"+host+"/libraries HTTP/1.1\r\nHost: x\r\n\r\n"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if body, _ := io.ReadAll(r.Body); r.StatusCode != 400 || !strings.Contains(string(body), "malformed Host header") || !r.Close {
				t.Errorf("%s: %s %s", host, r.Status, body)
			}
		}
	}
}
