package discovery

import (
	"strings"
	"testing"
	"time"
)

// Two readings of the system's clock are compared by its monotonic part, which never goes back.
func TestWallClockIsNotMonotonic(t *testing.T) {
	b := &Scheduler{options: Options{Now: time.Now}}
	if got := b.wallClock().String(); strings.Contains(got, "m=") {
		t.Errorf("%s: two such times do not show that the clock was set back", got)
	}
}
