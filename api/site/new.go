package site

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
)

// A Draft is the package JSON of an npm package, which a contributor may submit to a catalogue.
type Draft struct {
	// Name is the name of the package. Version is the version of the release from which the draft was written.
	Name, Version string
	// File is the path of the package JSON in a catalogue. Text is its content.
	File, Text string
	// About is a sentence about the files of the release that would be published.
	About string
	// Files are the files that would be published, or the first of them if there are many.
	Files []DraftFile
	// Notes are hints for the author. Problems are those that lint would report about the package JSON.
	Notes, Problems []string
	// More is how many of the files that would be published are not among Files.
	More int
}

// A DraftFile is a file that would be published.
type DraftFile struct {
	Path string
	Size string // as text with a unit
	Main bool   // it would be the main file
}

// A DraftError says, in a message for the user, why no draft was made. The page has the status 503 with Later, and else
// 404.
type DraftError struct {
	Message string
	Later   bool // a later request may succeed
}

// Error returns e.Message.
func (e *DraftError) Error() string { return e.Message }

// newPage is the data of the page with a draft of a package JSON, or with the empty form for one.
type newPage struct {
	Asked string // name of the npm package in the query, "" for the empty form
	Draft *Draft // nil for none
	Why   string // why no draft was made, "" if one was or the form is empty
}

// newFilePage returns the page with a draft of the package JSON of the npm package in the query, or without one the empty
// form. If Options.Draft returns a [*DraftError], the page says why. A draft makes this service download a release, so
// drafts are limited for each client and in total. The error is a refusal beyond the limits (429 or 503) or if the
// request's time is up during the download (503).
func (s *Site) newFilePage(q *request) (*pageAnswer, error) {
	a := &pageAnswer{view: "new", Title: "Add a library", Section: "/new",
		Description: "Have the package JSON of an npm package written, to submit it to the catalogue.",
	}
	page := newPage{Asked: q.textParam("npm")}
	if page.Asked == "" {
		a.canonical, a.Data = "/new", page
		return a, nil
	}
	leave, err := s.drafting.acquire(q.Context(), q.RemoteAddr)
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
		return nil, newRefusal(http.StatusServiceUnavailable, "That took too long", "The release could not be downloaded in time. Please try again in a minute; `larder new` waits longer.")
	case err != nil:
		return nil, fmt.Errorf("couldn't draft a package JSON: %w", err)
	}
	page.Draft = draft
	a.Data = page
	return a, nil
}

const (
	draftsAtOnce    = 2
	draftsPerClient = 10 // in draftsWindow
	draftsAtEase    = 60 // up to this total in draftsWindow a client may exceed its limit: many users may share an address
	draftsWindow    = 10 * time.Minute
	draftingClients = 10_000 // that are counted in draftsWindow
)

// A draftLimiter limits how many drafts are made at once, and how many a client may request in each draftsWindow if all
// clients together request many. Clients take turns.
type draftLimiter struct {
	now     func() time.Time
	turns   *answers.Shares
	timeout time.Duration // for a turn

	mu      sync.Mutex
	since   time.Time            // start of the present window
	entered map[netip.Prefix]int // drafts in the window by client; nil before the first
	all     int                  // drafts in the window
}

// acquire counts a draft of the client at the address remote, a host and port. Nothing lowers that count, which is of the
// present ten minutes. Then acquire waits until the draft may start, and returns the function that the caller must call at
// the draft's end, nil with an error. The error is a refusal if countRequest refuses the draft (429) or the client gets no
// turn within g.timeout (503), or that of ctx if ctx ends first.
func (g *draftLimiter) acquire(ctx context.Context, remote string) (leave func(), err error) {
	if err := g.countRequest(remote); err != nil {
		return nil, err
	}
	_, leave, err = g.turns.Enter(ctx, remote, g.timeout)
	if errors.Is(err, answers.ErrNoPlace) {
		err = newRefusal(http.StatusServiceUnavailable, "Just a moment", "Others are having a file written at this moment. Please try again in a few seconds.")
	}
	return leave, err
}

// countRequest counts a draft of the client at the address remote, a host and port. Every ten minutes the counts begin
// again at 0. It returns a refusal (429), and does not count, if in the present ten minutes the client has had 10 drafts
// and all clients together 60, or if the client is new and 10,000 others are counted.
func (g *draftLimiter) countRequest(remote string) error {
	from, _ := requests.ClientOf(remote)
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); g.entered == nil || now.Sub(g.since) >= draftsWindow || now.Before(g.since) {
		g.since, g.entered, g.all = now, make(map[netip.Prefix]int), 0
	}
	if g.entered[from] >= draftsPerClient && g.all >= draftsAtEase || g.entered[from] == 0 && len(g.entered) >= draftingClients {
		return newRefusal(http.StatusTooManyRequests, "That was a lot", "Each of these makes this service fetch a release. Please go on in ten minutes, or use `larder new`.")
	}
	g.entered[from]++
	g.all++
	return nil
}
