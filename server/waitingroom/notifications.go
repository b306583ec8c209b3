package waitingroom

import (
	"context"
	"fmt"
	"time"

	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// A Notification reports an event of a room to webhooks.
type Notification struct {
	Kind   string
	Time   time.Time
	Status Status // of the room, then
}

// The kinds of notifications.
const (
	QueueBegan = "room.queue_began"
	QueueEnded = "room.queue_ended" // no visitor has waited for a minute
	Full       = "room.full"        // repeated only after a minute in which the room was not
	EventBegan = "room.event_began"
	EventEnded = "room.event_ended"
	Changed    = "room.changed" // its settings, while the process runs
)

// debounce is how long a queue, or a full room, must be over before that counts: users come and go by the second.
const debounce = time.Minute

// notified is the state of a room as of the last notification. It is durable, so that a restart neither repeats nor loses one.
type notified struct {
	Queueing bool   `json:"queueing,omitempty"`
	Full     bool   `json:"full,omitempty"`
	Event    string `json:"event,omitempty"` // that is on

	queued, full time.Time // when that was so last
	looked       bool      // by this process
}

// dueNotifications returns the kinds of notifications that are due because the status s of a room differs from the state t, which
// says of what webhooks were notified last and when the room was last queueing or full. after is the new state, which the caller
// passes to the next call also if no kinds are due. m are the settings in force, of which only the running event counts: no
// setting filters notifications here. It sends nothing.
func (t notified) dueNotifications(now time.Time, m *config.EffectiveSettings, s Status) (after notified, kinds []string) {
	add := func(kind string) { kinds = append(kinds, kind) }
	event := ""
	if m.Phase == config.EventOn {
		event = m.Event.Name
	}
	if t.Event != event && t.Event != "" {
		add(EventEnded)
	}
	if t.Event != event && event != "" {
		add(EventBegan)
	}
	t.Event, t.looked = event, true
	if s.Status == Queueing || s.Status == EventPrequeueing {
		if !t.Queueing {
			add(QueueBegan)
		}
		t.Queueing, t.queued = true, now
	} else if t.Queueing && now.Sub(t.queued) >= debounce {
		t.Queueing = false
		add(QueueEnded)
	}
	if s.Active >= s.TotalActiveUsers && s.Status != Suspended {
		if !t.Full {
			add(Full)
		}
		t.Full, t.full = true, now
	} else if now.Sub(t.full) >= debounce {
		t.Full = false
	}
	return t, kinds
}

// mayChange reports whether the state may change although no visitor comes: the queue, or that the room is full, may end, and webhooks
// are notified of the end of a queue. It is also true before the first look of this process. It does not consider events: the caller
// looks again when one begins or ends.
func (t *notified) mayChange() bool { return !t.looked || t.Queueing || t.Full }

// notifiedKey is where a room's data centre stores what webhooks were notified of.
const notifiedKey = "notified"

// notify notifies webhooks of the events in a room since the state known, stores the state after them, and returns it. If it
// fails, it returns known, so that the next call notifies again, also of what has succeeded. If known is nil, it only reads the
// stored state, and returns nil if that fails: the first counts of a process may include users who have left since the previous
// process.
func (r *Rooms) notify(ctx context.Context, room *room, known *notified) (*notified, error) {
	if r.options.Notify == nil {
		return &notified{looked: true}, nil
	}
	now := room.now()
	if known == nil {
		var stored notified
		err := room.do(ctx, func(ctx context.Context, s *durable.State, _ *centre) (err error) {
			stored, _, err = durable.GetJSON[notified](ctx, s, notifiedKey)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("couldn't read what its webhooks were notified of: %w", err)
		}
		stored.queued, stored.full = now, now
		return &stored, nil
	}
	s := r.statusOf(room)
	after, kinds := known.dueNotifications(now, room.settingsAt(now), s)
	for _, kind := range kinds {
		if err := r.options.Notify(ctx, Notification{kind, now, s}); err != nil {
			return known, err
		}
	}
	if after.Queueing != known.Queueing || after.Full != known.Full || after.Event != known.Event {
		err := room.do(ctx, func(ctx context.Context, s *durable.State, _ *centre) error {
			return durable.PutJSON(ctx, s, notifiedKey, after)
		})
		if err != nil {
			return known, err
		}
	}
	return &after, nil
}

// notifyChange notifies webhooks that the settings of a room have changed. It waits for Options.Notify, and logs an error.
func (r *Rooms) notifyChange(room *room) {
	if r.options.Notify == nil {
		return
	}
	if err := r.options.Notify(context.Background(), Notification{Changed, room.now(), r.statusOf(room)}); err != nil {
		r.options.Logger.Error("waitingroom: couldn't notify webhooks of a room's changed settings", "room", room.config.Name, "err", err)
	}
}
