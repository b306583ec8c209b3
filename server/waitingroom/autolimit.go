package waitingroom

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// With `total_active_users: auto` the limit follows the origin (additive increase, multiplicative decrease, as in congestion control,
// RFC 5681): it rises slowly while the room is full and the origin fast, and falls within seconds when the origin is slow or fails. A
// lower limit takes effect only as sessions end. Until they have ended, the limit stays near the number of users: those who leave are not
// replaced. In a cluster the nodes report the responses that they have measured to the leader, which computes the limit and returns it.

const (
	// limitInterval is how long responses are collected before the limit changes, limitMinimum how many it takes.
	limitInterval = 5 * time.Second
	limitMinimum  = 20
	// The limit rises while the 99th percentile is below riseBelow of the objective, by limitRise of itself, and falls by limitFall
	// when it is above fallAbove of it twice in a row, or now and in limitWindow, or more than limitErrors of the responses are errors, of
	// errorClients clients.
	riseBelow, fallAbove = 0.75, 0.9
	limitRise, limitFall = 0.05, 0.05
	limitErrors          = 0.05
	// limitLeast is the least share of the active users to which the limit falls before some of them have left. An origin that is only a
	// little too slow has a larger share, by how much its 99th percentile exceeds fallAbove of the objective.
	limitLeast = 0.7
	// limitFull is how much of the limit must be in use for it to rise: else nothing is known about more users.
	limitFull = 0.98
	// A rise considers the 99th percentile of the last limitWindow. Sessions end with the minute, and called visitors take some
	// seconds to come: the origin is fast then, although it has all that it can bear for the rest of the minute. For the same reason the
	// limit rises only once in limitWindow when that percentile is above limitNear of the objective.
	limitWindow = time.Minute
	limitNear   = 0.6
)

// autoLimit is a limit that follows the origin.
type autoLimit struct {
	current atomic.Int64 // 0 before the first change

	mu       sync.Mutex
	measured OriginResponses // by this process since the last call of takeMeasured
	all      OriginResponses // of all nodes since the last change
	changed  time.Time       // when it was considered last
	raised   time.Time       // when it rose last
	slow     bool            // the origin was too slow when the limit was considered last
	recent   []considered    // in the last limitWindow
}

// considered are the responses that were considered at a time.
type considered struct {
	at        time.Time
	responses OriginResponses
}

// countResponse counts a response of the origin with a status, from 500 on an error: took is how long the origin took to start
// it, remote the client's address with its port.
func (l *autoLimit) countResponse(took time.Duration, status int, remote string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.measured.Count(took, status, remote)
}

// takeMeasured returns the responses that this process has counted since the last call, and starts to count anew.
func (l *autoLimit) takeMeasured() *OriginResponses {
	l.mu.Lock()
	defer l.mu.Unlock()
	measured := l.measured
	l.measured = OriginResponses{}
	return &measured
}

// restoreMeasured adds responses to the counts again that takeMeasured has returned and that could not be reported.
func (l *autoLimit) restoreMeasured(measured *OriginResponses) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.measured.Add(measured)
}

// limitOf returns the current limit of active users of a room, within the room's bounds: its minimum before the first change.
func (l *autoLimit) limitOf(room *config.Room) int {
	return min(room.TotalActiveUsers, max(room.AutomaticMin, int(l.current.Load())))
}

// adjust adds measured, the newest responses of the site, to those since the last change, and changes the limit of the room by
// them if that is due: after limitInterval and limitMinimum responses. active is how many users are in the room. It reports
// whether the limit has changed. The caller puts the limit into force.
func (l *autoLimit) adjust(now time.Time, room *config.Room, active int, measured *OriginResponses) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Add(measured)
	if now.Sub(l.changed) < limitInterval || l.all.Total < limitMinimum {
		return false
	}
	l.recent = append(slices.DeleteFunc(l.recent, func(c considered) bool { return now.Sub(c.at) > limitWindow }), considered{now, l.all})
	var lately OriginResponses
	for i := range l.recent {
		lately.Add(&l.recent[i].responses)
	}
	before, objective := l.limitOf(room), float64(room.LatencyObjective)
	p99, p99Lately := float64(l.all.Percentile(0.99)), float64(lately.Percentile(0.99))
	failing := float64(l.all.Errors) > limitErrors*float64(l.all.Total) && len(l.all.Failed) >= min(errorClients, before)
	slow := p99 > fallAbove*objective
	falls := slow && (l.slow || p99Lately > fallAbove*objective)
	full := float64(active) >= limitFull*float64(before)
	rises := full && max(p99, p99Lately) < riseBelow*objective && (p99Lately < limitNear*objective || now.Sub(l.raised) >= limitWindow)
	l.all, l.changed, l.slow = OriginResponses{}, now, slow
	limit := before
	switch {
	case failing || falls:
		least := limitLeast
		if !failing {
			least = min(1-limitFall, max(limitLeast, fallAbove*objective/p99))
		}
		fallen := max((1-limitFall)*float64(min(before, active)), least*float64(active))
		limit = min(before, int(fallen))
	case rises:
		limit, l.raised = before+max(1, int(limitRise*float64(before))), now
	}
	limit = min(room.TotalActiveUsers, max(room.AutomaticMin, limit))
	l.current.Store(int64(limit))
	return limit != before
}
