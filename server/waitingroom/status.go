package waitingroom

import (
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// The states of a room.
const (
	NotQueueing      = "not_queueing"
	Queueing         = "queueing"          // visitors wait, or all new ones have to, or are refused
	EventPrequeueing = "event_prequeueing" // visitors wait for the start of an event
	Suspended        = "suspended"         // the room does nothing
)

// A Status is the state of a room, as far as is known. Its names are those of Cloudflare's.
type Status struct {
	Name    string `json:"name"`
	Status  string `json:"status"`
	EventID string `json:"event_id,omitempty"` // name of the event that is on or is waited for
	Queued  int    `json:"estimated_queued_users"`
	Active  int    `json:"estimated_total_active_users"`
	// MaxMinutes is how long a user who comes now may wait.
	MaxMinutes int `json:"max_estimated_time_minutes"`

	TotalActiveUsers  int          `json:"total_active_users"`
	NewUsersPerMinute int          `json:"new_users_per_minute"`
	SessionDuration   int          `json:"session_duration"` // minutes
	Method            queue.Method `json:"queueing_method"`
	Routes            []string     `json:"routes"`
	// Recovering says that the room's state was lost, or another node of the cluster publishes since, and no new user is
	// admitted until it is known how many are inside.
	Recovering bool `json:"recovering,omitempty"`
	// CutOff says that, in a cluster, the leader does not respond to this node about the room, and no new
	// user is admitted here. The other fields are as of its last response.
	CutOff bool `json:"cut_off,omitempty"`
	// OriginDown says that the site behind the room cannot be reached from this node, which admits no new user therefore.
	OriginDown bool `json:"origin_down,omitempty"`
	// Settings says which version of the settings of all rooms is in force here.
	Settings Revision `json:"settings"`
}

// A Revision is the version of the settings of all rooms that is in force on this node.
type Revision struct {
	Version int64     `json:"version"`           // 0 where the settings are not stored
	Time    time.Time `json:"time"`              // of the change
	Origin  string    `json:"origin"`            // who or what made it
	Problem string    `json:"problem,omitempty"` // what is wrong with the settings that are stored, or why a newer version is not used here
	// Unconfirmed says that a newer version may be in force elsewhere, and Confirmed when this one was known to be the newest.
	Unconfirmed bool      `json:"unconfirmed,omitempty"`
	Confirmed   time.Time `json:"confirmed,omitzero"`
}

// A Version is one entry in the history of the settings of all rooms.
type Version struct {
	Number   int64     `json:"version"`
	Time     time.Time `json:"time"`
	Origin   string    `json:"origin"`
	Restores int64     `json:"restores,omitempty"` // the version whose settings this one has again
	InForce  bool      `json:"in_force,omitempty"`
}

// Statuses returns the status of all rooms, in the order of the configuration.
func (r *Rooms) Statuses() []Status {
	rooms := r.currentRooms().rooms
	all := make([]Status, len(rooms))
	for i, room := range rooms {
		all[i] = r.statusOf(room)
	}
	return all
}

// Status returns the status of the room with a name; false if none exists.
func (r *Rooms) Status(name string) (Status, bool) {
	room, ok := r.currentRooms().byName[name]
	if !ok {
		return Status{}, false
	}
	return r.statusOf(room), true
}

// statusOf returns the status of a room, with the version of its settings.
func (r *Rooms) statusOf(room *room) Status {
	status := room.status()
	status.Settings = r.options.Revision()
	return status
}

// status returns the status of the room, without the version of its settings.
func (r *room) status() Status {
	now := r.now()
	m, o := r.settingsAt(now), r.overview.Load()
	s := Status{
		Name: r.config.Name, Status: NotQueueing, Queued: o.queued, Active: o.active, MaxMinutes: longestWait(m, o),
		TotalActiveUsers: m.Settings.TotalActiveUsers, NewUsersPerMinute: m.Settings.NewUsersPerMinute,
		SessionDuration: int(m.Settings.SessionDuration / time.Minute), Method: m.Settings.Method,
		Recovering: o.holding, CutOff: o.cutOff || !r.isReady(), OriginDown: r.isDown(),
	}
	for _, route := range r.config.Routes {
		s.Routes = append(s.Routes, route.Host+route.Path)
	}
	if m.Event != nil {
		s.EventID = m.Event.Name
	}
	switch {
	case m.Settings.Suspended:
		s.Status = Suspended
	case m.Phase == config.Prequeueing:
		s.Status = EventPrequeueing
	case o.queued > 0 || m.Settings.QueueAll || m.Settings.Method == queue.Reject:
		s.Status = Queueing
	}
	return s
}

// Revision returns the version of the settings that is in force here.
func (r *Rooms) Revision() Revision { return r.options.Revision() }

// Versions returns the versions of the settings, newest first.
func (r *Rooms) Versions() []Version { return r.options.Versions() }

// longestWait returns how many minutes a user who comes now will wait at most: for the queueing method Random, the wait that
// three quarters of the users do not exceed. It is 0 if no user waits or the wait is not known, and a week at most.
func longestWait(m *config.EffectiveSettings, o *overview) int {
	if o.queued == 0 || o.perMinute <= 0 {
		return 0
	}
	wait := queue.FIFOWait(o.queued, o.perMinute)
	if m.Settings.Method == queue.Random {
		wait = queue.RandomWait(0.75, o.perMinute, o.queued)
	}
	return roundWait(wait)
}
