package lane_test

import (
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/lane"
)

// The deadline of each phase, of a server that goes on and of one that ends.
func TestDeadlines(t *testing.T) {
	d := lane.Deadlines{Handshake: 7 * time.Second, Unanswered: 10 * time.Second, Idle: 2 * time.Minute, UnansweredAtEnd: 6 * time.Second, IdleAtEnd: time.Second}
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const never, goesOn = -1, 1 << 20 // as seconds after since
	for _, test := range []struct {
		phase  lane.Phase
		ending time.Duration // of the server, in seconds after since
		want   time.Duration
	}{
		{lane.Handshake, goesOn, 7},
		{lane.Handshake, 0, 7},
		{lane.Handshake, 6, 7},
		{lane.Unanswered, goesOn, 10},
		{lane.Unanswered, -7, 6}, // it has begun to ask, or was accepted, since
		{lane.Unanswered, 0, 6},
		{lane.Unanswered, 2, 8},
		{lane.Unanswered, 9, 10},
		{lane.Unanswered, 11, 10}, // it should have been closed before
		{lane.Answering, goesOn, never},
		{lane.Answering, 5, never},
		{lane.Idle, goesOn, 120},
		{lane.Idle, -60, 1}, // the last request was answered a minute after the server began to end
		{lane.Idle, 0, 1},
		{lane.Idle, 60, 61},
		{lane.Idle, 119, 120}, // no later than if the server went on
		{lane.Idle, 121, 120},
	} {
		var ending time.Time
		if test.ending != goesOn {
			ending = since.Add(test.ending * time.Second)
		}
		var want time.Time
		if test.want != never {
			want = since.Add(test.want * time.Second)
		}
		if got := d.At(test.phase, since, ending); !got.Equal(want) {
			t.Errorf("%v of a server that ends %d s later: %v, want %v", test.phase, test.ending, got, want)
		}
	}
}
