package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/internal/settings"
)

var update = flag.Bool("update", false, "rewrite the table in docs/metrics.md")

// elsewhere are metrics of parts that the process of the test has not: they need GitHub, or a Larder to mirror.
var elsewhere = []string{
	"larder_follow_behind_entries", "larder_follow_behind_seconds", "larder_follow_entries", "larder_follow_fetched_bytes",
	"larder_follow_fetched_files", "larder_follow_refused",
	"larder_log_push_failures_total", "larder_log_push_failing", "larder_log_pushed_entries",
	"larder_review_failures_total", "larder_reviews_total", "larder_reviews_waiting",
}

var described = regexp.MustCompile(`fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)", (?:unit: "[^"]*", )?constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)

// TestMetricsAreDocumented holds docs/metrics.md against what a process with everything registers: names, labels, and the
// rules of Prometheus for both.
func TestMetricsAreDocumented(t *testing.T) {
	type metric struct {
		help   string
		labels []string
	}
	all := map[string]metric{}
	for _, d := range registered(t) {
		m := described.FindStringSubmatch(d)
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
		all[m[1]] = metric{m[2], labels}
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
	for _, file := range []string{page, "../../docs/monitoring/alerts.yaml", "../../docs/monitoring/dashboard.json", "../../docs/operating.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\blarder_[a-z_]+[a-z]\b`).FindAllString(string(text), -1) {
			base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			if !known(name) && !known(base) {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
	for _, name := range elsewhere {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/metrics.md does not explain %s", name)
		}
	}
}

// registered are the descriptions of the metrics of a process that serves and fills, with everything that needs no network.
func registered(t *testing.T) (all []string) {
	t.Helper()
	dir := t.TempDir()
	// One package, that nothing is fetched for.
	catalogue := filepath.Join(dir, "catalogue", "packages", "d")
	if err := os.MkdirAll(catalogue, 0o755); err != nil {
		t.Fatal(err)
	}
	demo := `{"name": "demo", "description": "A demo.", "keywords": ["demo"], "filename": "demo.js", "license": "MIT", "repository": {"type": "git", "url": "https://github.com/example/demo.git"}}`
	if err := os.WriteFile(filepath.Join(catalogue, "demo.json"), []byte(demo), 0o644); err != nil {
		t.Fatal(err)
	}
	s := settings.New()
	for name, value := range map[string]string{
		"data": filepath.Join(dir, "data"), "listen": "127.0.0.1:0", "private-listen": "127.0.0.1:0", "catalogue": filepath.Dir(filepath.Dir(catalogue)),
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
		Events: func(bot.Event) {}, Filled: func(bot.Summary) {}, Stopping: func() {},
		Serving: func(string, func() (string, bool)) {},
	}
	l, ctx, err := openLasting(ctx, s, true, p.Logger, p.check)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close(nil)
	w := &working{running: p.running(l, false)}
	parts, err := w.parts()
	if err != nil {
		t.Fatal(err)
	}
	look := part{name: "look at the metrics", run: func(context.Context) error {
		descriptions := make(chan *prometheus.Desc)
		go func() {
			w.metrics.Describe(descriptions)
			close(descriptions)
		}()
		for d := range descriptions {
			all = append(all, d.String())
		}
		return errDone
	}}
	if err := run(ctx, p.Logger, append(parts, look)); err != nil && !errors.Is(err, context.Canceled) { // by which parts say that they ended
		t.Fatalf("%v\n%s", err, &log)
	}
	return all
}
