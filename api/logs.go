package api

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/larder-cdn/larder/api/address"
	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs"
)

// How many entries of the log an answer has.
const (
	entriesShown = 100
	mostEntries  = 1000
)

var noEntries = &failure{status: http.StatusNotFound, message: "The log has nothing about it", cached: notCached}

func badValue(name, problem string) *failure {
	return &failure{status: http.StatusBadRequest, message: name + " " + problem, cached: notCached}
}

// logEntries answers /logs and what is below: entries of the log, newest first. Where there are more, the header Link
// leads to them.
func (p *public) logEntries(_ context.Context, r *request) (*body, caching, error) {
	q, err := p.logQuery(r)
	if err != nil {
		return nil, caching{}, err
	}
	page, err := p.Library.Entries(q)
	if err != nil {
		return nil, caching{}, nothingLogged(err)
	}
	var w jsonWriter
	w.beginArray()
	for _, e := range page.Entries {
		w.raw(entryJSON(e))
	}
	w.endArray()
	if page.Next > 0 {
		next := url.Values{}
		for name, values := range r.query {
			next[name] = values
		}
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
	if q.Limit, err = parseLimit(r.query); err != nil {
		return q, err
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
	// maxStreams is how many streams of the log there may be at once: each costs a goroutine and a connection.
	maxStreams = 256
	// maxStreamsOfOne is how many of them one client may have.
	maxStreamsOfOne = 8
	// heartbeat is how often a stream says that it is still there, so that neither side waits for one that is not.
	heartbeat = 15 * time.Second
	// streamPatience is how long a client may take for what a stream sends it at once.
	streamPatience = 30 * time.Second
	// reconnect is how long a client is to wait before it comes again.
	reconnect = 5 * time.Second
)

var noMoreStreams = &failure{status: http.StatusServiceUnavailable, message: "There are too many streams of the log", cached: notCached, retryAfter: 60}
var noMoreStreamsOfOne = &failure{status: http.StatusTooManyRequests, message: "You follow the log with " + strconv.Itoa(maxStreamsOfOne) + " streams already", cached: notCached, retryAfter: 60}

// logStream answers /logs/stream with entries as they come, as server-sent events
// (https://html.spec.whatwg.org/multipage/server-sent-events.html). It ends when the client goes or the process stops.
func (p *public) logStream(c *gin.Context) {
	query, ok := address.Query(c.Request.URL.RawQuery)
	if !ok {
		badQuery.send(c)
		return
	}
	if err := p.stream(&request{c.Request, c, query}); err != nil {
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
	if r.Method == http.MethodHead {
		beginStream(r)
		return nil
	}
	leave, ok := p.following.Enter(r.RemoteAddr)
	if !ok {
		return noMoreStreamsOfOne
	}
	defer leave()
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		return noMoreStreams
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-p.Stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	s := &eventWriter{c: http.NewResponseController(r.c.Writer), w: r.c.Writer}
	_ = s.c.SetReadDeadline(time.Time{}) // else it would end with the deadline of the request
	beginStream(r)
	s.send([]byte("retry: " + strconv.FormatInt(reconnect.Milliseconds(), 10) + "\n\n"))
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

// streamFrom returns the index of the first entry that a stream may send: the one after what the client has, else the
// next one to come.
func (p *public) streamFrom(r *request) (int64, error) {
	size := p.Library.LogSize()
	text := r.Header.Get("Last-Event-ID")
	if text == "" {
		text = r.query.Get("after")
	}
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
	notCached.set(h)
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
	_ = s.c.SetWriteDeadline(time.Now().Add(streamPatience))
	if _, s.err = s.w.Write(text); s.err == nil {
		s.err = s.c.Flush()
	}
	_ = s.c.SetWriteDeadline(time.Time{})
}
