//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bench/internal/stage"
)

// TestMain is the load generator where run starts this program again.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == loadArgument {
		main()
		return
	}
	os.Exit(m.Run())
}

// Each kind of work goes on beside the requests, all of which are answered, and the chart is drawn.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the program")
	}
	larder := stage.BuiltLarder(t)
	o := options{larder: larder, rounds: 1, duration: time.Second, rate: 100, chart: filepath.Join(t.TempDir(), "latencies.svg")}
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	drawn, err := os.ReadFile(o.chart)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range works {
		if !strings.Contains(string(drawn), w.name) {
			t.Errorf("the chart does not show %q", w.name)
		}
	}
}

func TestPercentile(t *testing.T) {
	var latencies []time.Duration
	for i := range 1000 {
		latencies = append(latencies, time.Duration(999-i)*time.Millisecond)
	}
	for share, want := range map[float64]time.Duration{0: 0, 0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond, 0.999: 999 * time.Millisecond, 1: 999 * time.Millisecond} {
		if got := percentile(latencies, share); got != want {
			t.Errorf("%v of the requests take less than %v, want %v", share, got, want)
		}
	}
}
