package app

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/logs/replication"
)

var update = flag.Bool("update", false, "rewrite the table in docs/metrics.md")

// elsewhere are metrics of parts that the process of the test has not, because they need GitHub.
var elsewhere = []string{
	"larder_log_push_failures_total", "larder_log_push_failing", "larder_log_pushed_entries",
}

var description = regexp.MustCompile(`fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)", (?:unit: "[^"]*", )?constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)

// TestMetricsAreDocumented holds docs/metrics.md against what a process with everything registers: names, labels, and the
// rules of Prometheus for both.
func TestMetricsAreDocumented(t *testing.T) {
	type metric struct {
		help   string
		labels []string
	}
	all := map[string]metric{}
	for _, d := range registered(t) {
		m := description.FindStringSubmatch(d)
		if m == nil {
			t.Fatalf("couldn't read %s", d)
		}
		if !strings.HasPrefix(m[1], "larder_") {
			continue // of Go's runtime and the process
		}
		labels := strings.FieldsFunc(m[4], func(r rune) bool { return r == ',' || r == ' ' })
		for _, pair := range strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' || r == ' ' }) {
			name, _, _ := strings.Cut(pair, "=")
			labels = append(labels, name)
		}
		slices.Sort(labels)
		help, err := strconv.Unquote(`"` + m[2] + `"`) // a description quotes it
		if err != nil {
			t.Fatal(err)
		}
		all[m[1]] = metric{help, labels}
	}
	var names []string
	for name := range all {
		names = append(names, name)
		if !regexp.MustCompile(`^[a-z0-9_]+$`).MatchString(name) || regexp.MustCompile(`_(ms|seconds_total_seconds|mb|kb|percent)$`).MatchString(name) {
			t.Errorf("%s: names are in small letters and base units", name)
		}
		if !strings.HasSuffix(all[name].help, ".") {
			t.Errorf("%s: its help is no sentence: %q", name, all[name].help)
		}
		for _, label := range all[name].labels {
			if slices.Contains([]string{"path", "package", "version", "client", "address", "file"}, label) {
				t.Errorf("%s: the label %s may have any number of values", name, label)
			}
		}
	}
	slices.Sort(names)
	var table strings.Builder
	table.WriteString("| metric | labels | meaning |\n| --- | --- | --- |\n")
	for _, name := range names {
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", name, strings.Join(all[name].labels, ", "), strings.ReplaceAll(all[name].help, "|", "\\|"))
	}
	const page = "../../docs/metrics.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	part := regexp.MustCompile(`(?s)(<!-- metrics: [^\n]*-->\n).*(<!-- end of metrics -->)`)
	if !part.Match(text) {
		t.Fatal("docs/metrics.md has lost the comments around its table")
	}
	want := part.ReplaceAllString(string(text), "${1}\n"+strings.ReplaceAll(table.String(), "$", "$$")+"\n${2}")
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(text) != want {
		t.Error("docs/metrics.md does not list the metrics as they are; run go test ./internal/app -run TestMetricsAreDocumented -update")
	}
	// What dashboard and alerts ask for is there.
	known := func(name string) bool {
		_, ok := all[name]
		return ok || slices.Contains(elsewhere, name)
	}
	var board dashboard
	if data, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json")); err != nil {
		t.Fatal(err)
	} else if err := json.Unmarshal(data, &board); err != nil {
		t.Fatal(err)
	}
	metricName := regexp.MustCompile(`\blarder_[a-z_]+[a-z]\b`)
	for _, p := range board.Panels {
		if p.Type != "row" && (p.Title == "" || p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("the dashboard has a panel that says too little: %+v", p)
		}
		for _, target := range p.Targets {
			labels := []string{"instance", "job"}
			for _, name := range metricName.FindAllString(target.Expr, -1) {
				labels = append(labels, all[strings.TrimSuffix(name, "_bucket")].labels...)
			}
			for _, m := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(labels, m[1]) {
					t.Errorf("the panel %s calls a line %s, which %s has not", p.Title, m[0], target.Expr)
				}
			}
			if !strings.Contains(target.Expr, `{job="$job",instance=~"$instance"}`) {
				t.Errorf("the panel %s does not keep to what was chosen: %s", p.Title, target.Expr)
			}
		}
	}
	for _, file := range []string{page, "../../docs/monitoring/alerts.yaml", "../../docs/monitoring/dashboard.json", "../../docs/operating.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metricName.FindAllString(string(text), -1) {
			base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			if !known(name) && !known(base) {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
	for _, name := range append(elsewhere, literalNames(t)...) {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/metrics.md does not explain %s", name)
		}
	}
}

// A dashboard is what Grafana makes of docs/monitoring/dashboard.json, as far as it concerns the metrics.
type dashboard struct {
	Panels []struct {
		Type, Title, Description string
		Targets                  []struct{ Expr, LegendFormat string }
	}
}

// literalNames are the metrics that the source names, so that no part is left out whose metrics no test registers.
func literalNames(t *testing.T) (names []string) {
	t.Helper()
	literal := regexp.MustCompile(`"(larder_[a-z_]*[a-z])"`)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, m := range literal.FindAllStringSubmatch(string(source), -1) {
			names = append(names, m[1])
		}
		return err
	})
	if err != nil || len(names) < 40 {
		t.Fatalf("the source names %d metrics: %v", len(names), err)
	}
	return names
}

// TestAlertsAreDocumented holds the page against the rules, and has each alert be tested both ways.
func TestAlertsAreDocumented(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page, tests := read("../../docs/metrics.md"), read(filepath.Join(monitoring, "alerts_test.yaml"))
	rules := regexp.MustCompile(`(?s)- alert: (\w+)\n.*?for: (\w+)\n.*?severity: (\w+)\n`).FindAllStringSubmatch(read(filepath.Join(monitoring, "alerts.yaml")), -1)
	for _, rule := range rules {
		after := ", for " + rule[2]
		if rule[2] == "0m" {
			after = ""
		}
		if !regexp.MustCompile("(?m)^\\| `" + rule[1] + "` \\| [^|]*" + after + " \\| " + rule[3] + " \\|$").MatchString(page) {
			t.Errorf("docs/metrics.md does not say that %s fires after %s, as a %s", rule[1], rule[2], rule[3])
		}
		for _, way := range []string{"fires", "rests"} {
			if !strings.Contains(tests, "- name: "+rule[1]+" "+way+"\n") {
				t.Errorf("no test has it that %s %s", rule[1], way)
			}
		}
	}
	if rows := strings.Count(page, "| `Larder"); rows != len(rules) || rows == 0 {
		t.Errorf("docs/metrics.md has %d alerts, and there are %d", rows, len(rules))
	}
}

// writeDemoCatalogue writes a catalogue below dir with one package, for which nothing is fetched, and returns its folder.
func writeDemoCatalogue(t *testing.T, dir string) string {
	t.Helper()
	catalogue := filepath.Join(dir, "catalogue")
	folder := filepath.Join(catalogue, "packages", "d")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	demo := `{"name": "demo", "description": "A demo.", "keywords": ["demo"], "filename": "demo.js", "license": "MIT", "repository": {"type": "git", "url": "https://github.com/example/demo.git"}}`
	if err := os.WriteFile(filepath.Join(folder, "demo.json"), []byte(demo), 0o644); err != nil {
		t.Fatal(err)
	}
	return catalogue
}

// registered are the descriptions of the metrics of a process that serves and fills, with everything that needs no network.
func registered(t *testing.T) (all []string) {
	t.Helper()
	dir := t.TempDir()
	catalogue := writeDemoCatalogue(t, dir)
	s := settings.New()
	for name, value := range map[string]string{
		"data": filepath.Join(dir, "data"), "listen": "127.0.0.1:0", "private-listen": "127.0.0.1:0", "catalogue": catalogue,
		"acme-domain": "cdn.larder.example", "acme-directory": "https://127.0.0.1:1/", "purge-hook": "http://127.0.0.1:1/",
		"asset-base": "https://cdn.larder.example", "fallback": "cdnjs:http://127.0.0.1:1",
	} {
		if err := s.Flags.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Load(nil); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var log strings.Builder
	p := Server{
		Settings: s, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError})), Serve: true, Fill: true,
		Events: func(sources.Event) {}, Filled: func(sources.Summary) {}, Stopping: func() {},
		Serving: func(string, func() (string, error)) {},
	}
	v, ctx, err := newSupervisor(ctx, s, true, p.Logger, func() error { return p.checkSettings(s) })
	if err != nil {
		t.Fatal(err)
	}
	defer v.close(nil)
	r := p.newRun(ctx, v, false)
	_, err = r.runRole(lookingRole{standaloneRole{p}, func() { all = described(r.metrics) }})
	if err != nil && !errors.Is(err, context.Canceled) { // by which parts say that they ended
		t.Fatalf("%v\n%s", err, &log)
	}
	// Those of a mirror and of a node of a cluster, which that process is not.
	other := prometheus.NewRegistry()
	replication.RegisterMetrics(other, nil, time.Time{})
	cluster.RegisterMetrics(other, nil)
	return append(all, described(other)...)
}

// A lookingRole does something when another role has started, and ends.
type lookingRole struct {
	role
	look func()
}

func (o lookingRole) start(ctx context.Context, r *roleRun) error {
	if err := o.role.start(ctx, r); err != nil {
		return err
	}
	r.parts.Add(parts.Part{Name: "look", Run: func(context.Context) error {
		o.look()
		return parts.ErrDone
	}})
	return nil
}

func described(r *prometheus.Registry) (all []string) {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		r.Describe(descriptions)
		close(descriptions)
	}()
	for d := range descriptions {
		all = append(all, d.String())
	}
	return all
}
