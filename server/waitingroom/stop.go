package waitingroom

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A process that stops in order leaves what its data centres know to the next one. A full
// room is then not counted twice for a session duration: once by what the global object
// knows of the last life, and once by the users who move to the next.

// errStopped says that a data centre object decides nothing any more in this process.
var errStopped = errors.New("the waiting room has stopped")

const (
	savedPrefix = "saved/"
	savedPart   = 100 << 10 // bytes of a value
)

// stop ends all decisions of a data centre object, and keeps what it knows.
func (c *centre) stop(ctx context.Context, s *durable.State) error {
	if c.stopped {
		return nil
	}
	c.stopped = true
	c.exchange(c.room.now())
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

// resume returns the data centre that stopped in the life before, nil where none did. The
// saved state is deleted for good before it is used, so it resumes once.
func resume(ctx context.Context, s *durable.State, name string, m *config.Moment, life int64, now time.Time) (*queue.DataCentre, error) {
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
	machine, err := queue.RestoreDataCentre(data, name, m.Settings, rand.Uint64(), now)
	if err != nil || machine.Incarnation() != life {
		return nil, nil //nolint:nilerr // then a new life begins, which is always safe
	}
	return machine, nil
}

// Forget makes the state of all rooms in a store one that is lost: the store is sound, but older
// than what its rooms have promised since. Revocations stay.
func Forget(store *kvstore.Store) (err error) {
	runtime := durable.New(store, durable.Options{Quiet: true})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer func() { err = errors.Join(err, runtime.Close(ctx)) }()
	rooms, err := durable.Open(runtime, durable.Class[struct{}, struct{}]{
		Name: centreClass, New: func(context.Context, *durable.State) (durable.Handler[struct{}, struct{}], error) {
			return forgetful{}, nil
		},
	})
	if err != nil {
		return err
	}
	const atOnce = 1000
	for after := ""; ; {
		names, err := rooms.Names(after, atOnce)
		if err != nil {
			return err
		}
		for _, name := range names {
			if _, err := rooms.Object(name).Send(ctx, struct{}{}); err != nil {
				return err
			}
			after = name
		}
		if len(names) < atOnce {
			return nil
		}
	}
}

// forgetful is a centre of which only revocations are to stay.
type forgetful struct{ durable.NoAlarm }

// Handle implements durable.Handler.
func (forgetful) Handle(ctx context.Context, s *durable.State, _ struct{}) (none struct{}, err error) {
	saved, err := s.List(ctx, durable.ListOptions{Prefix: savedPrefix}, durable.NoCache)
	if err != nil {
		return none, err
	}
	for _, entry := range append(saved, durable.Entry{Key: globalKey}) {
		if err := s.Delete(ctx, entry.Key); err != nil {
			return none, err
		}
	}
	return none, s.Sync(ctx)
}
