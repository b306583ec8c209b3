package config

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// readEvents parses a room's events and returns them in the order of their times. Events take the settings and the template that
// they do not name from room, which must be complete except for its events. It adds mistakes, also for events that overlap, with
// their pre-queues.
func (r *reader) readEvents(n *yaml.Node, room *Room) []Event {
	nodes := r.readList(n, "events", maxEvents)
	names := map[string]bool{}
	var events []Event
	for _, m := range nodes {
		e := Event{Settings: room.Settings, Template: room.Template}
		settings := &e.Settings
		ok := r.readFields(m, "events", map[string]field{
			"name":                    newValueField(r, &e.Name, acceptText),
			"event_start_time":        newValueField(r, &e.Start, parseTime),
			"event_end_time":          newValueField(r, &e.End, parseTime),
			"prequeue_start_time":     newValueField(r, &e.Prequeue, parseTime),
			"shuffle_at_event_start":  newValueField(r, &e.Shuffle, parseBool),
			"custom_page_html":        newValueField(r, &e.Template, parseTemplateText),
			"total_active_users":      newValueField(r, &settings.TotalActiveUsers, wholeNumber(1, 1, queue.MaxUsers)),
			"new_users_per_minute":    newValueField(r, &settings.NewUsersPerMinute, wholeNumber(1, 1, queue.MaxUsers)),
			"queueing_method":         newValueField(r, &settings.Method, oneOf(queue.Methods...)),
			"session_duration":        newValueField(r, &settings.SessionDuration, wholeNumber(time.Minute, 1, 30)),
			"disable_session_renewal": newValueField(r, &settings.FixedSessions, parseBool),
		})
		if !ok {
			continue
		}
		m = resolveAlias(m)
		r.checkEvent(m, &e, names)
		names[e.Name] = true
		for i := range events {
			if e.From().Before(events[i].End) && events[i].From().Before(e.End) {
				r.addMistake(m, "events", "%s and %s are on at the same time, with their pre-queues; move one of them", e.Name, events[i].Name)
			}
		}
		events = append(events, e)
	}
	slices.SortFunc(events, func(a, b Event) int { return a.From().Compare(b.From()) })
	return events
}

// checkEvent adds mistakes in the event e, which is the mapping n in the file. names are those of the events before it in the
// file.
func (r *reader) checkEvent(n *yaml.Node, e *Event, names map[string]bool) {
	switch {
	case !word.MatchString(e.Name):
		r.addMistake(n, "events", "name %q must have letters, digits, - and _ only, at most %d", cutValue(e.Name), maxNameBytes)
	case names[e.Name]:
		r.addMistake(n, "events", "two are called %q; choose another name for one", e.Name)
	}
	if e.Start.IsZero() || e.End.IsZero() {
		r.addMistake(n, "events", "%s needs an event_start_time and an event_end_time", cutValue(e.Name))
	} else if e.End.Sub(e.Start) < leastApart {
		r.addMistake(n, "events", "%s must end a minute after its start, or later", cutValue(e.Name))
	}
	if !e.Prequeue.IsZero() && e.Start.Sub(e.Prequeue) < leastAhead {
		r.addMistake(n, "events", "%s: prequeue_start_time must be 5 minutes before the start, or earlier", cutValue(e.Name))
	}
	if e.Shuffle && e.Prequeue.IsZero() {
		r.addMistake(n, "events", "%s: shuffle_at_event_start needs a prequeue_start_time: it shuffles the visitors of the pre-queue", cutValue(e.Name))
	}
	if hasField(n, "total_active_users") != hasField(n, "new_users_per_minute") {
		r.addMistake(n, "events", "%s: total_active_users and new_users_per_minute can only be changed together; give both", cutValue(e.Name))
	} else if e.Settings.TotalActiveUsers > 0 && e.Settings.NewUsersPerMinute > e.Settings.TotalActiveUsers {
		r.addMistake(n, "events", "%s: new_users_per_minute is more than total_active_users; make it smaller", cutValue(e.Name))
	}
}
