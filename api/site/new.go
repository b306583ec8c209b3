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

// A Draft is the package JSON of an npm package, for a contributor to submit.
type Draft struct {
	// Name is the name of the package, Version that of the release from which the draft was written.
	Name, Version string
	// File is where a catalogue keeps the package JSON, Text its content.
	File, Text string
	// About is a sentence about what would be published of the release.
	About string
	// Files are the files that would be published, the first of them if there are many.
	Files []DraftFile
	// Notes are hints for the author, Problems what lint would report about the file.
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

// A DraftError says to the user why no draft was made.
type DraftError struct {
	Message string
	Later   bool // whether a later request may succeed
}

// Error returns the message for the user.
func (e *DraftError) Error() string { return e.Message }

// newPage is the page that writes a package JSON.
type newPage struct {
	Asked string
	Draft *Draft
	Why   string // why no draft was made
}

// newFilePage returns the page that writes a draft of the package JSON of the npm package in the query, or without one the
// empty form. If no draft can be made, the page says why. A draft makes this service download a release, so drafts are
// limited for each client and in total; beyond the limits the error is a refusal.
func (s *Site) newFilePage(q *request) (*pageAnswer, error) {
	a := &pageAnswer{view: "new", title: "Add a library", section: "/new",
		description: "Have the package JSON of an npm package written, to submit it to the catalogue.",
	}
	page := newPage{Asked: q.textParam("npm")}
	if page.Asked == "" {
		a.canonical, a.data = "/new", page
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
	a.data = page
	return a, nil
}

const (
	draftsAtOnce    = 2
	draftsPerClient = 10
	draftsAtEase    = 60 // up to this total a client may exceed its limit: many users may share an address
	draftsWindow    = 10 * time.Minute
	draftingClients = 10_000
)

// A draftLimiter limits how many drafts are made at once and, for each client, in draftsWindow. Clients take turns.
type draftLimiter struct {
	now     func() time.Time
	turns   *answers.Shares
	timeout time.Duration // for a turn

	mu      sync.Mutex
	since   time.Time            // when counting began
	entered map[netip.Prefix]int // by client, since then
	all     int                  // of them
}

// acquire counts a draft of the client at the address remote in the present ten minutes, also if it fails later, waits until the
// draft may start, and returns the function that the caller must call at its end. The error is a refusal if countRequest refuses the
// draft or no turn comes within g.timeout, or that of ctx if ctx ends first.
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

// countRequest counts a draft of the client at the address remote. It returns a refusal, and does not count, if in the
// present ten minutes the client has had 10 drafts and all clients 60, or if it is new and there are 10,000 other clients.
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
