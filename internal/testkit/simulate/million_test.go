package simulate

import (
	"runtime"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// TestMillion has a million visitors join one room at once; without LARDER_TEST_WHOLE five thousand. All come in, within the
// limits.
func TestMillion(t *testing.T) {
	t.Parallel()
	visitors := 5_000
	if complete() {
		visitors = 1_000_000
	}
	long(t)
	begun := time.Now()
	res := simulated(t, Options{
		Settings: queue.Settings{TotalActiveUsers: visitors / 10, NewUsersPerMinute: visitors / 10, SessionDuration: time.Minute, RefreshInterval: 30 * time.Second},
		Visitors: visitors, Over: 30 * time.Minute, Profile: Together, Delay: 50 * time.Millisecond, Seed: 1,
	})
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("%d visitors, of whom the last came in after %v, at most %d at once of %d: simulated in %v, %d MB of memory at most",
		visitors, quantile(res.Waits(), 1), res.PeakActive, res.Settings.TotalActiveUsers, time.Since(begun).Round(time.Second), m.Sys>>20)
}
