package site

import (
	"net/http"
	"strconv"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// homePage is the front page.
type homePage struct {
	Service string
	*summary
	Popular []card
	Example *card // one of the popular, for the steps
}

// A card is a library in a list.
type card struct {
	*library.Library
	Snippet library.Snippet // of the main file; without URL where there is none
}

// Label is what kind of library it is, in a word.
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

func newCard(q *request, l *library.Library) card {
	c := card{Library: l}
	var sri logs.SRI
	if l.HasFile() && sri.UnmarshalText([]byte(l.SRI)) == nil {
		c.Snippet = library.NewSnippet(q.assetBase, l.Name, l.Version, views.PublishedFile{Path: l.Filename, SRI: sri, File: views.File{Module: l.Module}})
	}
	return c
}

func newCards(q *request, libraries []*library.Library) []card {
	cards := make([]card, len(libraries))
	for i, l := range libraries {
		cards[i] = newCard(q, l)
	}
	return cards
}

// popularShown is how many libraries the front page shows.
const popularShown = 12

func (s *Site) home(q *request) (*answer, error) {
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
	return &answer{
		view: "home", canonical: "/", section: "/",
		description: "Front-end libraries, hosted here: find one, copy its tag with an integrity check, and it loads fast and unchanged.",
		data:        page,
	}, nil
}

type aboutPage struct {
	Service string
	HasDocs bool
}

func (s *Site) about(*request) (*answer, error) {
	return &answer{
		view: "about", title: "About", canonical: "/about", section: "/about",
		description: "What " + s.options.Name + " is, how files get here, and why they can be trusted.",
		data:        aboutPage{s.options.Name, s.options.Document != nil},
	}, nil
}

// searchPage is the results of a search, or the list of all libraries.
type searchPage struct {
	Text    string
	Results []card
	Pager   pager
	Empty   bool // nothing is here at all
}

// resultsShown is how many libraries a page of results has.
const resultsShown = 30

func (s *Site) search(q *request) (*answer, error) {
	listing, err := s.library.Listing(q.Context())
	if err != nil {
		return nil, err
	}
	text := q.text("q")
	page := searchPage{Text: text, Empty: len(listing.Libraries) == 0}
	a := &answer{view: "search", section: "/search", searched: text}
	found := make([]*library.Library, 0, len(listing.Libraries))
	if text == "" {
		for _, l := range listing.Libraries {
			if !l.Hidden {
				found = append(found, l)
			}
		}
		a.title = "All libraries"
		a.description = "Every library that is served here, by name."
	} else {
		if found, err = s.library.Search(q.Context(), text, nil); err != nil {
			return nil, err
		}
		a.title = "Search for " + text
		a.description = "Libraries that match " + text + "."
	}
	page.Pager = newPager(len(found), resultsShown, q.page(), "results", func(n string) string {
		return withQuery("/search", encode("q", text, "page", n))
	})
	if text == "" {
		a.canonical = "/search"
		if page.Pager.Page > 1 {
			a.canonical += "?" + encode("page", strconv.Itoa(page.Pager.Page))
		}
	}
	page.Results = newCards(q, part(page.Pager, found))
	a.data = page
	return a, nil
}

// librariesElsewhere leads from what is left of a library's address without its name.
func (s *Site) librariesElsewhere(*request) (*answer, error) {
	return &answer{status: http.StatusSeeOther, location: "/search"}, nil
}

// docsElsewhere leads from the address that the API's document has on a host of its own
// to its page here.
func (s *Site) docsElsewhere(*request) (*answer, error) {
	return &answer{status: http.StatusPermanentRedirect, location: "/docs"}, nil
}
