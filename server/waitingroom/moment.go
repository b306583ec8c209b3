package waitingroom

import (
	"fmt"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A moment is what holds in a room until its next event begins or ends. It is never
// changed.
type moment struct {
	settings queue.Settings
	traffic  config.Traffic
	event    *config.Event
	phase    config.Phase
	until    time.Time // far away where nothing will change
}

// forever is a time that nobody waits for.
var forever = time.Unix(1<<40, 0)

// momentAt returns what holds in a room at a time. salt is the secret by which an event's
// users are shuffled.
func momentAt(room *config.Room, now time.Time, skew time.Duration, salt func(event string) uint64) (*moment, error) {
	m := &moment{until: forever}
	m.traffic, m.event, m.phase = room.At(now)
	for i := range room.Events {
		e := &room.Events[i]
		for _, turn := range [...]time.Time{e.From(), e.Start, e.End} {
			if now.Before(turn) && turn.Before(m.until) {
				m.until = turn
			}
		}
	}
	s := queue.Settings{
		TotalActiveUsers: m.traffic.TotalActiveUsers, NewUsersPerMinute: m.traffic.NewUsersPerMinute,
		SessionDuration: m.traffic.SessionDuration, FixedSessions: m.traffic.FixedSessions,
		QueueAll: room.QueueAll || m.phase == config.Prequeueing, Suspended: room.Suspended,
		CurveFactor: room.CurveFactor, HistoryMinutes: room.TrafficMinutesBack, RefreshInterval: room.RefreshInterval, Skew: skew,
	}
	var err error
	if s.Method, err = queue.ParseMethod(string(m.traffic.Method)); err == nil {
		s.Allocator, err = queue.ParseAllocator(string(room.Allocator))
	}
	if m.phase == config.EventOn && m.event.Shuffle {
		s.Shuffle = queue.Shuffle{From: queue.MinuteOf(m.event.Prequeue), Until: queue.MinuteOf(m.event.Start), Salt: salt(m.event.Name)}
	}
	if err == nil {
		m.settings, err = s.WithDefaults()
	}
	if err != nil {
		return nil, fmt.Errorf("waitingroom: room %s: %w", room.Name, err)
	}
	return m, nil
}

// saltOf returns the salts of a room's events.
func saltOf(secret func(string) uint64, room string) func(event string) uint64 {
	return func(event string) uint64 { return secret(room + "/" + event) }
}
