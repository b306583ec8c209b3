package site

import (
	"errors"
	"strings"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs/views"
)

// historyPage is what became of every version of a library.
type historyPage struct {
	*library.Library
	Counts []tally
	Events []event
	Pager  pager
}

// An event is what became of one version.
type event struct {
	views.State
	Entry  int64 // of the log, -1 for none
	Files  int   // of a published one
	Bytes  int64
	Before string // the published version before this one, "" for none
}

// Done says in a word how far the version has come.
func (e event) Done() string { return stateNames[e.Kind] }

var stateNames = map[views.StateKind]string{
	views.Detected: "waiting", views.Processing: "in progress", views.Published: "published",
	views.Refused: "refused", views.Failed: "failed", views.Withdrawn: "withdrawn",
}

// When says in a word what happened at the time of Updated.
func (e event) When() string {
	switch e.Kind {
	case views.Detected, views.Processing:
		return "Seen"
	case views.Failed:
		return "Last attempt"
	}
	return strings.ToUpper(e.Done()[:1]) + e.Done()[1:]
}

// eventsShown is how many versions a page of history has.
const eventsShown = 100

func (s *Site) history(q *request) (*answer, error) {
	l, err := s.library.Library(q.Context(), q.segments[0])
	if err != nil {
		return nil, err
	}
	states, err := s.library.States(l.Name)
	if err != nil {
		return nil, err
	}
	versions, err := s.library.Versions(l.Name)
	if err != nil {
		return nil, err
	}
	page := historyPage{Library: l}
	counts := map[string]int{}
	for _, state := range states {
		counts[stateNames[state.Kind]]++
	}
	page.Counts = tallies(counts)
	page.Pager = newPager(len(states), eventsShown, q.page(), "versions", func(n string) string {
		return withQuery(historyPath(l.Name), encode("page", n))
	})
	published := make(map[string]int, len(versions))
	for i, v := range versions {
		published[v.Version] = i
	}
	for _, state := range part(page.Pager, states) {
		e := event{State: state, Entry: -1}
		if i, ok := published[state.Version]; ok {
			v := versions[i]
			e.Entry, e.Files, e.Bytes = v.Entry, v.Files, v.Bytes
			if i+1 < len(versions) {
				e.Before = versions[i+1].Version
			}
		} else if state.Kind == views.Withdrawn {
			var withdrawn *library.WithdrawnError
			if _, err := s.library.Release(q.Context(), l.Name, state.Version); errors.As(err, &withdrawn) {
				e.Entry = withdrawn.Entry
			}
		}
		page.Events = append(page.Events, e)
	}
	a := &answer{
		view: "history", section: "/search", title: "History of " + l.Name, data: page,
		description: "What became of every version of " + l.Name + ": published, refused, failed or withdrawn, when and why.",
	}
	if page.Pager.Page == 1 {
		a.canonical = historyPath(l.Name)
	}
	return a, nil
}
