package schedule

import (
	"sync"
	"time"
)

// shares keep one receiver that is slow or dead, and has much to be sent to it, from
// taking the turns of all others. Whoever finds the turns of its receiver taken is told
// when to come back: one after the other, as fast as the receiver takes them.
type shares struct {
	mu sync.Mutex
	of map[string]*share
}

type share struct {
	running int
	failing bool          // the last attempt failed
	pace    time.Duration // about how long an attempt takes
	next    time.Time     // when the last of those comes back who were sent away
}

const (
	// turns is how many requests are sent at once, and atOnce how many of them to one
	// receiver; to one whose last answer was a failure it is a single one.
	turns  = 256
	atOnce = 4
	// longestAway bounds how long a request stays away that finds no turn, as its
	// receiver may recover meanwhile.
	longestAway = 10 * time.Minute
	// firstPace and leastPace are what is assumed of a receiver that is not known, and
	// of one that answers at once.
	firstPace, leastPace = 100 * time.Millisecond, time.Millisecond
	// keptShares bounds the receivers that are remembered although nothing is being
	// sent to them.
	keptShares = 1000
)

// take takes a turn, which leave gives back, or says when to try again.
func (s *shares) take(receiver string, now time.Time) (ok bool, again time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.of[receiver]
	if r == nil {
		if s.of == nil {
			s.of = make(map[string]*share)
		}
		r = &share{pace: firstPace}
		s.of[receiver] = r
	}
	width := atOnce
	if r.failing {
		width = 1
	}
	if r.running < width {
		r.running++
		return true, time.Time{}
	}
	if r.next.Before(now) {
		r.next = now
	}
	r.next = r.next.Add(max(leastPace, r.pace/time.Duration(width)))
	if latest := now.Add(longestAway); r.next.After(latest) {
		r.next = latest
	}
	return false, r.next
}

// leave gives a turn back, after an attempt that took so long.
func (s *shares) leave(receiver string, took time.Duration, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.of[receiver]
	r.running--
	r.failing = failed
	r.pace = (3*r.pace + took) / 4
	if len(s.of) <= keptShares {
		return
	}
	for name, r := range s.of {
		if r.running == 0 {
			delete(s.of, name)
		}
	}
}
