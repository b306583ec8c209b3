package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/server/negotiate"
	"github.com/larder-cdn/larder/server/pace"
)

const allowedMethods = "GET, HEAD, OPTIONS"

// errReplaced says that a coding was replaced by a smaller one since the asset
// was read.
var errReplaced = errors.New("the coding has been replaced")

// An outcome is what an answer came to, for the metrics.
type outcome struct {
	status int
	coding label
	sent   int64 // bytes of the body
}

// A query is what is asked of an asset, however it came.
type query struct {
	head   bool   // whether only the head of the answer is wanted
	path   string // as it came, percent-encoded
	fields *negotiate.Fields
}

// A recipient is who is answered. The methods send an answer and return what it came to;
// as long as body returns an error nothing was sent.
type recipient interface {
	// now returns the time when the request came.
	now() time.Time
	// wait is called before what may take long.
	wait()
	fail(failure) outcome
	notModified(r *representation, tag string) outcome
	headOf(*representation) outcome
	body(*asset, *representation) (outcome, error)
}

// answer decides what a query comes to. It is generic so that a recipient takes no memory.
func answer[R recipient](a *Assets, to R, q *query) outcome {
	t, err := parseTarget(q.path)
	if err != nil {
		return to.fail(a.failureOf(t, err))
	}
	vary := false
	// An asset may describe a coding that has been replaced since. Then it is
	// read again; a coding is replaced once or twice in its life.
	const attempts = 4
	for range attempts {
		f, ok := a.rows.cached(t, to.now())
		if !ok {
			to.wait()
			if f, err = a.rows.load(t, f); err != nil {
				break
			}
		}
		vary = f.representations[0].vary
		rep := f.choose(negotiate.ParseAcceptEncoding(q.fields.AcceptEncoding))
		if rep == nil {
			return to.fail(notAcceptable(f))
		}
		switch v, tag := rep.evaluate(q.fields); v {
		case failed:
			return to.fail(preconditionFailed(rep))
		case notModified:
			f.count()
			return to.notModified(rep, tag)
		}
		if q.head {
			// RFC 9110 §14.2: a range is defined for GET only, so this answers
			// as a GET without one.
			f.count()
			return to.headOf(rep)
		}
		var out outcome
		if out, err = to.body(f, rep); err == nil {
			if out.coding != labelNone {
				f.count()
			}
			return out
		}
		if !errors.Is(err, errReplaced) {
			break
		}
		a.rows.drop(t, f)
	}
	failure := a.failureOf(t, err)
	failure.vary = vary
	return to.fail(failure)
}

// ServeHTTP implements http.Handler. It looks at the path as it came, so a router
// in front must neither clean it nor redirect; see [Route].
func (a *Assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.metrics.inFlight.Add(1)
	defer a.metrics.inFlight.Add(-1)
	a.metrics.answered(a.serve(overHTTP{a, w, r}))
}

// overHTTP is a recipient whom net/http serves.
type overHTTP struct {
	*Assets
	w http.ResponseWriter
	r *http.Request
}

func (a *Assets) serve(to overHTTP) outcome {
	r := to.r
	fields := negotiate.FieldsOf(r.Header)
	q := query{head: r.Method == http.MethodHead, path: rawPath(r.URL), fields: &fields}
	if len(r.Method)+len(r.RequestURI)+len(r.Proto)+len("  ") > maxRequestLine {
		return to.fail(targetTooBig)
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return answer(a, to, &q)
	case http.MethodOptions:
		return preflight(to.w)
	}
	return to.fail(wrongMethod)
}

func (overHTTP) now() time.Time { return time.Now() }

func (overHTTP) wait() {}

func (to overHTTP) fail(f failure) outcome {
	return outcome{f.status, labelNone, f.send(to.w, to.r.Method == http.MethodHead, to.r.Header["Accept"])}
}

func (to overHTTP) notModified(r *representation, tag string) outcome {
	setFields(to.w.Header(), r.notModifiedHead(tag))
	to.w.WriteHeader(http.StatusNotModified)
	return outcome{http.StatusNotModified, labelOf(r), 0}
}

func (to overHTTP) headOf(r *representation) outcome {
	setFields(to.w.Header(), r.okHead())
	to.w.WriteHeader(http.StatusOK)
	return outcome{http.StatusOK, labelOf(r), 0}
}

func (to overHTTP) body(f *asset, r *representation) (outcome, error) {
	var spans []span
	if lines := to.r.Header["Range"]; lines != nil && to.rangeable(r) && r.rangeApplies(to.r.Header["If-Range"]) {
		var v rangeVerdict
		if spans, v = parseRanges(lines, r.length); v == unsatisfiable {
			return to.fail(rangeNotSatisfiable(r)), nil
		}
	}
	return to.sendBody(to.w, to.r.ProtoMajor, f, r, spans)
}

// preflight answers OPTIONS. Every asset may be read by everyone, with any header
// that a script can set; the answer is the same for all.
func preflight(w http.ResponseWriter) outcome {
	h := w.Header()
	for _, f := range preflightFields {
		h[f.name] = f.value
	}
	w.WriteHeader(http.StatusNoContent)
	return outcome{http.StatusNoContent, labelNone, 0}
}

var preflightFields = append([]*field{
	newField("Allow", allowedMethods),
	newField("Access-Control-Allow-Methods", allowedMethods),
	newField("Access-Control-Allow-Headers", "*"),
	newField("Access-Control-Max-Age", "86400"),
	newField("Cache-Control", noStore),
}, crossOrigin...)

// rangeable reports whether ranges of r are served. Those of an identity that must
// be inflated are only where it is kept afterwards: a thousand ranges of one
// byte must not inflate it a thousand times.
func (a *Assets) rangeable(r *representation) bool { return r.stored || a.bodies.cacheable(r.length) }

// inflateWhole is the size in bytes up to which an identity is inflated into the
// cache. A larger one is inflated while it is sent, unless it is there already.
const inflateWhole = 512 << 10

// sendBody answers with the representation, or the spans of it, over that major version
// of HTTP. As long as it returns an error nothing was sent.
func (a *Assets) sendBody(w http.ResponseWriter, protocol int, f *asset, r *representation, spans []span) (outcome, error) {
	x, err := a.bodyOf(f, r, spans != nil)
	if err != nil {
		return outcome{}, err
	}
	if x == nil {
		return a.inflate(w, protocol, f, r)
	}
	defer a.bodies.release(x)
	return a.sendBytes(w, protocol, r, x, spans), nil
}

// bodyOf returns the bytes of a representation, which must be released, or nil where
// they are to be inflated while they are sent. Of parts that is never done.
func (a *Assets) bodyOf(f *asset, r *representation, parts bool) (*body, error) {
	if !r.stored && !parts && (r.length > inflateWhole || !a.bodies.cacheable(r.length)) {
		x, _ := a.bodies.cached(r.sum)
		return x, nil
	}
	return a.acquire(f, r)
}

// acquire returns the bytes of a representation. They must be released.
func (a *Assets) acquire(f *asset, r *representation) (*body, error) {
	return a.bodies.acquire(r.sum, r.length, func() ([]byte, error) {
		if !r.stored {
			return a.store.Identity(f.content)
		}
		coded, err := a.store.Read(f.content, kvstore.Representation{Coding: r.coding, Length: r.length, Sum: r.sum})
		if errors.Is(err, kvstore.ErrNotFound) {
			err = fmt.Errorf("server: content %s in %v: %w", f.content, r.coding, errReplaced)
		}
		return coded, err
	})
}

// sendBytes answers 200 with all of x, or 206 with the spans of it.
func (a *Assets) sendBytes(w http.ResponseWriter, protocol int, r *representation, x *body, spans []span) outcome {
	setFields(w.Header(), r.okHead())
	data := x.bytes
	to := a.newSender(w, protocol, x)
	switch len(spans) {
	case 0:
		w.WriteHeader(http.StatusOK)
		to.write(data)
		return outcome{http.StatusOK, labelOf(r), to.sent}
	case 1:
		s := spans[0]
		w.Header().Set("Content-Range", s.contentRange(r.length))
		w.Header().Set("Content-Length", strconv.FormatInt(s.length, 10))
		w.WriteHeader(http.StatusPartialContent)
		to.write(data[s.start : s.start+s.length])
	default:
		m := newMultipart(spans, r.length, r.contentType)
		w.Header().Set("Content-Type", "multipart/byteranges; boundary="+m.boundary)
		w.Header().Set("Content-Length", strconv.FormatInt(m.length, 10))
		w.WriteHeader(http.StatusPartialContent)
		for i, s := range spans {
			to.write([]byte(m.heads[i]))
			to.write(data[s.start : s.start+s.length])
		}
		to.write([]byte(m.tail))
	}
	return outcome{http.StatusPartialContent, labelOf(r), to.sent}
}

// inflaterBytes is what a decoder of r takes, with its window, and what it writes
// into. A Brotli window is as large as the content, up to 16 MiB (RFC 7932 §9.1).
func inflaterBytes(r *representation, size int64) int64 {
	const gzip, window = 256 << 10, 16 << 20
	if r.coding == coding.Brotli {
		return pace.Chunk + 2*min(size, window)
	}
	return pace.Chunk + gzip
}

// inflate answers with an identity that is inflated while it is sent, so that a
// few large files do not push everything else out of memory.
func (a *Assets) inflate(w http.ResponseWriter, protocol int, f *asset, r *representation) (outcome, error) {
	from := f.inflatable()
	x, err := a.acquire(f, from)
	if err != nil {
		return outcome{}, err
	}
	defer a.bodies.release(x)
	room := inflaterBytes(from, f.size)
	if err := a.bodies.reserve(room); err != nil {
		return outcome{}, err
	}
	defer a.bodies.unreserve(room)
	reader, err := coding.NewReader(from.coding, bytes.NewReader(x.bytes))
	if err != nil {
		return outcome{}, fmt.Errorf("%w: content %s: %w", kvstore.ErrCorrupt, f.content, err)
	}
	defer reader.Close()
	to := a.newSender(w, protocol, a.bodies)
	chunk := make([]byte, pace.Chunk)
	for left := r.length; left > 0 && to.err == nil; {
		n := min(left, pace.Chunk)
		if _, err := io.ReadFull(reader, chunk[:n]); err != nil {
			err = fmt.Errorf("%w: content %s: %w", kvstore.ErrCorrupt, f.content, err)
			if left == r.length {
				return outcome{}, err
			}
			// The length is already promised. Ending the connection is the
			// only way left to say that this is not all of it.
			a.failureOf(target{key: f.content.String()}, err)
			panic(http.ErrAbortHandler)
		}
		if left == r.length {
			setFields(w.Header(), r.okHead())
			w.WriteHeader(http.StatusOK)
		}
		to.write(chunk[:n])
		left -= n
	}
	return outcome{http.StatusOK, labelOf(r), to.sent}, nil
}
