package site

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/larder-cdn/larder/api/library"
)

// homePage is the data of the front page.
type homePage struct {
	Service string
	*summary
	Popular []card
	Example *card // the first of Popular that has a tag, nil if none has one
}

// A card is a library in a list.
type card struct {
	*library.Library
	Snippet library.Snippet // of the file that a page loads; zero if the library has none
}

// Label returns a short word for the kind of the library's main file: js, module, css, or its extension; "" if it has none.
func (c card) Label() string {
	switch c.Snippet.Kind {
	case library.Script:
		return "js"
	case library.Module:
		return "module"
	case library.Stylesheet:
		return "css"
	}
	return c.FileType()
}

// newCard returns a library as lists of libraries display it, with the tag and URL of the file of its latest version that a
// page loads, if it has one.
func newCard(q *request, l *library.Library) card {
	c := card{Library: l}
	if l.HasFile() {
		c.Snippet = library.NewSnippet(q.assetBase, l.Name, l.Version, l.Loaded)
	}
	return c
}

// newCards returns libraries as lists of libraries display them (see newCard), in their order.
func newCards(q *request, libraries []*library.Library) []card {
	cards := make([]card, len(libraries))
	for i, l := range libraries {
		cards[i] = newCard(q, l)
	}
	return cards
}

// popularShown is how many libraries the front page shows.
const popularShown = 12

// homePage returns the front page, with the 12 most popular libraries and the totals of all. It waits for the first listing
// of libraries.
func (s *Site) homePage(q *request) (*pageAnswer, error) {
	summary, err := s.summarize(q)
	if err != nil {
		return nil, err
	}
	popular, err := s.library.Popular(q.Context(), popularShown)
	if err != nil {
		return nil, err
	}
	page := homePage{Service: s.options.Name, summary: summary, Popular: newCards(q, popular)}
	for i, c := range page.Popular {
		if c.Snippet.HTML != "" {
			page.Example = &page.Popular[i]
			break
		}
	}
	return &pageAnswer{
		view: "home", canonical: "/", Section: "/",
		Description: "Front-end libraries, hosted here: find one, copy its tag with an integrity check, and it loads fast and unchanged.",
		Data:        page,
	}, nil
}

// aboutPage is the data of the page about the service.
type aboutPage struct {
	Service string
	HasDocs bool
}

// aboutPage returns the page that says what the service is, which is the same for all requests.
func (s *Site) aboutPage(*request) (*pageAnswer, error) {
	return &pageAnswer{
		view: "about", Title: "About", canonical: "/about", Section: "/about",
		Description: "What " + s.options.Name + " is, how files get here, and why they can be trusted.",
		Data:        aboutPage{s.options.Name, s.options.Document != nil},
	}, nil
}

// searchPage is the data of a page of search results, or of the list of all libraries.
type searchPage struct {
	Text    string // what was searched, "" for the list
	Results []result
	Pager   pager
	Empty   bool // no library is registered
}

// A result is a library that a search found, with facts that help to choose among several.
type result struct {
	card
	library.Facts
}

// Mark returns "vulnerable" or "deprecated" if the latest version is that, "" if it is neither or unknown.
func (r result) Mark() string {
	switch {
	case r.Vulnerable != nil && *r.Vulnerable:
		return "vulnerable"
	case r.Deprecated != nil && *r.Deprecated:
		return "deprecated"
	}
	return ""
}

// Checks returns phrases for the outcomes of the checks of the latest version, such as "no known vulnerabilities" and
// "provenance verified", without what [result.Mark] says already; nil if nothing is published.
func (r result) Checks() []string {
	provenance := "provenance " + describeProvenance(r.Provenance)
	switch {
	case r.Version == "":
		return nil
	case r.Vulnerable == nil && r.Provenance == "":
		return []string{"vulnerabilities and " + provenance}
	case r.Vulnerable == nil:
		return []string{"vulnerabilities not checked", provenance}
	case *r.Vulnerable:
		return []string{provenance}
	}
	return []string{"no known vulnerabilities", provenance}
}

// OtherSafeVersion returns the newest stable version that is neither deprecated nor vulnerable. It returns "" if that is
// the latest version, does not exist, or is unknown because deprecations or vulnerabilities were not checked.
func (r result) OtherSafeVersion() string {
	if r.SafeVersion == nil || *r.SafeVersion == r.Version {
		return ""
	}
	return *r.SafeVersion
}

// newResults returns the libraries as a page of search results displays them, in their order, with facts about each. It
// logs and leaves out facts that cannot be read.
func (s *Site) newResults(q *request, libraries []*library.Library) []result {
	results := make([]result, len(libraries))
	for i, l := range libraries {
		facts, err := s.library.Facts(l, s.options.Advisories)
		if err != nil {
			s.logger.Error("site: couldn't read all facts of a library; the results are shown without", "package", l.Name, "err", err)
		}
		results[i] = result{newCard(q, l), facts}
	}
	return results
}

// resultsShown is how many libraries a page of results has.
const resultsShown = 30

// searchPage returns a page of the search results for the text "q" in the query, best first. Without a text it returns a
// page of the list of all libraries by name. Libraries that are hidden from search are in neither.
func (s *Site) searchPage(q *request) (*pageAnswer, error) {
	listing, err := s.library.Listing(q.Context())
	if err != nil {
		return nil, err
	}
	text := q.textParam("q")
	page := searchPage{Text: text, Empty: len(listing.Libraries) == 0}
	a := &pageAnswer{view: "search", Section: "/search", Searched: text}
	found := make([]*library.Library, 0, len(listing.Libraries))
	if text == "" {
		for _, l := range listing.Libraries {
			if !l.Hidden {
				found = append(found, l)
			}
		}
		a.Title = "All libraries"
		a.Description = "Every library that is served here, by name."
	} else {
		if found, err = s.library.Search(q.Context(), text, nil); err != nil {
			return nil, err
		}
		a.Title = "Search for " + text
		a.Description = "Libraries that match " + text + "."
	}
	page.Pager = q.newPager(len(found), resultsShown, "results", func(n string) string {
		return withQuery("/search", encodeQuery("q", text, "page", n))
	})
	if text == "" {
		a.canonical = "/search"
		if page.Pager.Page > 1 {
			a.canonical += "?" + encodeQuery("page", strconv.Itoa(page.Pager.Page))
		}
	}
	page.Results = s.newResults(q, sliceOf(page.Pager, found))
	a.Data = page
	return a, nil
}

// redirectTo returns a function for a route that redirects with a status to a page.
func redirectTo(status int, page string) func(*request) (*pageAnswer, error) {
	return func(*request) (*pageAnswer, error) { return &pageAnswer{status: status, location: page}, nil }
}

// A summary is those statistics of all libraries that can be computed from their listing alone. It is computed once for
// each listing, so callers must not change it.
type summary struct {
	Registered int                // libraries with and without a published version
	Libraries  int                // those with one
	Versions   int                // published
	Newest     []*library.Library // those with the newest latest versions, newest first
	Most       []*library.Library // those with the most versions, most first
	Licenses   []tally            // most frequent first, as Kinds
	Kinds      []tally            // extensions of main files, without their dots
}

// A tally is how often something occurs among the libraries.
type tally struct {
	What  string
	Count int
}

// listed is how many elements the lists of a summary have at most.
const listed = 10

// summarize returns the totals and lists of all libraries for pages, which are computed once for each listing. It waits for
// the first listing. The caller must not change the result.
func (s *Site) summarize(q *request) (*summary, error) {
	listing, err := s.library.Listing(q.Context())
	if err != nil {
		return nil, err
	}
	return s.summaries.Get(listing, func() (*summary, int, error) { return newSummary(listing), 0, nil })
}

// newSummary computes the totals and the lists of a listing of libraries. Libraries without a published version count only
// in Registered. Libraries that are hidden from search count in totals, but are not listed.
func newSummary(listing *library.Listing) *summary {
	sum := &summary{Registered: len(listing.Libraries)}
	licenses, kinds := map[string]int{}, map[string]int{}
	var published []*library.Library
	for _, l := range listing.Libraries {
		if l.Version == "" {
			continue
		}
		sum.Libraries++
		sum.Versions += l.Versions
		licenses[cmp.Or(l.License, "not stated")]++
		if kind := l.FileType(); kind != "" {
			kinds[kind]++
		}
		if !l.Hidden {
			published = append(published, l)
		}
	}
	sum.Licenses, sum.Kinds = topTallies(licenses), topTallies(kinds)
	slices.SortStableFunc(published, func(a, b *library.Library) int { return b.Released.Compare(a.Released) })
	sum.Newest = slices.Clone(published[:min(listed, len(published))])
	slices.SortStableFunc(published, func(a, b *library.Library) int { return cmp.Compare(b.Versions, a.Versions) })
	sum.Most = slices.Clone(published[:min(listed, len(published))])
	return sum
}

// totals is how many files are published, and their bytes before compression.
type totals struct {
	Files int
	Bytes int64
}

// totalsCache has the totals of each library, so that after a publication only the versions of one library are read.
type totalsCache struct {
	mu        sync.Mutex
	listing   *library.Listing            // from which the totals are; nil at first
	byLibrary map[*library.Library]totals // a library that changes gets a new address
	all       totals                      // of all libraries
}

// countStored returns how many files all published versions have, and their bytes before compression. It reads only the
// versions of libraries that have changed since the last call that succeeded; concurrent calls wait for each other. It
// waits for the first listing of libraries.
func (s *Site) countStored(q *request) (totals, error) {
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

// topTallies returns up to ten keys with the highest counts, and these counts, highest first; keys with equal counts are
// sorted by name. It returns nil for no keys.
func topTallies(counts map[string]int) []tally {
	var all []tally
	for what, n := range counts {
		all = append(all, tally{what, n})
	}
	slices.SortFunc(all, func(a, b tally) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.What, b.What)) })
	return all[:min(listed, len(all))]
}

// statisticsPage is the data of the page of statistics.
type statisticsPage struct {
	*summary
	totals
	Popular   []*library.Library
	Catalogue *Catalogue // nil if the page does not mention it
}

// A Catalogue is the state of the catalogue, for contributors who want to know whether a submission has arrived.
type Catalogue struct {
	// Packages is how many packages it has. Commit is the commit from which it was read, "" if it is not in a git
	// repository.
	Packages int
	Commit   string
	// Checked is when the catalogue was last read, or found unchanged; zero if it has not been read yet. Failing is the
	// time since when it cannot be read; zero if it can be read.
	Checked, Failing time.Time
	// Refused has one sentence for each file that cannot be used. It says why.
	Refused []string
}

// statisticsPage returns the page with the statistics of the service, and the state of the catalogue if Options.Catalogue
// is set. It waits for the first listing of libraries.
func (s *Site) statisticsPage(q *request) (*pageAnswer, error) {
	summary, err := s.summarize(q)
	if err != nil {
		return nil, err
	}
	totals, err := s.countStored(q)
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
	return &pageAnswer{
		view: "statistics", Title: "Statistics", canonical: "/statistics", Section: "/statistics",
		Description: "How many libraries, releases and files are served here, which are new and which are asked for most.",
		Data:        page,
	}, nil
}
