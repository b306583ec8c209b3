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

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/logs"
)

// How many log entries a response has by default and at most.
const (
	entriesShown = 100
	mostEntries  = 1000
)

var noEntries = newFailure(http.StatusNotFound, "The log has nothing about it")

// newBadValue returns the failure (400) for a query parameter: the message is its name, a space and the problem.
func newBadValue(name, problem string) *answers.Failure {
	return newFailure(http.StatusBadRequest, name+" "+problem)
}

// logEntries returns the response to /logs and the paths below: entries of the log, newest first. If there are more, it sets
// the header Link to the next page. If the log has nothing about the library or version, the error is a failure with status
// 404.
func (p *public) logEntries(_ context.Context, r *request) (*answers.Body, answers.Caching, error) {
	q, err := p.parseLogQuery(r)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	page, err := p.Library.Entries(q)
	if err != nil {
		return nil, answers.Caching{}, mapLogError(err)
	}
	var w jsonWriter
	w.beginArray()
	for _, e := range page.Entries {
		w.writeRaw(encodeEntry(e))
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

// mapLogError returns the failure 404 for an error that says that the log has no entry about a library or version, and else
// err itself. Caches must not store that failure, because such an entry may be added at any time.
func mapLogError(err error) error {
	if errors.Is(err, library.ErrNoLibrary) || errors.Is(err, library.ErrNoVersion) {
		return noEntries
	}
	return err
}

// encodeEntry returns a log entry as JSON: an object with its index, followed by the fields of the raw entry, byte for byte
// as they are in the log.
func encodeEntry(e logs.Indexed) []byte {
	text := strconv.AppendInt([]byte(`{"index":`), e.Index, 10)
	text = append(text, ',')
	return append(text, e.Raw[1:]...) // Raw is an object that is not empty
}

// parseLogQuery returns which entries of the log a request asks for: package, version and kinds (see parseLogFilter), limit
// (100 by default, at most 1000), since (a time, from which on entries count) and before (an index, below which entries
// count). A malformed parameter is a failure with status 400.
func (p *public) parseLogQuery(r *request) (q logs.Query, err error) {
	if q, err = p.parseLogFilter(r); err != nil {
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
			return q, newBadValue("since", err.Error())
		}
	}
	q.Before, err = parseIndex(r.query, "before")
	return q, err
}

// parseLogFilter returns which package, version and kinds of log entries a request asks for. A package or version in the
// path takes precedence over the query. A version without a package, and an unknown kind, is a failure with status 400.
func (p *public) parseLogFilter(r *request) (q logs.Query, err error) {
	q.Package = cmp.Or(r.params["library"], r.query.Get("package"))
	q.Version = cmp.Or(r.params["version"], r.query.Get("version"))
	if q.Version != "" && q.Package == "" {
		return q, newBadValue("version", "needs a package")
	}
	if q.Kinds, err = logs.ParseKinds(strings.Join(r.query["kind"], ",")); err != nil {
		return q, newBadValue("kind", err.Error())
	}
	return q, nil
}

// parseIndex returns the index of a log entry that the named query parameter has, 0 if the parameter is missing or
// empty. Anything else but a whole number over 0 is a failure with status 400.
func parseIndex(q url.Values, name string) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 {
		return 0, newBadValue(name, "must be the number of an entry, more than 0")
	}
	return int64(n), nil
}

const (
	// maxStreams is how many streams may be open at once: each costs a goroutine and a connection.
	maxStreams = 256
	// heartbeat is how often a stream sends a comment, so that both sides detect a broken connection.
	heartbeat = 15 * time.Second
	// streamTimeout is how long a client may take to receive what a stream sends at once.
	streamTimeout = 30 * time.Second
	// reconnect is how long a client waits before it reconnects.
	reconnect = 5 * time.Second
)

var noMoreStreams = newUnavailable("There are too many streams of changes", 60)

// streamLog handles /logs/stream: it sends the log entries that a request asks for (see parseLogFilter and parseStreamStart) as
// server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), as they are added, until the context of
// openEventStream ends or reading fails, which it logs. It returns an error only if it has sent nothing.
func (p *public) streamLog(r *request) error {
	q, err := p.parseLogFilter(r)
	if err != nil {
		return err
	}
	next, err := p.parseStreamStart(r)
	if err != nil {
		return err
	}
	ctx, s, leave, err := p.openEventStream(r)
	if err != nil || s == nil {
		return err
	}
	defer leave()
	sent := time.Now()
	for s.err == nil && ctx.Err() == nil {
		waiting, stop := context.WithDeadline(ctx, sent.Add(p.heartbeat))
		entries, after, err := p.Library.NextEntries(waiting, next, q)
		late := waiting.Err() != nil
		stop()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			p.Logger.Error("a stream of the log ends early", "err", err)
			return nil
		case err == nil:
			next = after
		}
		if len(entries) == 0 {
			if late { // else the client asks for none of the new entries
				s.send([]byte(": the log has nothing new\n\n"))
				sent = time.Now()
			}
			continue
		}
		var text []byte
		for _, e := range entries {
			text = append(text, "id: "+strconv.FormatInt(e.Index, 10)+"\ndata: "...)
			text = append(append(text, encodeEntry(e)...), "\n\n"...)
		}
		s.send(text)
	}
	return nil
}

// openEventStream starts a response of server-sent events, which s sends. ctx ends when the client disconnects, the process
// stops, or another client needs the place. The caller calls leave at the end. To HEAD it sends only the header, and all
// results are nil. If too many streams are open, it sends nothing and returns a failure with status 503.
func (p *public) openEventStream(r *request) (ctx context.Context, s *eventWriter, leave func(), err error) {
	if r.Method == http.MethodHead {
		sendStreamHeader(r)
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
	_ = s.c.SetReadDeadline(time.Time{}) // the deadline of the request would end the stream
	sendStreamHeader(r)
	s.send([]byte("retry: " + strconv.FormatInt(reconnect.Milliseconds(), 10) + "\n\n"))
	return ctx, s, func() { cancel(); free() }, nil
}

// parseStreamStart returns the index of the first log entry that a stream sends: the one after that in the header
// Last-Event-ID or else in the query parameter "after", or without both the next that is added. It is never beyond that. A
// malformed index is a failure with status 400.
func (p *public) parseStreamStart(r *request) (int64, error) {
	size := p.Library.LogSize()
	text := r.Header.Get("Last-Event-ID")
	text = cmp.Or(text, r.query.Get("after"))
	if text == "" {
		return size, nil
	}
	last, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, newBadValue("after", "must be the number of an entry")
	}
	return min(int64(last)+1, size), nil
}

// sendStreamHeader writes status and header of a response of server-sent events. It does not flush them: the client receives
// them with the first event, or when the handler returns.
func sendStreamHeader(r *request) {
	h := r.c.Writer.Header()
	notCached.SetHeader(h)
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // else nginx buffers events
	r.c.Writer.WriteHeader(http.StatusOK)
	r.c.Writer.WriteHeaderNow()
}

// An eventWriter writes events to a client that may be slow or disconnected.
type eventWriter struct {
	c   *http.ResponseController
	w   http.ResponseWriter
	err error // the first
}

// send sends text to the client and flushes it, within streamTimeout. It stores an error in s.err, and after one does
// nothing.
func (s *eventWriter) send(text []byte) {
	if len(text) == 0 || s.err != nil {
		return
	}
	// Only test writers have no deadlines. Between events the deadline is removed, since it would end an HTTP/2 stream.
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

// The elements of Atom (RFC 4287) in the feed.
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

// logFeed returns the response to /logs.atom, an Atom feed: the newest 50 log entries that are news (see [logs.News]), such
// as releases, or of the kinds in the query, about all packages or up to 20 in the query. Malformed parameters are a failure
// with status 400.
func (p *public) logFeed(_ context.Context, r *request) (*answers.Body, answers.Caching, error) {
	base, err := r.base(p.SiteBase)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	names := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(r.query["package"]))), func(name string) bool { return name == "" })
	if len(names) > feedPackages {
		return nil, answers.Caching{}, newBadValue("package", fmt.Sprintf("may be given at most %d times", feedPackages))
	}
	kinds, err := logs.ParseKinds(strings.Join(r.query["kind"], ","))
	if err != nil {
		return nil, answers.Caching{}, newBadValue("kind", err.Error())
	}
	entries, err := p.readNews(names, kinds)
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
	return answers.NewBody("application/atom+xml; charset=utf-8", append([]byte(xml.Header), text...)), fiveMinutes, nil
}

// readNews returns the newest 50 log entries of these kinds (without kinds, of those in [logs.News]), newest first. With
// names they are about those packages or the log itself; names that the log does not have are ignored. If names is a single
// such name, the error is a failure with status 404.
func (p *public) readNews(names []string, kinds []logs.Kind) ([]logs.Indexed, error) {
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
		if err = mapLogError(err); err == noEntries && len(names) > 1 {
			continue // the news of the others count
		}
		if err != nil {
			return nil, err
		}
		all = append(all, page.Entries...)
	}
	slices.SortFunc(all, func(a, b logs.Indexed) int { return cmp.Compare(b.Index, a.Index) })
	return all[:min(feedEntries, len(all))], nil
}

// newFeedEntry returns a log entry as an entry of the Atom feed. base is the site's URL, and when the time of the entry as
// RFC 3339 text.
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

// feedIdentity returns the ID of the feed, and as RFC 3339 text the time of its last update in case it has no entries. Both
// are those of the first log entry about the package in names, or without names of the log, so they stay the same under any
// address. With several names, or if there is no such entry, the ID is self, the URL of the feed, and the time is the start
// of 1970.
func (p *public) feedIdentity(names []string, self string) (id, updated string, err error) {
	if len(names) > 1 { // no entry is the first of several packages
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

// entryID returns an identifier of a log entry that never changes: its hash in the log's Merkle tree as a URI (RFC 6920).
func entryID(e logs.Indexed) string {
	hash := tlog.RecordHash(e.Raw)
	return "ni:///sha-256;" + base64.RawURLEncoding.EncodeToString(hash[:])
}
