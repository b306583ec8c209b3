package ingest

import (
	"context"
	"sync"
)

// Claims sees that no two goroutines work on the same thing, such as a version.
type Claims struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// Take claims an id and returns nil or, if another goroutine has it, a channel that is closed when that one drops it.
func (c *Claims) Take(id string) (wait <-chan struct{}) {
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

// Hold claims an id, and waits while another goroutine has it, until ctx ends.
func (c *Claims) Hold(ctx context.Context, id string) error {
	for {
		wait := c.Take(id)
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

// Drop ends the claim of an id.
func (c *Claims) Drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.held[id])
	delete(c.held, id)
}
