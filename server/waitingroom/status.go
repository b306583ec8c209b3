package waitingroom

import (
	"math"

	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// The states of a room.
const (
	NotQueueing      = "not_queueing"
	Queueing         = "queueing"
	EventPrequeueing = "event_prequeueing"
	Suspended        = "suspended"
)

// A Status is how a room is, as far as is known. Its names are those of Cloudflare's.
type Status struct {
	Name    string `json:"name"`
	Status  string `json:"status"`
	EventID string `json:"event_id,omitempty"` // name of the event that is on or being waited for
	Queued  int    `json:"estimated_queued_users"`
	Active  int    `json:"estimated_total_active_users"`
	// MaxMinutes is how long who comes last may wait.
	MaxMinutes int `json:"max_estimated_time_minutes"`

	TotalActiveUsers  int           `json:"total_active_users"`
	NewUsersPerMinute int           `json:"new_users_per_minute"`
	Method            config.Method `json:"queueing_method"`
	Routes            []string      `json:"routes"`
	// Recovering says that the room's state was lost, and nobody new is let in until it
	// is known who is inside.
	Recovering bool `json:"recovering,omitempty"`
}

// Statuses returns how the rooms are, in the order of the configuration.
func (r *Rooms) Statuses() []Status {
	all := make([]Status, len(r.rooms))
	for i, room := range r.rooms {
		all[i] = room.status()
	}
	return all
}

// Status returns how a room is, false where there is none of that name.
func (r *Rooms) Status(name string) (Status, bool) {
	room, ok := r.byName[name]
	if !ok {
		return Status{}, false
	}
	return room.status(), true
}

// MaxMinutes is how many minutes [Rooms.Analytics] returns at most.
const MaxMinutes = keptMinutes

// Analytics returns what happened in a room in the last so many minutes, the present one
// last, false where there is no room of that name.
func (r *Rooms) Analytics(name string, minutes int) ([]Minute, bool) {
	room, ok := r.byName[name]
	if !ok {
		return nil, false
	}
	return room.analytics.minutes(r.now(), min(max(minutes, 1), keptMinutes)), true
}

func (r *room) status() Status {
	now := r.now()
	m, o := r.momentAt(now), r.overview.Load()
	s := Status{
		Name: r.config.Name, Status: NotQueueing, Queued: o.queued, Active: o.active, MaxMinutes: longestWait(m, o),
		TotalActiveUsers: m.traffic.TotalActiveUsers, NewUsersPerMinute: m.traffic.NewUsersPerMinute, Method: m.traffic.Method,
		Recovering: o.holding,
	}
	for _, route := range r.config.Routes {
		s.Routes = append(s.Routes, route.Host+route.Path)
	}
	if m.event != nil {
		s.EventID = m.event.Name
	}
	switch {
	case m.settings.Suspended:
		s.Status = Suspended
	case m.phase == config.Prequeueing:
		s.Status = EventPrequeueing
	case o.queued > 0 || m.settings.QueueAll || m.traffic.Method == config.Reject:
		s.Status = Queueing
	}
	return s
}

// longestWait is the wait of who comes now: under Random that which three quarters do not exceed.
func longestWait(m *moment, o *overview) int {
	if o.queued == 0 || o.perMinute <= 0 {
		return 0
	}
	wait := queue.FIFOWait(o.queued, o.perMinute)
	if m.settings.Method == queue.Random {
		wait = queue.RandomWait(0.75, o.perMinute, o.queued)
	}
	return int(math.Ceil(inMinutes(wait).Minutes()))
}
