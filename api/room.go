package api

import (
	"sync"

	"github.com/larder-cdn/larder/internal/answers"
)

// largeAnswer is from how many bytes on an answer is counted: of smaller ones the connections that there may be hold
// little.
const largeAnswer = 64 << 10

// A room bounds the memory of large answers that are being sent: a few clients that search for what thousands of
// libraries have, and are slow to take it, would hold gigabytes.
type room struct {
	most int // bytes of all that is sent at once

	mu     sync.Mutex
	bytes  int
	sender map[*answers.Body]int // how many send a body, which counts once
}

// enter reports whether there is room for sending b. Then leave must follow. Alone, the largest body has room.
func (r *room) enter(b *answers.Body) bool {
	if b.Len() < largeAnswer {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sender[b] == 0 {
		if r.bytes > 0 && r.bytes+b.Len() > r.most {
			return false
		}
		r.bytes += b.Len()
	}
	if r.sender == nil {
		r.sender = map[*answers.Body]int{}
	}
	r.sender[b]++
	return true
}

func (r *room) leave(b *answers.Body) {
	if b.Len() < largeAnswer {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sender[b]--; r.sender[b] == 0 {
		delete(r.sender, b)
		r.bytes -= b.Len()
	}
}
