package waitingroom

import (
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// With `total_active_users: auto` the limit follows the origin (additive increase, multiplicative decrease, as in congestion control,
// RFC 5681): it rises slowly while the room is full and the origin fast, and falls at once when the origin is slow or fails. A lower
// limit takes effect only as sessions end, so it falls again no earlier than that.

const (
	// limitInterval is how long responses are collected before the limit changes, limitMinimum how many it takes.
	limitInterval = 5 * time.Second
	limitMinimum  = 20
	// limitSamples bounds the response times of an interval; of more, a random sample is used.
	limitSamples = 2048
	// The limit rises while the 99th percentile is below riseBelow of the objective, by limitRise of itself, and falls by limitFall
	// when it is above fallAbove of it, or more than limitErrors of the responses are errors, which errorClients clients got.
	riseBelow, fallAbove = 0.75, 0.9
	limitRise, limitFall = 0.05, 0.1
	limitErrors          = 0.05
	// limitFull is how much of the limit must be in use for it to rise: else nothing is known about more users.
	limitFull = 0.9
)

// autoLimit is a limit that follows the origin.
type autoLimit struct {
	current atomic.Int64 // 0 before the first change

	mu        sync.Mutex
	times     []time.Duration // of responses since the last change
	responses int
	errors    int
	failed    []netip.Prefix // the first errorClients clients that got an error
	changed   time.Time      // when it was considered last
}

// countResponse records how long the origin took to start a response to the client at a remote address.
func (l *autoLimit) countResponse(took time.Duration, status int, remote string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.responses++
	if status >= http.StatusInternalServerError {
		l.errors++
		l.failed = addClient(l.failed, remote)
	}
	if len(l.times) < limitSamples {
		l.times = append(l.times, took)
	} else if i := rand.IntN(l.responses); i < limitSamples {
		l.times[i] = took
	}
}

// of returns the limit of a room: its minimum before the first change.
func (l *autoLimit) of(room *config.Room) int {
	return min(room.TotalActiveUsers, max(room.AutomaticMin, int(l.current.Load())))
}

// follow changes the limit of a room with so many active users by the responses since the last change, if it is due. It reports
// whether the limit has changed.
func (l *autoLimit) follow(now time.Time, room *config.Room, active int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.changed) < limitInterval || l.responses < limitMinimum {
		return false
	}
	slices.Sort(l.times)
	p99 := float64(l.times[(len(l.times)*99-1)/100])
	objective, failing := float64(room.LatencyObjective), float64(l.errors) > limitErrors*float64(l.responses) && len(l.failed) >= min(errorClients, l.of(room))
	l.times, l.responses, l.errors, l.failed, l.changed = l.times[:0], 0, 0, l.failed[:0], now
	before := l.of(room)
	limit := before
	switch {
	case failing || p99 > fallAbove*objective:
		if active <= before { // else the sessions that are to end have not ended yet
			limit = int(float64(min(before, active)) * (1 - limitFall))
		}
	case p99 < riseBelow*objective && float64(active) >= limitFull*float64(before):
		limit = before + max(1, int(limitRise*float64(before)))
	}
	limit = min(room.TotalActiveUsers, max(room.AutomaticMin, limit))
	l.current.Store(int64(limit))
	return limit != before
}
