package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

const wrkSaid = `Running 2s test @ http://127.0.0.1:8080/a.js
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    39.57ms  185.84ms   1.74s    97.02%
    Req/Sec     3.25k     2.08k    5.28k    80.00%
  Latency Distribution
     50%    5.25ms
     75%   12.30ms
     90%  950.00us
     99%    1.23s 
  2340 requests in 2.29s, 41.50MB read
Requests/sec:   1020.77
Transfer/sec:     17.97MB
`

func TestParseWrk(t *testing.T) {
	got, err := parseWrk(wrkSaid)
	if err != nil {
		t.Fatal(err)
	}
	want := turn{Requests: 2340, Bytes: 41.5 * (1 << 20), Took: 2290 * time.Millisecond, P50: 5250 * time.Microsecond, P99: 1230 * time.Millisecond}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, said := range []string{
		wrkSaid + "  Socket errors: connect 0, read 3, write 0, timeout 0\n",
		strings.Replace(wrkSaid, "2340 requests", "0 requests", 1),
		wrkSaid + "  Non-2xx or 3xx responses: 7\n",
	} {
		if _, err := parseWrk(said); !errors.Is(err, errLoad) {
			t.Errorf("error %v for failures", err)
		}
	}
	for _, said := range []string{"", "unable to connect to 127.0.0.1:1 Connection refused\n", strings.ReplaceAll(wrkSaid, "99%", "98%"), strings.ReplaceAll(wrkSaid, "41.50MB", "41.50XB")} {
		if _, err := parseWrk(said); err == nil || errors.Is(err, errLoad) {
			t.Errorf("error %v for %q", err, said)
		}
	}
}

const h2loadSaid = `starting benchmark...
finished in 2.00s, 712.00 req/s, 11.24MB/s
requests: 4 total, 5 started, 4 done, 4 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 4 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 22.48MB (23573898) total, 215.70KB (220875) headers (space savings 0.00%), 27.16MB (28480000) data
                     min         max         mean         sd        +/- sd
time for request:      554us     36.42ms      2.73ms      2.18ms    95.65%
`

func TestParseH2load(t *testing.T) {
	log := "1795279596755940\t200\t4000\n1795279596755914\t200\t1000\n1795279596756094\t200\t3000\n1795279596756095\t200\t2000\n"
	got, err := parseH2load(h2loadSaid, []byte(log), 0)
	if err != nil {
		t.Fatal(err)
	}
	want := turn{Requests: 4, Bytes: 23573898, Took: 2 * time.Second, P50: 3 * time.Millisecond, P99: 4 * time.Millisecond}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := parseH2load(strings.Replace(h2loadSaid, "0 errored", "1 errored", 1), []byte(log), 0); !errors.Is(err, errLoad) {
		t.Errorf("error %v for an error", err)
	}
	if _, err := parseH2load(h2loadSaid, []byte(strings.Replace(log, "\t200", "\t503", 1)), 0); !errors.Is(err, errLoad) {
		t.Errorf("error %v for a 503", err)
	}
	if got, err := parseH2load(h2loadSaid, nil, 0); err != nil || got.Requests != 4 || got.P99 != 0 {
		t.Errorf("without a log: %+v, %v", got, err)
	}
	if got, err := parseH2load(h2loadSaid, nil, 1_000_000); err != nil || got.Requests != 28 {
		t.Errorf("by bytes: %+v, %v", got, err)
	}
	for _, bad := range [][2]string{{"", log}, {h2loadSaid, ""}, {h2loadSaid, "1 2\n"}, {strings.Replace(h2loadSaid, "0 5xx", "1 5xx", 1), log}} {
		if _, err := parseH2load(bad[0], append([]byte{}, bad[1]...), 0); err == nil {
			t.Errorf("no error for %q and %q", bad[0], bad[1])
		}
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3}} {
		if got := median(tt.values); got != tt.want {
			t.Errorf("median of %v is %v, want %v", tt.values, got, tt.want)
		}
	}
}

func TestParseStat(t *testing.T) {
	got, err := parseStat("7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 1 0 100 1 1")
	if err != nil || got != 300 {
		t.Errorf("%d ticks, error %v, want 300", got, err)
	}
	for _, bad := range []string{"", "7 (a) S 1", "7 (a) S 1 7 7 0 -1 4194560 1 2 3 4 x 50 0 0"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

func TestDifferences(t *testing.T) {
	make := func(change func(*answer)) *answer {
		a := &answer{status: 200, body: []byte("body"), header: http.Header{
			"Etag": {`"one"`}, "Date": {"today"}, "Vary": {"Accept-Encoding"}, "Cache-Control": {"public"}, "Content-Length": {"4"}}}
		change(a)
		return a
	}
	larder := make(func(*answer) {})
	tests := []struct {
		name      string
		change    func(*answer)
		field     string // that is told to differ, "" for none
		server    string
		tolerated bool
	}{
		{"the same", func(*answer) {}, "", "nginx", false},
		{"its own date and tag", func(a *answer) { a.header.Set("Date", "later"); a.header.Set("Etag", `"two"`) }, "", "nginx", false},
		{"a weak tag", func(a *answer) { a.header.Set("Etag", `W/"one"`) }, "Etag", "nginx", false},
		{"no tag", func(a *answer) { a.header.Del("Etag") }, "Etag", "nginx", false},
		{"another status", func(a *answer) { a.status = 404 }, "status", "nginx", false},
		{"another byte", func(a *answer) { a.body = []byte("bady") }, "body", "nginx", false},
		{"no body", func(a *answer) { a.body = nil }, "body", "nginx", false},
		{"a field less", func(a *answer) { a.header.Del("Vary") }, "Vary", "nginx", false},
		{"another value", func(a *answer) { a.header.Set("Cache-Control", "private") }, "Cache-Control", "nginx", false},
		{"a value twice", func(a *answer) { a.header.Add("Vary", "Accept-Encoding") }, "Vary", "nginx", false},
		{"a field more", func(a *answer) { a.header.Set("X-More", "1") }, "X-More", "nginx", false},
		{"its name", func(a *answer) { a.header.Set("Server", "nginx") }, "Server", "nginx", true},
		{"a date that a 304 needs not", func(a *answer) { a.header.Set("Last-Modified", "today") }, "Last-Modified", "nginx", false},
		{"chunks", func(a *answer) { a.header.Del("Content-Length") }, "Content-Length", "nginx", false},
		{"Caddy's chunks", func(a *answer) { a.header.Del("Content-Length") }, "Content-Length", "caddy", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			peer := make(tt.change)
			got := differences(larder, peer)
			if tt.field == "" {
				if len(got) > 0 {
					t.Errorf("told to differ: %v", got)
				}
				return
			}
			if len(got) != 1 || got[0].field != tt.field {
				t.Fatalf("told %v, want %s", got, tt.field)
			}
			if ok := tolerated(tt.server, got[0], peer.status); ok != tt.tolerated {
				t.Errorf("tolerated is %v", ok)
			}
		})
	}
}

// TestCompareEndsAtDifference asks two servers of which one does less.
func TestCompareEndsAtDifference(t *testing.T) {
	honest := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"x"`)
		http.ServeContent(w, r, "a.js", time.Unix(1e9, 0), strings.NewReader("body of "+r.URL.Path))
	}
	cheating := func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "7.js") {
			w.Header().Set("X-Less", "1")
		}
		honest(w, r)
	}
	var s scenario
	for i := range 20 {
		path := fmt.Sprintf("/ajax/libs/a/1/%d.js", i)
		s.requests = append(s.requests, request{Method: "GET", Path: path}, request{Method: "HEAD", Path: path}, request{Method: "GET", Path: path, Conditional: true})
	}
	for _, tt := range []struct {
		handler http.HandlerFunc
		fails   bool
	}{{honest, false}, {cheating, true}} {
		for _, p := range []protocol{{}, {close: true}} {
			var servers []*server
			for i, h := range []http.HandlerFunc{honest, tt.handler} {
				made := httptest.NewServer(h)
				defer made.Close()
				servers = append(servers, &server{name: []string{"larder", "peer"}[i], address: made.Listener.Addr().String()})
			}
			s.protocol = p
			k, err := new(bench).compare(t.Context(), servers, s)
			if (err != nil) != tt.fails {
				t.Errorf("error %v, want one: %v", err, tt.fails)
			}
			if tt.fails && !strings.Contains(err.Error(), "X-Less") {
				t.Errorf("the error does not tell the field: %v", err)
			}
			if !tt.fails && (len(k) != 2 || slices.Contains(k[1].lengths, 0) || !strings.Contains(string(k[1].requests[2]), "If-None-Match: \"x\"\r\n")) {
				t.Errorf("what was learned lacks something: %+v", k)
			}
		}
	}
}

// someFiles are n files whose sizes are spread as those of real ones.
func someFiles(n int) []file {
	rng := rand.New(rand.NewPCG(1, 2))
	files := make([]file, n)
	for i := range files {
		files[i] = file{Path: fmt.Sprintf("/ajax/libs/a/1/%d.js", i), Coding: "br", Length: int(math.Exp(6.5 + 1.7*rng.NormFloat64()))}
	}
	return files
}

func TestVerdict(t *testing.T) {
	for _, tt := range []struct {
		cpu, busy float64
		want      string
	}{{10, 1, "met"}, {10.5, 1, "MISSED"}, {10, 0.94, "met, for CPU"}, {10.5, 0.94, "MISSED"}} {
		r := result{Name: "keep-alive 1 KB", Body: 1000, Servers: []entry{
			{Server: "larder", Rate: 1300, Busy: 1, CPU: tt.cpu, P99: 1}, {Server: "larder, lane off", Rate: 500, Busy: 1, CPU: 20, P99: 1},
			{Server: "nginx, sendfile", Rate: 1000, Busy: tt.busy, CPU: 13, P99: 2}, {Server: "nginx, no sendfile", Rate: 900, Busy: 1, CPU: 13, P99: 1},
			{Server: "caddy", Rate: 100, Busy: 1, CPU: 100, P99: 1}}}
		r.compare(protocols[0])
		if r.Best != "nginx, sendfile" || r.Ratios[0].P99 != 0.5 || r.Ratios[1].Rate != 1300.0/500 || r.Ratios[2].To != "caddy" {
			t.Errorf("compared: %+v", r)
		}
		var out strings.Builder
		(&report{Scenarios: []result{r}}).print(&out)
		if !strings.Contains(out.String(), " "+tt.want+" ") {
			t.Errorf("%+v: no %q in %s", tt, tt.want, out.String())
		}
	}
}

func TestMix(t *testing.T) {
	files := someFiles(20_000)
	m, err := newMix(files, 15_000)
	if err != nil {
		t.Fatal(err)
	}
	again, err := newMix(files, 15_000)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.requests, again.requests) || !slices.Equal(m.order, again.order) {
		t.Error("the list is another one the second time")
	}
	if m.Files != 15_000 || len(m.order) != mixRequests {
		t.Errorf("%d files, %d requests", m.Files, len(m.order))
	}
	if math.Abs(m.Mean/meanBody-1) > 0.1 {
		t.Errorf("the mean body is %.0f bytes, want about %.0f", m.Mean, meanBody)
	}
	var conditional, head, missing, most float64
	count := map[int32]int{}
	for _, at := range m.order {
		q := m.requests[at]
		switch {
		case q.Conditional:
			conditional++
		case q.Method == http.MethodHead:
			head++
		case strings.Contains(q.Path, "/missing"):
			missing++
		}
		count[at]++
		most = max(most, float64(count[at]))
	}
	for name, share := range map[string][2]float64{"304": {conditional, conditionalShare}, "HEAD": {head, headShare}, "404": {missing, missingShare}} {
		if got := share[0] / mixRequests; math.Abs(got/share[1]-1) > 0.1 {
			t.Errorf("%s: %.4f of all, want %.4f", name, got, share[1])
		}
	}
	if most < mixRequests/20 {
		t.Errorf("the most popular file is asked for %.0f times only", most)
	}
	if _, err := newMix(nil, 1); err == nil {
		t.Error("a mix of no files")
	}
}

func TestNearest(t *testing.T) {
	files := []file{
		{Path: "/a.js", Coding: "br", Length: 900}, {Path: "/b.js", Coding: "br", Length: 1100}, {Path: "/c.js", Length: 1000},
		{Path: "/d.svg", Coding: "br", Length: 1000}, {Path: "/e.css", Coding: "br", Length: 5000},
	}
	for n, want := range map[int]string{1000: "/b.js", 950: "/a.js", 1e6: "/e.css"} {
		if got, err := nearest(files, n); err != nil || got.Path != want {
			t.Errorf("nearest to %d is %q, error %v, want %q", n, got.Path, err, want)
		}
	}
	if _, err := nearest(files[2:4], 1000); err == nil {
		t.Error("found where there is none")
	}
}

func TestOfOneType(t *testing.T) {
	got := ofOneType([]file{{Path: "/a.js", Type: "x"}, {Path: "/b.js", Type: "y"}, {Path: "/c.js", Type: "x"}, {Path: "/LICENSE", Type: "z"}})
	if len(got) != 2 || got[0].Path != "/a.js" || got[1].Path != "/c.js" {
		t.Errorf("kept %v", got)
	}
}

func TestParseOptions(t *testing.T) {
	for _, bad := range []string{"-rounds 0", "-duration 1ms", "-files 0", "-rows 1000", "more", "-nothing"} {
		if _, err := parse(strings.Fields(bad)); err == nil {
			t.Errorf("no error for %s", bad)
		}
	}
}

// TestQuick runs the program with everything that it compares.
func TestQuick(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.NumCPU() < 2 {
		t.Skip("needs Linux and two cores")
	}
	if err := installed(false); err != nil {
		t.Skip(err)
	}
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	tmp := t.TempDir()
	for dir, pkg := range map[string]string{"../..": "./cmd/larder", ".": "."} { // of two modules
		build := exec.CommandContext(t.Context(), "go", "build", "-C", dir, "-o", tmp+string(filepath.Separator), pkg)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	corpus := filepath.Join(tmp, "corpus")
	writeCorpus(t, corpus)
	run := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(tmp, "serving"), append(args, "-larder", filepath.Join(tmp, "larder"), "-cache", filepath.Join(tmp, "cache"), "-corpus", corpus, "-quick")...)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s%s", err, out, errs.String())
		}
		return string(out)
	}
	results := filepath.Join(tmp, "results")
	run("-json", results+".json", "-plot", results)
	var r report
	data, err := os.ReadFile(results + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	want := 1
	for _, p := range protocols {
		if p.inQuick() {
			want++
		}
	}
	if len(r.Scenarios) != want {
		t.Errorf("%d scenarios, want one for each protocol, and the mix", len(r.Scenarios))
	}
	for _, s := range r.Scenarios {
		want := 6
		if slices.ContainsFunc(s.Servers, func(e entry) bool { return e.Server == "bare" }) {
			want++ // it speaks HTTP/1.1 only
		}
		if len(s.Servers) != want {
			t.Errorf("%s: %d servers", s.Name, len(s.Servers))
		}
		for _, e := range s.Servers {
			if e.Rate <= 0 || e.P99 < e.P50 || e.PeakRSS <= 0 {
				t.Errorf("%s, %s: %+v", s.Name, e.Server, e)
			}
		}
	}
	for format, magic := range map[string]string{"png": "\x89PNG", "svg": "<?xml"} {
		if data, err := os.ReadFile(results + "." + format); err != nil || !strings.HasPrefix(string(data), magic) {
			t.Errorf("%s: %.20q, error %v", format, data, err)
		}
	}
	if out := run("-headline"); !strings.Contains(out, "% of that") {
		t.Errorf("the headline is missing: %s", out)
	}
	if out := run("-headline", "-h2"); !strings.Contains(out, "over HTTP/2") {
		t.Errorf("the headline over HTTP/2 is missing: %s", out)
	}
}

// writeCorpus writes text that compresses, and some that does not.
func writeCorpus(t *testing.T, folder string) {
	rng := rand.New(rand.NewPCG(3, 4))
	words := strings.Fields("function return const let if else for while of in new this typeof await async class extends export import default null")
	for i := range 60 {
		var text strings.Builder
		for range 20 << (i % 12) {
			fmt.Fprintf(&text, "%s value%d(%d);\n", words[rng.IntN(len(words))], rng.IntN(5000), rng.IntN(1000))
		}
		name := filepath.Join(folder, []string{"js", "css", "img"}[i%3], fmt.Sprintf("file-%d.%s", i, []string{"js", "css", "svg"}[i%3]))
		if err := writeFile(name, []byte(text.String()), time.Unix(1e9, 0)); err != nil {
			t.Fatal(err)
		}
	}
	noise := make([]byte, 5000)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	if err := writeFile(filepath.Join(folder, "font.woff2"), noise, time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
}
