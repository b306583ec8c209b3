package waitingroom

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A process that stops in order leaves what its data centres know for the next one, so
// that a full room is not counted twice for a session duration: once by what the global
// object knows of the last life, and once by the users who move to the next.

// errStopped says that a data centre object decides nothing any more in this process.
var errStopped = errors.New("the waiting room has stopped")

const (
	savedPrefix = "saved/"
	savedPart   = 100 << 10 // bytes; a value may have a little more
)

// stop has a data centre object decide nothing any more, and keep what it knows.
func (c *centre) stop(ctx context.Context, s *durable.State) error {
	if c.stopped {
		return nil
	}
	c.stopped = true
	if c.moment.settings.Allocator != queue.Counter {
		c.exchange(c.room.now())
	}
	data, err := c.machine.Snapshot()
	if errors.Is(err, queue.ErrTooMany) {
		return nil // the next life begins with nothing
	}
	if err != nil {
		return err
	}
	for i := 0; len(data) > 0; i++ {
		part := data[:min(savedPart, len(data))]
		data = data[len(part):]
		if err := s.Put(ctx, fmt.Sprintf("%s%06d", savedPrefix, i), part, durable.NoCache); err != nil {
			return err
		}
	}
	return nil
}

// resume returns the data centre that stopped in the life before, nil where none did. What
// was kept of it is gone for good before it is returned, so it resumes once.
func resume(ctx context.Context, s *durable.State, name string, m *moment, life int64, now time.Time) (*queue.DataCentre, error) {
	parts, err := s.List(ctx, durable.ListOptions{Prefix: savedPrefix}, durable.NoCache)
	if err != nil || len(parts) == 0 {
		return nil, err
	}
	var data []byte
	for _, p := range parts {
		data = append(data, p.Value...)
		if err := s.Delete(ctx, p.Key); err != nil {
			return nil, err
		}
	}
	if err := s.Sync(ctx); err != nil {
		return nil, err
	}
	machine, err := queue.RestoreDataCentre(data, name, m.settings, rand.Uint64(), now)
	if err != nil || machine.Incarnation() != life {
		return nil, nil //nolint:nilerr // then a new life begins, which is always safe
	}
	return machine, nil
}
