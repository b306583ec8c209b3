package api

import (
	"sync"

	"github.com/larder-cdn/larder/internal/answers"
)

// largeAnswer is the size, in bytes, from which responses count: the connections hold little memory for smaller ones.
const largeAnswer = 64 << 10

// A sendBudget bounds the memory of large responses that are being sent: a few clients that search for what thousands
// of libraries have, and receive it slowly, would hold gigabytes.
type sendBudget struct {
	most int // bytes of all responses being sent

	mu     sync.Mutex
	bytes  int
	sender map[*answers.Body]int // how many responses send a body, which counts once
}

// acquire reserves memory for sending b, and reports whether there was enough; if so, the caller calls release afterwards.
// It does not wait. Bodies under 64 KiB need none, and one that several responses send counts once. A body larger than the
// budget fits if no other is being sent.
func (r *sendBudget) acquire(b *answers.Body) bool {
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

// release ends one use of b, for which acquire returned true. After the last one it frees the memory that acquire reserved
// for b.
func (r *sendBudget) release(b *answers.Body) {
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
