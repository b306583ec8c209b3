package api

import (
	"context"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"net/url"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs"
)

// feedEntries is how many publications the feed has.
const feedEntries = 50

// The parts of Atom (RFC 4287) that the feed has.
type (
	atomFeed struct {
		XMLName   xml.Name    `xml:"http://www.w3.org/2005/Atom feed"`
		ID        string      `xml:"id"`
		Title     string      `xml:"title"`
		Updated   string      `xml:"updated"`
		Author    atomPerson  `xml:"author"`
		Generator string      `xml:"generator"`
		Links     []atomLink  `xml:"link"`
		Entries   []atomEntry `xml:"entry"`
	}
	atomEntry struct {
		ID        string     `xml:"id"`
		Title     string     `xml:"title"`
		Updated   string     `xml:"updated"`
		Published string     `xml:"published"`
		Links     []atomLink `xml:"link"`
		Summary   string     `xml:"summary"`
	}
	atomPerson struct {
		Name string `xml:"name"`
	}
	atomLink struct {
		Rel  string `xml:"rel,attr"`
		Type string `xml:"type,attr"`
		Href string `xml:"href,attr"`
	}
)

// logFeed answers /logs.atom: what was published last, of all packages or of one.
func (p *public) logFeed(_ context.Context, r *request) (*body, caching, error) {
	base, err := baseOr(p.SiteBase, r.Request)
	if err != nil {
		return nil, caching{}, err
	}
	name := r.query.Get("package")
	page, err := p.Library.Entries(logs.Query{Package: name, Kinds: []logs.Kind{logs.Published}, Limit: feedEntries})
	if err != nil {
		return nil, caching{}, nothingLogged(err)
	}
	feed := atomFeed{Title: p.Name + ": new releases", Author: atomPerson{p.Name}, Generator: "Larder"}
	self, shown := base+"/logs.atom", base+"/history?kind="+string(logs.Published)
	if name != "" {
		feed.Title = p.Name + ": new releases of " + name
		self += "?package=" + url.QueryEscape(name)
		shown += "&package=" + url.QueryEscape(name)
	}
	feed.Links = []atomLink{{"self", "application/atom+xml", self}, {"alternate", "text/html", shown}}
	if feed.ID, feed.Updated, err = p.feedIdentity(name, self); err != nil {
		return nil, caching{}, err
	}
	for i, e := range page.Entries {
		when := e.Time.Format(time.RFC3339)
		if i == 0 {
			feed.Updated = when
		}
		entry := atomEntry{ID: entryID(e), Title: e.Package + " " + e.Version, Updated: when, Published: when}
		entry.Links = []atomLink{{"alternate", "text/html", base + "/library/" + url.PathEscape(e.Package) + "/" + url.PathEscape(e.Version)}}
		entry.Summary = fmt.Sprintf("%s %s was published (log entry %d).", e.Package, e.Version, e.Index)
		if !e.Released.IsZero() {
			entry.Summary += " Upstream released it on " + e.Released.Format("2 January 2006") + "."
		}
		feed.Entries = append(feed.Entries, entry)
	}
	text, err := xml.MarshalIndent(feed, "", " ")
	if err != nil {
		return nil, caching{}, fmt.Errorf("api: couldn't write the feed: %w", err)
	}
	return newBody("application/atom+xml; charset=utf-8", append([]byte(xml.Header), text...)), fiveMinutes, nil
}

// feedIdentity returns the feed's id, which is that of the first entry about what it is about: it stays under whatever
// address the feed is read. That entry says when the feed was last updated, should it be empty.
func (p *public) feedIdentity(name, self string) (id, updated string, err error) {
	first, err := p.Library.FirstEntry(name)
	if errors.Is(err, library.ErrNoEntry) { // the log is empty
		return self, time.Unix(0, 0).UTC().Format(time.RFC3339), nil
	}
	if err != nil {
		return "", "", err
	}
	return entryID(first), first.Time.Format(time.RFC3339), nil
}

// entryID names an entry by its hash in the tree (RFC 6920), so that it has one name for ever.
func entryID(e logs.Indexed) string {
	hash := tlog.RecordHash(e.Raw)
	return "ni:///sha-256;" + base64.RawURLEncoding.EncodeToString(hash[:])
}
