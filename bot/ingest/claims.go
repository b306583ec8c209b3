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

// take claims id and returns nil, or what is closed once its holder is done.
func (c *Claims) take(id string) (wait <-chan struct{}) {
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

// Hold is take for a goroutine that waits for its turn.
func (c *Claims) Hold(ctx context.Context, id string) error {
	for {
		wait := c.take(id)
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

func (c *Claims) Drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.held[id])
	delete(c.held, id)
}
