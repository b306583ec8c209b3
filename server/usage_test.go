package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/usage"
)

func TestUsageCountsAnsweredAssets(t *testing.T) {
	store := fixture(t)
	u := usage.Open(usage.Options{Store: store})
	a := newAssets(t, server.Options{Store: store, Usage: u})
	const tiny = "/ajax/libs/demo/1.0.0/tiny.txt"
	for _, step := range []struct {
		method, target string
		header         []string
		status         int
		want           usage.Amount
	}{
		{"GET", tiny, nil, 200, usage.Amount{Requests: 1, Bytes: 10}},
		{"HEAD", tiny, nil, 200, usage.Amount{Requests: 1}},
		{"GET", tiny, []string{"If-None-Match", "*"}, 304, usage.Amount{Requests: 1}},
		{"GET", tiny, []string{"Range", "bytes=0-1"}, 206, usage.Amount{Requests: 1, Bytes: 2}},
		{"GET", tiny, []string{"Range", "bytes=99-"}, 416, usage.Amount{}},
		{"GET", tiny, []string{"If-Match", `"x"`}, 412, usage.Amount{}},
		{"GET", tiny, []string{"Accept-Encoding", "*;q=0"}, 406, usage.Amount{}},
		{"GET", "/ajax/libs/demo/1.0.0/nothing", nil, 404, usage.Amount{}},
		{"GET", "/ajax/libs/demo/0.9.0/demo.js", nil, 410, usage.Amount{}},
		{"GET", "/ajax/libs/nothing/1.0.0/tiny.txt", nil, 404, usage.Amount{}},
		{"OPTIONS", tiny, nil, 204, usage.Amount{}},
		{"POST", tiny, nil, 405, usage.Amount{}},
	} {
		before := totalOf(t, u)
		wantStatus(t, get(a, step.method, step.target, step.header...), step.status)
		after := totalOf(t, u)
		if got := (usage.Amount{Requests: after.Requests - before.Requests, Bytes: after.Bytes - before.Bytes}); got != step.want {
			t.Errorf("%s %s with %q was counted as %v, want %v", step.method, step.target, step.header, got, step.want)
		}
	}
}

func totalOf(t *testing.T, u *usage.Usage) usage.Amount {
	t.Helper()
	r, err := u.ReportOn("demo", "", 2)
	if err != nil {
		t.Fatal(err)
	}
	return r.Total
}

// Usage and access log agree with what clients got, over every protocol.
func TestEveryWayIsCountedAndLogged(t *testing.T) {
	for _, test := range []struct{ name, lane, protocol, trusted string }{
		{"lane", "lane", "HTTP/1.1", "127.0.0.1"}, {"net/http", "", "HTTP/1.1", "127.0.0.1"}, {"HTTP/2", "lane", "HTTP/2.0", "127.0.0.1"},
		// A stranger does not choose its address.
		{"lane, strangers", "lane", "HTTP/1.1", "192.0.2.1"}, {"net/http, strangers", "", "HTTP/1.1", "192.0.2.1"}, {"HTTP/2, strangers", "lane", "HTTP/2.0", "192.0.2.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := fixture(t)
			u := usage.Open(usage.Options{Store: store})
			proxies, err := requests.NewProxies([]string{test.trusted}, "")
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "access.log")
			log, err := server.OpenAccessLog(server.AccessLogOptions{File: file, Addresses: server.AccessLogPlain})
			if err != nil {
				t.Fatal(err)
			}
			assets := newAssets(t, server.Options{Store: store, Usage: u, AccessLog: log, Proxies: proxies})
			o := server.HTTPOptions{H2C: true, Proxies: proxies}
			if test.lane != "" {
				o.Lane = assets
			}
			s := server.NewHTTPServer(proxies.Handler(log.Handler(server.Route(assets, http.NotFoundHandler()))), o)
			listener, err := server.OpenSocket(t.Context(), "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error)
			go func() { done <- s.Serve(listener) }()
			protocols := new(http.Protocols)
			protocols.SetHTTP1(test.protocol == "HTTP/1.1")
			protocols.SetUnencryptedHTTP2(test.protocol == "HTTP/2.0")
			c := client(t, &http.Transport{DisableCompression: true, Protocols: protocols})
			var want []string
			var all usage.Amount
			for i, path := range []string{"demo.js", "tiny.txt", "demo.js", "noise.bin", "nothing.js", "noise.bin", "demo.js?v=1"} {
				r, _ := http.NewRequest("GET", "http://"+listener.Addr().String()+"/ajax/libs/demo/1.0.0/"+path, nil)
				from := fmt.Sprintf("198.51.100.%d", i)
				r.Header.Set("X-Forwarded-For", "203.0.113.9, "+from)
				r.Header.Set("User-Agent", "test")
				r.Header.Set("Referer", "https://example.com/")
				resp, err := c.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				n, err := io.Copy(io.Discard, resp.Body)
				if err != nil || resp.Proto != test.protocol {
					t.Fatal(resp.Proto, err)
				}
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					all.Requests, all.Bytes = all.Requests+1, all.Bytes+uint64(n)
				}
				if test.trusted != "127.0.0.1" {
					from = "127.0.0.1"
				}
				want = append(want, fmt.Sprintf("%s GET /ajax/libs/demo/1.0.0/%s %s %d %d test https://example.com/", from, path, resp.Proto, resp.StatusCode, n))
			}
			c.CloseIdleConnections()
			if _, err := s.Stop(h2Patience); err != nil { // all is counted then
				t.Fatal(err)
			}
			<-done
			if got := totalOf(t, u); got != all {
				t.Errorf("%v was counted, want %v", got, all)
			}
			if err := log.Close(); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(string(text)) {
				var e struct {
					Client, Method, Target, Protocol, Agent, Referer string
					Status, Bytes                                    int
				}
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprintf("%s %s %s %s %d %d %s %s", e.Client, e.Method, e.Target, e.Protocol, e.Status, e.Bytes, e.Agent, e.Referer))
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}
