package simulate

import (
	"testing"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// TestWaves finds what the article shows of its experiment, and explains: all join an empty room at once, so a first wave goes
// in at once; no user follows while it browses; then comes a second wave, and as the users' ends spread, the waves
// become flat, so the picture grows darker.
func TestWaves(t *testing.T) {
	t.Parallel()
	o := experiment(queue.Random, Together)
	o.Settings.TotalActiveUsers, o.Settings.NewUsersPerMinute = 1000, 1000
	res := simulated(t, o)
	rows := make([]float64, waitBins)
	for _, column := range res.waitsChart().Heat.Columns {
		for i, n := range column {
			rows[i] += n
		}
	}
	t.Logf("users by wait, in steps of a thirtieth of the longest: %v", rows)
	first, still, second, after := rows[0], rows[1], rows[2], rows[3]
	if first != 1000 || still > 20 || second < 800 || after > 200 {
		t.Errorf("waves of %v, %v, %v and %v users", first, still, second, after)
	}
	for i, n := range rows[4:] {
		if n > 0.6*first {
			t.Errorf("the row %d has %v users: the waves stay", i+4, n)
		}
	}
}
