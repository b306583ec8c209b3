package replication

import (
	"log/slog"
	"testing"
)

// A source that is a moment behind is no error; one that stays away is, and a fork is at once.
func TestFailureLevel(t *testing.T) {
	for _, test := range []struct {
		failures int
		evidence string
		want     slog.Level
	}{{1, "", slog.LevelWarn}, {6, "", slog.LevelWarn}, {7, "", slog.LevelError}, {100, "", slog.LevelError}, {1, "fork-1.json", slog.LevelError}} {
		f := &Follower{state: State{Evidence: test.evidence}}
		if got := f.failureLevel(test.failures); got != test.want {
			t.Errorf("%d failures with evidence %q: %v, want %v", test.failures, test.evidence, got, test.want)
		}
	}
}
