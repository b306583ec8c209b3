package ingest

import (
	"context"
	"sync"
)

// Claims are locks by id, so that no two goroutines work on the same version or package. The zero value has no lock held.
type Claims struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// TryAcquire locks an id, such as that of a version, and returns nil. If a goroutine, also the calling one, has locked the id
// already, TryAcquire locks nothing and returns a channel that is closed when the id is released; then the caller tries again.
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

// Acquire locks an id, such as that of a version. It waits while a goroutine has locked it, so the one that has must not call it
// again. The only error is that of ctx, after which the caller has locked nothing.
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

// Release unlocks an id that the caller has locked, and wakes the goroutines that wait for it. It does not check which goroutine
// has locked it, and panics if none has.
func (c *Claims) Release(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.held[id])
	delete(c.held, id)
}
