package api

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// privately sends a request to the private listener; fields are names and values, one after the other.
func privately(h http.Handler, method, target string, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	r.Host = "127.0.0.1:8081"
	for i := 0; i < len(fields); i += 2 {
		if fields[i] == "Host" {
			r.Host = fields[i+1]
		} else {
			r.Header.Add(fields[i], fields[i+1])
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestPrivate(t *testing.T) {
	metrics := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "larder_test_total", Help: "A test's."})
	metrics.MustRegister(counter)
	var ready Readiness
	h := Private(PrivateOptions{Metrics: metrics, Ready: func() Readiness { return ready }, Logger: quiet})
	for target, want := range map[string]string{
		"/livez":                         "ok\n",
		"/readyz":                        "ok\n",
		"/readyz?publish":                "ok\n",
		"/metrics":                       "larder_test_total 0",
		"/debug/pprof/":                  "goroutine",
		"/debug/pprof/cmdline":           "api.test",
		"/debug/pprof/goroutine?debug=1": "goroutine profile",
		"/debug/pprof/trace?seconds=0.1": "go 1.",
	} {
		if w := privately(h, "GET", target); w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	for _, query := range []string{"profile?seconds=61", "trace?seconds=1e9", "heap?seconds=3600", "trace?seconds=NaN", "goroutine?seconds=-1", "profile?seconds=x"} {
		if w := privately(h, "GET", "/debug/pprof/"+query); w.Code != 400 || !strings.Contains(w.Body.String(), "seconds") {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	if w := privately(h, "GET", "/elsewhere"); w.Code != 404 {
		t.Errorf("elsewhere: %d", w.Code)
	}
}

// TestReadyz holds both responses of /readyz to what a process can do.
func TestReadyz(t *testing.T) {
	for _, tt := range []struct {
		name           string
		ready          Readiness
		serve, publish int
		text, ptext    string
	}{
		{"all is well", Readiness{Notes: []string{"disk low"}}, 200, 200, "ok\ndisk low\n", "ok\ndisk low\n"},
		{"cannot publish", Readiness{Publish: errors.New("no key"), Notes: []string{"disk low"}}, 200, 503, "ok\ncannot publish: no key\ndisk low\n", "no key\ndisk low\n"},
		{"cannot serve", Readiness{Serve: errors.New("opening")}, 503, 503, "opening\n", "opening\n"},
		{"neither", Readiness{Serve: errors.New("missing"), Publish: errors.New("no key")}, 503, 503, "missing\ncannot publish: no key\n", "missing\ncannot publish: no key\n"},
	} {
		h := Private(PrivateOptions{Metrics: prometheus.NewRegistry(), Ready: func() Readiness { return tt.ready }, Logger: quiet})
		if w := privately(h, "GET", "/readyz"); w.Code != tt.serve || w.Body.String() != tt.text {
			t.Errorf("%s: %d %q", tt.name, w.Code, w.Body)
		}
		for _, query := range []string{"publish", "publish=1", "a=b&publish"} {
			if w := privately(h, "GET", "/readyz?"+query); w.Code != tt.publish || w.Body.String() != tt.ptext {
				t.Errorf("%s, ?%s: %d %q", tt.name, query, w.Code, w.Body)
			}
		}
	}
}

// TestPrivateIsNoWebPages sends what a web page can send that the operator visits: requests to a name of its own that resolves to the
// listener, and requests across origins.
func TestPrivateIsNoWebPages(t *testing.T) {
	site := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("secret")) }))
	h := Private(PrivateOptions{
		Metrics: prometheus.NewRegistry(), Ready: func() Readiness { return Readiness{} }, Logger: quiet,
		Hosts: func() []string { return []string{"ops.example", "node.example:8081"} }, Site: func() http.Handler { return site },
	})
	paths := []string{"/metrics", "/livez", "/readyz", "/debug/pprof/", "/debug/pprof/cmdline", "/rooms.history", "/nodes", "/"}
	hosts := map[string]bool{
		"127.0.0.1:8081": true, "10.0.0.5": true, "[::1]:8081": true, "[fe80::1]": true, "::1": false, "localhost": true, "LocalHost:8081": true,
		"ops.example": true, "OPS.example:99": true, "node.example:8081": true, "node.example": false, "node.example:80": false,
		"": true, "attacker.example": false, "attacker.example:8081": false, "localhost.attacker.example": false, "127.0.0.1.attacker.example": false,
		"127.0.0.1@attacker.example": false, "attacker.example.ops.example": false, "127.1": false, "0x7f.0.0.1": false, "2130706433": false, "larder": false,
	}
	for host, allowed := range hosts {
		for _, path := range paths {
			if w := privately(h, "GET", path, "Host", host); (w.Code == 200) != allowed || !allowed && (w.Code != 421 || !strings.Contains(w.Body.String(), "private-hosts")) {
				t.Errorf("Host %q, %s: %d %s", host, path, w.Code, w.Body)
			}
		}
	}
	const own = "http://127.0.0.1:8081"
	for _, tt := range []struct {
		method  string
		fields  []string
		allowed bool
	}{
		{"GET", nil, true}, {"POST", nil, true},
		{"GET", []string{"Origin", own}, true}, {"POST", []string{"Origin", own, "Sec-Fetch-Site", "same-origin"}, true},
		{"GET", []string{"Sec-Fetch-Site", "none"}, true},
		{"GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, true}, // a link
		{"GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, false},
		{"POST", []string{"Origin", "http://attacker.example"}, false}, {"GET", []string{"Origin", "http://attacker.example"}, false},
		{"POST", []string{"Origin", "null"}, false}, {"POST", []string{"Origin", ""}, false}, {"POST", []string{"Origin", "http://127.0.0.1:3000"}, false},
		{"POST", []string{"Origin", own, "Origin", "http://attacker.example"}, false},
		{"POST", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, false},
		{"GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, false}, {"GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}, false},
		{"OPTIONS", []string{"Origin", "http://attacker.example", "Access-Control-Request-Method", "GET"}, false},
	} {
		for _, path := range paths {
			w := privately(h, tt.method, path, tt.fields...)
			profiles := strings.HasPrefix(path, "/debug/") && slices.Contains(tt.fields, "cross-site") // making one takes time
			if refused := w.Code == 403; refused == (tt.allowed && !profiles) {
				t.Errorf("%s %s with %q: %d", tt.method, path, tt.fields, w.Code)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(privately(h, "GET", "/metrics", "Origin", "http://attacker.example").Header())) {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("a refusal has %s, so that pages of other origins could read it", name)
		}
	}
}
