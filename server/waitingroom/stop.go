package waitingroom

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A room keeps a journal of who is in, so that the next process continues where this one was,
// whether it stopped in order or was killed.

// errStopped says that a data centre object decides nothing, or nothing any more, in this process.
var errStopped = errors.New("the waiting room has stopped")

const (
	journalPrefix = "journal/" // and a ticket's id: a row
	journalHead   = "journal"
	// rowsAtOnce is how many rows of tickets are read at a time.
	rowsAtOnce = 1000
)

// stop makes the data centre refuse all further decisions in this process, and puts into the head of its journal how many
// visitors wait. The caller writes the journal ([centre.updateJournal]).
func (c *centre) stop() {
	if !c.stopped {
		c.stopped = true
		c.syncWorker(c.room.now())
		c.machine.Report(c.room.now()) // so that the journal has who waits
	}
}

// updateJournal writes the data centre's changes since the last call to its journal, from which the next process continues. They
// are durable before a response leaves, except deletions of rows. The caller is in the turn of the durable object.
func (c *centre) updateJournal(ctx context.Context, s *durable.State) error {
	rows, head := c.machine.TakeChanges()
	for _, row := range rows {
		key := journalPrefix + row.ID.String()
		err := error(nil)
		if row.Row == nil {
			err = s.Delete(ctx, key, durable.NoCache, durable.AllowUnconfirmed)
		} else {
			err = s.Put(ctx, key, row.Row, durable.NoCache)
		}
		if err != nil {
			return err
		}
	}
	if head == nil {
		return nil
	}
	return s.Put(ctx, journalHead, head, durable.NoCache)
}

// resumeCentre returns the data centre of the previous process from its journal; nil without an error if the journal is missing,
// damaged, or not that of the incarnation life. An error means that the journal could not be read, or has a row with a wrong key.
func resumeCentre(ctx context.Context, s *durable.State, name string, m *config.EffectiveSettings, life int64, now time.Time) (*queue.DataCentre, error) {
	head, found, err := s.Get(ctx, journalHead, durable.NoCache)
	if err != nil || !found {
		return nil, err
	}
	var failed error
	machine, err := queue.ContinueDataCentre(name, head, func(yield func(queue.TicketID, []byte) bool) {
		failed = eachRow(ctx, s, journalPrefix, func(id queue.TicketID, ok bool, row durable.Entry) (bool, error) {
			if !ok {
				return false, fmt.Errorf("a row of the journal is called %q", row.Key)
			}
			return yield(id, row.Value), nil
		})
	}, m.Settings, rand.Uint64(), now)
	if failed != nil {
		return nil, failed
	}
	if err != nil || machine.Incarnation() != life {
		return nil, nil //nolint:nilerr // then a new life begins, which is always safe
	}
	return machine, nil
}

// eachRow calls f with the rows whose keys are a prefix and a ticket's id, until f returns false or an error. f may delete its row.
// ok is false if a key has something else behind the prefix.
func eachRow(ctx context.Context, s *durable.State, prefix string, f func(id queue.TicketID, ok bool, row durable.Entry) (bool, error)) error {
	o := durable.ListOptions{Prefix: prefix, Limit: rowsAtOnce}
	for {
		rows, err := s.List(ctx, o, durable.NoCache)
		if err != nil {
			return err
		}
		for _, row := range rows {
			var id queue.TicketID
			n, err := hex.Decode(id[:], []byte(strings.TrimPrefix(row.Key, prefix)))
			if more, err := f(id, err == nil && n == len(id), row); err != nil || !more {
				return err
			}
		}
		if len(rows) < o.Limit {
			return nil
		}
		o.StartAfter = rows[len(rows)-1].Key
	}
}

// deleteJournal deletes the journal of a room's data centre, its rows and its head.
func deleteJournal(ctx context.Context, s *durable.State) error {
	err := eachRow(ctx, s, journalPrefix, func(_ queue.TicketID, _ bool, row durable.Entry) (bool, error) {
		return true, s.Delete(ctx, row.Key, durable.NoCache)
	})
	if err != nil {
		return err
	}
	return s.Delete(ctx, journalHead, durable.NoCache)
}

// Forget deletes the journals and grants of all rooms in a store, and so their sessions, because the store is older than what the
// rooms have promised to users since. Revocations of sessions stay. It waits until that is on the disk, up to a minute in all. No
// rooms may be open on the store. After an error the state of some rooms is deleted.
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

// forgetful handles the objects of centreClass for [Forget].
type forgetful struct{ durable.NoAlarm }

// Handle implements durable.Handler. It deletes the room's journal and the state of its global object, and waits until that is on
// the disk.
func (forgetful) Handle(ctx context.Context, s *durable.State, _ struct{}) (none struct{}, err error) {
	if err := errors.Join(deleteJournal(ctx, s), s.Delete(ctx, globalKey)); err != nil {
		return none, err
	}
	return none, s.Sync(ctx)
}
