package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// scrape returns what /metrics prints.
func (s *serving) scrape() string {
	s.Helper()
	r, err := http.Get(s.private + "/metrics")
	if err != nil {
		s.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		s.Fatal(err)
	}
	return string(text)
}

// TestMetricsPage holds what the real program prints on /metrics against docs/metrics.md and the rules of Prometheus, and asks
// it for methods, paths and fields that no client sends by design: they make no series.
func TestMetricsPage(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	t.Parallel()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	data := t.TempDir()
	files := stockNoise(t, data, 3, 1000)
	s := startServe(t, data, nil, "--log-level", "error")
	// One round has every kind of request, each with names that only that round has.
	round := func(n int) {
		for path := range files {
			for _, header := range []string{"gzip", "br", "zstd;q=0, identity", "*;q=0", fmt.Sprintf("x-%d", n)} {
				s.odd("GET", path, header)
			}
		}
		word := fmt.Sprintf("word%d", n)
		for _, path := range []string{
			"/ajax/libs/" + word + "/1.0.0/a.js", "/ajax/libs/noise/" + word + "/a.js", "/ajax/libs/noise/1.0.0/" + word, "/ajax/libs/%" + word,
			"/download/noise/1.0.0.zip", "/download/noise/1.0.0.tar.gz", "/download/noise/" + word + ".zip", "/download/" + word + "/1.0.0." + word,
			"/log/checkpoint", "/log/" + word, "/log/tile/0/" + word, "/log/tile/0/000.p/1", "/log/tile/entries/000.p/9", "/content/" + word,
			"/libraries/noise", "/libraries/" + word, "/search?q=" + word, "/" + word, "/logs?package=" + word,
		} {
			s.odd("GET", path, "gzip")
			s.odd("HEAD", path, "gzip")
			s.odd("OPTIONS", path, "gzip")
			s.odd(strings.ToUpper(word), path, "gzip")
		}
	}
	count := func() int {
		n := 0
		for line := range strings.Lines(s.scrape()) {
			if strings.HasPrefix(line, "larder_") {
				n++
			}
		}
		return n
	}
	round(0)
	first := count()
	for n := range 10 {
		round(n + 1)
	}
	if last := count(); last != first || last > 400 {
		t.Errorf("there were %d series, and %d after requests with other names", first, last)
	}
	t.Logf("%d series", first)

	text := s.scrape()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "larder_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	rows := map[string]string{} // what the page says
	for _, m := range regexp.MustCompile("(?m)^\\| `(larder_[a-z_]+)` \\| ([^|]*) \\| (.*) \\|$").FindAllStringSubmatch(string(page), -1) {
		rows[m[1]] = m[3] + "; " + m[2]
	}
	label := regexp.MustCompile(`([a-z_]+)="`)
	var name, help string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ = strings.Cut(rest, " ")
			continue
		}
		if !strings.HasPrefix(name, "larder_") {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			if total := strings.HasSuffix(name, "_total"); total != strings.HasSuffix(rest, " counter") {
				t.Errorf("a counter's name ends in _total, and no other one's does: %s", rest)
			}
			continue
		}
		series, _, _ := strings.Cut(line, " ")
		_, has, _ := strings.Cut(series, "{")
		var labels []string
		for _, m := range label.FindAllStringSubmatch(has, -1) {
			if m[1] != "le" {
				labels = append(labels, m[1])
			}
		}
		slices.Sort(labels)
		if want := help + "; " + strings.Join(labels, ", "); strings.ReplaceAll(rows[name], `\"`, `"`) != strings.ReplaceAll(want, `\"`, `"`) {
			t.Errorf("%s is printed as %q, and docs/metrics.md says %q", name, want, rows[name])
			name = "" // once is enough
		}
	}
}

// odd sends a request whose answer does not matter.
func (s *serving) odd(method, path, encoding string) {
	s.Helper()
	r, err := http.NewRequest(method, s.public+"/", nil)
	if err != nil {
		s.Fatal(err)
	}
	r.URL.Opaque = "//" + r.URL.Host + path
	r.Header.Set("Accept-Encoding", encoding)
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		s.Fatalf("%s %s: %v", method, path, err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
}

// notHere are parts of the dashboard about which a process without GitHub, witnesses, an ACME server and a cache in front has
// nothing to show.
var notHere = regexp.MustCompile(`larder_log_pushed|larder_log_witness|larder_certificate|larder_purges|larder_downloads_errors|larder_assets_errors|larder_room_waited`)

// TestDashboardDrill has a real Prometheus scrape the real program, which fills and serves, and asks it what each panel of the
// dashboard asks. `make alerts` does it.
func TestDashboardDrill(t *testing.T) {
	if testVariable("ALERTS") == "" {
		t.Skip("make alerts has Prometheus do this")
	}
	text, err := os.ReadFile("../../docs/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	registry := npmtest.New(t)
	registry.Add("demo", "1.0.0", time.Now(), faultFiles)
	dir := t.TempDir()
	registry.Setenv(t)
	if err := os.WriteFile(filepath.Join(dir, "demo.json"), []byte(faultPackage), 0o600); err != nil {
		t.Fatal(err)
	}
	private := openSocket(t, plainSocket)
	private.name = privateSocket
	data := filepath.Join(dir, "data")
	public, _ := startSaying(t, larderOn([]given{private}, "up", "--data", data, "--catalogue", dir, "--listen", "127.0.0.1:0", "--log-level", "error"), "Larder serves ")

	config := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n  - {job_name: larder, static_configs: [{targets: [%q]}]}\n", private.at)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	at := testkit.UnusedAddress(t)
	cmd := exec.Command("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb", "--web.listen-address="+at, "--log.level=warn")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; Debian's package prometheus has it", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	ask := func(expr string) (series int, problem string) {
		for name, value := range map[string]string{"$job": "larder", "$instance": ".+", "$__rate_interval": "15s"} {
			expr = strings.ReplaceAll(expr, name, value)
		}
		r, err := http.Get("http://" + at + "/api/v1/query?query=" + url.QueryEscape(expr))
		if err != nil {
			return 0, "" // it is about to start
		}
		defer r.Body.Close()
		if r.StatusCode == http.StatusServiceUnavailable {
			return 0, "" // likewise
		}
		var answer struct {
			Error string
			Data  struct{ Result []any }
		}
		if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
			return 0, err.Error()
		}
		return len(answer.Data.Result), answer.Error
	}
	asked, answered := 0, 0
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			asked++
			if notHere.MatchString(target.Expr) {
				if _, problem := ask(target.Expr); problem != "" {
					t.Errorf("%s: %s: %s", p.Title, target.Expr, problem)
				}
				continue
			}
			answered++
			waitFor(t, p.Title+": "+target.Expr, func() bool {
				for path := range faultFiles {
					if answer, err := http.Get(public + "/ajax/libs/demo/1.0.0/" + path); err == nil {
						answer.Body.Close()
					}
				}
				if answer, err := http.Get(public + "/download/demo/1.0.0.zip"); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					answer.Body.Close()
				}
				series, problem := ask(target.Expr)
				if problem != "" {
					t.Fatalf("%s: %s: %s", p.Title, target.Expr, problem)
				}
				return series > 0
			})
		}
	}
	t.Logf("%d of the %d questions of the dashboard have an answer here, and no other one is wrong", answered, asked)
}
