package ingest

import (
	"context"
	"sync"
)

// Claims are locks by id, so that no two goroutines work on the same version or package.
type Claims struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// TryAcquire locks an id and returns nil or, if another goroutine has it, a channel that is closed when that one releases it.
func (c *Claims) TryAcquire(id string) (wait <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done, ok := c.held[id]; ok {
		return done
	}
	if c.held == nil {
		c.held = make(map[string]chan struct{})
	}
	c.held[id] = make(chan struct{})
	return nil
}

// Acquire locks an id, and waits while another goroutine has it, until ctx ends.
func (c *Claims) Acquire(ctx context.Context, id string) error {
	for {
		wait := c.TryAcquire(id)
		if wait == nil {
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Release unlocks an id that the caller has locked, and wakes the goroutines that wait for it.
func (c *Claims) Release(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.held[id])
	delete(c.held, id)
}
