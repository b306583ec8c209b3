package site

import (
	"slices"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs/views"
)

// historyPage is the data of the page with the state of every version of a library. Versions that the bot tried are in
// Events. The others are in Folds, one for each reason, unless the page is about a single state.
type historyPage struct {
	*library.Library
	Counts  []stateCount // of all states that a version has
	Only    string       // the state of the versions in Events; "" for all that were tried
	Done    string       // that state in words
	Untried string       // why the versions in Events were never tried; "" if they were
	Events  []event      // on this page, newest first
	Pager   pager
	Folds   []fold // nil with Only

	NotMirrored int // versions in all folds
}

// A stateCount is how many versions of a library are in a state.
type stateCount struct {
	Kind  views.StateKind // also the state's name in addresses
	Done  string          // the state in words
	Count int
}

// A fold is the versions that the bot did not try for one reason.
type fold struct {
	stateCount
	Why  string
	Some []views.Account // the newest 20
}

// An event is the state of one version.
type event struct {
	views.Account
	Files  int    // 0 if it is not published, as Bytes
	Bytes  int64  // before compression
	Before string // the next older published version; "" for none, or if this one is not published
}

// Done returns the state of the version in words, such as "published" or "in progress".
func (e event) Done() string { return stateNames[e.Kind] }

// stateNames are the states of versions in words.
var stateNames = map[views.StateKind]string{
	views.Detected: "waiting", views.Processing: "in progress", views.Published: "published", views.Mirrored: "mirrored",
	views.Refused: "refused", views.Failed: "failed", views.Withdrawn: "withdrawn",
	views.Older: "older than the first mirrored releases", views.Prerelease: "prereleases", views.Ignored: "ignored by a pattern", views.Gone: "gone from upstream",
}

// shownStates are all states, in the order in which a page lists them.
var shownStates = []views.StateKind{
	views.Published, views.Mirrored, views.Processing, views.Detected, views.Failed, views.Refused, views.Withdrawn,
	views.Older, views.Prerelease, views.Ignored, views.Gone,
}

const (
	eventsShown  = 100 // versions on a page of history
	untriedShown = 500 // versions on a page of those in a state in untried, which take less room
	foldShown    = 20  // versions in a fold
)

// untried says why the bot never tried versions in a state. It has no states of versions that the bot tried.
var untried = map[views.StateKind]string{
	views.Older:      "A library starts with its newest releases, and then gets those that are newer.",
	views.Prerelease: "A library starts with its newest releases, of which at most two are prereleases, and then gets those that are newer.",
	views.Ignored:    "The library’s package JSON has patterns for versions that are left out.",
	views.Gone:       "Upstream had these once, and the bot did not publish them while it did.",
}

// historyPage returns the page that lists what became of each version of a library, newest first. Without a state in the
// query it lists the versions that the bot tried, and for each reason the newest 20 that it never tried. With a state, it
// lists the versions in that state only. It ignores a state that no version has.
func (s *Site) historyPage(q *request, l *library.Library) (*pageAnswer, error) {
	all, err := s.library.Accounts(l.Name)
	if err != nil {
		return nil, err
	}
	page := historyPage{Library: l}
	only := views.StateKind(q.textParam("state"))
	if slices.ContainsFunc(all, func(a views.Account) bool { return a.Kind == only }) {
		page.Only, page.Done, page.Untried = string(only), stateNames[only], untried[only]
	}
	s.useCounts(q) // and of what upstream has
	counts, newest := map[views.StateKind]int{}, map[views.StateKind][]views.Account{}
	var shown []views.Account
	for _, a := range all {
		if counts[a.Kind]++; counts[a.Kind] <= foldShown {
			newest[a.Kind] = append(newest[a.Kind], a)
		}
		if page.Only == string(a.Kind) || page.Only == "" && untried[a.Kind] == "" {
			shown = append(shown, a)
		}
	}
	for _, kind := range shownStates {
		count := stateCount{kind, stateNames[kind], counts[kind]}
		if count.Count == 0 {
			continue
		}
		page.Counts = append(page.Counts, count)
		if why := untried[kind]; why != "" && page.Only == "" {
			page.NotMirrored += count.Count
			page.Folds = append(page.Folds, fold{count, why, newest[kind]})
		}
	}
	each := eventsShown
	if page.Untried != "" {
		each = untriedShown
	}
	page.Pager = q.newPager(len(shown), each, "versions", func(n string) string {
		return withQuery(historyPath(l.Name), encodeQuery("state", page.Only, "page", n))
	})
	q.inputs.arbitrary = q.inputs.arbitrary || page.Only != string(only)
	if err := s.addEvents(&page, sliceOf(page.Pager, shown)); err != nil {
		return nil, err
	}
	a := &pageAnswer{
		view: "history", Section: "/search", Title: "History of " + l.Name, Data: page, Feed: feedPath(l.Name),
		Description: "Every version of " + l.Name + " published upstream and its state here: published, refused, failed, withdrawn or not mirrored, and why.",
	}
	if page.Only != "" {
		a.Title += ": " + page.Done
	} else if page.Pager.Page == 1 {
		a.canonical = historyPath(l.Name)
	}
	return a, nil
}

// addEvents appends the versions in listed to page.Events, in their order: published ones with their number of files, bytes
// and the next older published version.
func (s *Site) addEvents(page *historyPage, listed []views.Account) error {
	versions, err := s.library.Versions(page.Name)
	if err != nil {
		return err
	}
	published := make(map[string]event, len(versions))
	for i, v := range versions {
		e := event{Files: v.Files, Bytes: v.Bytes}
		if i+1 < len(versions) {
			e.Before = versions[i+1].Version
		}
		published[v.Version] = e
	}
	for _, a := range listed {
		e := published[a.Version]
		e.Account = a
		page.Events = append(page.Events, e)
	}
	return nil
}
