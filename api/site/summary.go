package site

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/larder-cdn/larder/api/library"
)

// A summary is what can be said of all libraries together without reading more of
// them. It is made once for each listing, however often it is asked for.
type summary struct {
	Enrolled  int // libraries, with releases or without
	Libraries int // of which something is published
	Versions  int
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

// listed is how many lines the lists of a summary have.
const listed = 10

// summaryCache keeps the last summary.
type summaryCache struct {
	mu      sync.Mutex
	listing *library.Listing
	summary *summary
}

func (s *Site) summarize(q *request) (*summary, error) {
	listing, err := s.library.Listing(q.Context())
	if err != nil {
		return nil, err
	}
	c := &s.summary
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listing != listing {
		c.listing, c.summary = listing, newSummary(listing)
	}
	return c.summary, nil
}

func newSummary(listing *library.Listing) *summary {
	sum := &summary{Enrolled: len(listing.Libraries)}
	licenses, kinds := map[string]int{}, map[string]int{}
	var published []*library.Library
	for _, l := range listing.Libraries {
		if l.Version == "" {
			continue
		}
		sum.Libraries++
		sum.Versions += l.Versions
		licenses[or(l.License, "not stated")]++
		if kind := l.FileType(); kind != "" {
			kinds[kind]++
		}
		if !l.Hidden {
			published = append(published, l)
		}
	}
	sum.Licenses, sum.Kinds = tallies(licenses), tallies(kinds)
	slices.SortStableFunc(published, func(a, b *library.Library) int { return b.Released.Compare(a.Released) })
	sum.Newest = slices.Clone(published[:min(listed, len(published))])
	slices.SortStableFunc(published, func(a, b *library.Library) int { return cmp.Compare(b.Versions, a.Versions) })
	sum.Most = slices.Clone(published[:min(listed, len(published))])
	return sum
}

// totals is how much is published.
type totals struct {
	Files int
	Bytes int64
}

// totalsCache keeps the totals of each library, so that a publication costs no reading
// of all the others' versions.
type totalsCache struct {
	mu        sync.Mutex
	listing   *library.Listing
	byLibrary map[*library.Library]totals // a library that changes gets a new address
	all       totals
}

func (s *Site) count(q *request) (totals, error) {
	listing, err := s.library.Listing(q.Context())
	if err != nil {
		return totals{}, err
	}
	c := &s.totals
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listing == listing {
		return c.all, nil
	}
	byLibrary := make(map[*library.Library]totals, len(listing.Libraries))
	var all totals
	for _, l := range listing.Libraries {
		t, ok := c.byLibrary[l]
		if !ok && l.Version != "" {
			versions, err := s.library.Versions(l.Name)
			if err != nil {
				return totals{}, err
			}
			for _, v := range versions {
				t.Files += v.Files
				t.Bytes += v.Bytes
			}
		}
		byLibrary[l] = t
		all.Files += t.Files
		all.Bytes += t.Bytes
	}
	c.listing, c.byLibrary, c.all = listing, byLibrary, all
	return all, nil
}

// tallies returns the most frequent, most frequent first.
func tallies(counts map[string]int) []tally {
	var all []tally
	for what, n := range counts {
		all = append(all, tally{what, n})
	}
	slices.SortFunc(all, func(a, b tally) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.What, b.What))
	})
	return all[:min(listed, len(all))]
}

// statisticsPage is how much there is.
type statisticsPage struct {
	*summary
	totals
	Popular   []*library.Library
	Catalogue *Catalogue // nil where nothing is said of it
}

// A Catalogue is how the catalogue stands, for whoever wonders whether a submission has arrived.
type Catalogue struct {
	// Packages is how many it has; Commit is what it was read from, "" where that is no git repository.
	Packages int
	Commit   string
	// Checked is when it was last found to be so, zero where it has not been read yet; Failing since when
	// it cannot be read, zero where it can.
	Checked, Failing time.Time
	// Refused says of each file that cannot be used why not.
	Refused []string
}

func (s *Site) statistics(q *request) (*answer, error) {
	summary, err := s.summarize(q)
	if err != nil {
		return nil, err
	}
	totals, err := s.count(q)
	if err != nil {
		return nil, err
	}
	popular, err := s.library.Popular(q.Context(), listed)
	if err != nil {
		return nil, err
	}
	page := statisticsPage{summary: summary, totals: totals, Popular: popular}
	if s.options.Catalogue != nil {
		c := s.options.Catalogue()
		page.Catalogue = &c
	}
	return &answer{
		view: "statistics", title: "Statistics", canonical: "/statistics", section: "/statistics",
		description: "How many libraries, releases and files are served here, which are new and which are asked for most.",
		data:        page,
	}, nil
}
