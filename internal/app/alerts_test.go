package app

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/larder-cdn/larder/internal/testkit"
)

const monitoring = "../../docs/monitoring"

// TestAlerts has promtool run the tests of the alerts.
func TestAlerts(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("there is no promtool; Debian's package prometheus has it")
	}
	cmd := exec.Command("promtool", "test", "rules", "alerts_test.yaml")
	cmd.Dir = monitoring
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

// alertTests are what docs/monitoring/alerts_test.yaml tests: series with which an alert fires, and others.
type alertTests struct {
	Tests []struct {
		Name        string
		InputSeries []struct{ Series, Values string } `yaml:"input_series"`
	}
}

// TestAlertDrill has a real Prometheus scrape the series of the tests, and waits until it fires each alert, and until it has
// resolved each. The rules are those of the page, with seconds in the place of minutes.
func TestAlertDrill(t *testing.T) {
	if os.Getenv("LARDER_TEST_ALERTS") == "" {
		t.Skip("make alerts has Prometheus do this")
	}
	text, err := os.ReadFile(filepath.Join(monitoring, "alerts_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var tests alertTests
	if err := yaml.Unmarshal(text, &tests); err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile(filepath.Join(monitoring, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var wanted []string
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		wanted = append(wanted, m[1])
	}
	rules = regexp.MustCompile(`for: \d+[mh]`).ReplaceAll(rules, []byte("for: 2s"))
	rules = regexp.MustCompile(`\[\d+[mh]\]`).ReplaceAll(rules, []byte("[15s]"))

	watched := &series{tests: tests, phase: " fires", now: time.Now}
	source := httptest.NewServer(watched)
	defer source.Close()
	flaky, err := net.Listen("tcp", "127.0.0.1:0") // of the process that is down
	if err != nil {
		t.Fatal(err)
	}
	down := flaky.Addr().String()
	flaky.Close()

	dir := t.TempDir()
	prometheus := "http://" + testkit.UnusedAddress(t)
	config := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
  - {job_name: drill, honor_labels: true, static_configs: [{targets: [%q]}]}
  - {job_name: larder, static_configs: [{targets: [%q]}]}
`, strings.TrimPrefix(source.URL, "http://"), down)
	for name, data := range map[string]string{"prometheus.yml": config, "rules.yaml": string(rules)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address="+strings.TrimPrefix(prometheus, "http://"), "--log.level=warn")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; Debian's package prometheus has it", err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()

	await(t, "every alert fires", func() (missing []string) {
		firing := firing(prometheus)
		for _, name := range wanted {
			if !firing[name] {
				missing = append(missing, name)
			}
		}
		return missing
	})
	t.Logf("%d alerts fire: %s", len(wanted), strings.Join(wanted, ", "))
	watched.turn(" rests")
	revived, err := net.Listen("tcp", down)
	if err != nil {
		t.Fatal(err)
	}
	go http.Serve(revived, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) //nolint:errcheck // until the listener is closed
	defer revived.Close()
	await(t, "every alert is resolved", func() (left []string) {
		for name := range firing(prometheus) {
			left = append(left, name)
		}
		return left
	})
}

// series answers scrapes with the series of the tests of one phase.
type series struct {
	tests alertTests
	now   func() time.Time
	mu    sync.Mutex
	phase string
}

func (s *series) turn(phase string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = phase
}

// ServeHTTP tells the last value of each series, and of those that grow as much of them as there were seconds.
func (s *series) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := map[string]float64{}
	for _, t := range s.tests.Tests {
		if !strings.HasSuffix(t.Name, s.phase) {
			continue
		}
		for _, in := range t.InputSeries {
			if strings.HasPrefix(in.Series, "up{") {
				continue // Prometheus makes it
			}
			last := in.Values[strings.LastIndexByte(in.Values, ' ')+1:]
			number, _, _ := strings.Cut(last, "x")
			start, step, grows := strings.Cut(number, "+")
			value, _ := strconv.ParseFloat(start, 64)
			seconds := float64(s.now().Unix() % 100_000)
			if grows {
				each, _ := strconv.ParseFloat(step, 64)
				value = each * seconds
			} else if strings.Contains(in.Values, " ") {
				value = seconds // a counter that jumped
			}
			if in.Series == `larder_certificate_expiry_timestamp_seconds{job="larder",domain="cdn.example.com"}` {
				value += float64(s.now().Unix()) // the tests begin in 1970
			}
			if strings.Contains(in.Series, "_success_timestamp_") || strings.Contains(in.Series, "_response_timestamp_") {
				value = 1
				if grows {
					value = float64(s.now().Unix())
				}
			}
			values[in.Series] = value
		}
	}
	for name, value := range values {
		fmt.Fprintf(w, "%s %f\n", name, value)
	}
}

// firing are the alerts that fire.
func firing(prometheus string) map[string]bool {
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if r, err := http.Get(prometheus + "/api/v1/alerts"); err == nil {
		defer r.Body.Close()
		if text, err := io.ReadAll(io.LimitReader(r.Body, 1<<20)); err == nil {
			_ = json.Unmarshal(text, &answer)
		}
	}
	all := map[string]bool{}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			all[a.Labels["alertname"]] = true
		}
	}
	return all
}

// await waits until nothing is left.
func await(t *testing.T, what string, left func() []string) {
	t.Helper()
	var now []string
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		if now = left(); len(now) == 0 {
			return
		}
	}
	t.Fatalf("%s: not within three minutes: %s", what, strings.Join(now, ", "))
}
