package site

import (
	"slices"
	"sync"

	"github.com/larder-cdn/larder/api/library"
)

// A summary is what can be said of all libraries together. It is made once for each
// listing, however often it is asked for.
type summary struct {
	Enrolled  int // libraries, with releases or without
	Libraries int // of which something is published
	Versions  int
	Files     int
	Bytes     int64
	Newest    []*library.Library // by the time of their latest release
	Most      []*library.Library // by their number of releases
	Licenses  []tally
	Kinds     []tally // of main files
}

// A tally is how often something occurs.
type tally struct {
	What  string
	Count int
}

// summaryCache keeps the last summary, and what it takes to make the next one without
// reading all versions of all libraries again.
type summaryCache struct {
	mu      sync.Mutex
	listing *library.Listing
	summary *summary
	totals  map[*library.Library]totals
}

type totals struct {
	files int
	bytes int64
}

// listed is how many lines the lists of a summary have.
const listed = 10

func (s *Site) summarize(q *request) (*summary, error) {
	listing, err := s.library.Listing(q.Context())
	if err != nil {
		return nil, err
	}
	c := &s.summary
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listing == listing {
		return c.summary, nil
	}
	next := &summary{Enrolled: len(listing.Libraries)}
	known := make(map[*library.Library]totals, len(listing.Libraries))
	licenses, kinds := map[string]int{}, map[string]int{}
	var published []*library.Library
	for _, l := range listing.Libraries {
		if l.Version == "" {
			continue
		}
		t, ok := c.totals[l] // a library that changes gets a new address
		if !ok {
			versions, err := s.library.Versions(l.Name)
			if err != nil {
				return nil, err
			}
			for _, v := range versions {
				t.files += v.Files
				t.bytes += v.Bytes
			}
		}
		known[l] = t
		next.Libraries++
		next.Versions += l.Versions
		next.Files += t.files
		next.Bytes += t.bytes
		licenses[or(l.License, "not stated")]++
		if kind := l.FileType(); kind != "" {
			kinds[kind]++
		}
		if !l.Hidden {
			published = append(published, l)
		}
	}
	next.Licenses, next.Kinds = tallies(licenses), tallies(kinds)
	slices.SortStableFunc(published, func(a, b *library.Library) int { return b.Released.Compare(a.Released) })
	next.Newest = slices.Clone(published[:min(listed, len(published))])
	slices.SortStableFunc(published, func(a, b *library.Library) int { return b.Versions - a.Versions })
	next.Most = slices.Clone(published[:min(listed, len(published))])
	c.listing, c.summary, c.totals = listing, next, known
	return next, nil
}

// tallies returns the most frequent, most frequent first.
func tallies(counts map[string]int) []tally {
	var all []tally
	for what, n := range counts {
		all = append(all, tally{what, n})
	}
	slices.SortFunc(all, func(a, b tally) int {
		if a.Count != b.Count {
			return b.Count - a.Count
		}
		if a.What < b.What {
			return -1
		}
		return 1
	})
	return all[:min(listed, len(all))]
}

// statisticsPage is how much there is.
type statisticsPage struct {
	*summary
	Popular []*library.Library
}

func (s *Site) statistics(q *request) (*answer, error) {
	summary, err := s.summarize(q)
	if err != nil {
		return nil, err
	}
	popular, err := s.library.Popular(q.Context(), listed)
	if err != nil {
		return nil, err
	}
	return &answer{
		view: "statistics", title: "Statistics", canonical: "/statistics", section: "/statistics",
		description: "How many libraries, releases and files are served here, which are new and which are asked for most.",
		data:        statisticsPage{summary, popular},
	}, nil
}
