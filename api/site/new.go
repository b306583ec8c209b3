package site

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/client"
)

// A Draft is the package JSON of an npm package, for a contributor to submit.
type Draft struct {
	// Name is what the package is called, Version the release that it was written from.
	Name, Version string
	// File is where a catalogue keeps the package JSON, Text its content.
	File, Text string
	// About says in a sentence what would be published of the release.
	About string
	// Files are what would be published, the first of them where there are many.
	Files []DraftFile
	// Notes are what its author should look at, Problems what would be said of the file as it is.
	Notes, Problems []string
	// More is how many files are not among Files.
	More int
}

// A DraftFile is a file that would be published.
type DraftFile struct {
	Path string
	Size string // for people
	Main bool
}

// A DraftError is why there is no draft, in words for the user who asked for it.
type DraftError struct {
	Message string
	Later   bool // whether it may go better later
}

func (e *DraftError) Error() string { return e.Message }

// newPage is the page that writes a package JSON.
type newPage struct {
	Asked string
	Draft *Draft
	Why   string // why there is none
}

// newFile shows the package JSON of an npm package. A request makes this service fetch a release, so
// there is a limit for each client, and one for all of them.
func (s *Site) newFile(q *request) (*answer, error) {
	a := &answer{view: "new", title: "Add a library", section: "/new",
		description: "Have the package JSON of an npm package written, to submit it to the catalogue.",
	}
	page := newPage{Asked: q.text("npm")}
	if page.Asked == "" {
		a.canonical, a.data = "/new", page
		return a, nil
	}
	leave, err := s.drafting.enter(q.Context(), q.RemoteAddr)
	if err != nil {
		return nil, err
	}
	defer leave()
	draft, err := s.options.Draft(q.Context(), page.Asked)
	var why *DraftError
	switch {
	case errors.As(err, &why):
		page.Why, a.status = why.Message, http.StatusNotFound
		if why.Later {
			a.status = http.StatusServiceUnavailable
		}
	case errors.Is(err, context.DeadlineExceeded):
		return nil, refuse(http.StatusServiceUnavailable, "That took too long", "The release could not be fetched in time. It may go better in a minute; `larder new` has more patience.")
	case err != nil:
		return nil, fmt.Errorf("couldn't draft a package JSON: %w", err)
	}
	page.Draft = draft
	a.data = page
	return a, nil
}

const (
	draftsAtOnce    = 2
	draftsPerClient = 10
	draftsAtEase    = 60 // while no more are asked for, a client may have more: many users may be behind one address
	draftsWindow    = 10 * time.Minute
	draftingClients = 10_000
)

// A gate lets only so many in: at once, client after client, and of each client in a while.
type gate struct {
	now     func() time.Time
	turns   *client.Shares
	timeout time.Duration // for a turn

	mu      sync.Mutex
	since   time.Time            // when counting began
	entered map[netip.Prefix]int // by client, since then
	all     int                  // of them
}

// enter returns what to call at the end, or why the user has to come again.
func (g *gate) enter(ctx context.Context, remote string) (leave func(), err error) {
	if err := g.count(remote); err != nil {
		return nil, err
	}
	_, leave, err = g.turns.Enter(ctx, remote, g.timeout)
	if errors.Is(err, client.ErrNoPlace) {
		err = refuse(http.StatusServiceUnavailable, "Just a moment", "Others are having a file written at this moment. Please try again in a few seconds.")
	}
	return leave, err
}

// count counts one for the client, unless it has had all of its own.
func (g *gate) count(remote string) error {
	from, _ := client.Of(remote)
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); g.entered == nil || now.Sub(g.since) >= draftsWindow || now.Before(g.since) {
		g.since, g.entered, g.all = now, make(map[netip.Prefix]int), 0
	}
	if g.entered[from] >= draftsPerClient && g.all >= draftsAtEase || g.entered[from] == 0 && len(g.entered) >= draftingClients {
		return refuse(http.StatusTooManyRequests, "That was a lot", "Each of these makes this service fetch a release. Please go on in ten minutes, or use `larder new`.")
	}
	g.entered[from]++
	g.all++
	return nil
}
