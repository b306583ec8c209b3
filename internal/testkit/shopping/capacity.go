package shopping

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// Objective is the 99th percentile of the response times that a [BoundedSite] is to keep.
const Objective = 500 * time.Millisecond

// A BoundedSite is behind a room with an automatic limit. The more sessions there are, the slower it responds: its 99th percentile is 100 ms
// for few, and reaches the Objective with as many as it can bear.
type BoundedSite struct {
	mu        sync.Mutex
	bears     int
	last      map[string]time.Time // request of each user
	most      int                  // sessions at once
	responses int
	late      int // of them, those beyond the Objective
}

// Bear sets how many sessions the site can bear from now on.
func (s *BoundedSite) Bear(sessions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bears = sessions
}

// sessions returns how many sessions of a minute there are, which end with the minute after that of the last request. The caller holds the
// lock.
func (s *BoundedSite) sessions() (n int) {
	now := time.Now()
	for user, last := range s.last {
		if now.Before(last.Truncate(time.Minute).Add(2 * time.Minute)) {
			n++
		} else {
			delete(s.last, user)
		}
	}
	s.most = max(s.most, n)
	return n
}

// ServeHTTP implements [http.Handler].
func (s *BoundedSite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if s.last == nil {
		s.last = map[string]time.Time{}
	}
	if user := r.Header.Get("X-User"); user != "" {
		s.last[user] = time.Now()
	}
	load := float64(s.sessions()) / float64(s.bears)
	p99 := 100 + 400*load*load*load*load
	took := time.Duration((0.5 + 0.5*rand.Float64()) * min(p99, 2000) * float64(time.Millisecond))
	s.responses++
	if took > Objective {
		s.late++
	}
	s.mu.Unlock()
	time.Sleep(took)
	w.Header().Set("X-Shop", "open")
}

// Load returns which part of what the site can bear is used now, and starts to count responses anew with reset. late is the part of the
// responses since then that took longer than the Objective, most the largest number of sessions so far.
func (s *BoundedSite) Load(reset bool) (load, late float64, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	load = float64(s.sessions()) / float64(s.bears)
	if s.responses > 0 {
		late = float64(s.late) / float64(s.responses)
	}
	if reset {
		s.responses, s.late = 0, 0
	}
	return load, late, s.most
}
