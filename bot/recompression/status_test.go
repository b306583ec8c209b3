package recompression

import (
	"math"
	"testing"
	"time"
)

// The speed is that of the time in which something is squeezed, whatever comes between.
func TestSpeedOfSqueezing(t *testing.T) {
	var s speed
	if s.bytesPerSecond() != 0 {
		t.Error("a speed before anything was measured")
	}
	now := time.Now()
	for range 10 {
		first := s.startEncoding(now)
		second := s.startEncoding(now)
		now = now.Add(2 * time.Second)
		first(now, 1000)
		second(now, 3000)
		now = now.Add(time.Hour)
	}
	if got := s.bytesPerSecond(); math.Abs(got-2000) > 1 {
		t.Errorf("%.1f bytes a second, want 2000", got)
	}
	left := QueueState{Contents: 1200, Bytes: 2_000_000, Speed: 2000, Seconds: 1000}
	if got, want := left.String(), "1,200 file contents of 2.0 MB wait to be squeezed, about 16m40s at the recent 2.0 kB/s."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
