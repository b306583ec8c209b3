package waitingroom

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/ticket"
)

// revocations are the ids of tickets whose sessions were ended before their time. Reading
// takes no lock and allocates nothing; writing copies one part in 64.
type revocations struct {
	parts [64]atomic.Pointer[map[ticket.ID]time.Time] // until when each could still pass
	mu    sync.Mutex                                  // held by who writes
}

func (r *revocations) part(id ticket.ID) *atomic.Pointer[map[ticket.ID]time.Time] {
	return &r.parts[id[0]%64] // ids are random
}

func (r *revocations) has(id ticket.ID) bool {
	m := r.part(id).Load()
	if m == nil {
		return false
	}
	_, ok := (*m)[id]
	return ok
}

// add keeps an id until then, and forgets those of its part that are over.
func (r *revocations) add(id ticket.ID, until, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	part := r.part(id)
	fresh := map[ticket.ID]time.Time{id: until}
	if old := part.Load(); old != nil {
		for other, end := range *old {
			if end.After(now) && other != id {
				fresh[other] = end
			}
		}
	}
	part.Store(&fresh)
}
