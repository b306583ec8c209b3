package waitingroom

import (
	"context"
	"fmt"
	"time"

	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// A Happening is what others are told about a room.
type Happening struct {
	Kind   string
	Time   time.Time
	Status Status // of the room, then
}

// The kinds of happenings.
const (
	QueueBegan = "room.queue_began"
	QueueEnded = "room.queue_ended" // no visitor has waited for a minute
	Full       = "room.full"        // told again only after a minute in which the room was not
	EventBegan = "room.event_began"
	EventEnded = "room.event_ended"
	Changed    = "room.changed" // its settings, while the process runs
)

// calm is how long a queue, or a full room, must be over before that counts: users come and go
// by the second.
const calm = time.Minute

// told is what others know of a room. It is durable, so that a restart neither repeats nor loses a
// happening.
type told struct {
	Queueing bool   `json:"queueing,omitempty"`
	Full     bool   `json:"full,omitempty"`
	Event    string `json:"event,omitempty"` // that is on

	queued, full time.Time // when that was so last
	looked       bool      // by this process
}

// next returns what has happened by now, and what is known once it is told.
func (t told) next(now time.Time, m *config.Moment, s Status) (after told, kinds []string) {
	tell := func(kind string) { kinds = append(kinds, kind) }
	event := ""
	if m.Phase == config.EventOn {
		event = m.Event.Name
	}
	if t.Event != event && t.Event != "" {
		tell(EventEnded)
	}
	if t.Event != event && event != "" {
		tell(EventBegan)
	}
	t.Event, t.looked = event, true
	if s.Status == Queueing || s.Status == EventPrequeueing {
		if !t.Queueing {
			tell(QueueBegan)
		}
		t.Queueing, t.queued = true, now
	} else if t.Queueing && now.Sub(t.queued) >= calm {
		t.Queueing = false
		tell(QueueEnded)
	}
	if s.Active >= s.TotalActiveUsers && s.Status != Suspended {
		if !t.Full {
			tell(Full)
		}
		t.Full, t.full = true, now
	} else if now.Sub(t.full) >= calm {
		t.Full = false
	}
	return t, kinds
}

// restless reports whether something may have happened in a while although no visitor comes.
func (t *told) restless() bool { return !t.looked || t.Queueing || t.Full }

// toldClass is the class of the objects that keep what others know of a room.
const toldClass = "room-told"

// openTold returns objects that keep what they are sent, and return what they keep where that is nil.
func openTold(runtime *durable.Runtime) (*durable.Namespace[*told, told], error) {
	return durable.Open(runtime, durable.Class[*told, told]{
		Name: toldClass,
		New:  func(context.Context, *durable.State) (durable.Handler[*told, told], error) { return keeper{}, nil },
	})
}

type keeper struct{ durable.NoAlarm }

const toldKey = "told"

// Handle implements durable.Handler.
func (keeper) Handle(ctx context.Context, s *durable.State, t *told) (told, error) {
	if t != nil {
		return *t, durable.PutJSON(ctx, s, toldKey, *t)
	}
	kept, _, err := durable.GetJSON[told](ctx, s, toldKey)
	return kept, err
}

// tell tells others what has happened in the room since known, and returns what they know then.
// If that fails, the next call tells it again. The first report of a process may count users who have left since the
// process before it, so that one is not told.
func (r *Rooms) tell(ctx context.Context, room *room, known *told) (*told, error) {
	if r.options.Tell == nil {
		return &told{looked: true}, nil
	}
	now := room.now()
	if known == nil {
		kept, err := room.told.Send(ctx, nil)
		if err != nil {
			return nil, fmt.Errorf("couldn't read what was told of it: %w", err)
		}
		kept.queued, kept.full = now, now
		return &kept, nil
	}
	s := r.statusOf(room)
	after, kinds := known.next(now, room.at(now), s)
	for _, kind := range kinds {
		if err := r.options.Tell(ctx, Happening{kind, now, s}); err != nil {
			return known, err
		}
	}
	if after.Queueing != known.Queueing || after.Full != known.Full || after.Event != known.Event {
		if _, err := room.told.Send(ctx, &after); err != nil {
			return known, err
		}
	}
	return &after, nil
}

// tellChange tells others that a room has other settings.
func (r *Rooms) tellChange(room *room) {
	if r.options.Tell == nil {
		return
	}
	if err := r.options.Tell(context.Background(), Happening{Changed, room.now(), r.statusOf(room)}); err != nil {
		r.options.Logger.Error("waitingroom: couldn't tell that a room has other settings", "room", room.config.Name, "err", err)
	}
}
