package api

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/logs"
)

// How many entries of the log an answer has.
const (
	entriesShown = 100
	mostEntries  = 1000
)

var noEntries = failure(http.StatusNotFound, "The log has nothing about it")

func badValue(name, problem string) *answers.Failure {
	return failure(http.StatusBadRequest, name+" "+problem)
}

// logEntries answers /logs and what is below: entries of the log, newest first. Where there are more, the header Link
// leads to them.
func (p *public) logEntries(_ context.Context, r *request) (*answers.Body, answers.Caching, error) {
	q, err := p.logQuery(r)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	page, err := p.Library.Entries(q)
	if err != nil {
		return nil, answers.Caching{}, nothingLogged(err)
	}
	var w jsonWriter
	w.beginArray()
	for _, e := range page.Entries {
		w.raw(entryJSON(e))
	}
	w.endArray()
	if page.Next > 0 {
		next := url.Values{}
		maps.Copy(next, r.query)
		next.Set("before", strconv.FormatInt(page.Next, 10))
		h := r.c.Writer.Header()
		h.Set("Link", "<?"+next.Encode()+`>; rel="next"`)
		h.Set("Access-Control-Expose-Headers", "Link")
	}
	return newJSON(w.bytes()), notCached, nil
}

// nothingLogged gives what is missing its answer: what the log knows nothing of may get into it at any time.
func nothingLogged(err error) error {
	if errors.Is(err, library.ErrNoLibrary) || errors.Is(err, library.ErrNoVersion) {
		return noEntries
	}
	return err
}

// entryJSON is an entry with its index. The rest is what the tree hashes, byte for byte.
func entryJSON(e logs.Indexed) []byte {
	text := strconv.AppendInt([]byte(`{"index":`), e.Index, 10)
	text = append(text, ',')
	return append(text, e.Raw[1:]...) // it is an object, and not empty
}

// logQuery reads which entries a request is for.
func (p *public) logQuery(r *request) (q logs.Query, err error) {
	if q, err = p.logFilter(r); err != nil {
		return q, err
	}
	var ok bool
	if q.Limit, ok = parseLimit(r.query); !ok {
		return q, badLimit
	}
	if q.Limit == math.MaxInt {
		q.Limit = entriesShown
	}
	q.Limit = min(q.Limit, mostEntries)
	if text := r.query.Get("since"); text != "" {
		if q.Since, err = logs.ParseSince(strings.ReplaceAll(text, " ", "+"), time.Now()); err != nil { // the "+" of a time zone
			return q, badValue("since", err.Error())
		}
	}
	q.Before, err = parseIndex(r.query, "before")
	return q, err
}

// logFilter reads what entries are to be about. The path goes first.
func (p *public) logFilter(r *request) (q logs.Query, err error) {
	q.Package, q.Version = r.query.Get("package"), r.query.Get("version")
	if _, ok := r.c.Params.Get("library"); ok {
		if q.Package, err = param(r.c, "library"); err != nil {
			return q, err
		}
	}
	if _, ok := r.c.Params.Get("version"); ok {
		if q.Version, err = param(r.c, "version"); err != nil {
			return q, err
		}
	}
	if q.Version != "" && q.Package == "" {
		return q, badValue("version", "needs a package")
	}
	if q.Kinds, err = logs.ParseKinds(strings.Join(r.query["kind"], ",")); err != nil {
		return q, badValue("kind", err.Error())
	}
	return q, nil
}

// parseIndex reads an index of the log that is more than 0, which is returned where there is none.
func parseIndex(q url.Values, name string) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 {
		return 0, badValue(name, "must be the number of an entry, more than 0")
	}
	return int64(n), nil
}

const (
	// maxStreams is how many streams there may be at once: each costs a goroutine and a connection.
	maxStreams = 256
	// heartbeat is how often a stream says that it is still there, so that neither side waits for one that is not.
	heartbeat = 15 * time.Second
	// streamTimeout is how long a client may take for what a stream sends it at once.
	streamTimeout = 30 * time.Second
	// reconnect is how long a client is to wait before it comes again.
	reconnect = 5 * time.Second
)

var noMoreStreams = unavailable("There are too many streams of changes", 60)

// logStream answers /logs/stream with entries as they come, as server-sent events
// (https://html.spec.whatwg.org/multipage/server-sent-events.html). It ends when the client goes or the process stops.
func (p *public) logStream(c *gin.Context) {
	if err := p.stream(&request{c.Request, c, requests.ParseQuery(c.Request.URL.RawQuery)}); err != nil {
		fail(c, p.Logger, err)
	}
}

// stream returns an error where it has sent nothing.
func (p *public) stream(r *request) error {
	q, err := p.logFilter(r)
	if err != nil {
		return err
	}
	next, err := p.streamFrom(r)
	if err != nil {
		return err
	}
	ctx, s, leave, err := p.beginEvents(r)
	if err != nil || s == nil {
		return err
	}
	defer leave()
	for s.err == nil && ctx.Err() == nil {
		waiting, stop := context.WithTimeout(ctx, p.heartbeat)
		entries, after, err := p.Library.NextEntries(waiting, next, q)
		stop()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, context.DeadlineExceeded):
			s.send([]byte(": the log has nothing new\n\n"))
			continue
		case err != nil:
			p.Logger.Error("a stream of the log ends early", "err", err)
			return nil
		}
		next = after
		var text []byte
		for _, e := range entries {
			text = append(text, "id: "+strconv.FormatInt(e.Index, 10)+"\ndata: "...)
			text = append(append(text, entryJSON(e)...), "\n\n"...)
		}
		s.send(text)
	}
	return nil
}

// beginEvents begins to answer with server-sent events, until the context ends: when the client goes or the process stops.
// The writer is nil where there is nothing to send, as to HEAD.
func (p *public) beginEvents(r *request) (ctx context.Context, s *eventWriter, leave func(), err error) {
	if r.Method == http.MethodHead {
		beginStream(r)
		return nil, nil, nil, nil
	}
	ctx, free, err := p.streams.Enter(r.Context(), r.RemoteAddr, 0)
	if err != nil {
		return nil, nil, nil, noMoreStreams
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-p.Stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	s = &eventWriter{c: http.NewResponseController(r.c.Writer), w: r.c.Writer}
	_ = s.c.SetReadDeadline(time.Time{}) // else it would end with the deadline of the request
	beginStream(r)
	s.send([]byte("retry: " + strconv.FormatInt(reconnect.Milliseconds(), 10) + "\n\n"))
	return ctx, s, func() { cancel(); free() }, nil
}

// streamFrom returns the index of the first entry that a stream may send: the one after what the client has, else the
// next one to come.
func (p *public) streamFrom(r *request) (int64, error) {
	size := p.Library.LogSize()
	text := r.Header.Get("Last-Event-ID")
	text = cmp.Or(text, r.query.Get("after"))
	if text == "" {
		return size, nil
	}
	last, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, badValue("after", "must be the number of an entry")
	}
	return min(int64(last)+1, size), nil
}

func beginStream(r *request) {
	h := r.c.Writer.Header()
	notCached.SetHeader(h)
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // or nginx keeps events back until there are many
	r.c.Writer.WriteHeader(http.StatusOK)
	r.c.Writer.WriteHeaderNow()
}

// An eventWriter writes to a client that may be slow, or gone.
type eventWriter struct {
	c   *http.ResponseController
	w   http.ResponseWriter
	err error // the first
}

func (s *eventWriter) send(text []byte) {
	if len(text) == 0 || s.err != nil {
		return
	}
	// Writers that know no deadlines belong to tests. Between two events there is none: it would end an HTTP/2 stream.
	_ = s.c.SetWriteDeadline(time.Now().Add(streamTimeout))
	if _, s.err = s.w.Write(text); s.err == nil {
		s.err = s.c.Flush()
	}
	_ = s.c.SetWriteDeadline(time.Time{})
}

// feedEntries is how many entries a feed has, and feedPackages how many packages it may be about.
const (
	feedEntries  = 50
	feedPackages = 20
)

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

// logFeed answers /logs.atom: what happened last that users want to hear of, of all packages or of some.
func (p *public) logFeed(_ context.Context, r *request) (*answers.Body, answers.Caching, error) {
	base, err := baseOr(p.SiteBase, r.Request)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	names := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(r.query["package"]))), func(name string) bool { return name == "" })
	if len(names) > feedPackages {
		return nil, answers.Caching{}, badValue("package", fmt.Sprintf("may be given at most %d times", feedPackages))
	}
	kinds, err := logs.ParseKinds(strings.Join(r.query["kind"], ","))
	if err != nil {
		return nil, answers.Caching{}, badValue("kind", err.Error())
	}
	entries, err := p.news(names, kinds)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	feed := atomFeed{Title: p.Name + ": releases, and what became of them", Author: atomPerson{p.Name}, Generator: "Larder"}
	query := url.Values{}
	if len(names) > 0 {
		feed.Title = p.Name + ": " + strings.Join(names, ", ")
		query["package"] = names
	}
	if len(kinds) > 0 {
		query["kind"] = r.query["kind"]
	}
	self, shown := base+"/logs.atom", base+"/history"
	if len(query) > 0 {
		self += "?" + query.Encode()
	}
	if len(names) == 1 {
		shown += "?package=" + url.QueryEscape(names[0])
	}
	feed.Links = []atomLink{{"self", "application/atom+xml", self}, {"alternate", "text/html", shown}}
	if feed.ID, feed.Updated, err = p.feedIdentity(names, self); err != nil {
		return nil, answers.Caching{}, err
	}
	for i, e := range entries {
		when := e.Time.Format(time.RFC3339)
		if i == 0 {
			feed.Updated = when
		}
		feed.Entries = append(feed.Entries, newFeedEntry(base, e, when))
	}
	text, err := xml.MarshalIndent(feed, "", " ")
	if err != nil {
		return nil, answers.Caching{}, fmt.Errorf("api: couldn't write the feed: %w", err)
	}
	return answers.NewBody("application/atom+xml; charset=utf-8", append([]byte(xml.Header), text...)), addressed(p.SiteBase != "", fiveMinutes), nil
}

// news returns the newest entries of those kinds, of all [logs.News] where there are none: about these packages and about
// the log, or about everything.
func (p *public) news(names []string, kinds []logs.Kind) ([]logs.Indexed, error) {
	if len(kinds) == 0 {
		kinds = logs.News
	}
	queries := []logs.Query{{Kinds: kinds, Limit: feedEntries}}
	if len(names) > 0 {
		queries = nil
		ofLog := slices.DeleteFunc(slices.Clone(kinds), func(k logs.Kind) bool { return !slices.Contains(logs.LogNews, k) })
		if len(ofLog) > 0 {
			queries = append(queries, logs.Query{Kinds: ofLog, Limit: feedEntries})
		}
	}
	for _, name := range names {
		queries = append(queries, logs.Query{Package: name, Kinds: kinds, Limit: feedEntries})
	}
	var all []logs.Indexed
	for _, q := range queries {
		page, err := p.Library.Entries(q)
		if err = nothingLogged(err); err == noEntries && len(names) > 1 {
			continue // the others' news count
		}
		if err != nil {
			return nil, err
		}
		all = append(all, page.Entries...)
	}
	slices.SortFunc(all, func(a, b logs.Indexed) int { return cmp.Compare(b.Index, a.Index) })
	return all[:min(feedEntries, len(all))], nil
}

func newFeedEntry(base string, e logs.Indexed, when string) atomEntry {
	entry := atomEntry{ID: entryID(e), Title: e.Package + " " + e.Version, Updated: when, Published: when}
	link := base + "/history?entry=" + strconv.FormatInt(e.Index, 10)
	if e.Kind.Publishes() {
		link = base + "/library/" + url.PathEscape(e.Package) + "/" + url.PathEscape(e.Version)
	} else {
		entry.Title = strings.TrimSpace(strings.TrimSpace(entry.Title) + " " + strings.ReplaceAll(string(e.Kind), "-", " "))
	}
	entry.Links = []atomLink{{"alternate", "text/html", link}}
	entry.Summary = fmt.Sprintf("%s (log entry %d).", e.News(), e.Index)
	if !e.Released.IsZero() && e.Kind.Publishes() {
		entry.Summary += " Upstream released it on " + e.Released.Format("2 January 2006") + "."
	}
	return entry
}

// feedIdentity returns the feed's id, which is that of the first entry about what it is about: it stays under whatever
// address the feed is read. That entry says when the feed was last updated, should it be empty.
func (p *public) feedIdentity(names []string, self string) (id, updated string, err error) {
	if len(names) > 1 { // of several packages no entry is the first
		return self, time.Unix(0, 0).UTC().Format(time.RFC3339), nil
	}
	first, err := p.Library.FirstEntry(strings.Join(names, ""))
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
