package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// errReplaced says that a coding was replaced by a smaller one since the asset
// was read.
var errReplaced = errors.New("the coding has been replaced")

// A damagedError says that an asset cannot be sent in one of its codings.
type damagedError struct {
	coding coding.Coding
	error
}

// Unwrap returns the error of the store.
func (e *damagedError) Unwrap() error { return e.error }

// An outcome is the result of a request, for the metrics.
type outcome struct {
	status int
	coding label
	sent   int64 // bytes of the body
}

// A query is a request for an asset, over net/http or on the fast lane.
type query struct {
	head   bool   // whether only the head of the response is wanted
	ranged bool   // whether the client wants ranges
	path   string // as it came, percent-encoded
	fields *requests.Fields
}

// A recipient is a client that waits for a response, over net/http or on the fast lane. The
// methods that send a response return its outcome.
type recipient interface {
	// now returns about the present time, by which respond judges the age of a cached asset.
	now() time.Time
	// mayBlock is called before work that may block, such as reading from a disk. If it returns false, that must not be done on this goroutine: the
	// request is left to net/http, and respond returns no outcome.
	mayBlock() bool
	// sendFailure sends an error response. varies says that the URL has several encodings, so Vary is set.
	sendFailure(f *answers.Failure, varies bool) outcome
	// sendNotModified sends 304 with the entity tag.
	sendNotModified(r *representation, tag string) outcome
	// sendHead sends the head of a 200 response, without a body.
	sendHead(*representation) outcome
	// sendBody sends a 200 response with the body, 206 with ranges of it, or 416. If it returns an error, or an outcome with status 0 because the
	// client does not take a body now or it must not be waited for, it has sent nothing.
	sendBody(*asset, *representation) (outcome, error)
	// serveElsewhere serves a file of a version that the store does not have from another origin. It returns false if the store has it
	// now.
	serveElsewhere(target) (outcome, bool)
}

// respond responds to the query q with an asset or a failure, through the recipient to, and returns the result for the metrics. An outcome with
// status 0 means that nothing was sent and the query is left to net/http. respond, findAsset and sendAsset are generic so that a recipient needs no
// allocation.
func respond[R recipient](a *Assets, to R, q *query) outcome {
	t, err := parseTarget(q.path)
	if err != nil {
		return to.sendFailure(a.failureFor(q, t, err), false)
	}
	varies := false
	// An asset may describe a coding that has been replaced since. Then it is
	// read again; a coding is replaced once or twice at most. One that is damaged is
	// left out.
	const attempts = 4 + codings
	var f *asset
	for range attempts {
		var out outcome
		if f == nil {
			if f, out, err = findAsset(a, to, t); err != nil {
				break
			}
			if f == nil {
				return out
			}
		}
		varies = f.vary
		if out, err = sendAsset(to, q, f); err == nil {
			return out
		}
		var goesOn bool
		if f, goesOn = a.rows.recoverFrom(t, f, err); !goesOn {
			break
		}
	}
	return to.sendFailure(a.failureFor(q, t, err), varies)
}

// findAsset returns the asset of a target from the cache or the store. If it returns neither asset nor error, the outcome is complete: a response was
// sent from another origin, or (status 0) the recipient must not block now.
func findAsset[R recipient](a *Assets, to R, t target) (*asset, outcome, error) {
	for sought := false; ; sought = true {
		f, ok := a.rows.getCached(t, to.now())
		if ok {
			return f, outcome{}, nil
		}
		if !to.mayBlock() {
			return nil, outcome{}, nil
		}
		f, err := a.rows.load(t, f)
		if err == nil || sought || !a.mayBeElsewhere(err) {
			return f, outcome{}, err
		}
		if out, done := to.serveElsewhere(t); done {
			return nil, out, nil
		}
	}
}

// sendAsset sends the representation of an asset that the client prefers, or 304, 406, 412 or 416. It counts the request in the asset's usage if the
// response is 200, 206 or 304. If it returns an error, or an outcome with status 0, nothing was sent.
func sendAsset[R recipient](to R, q *query, f *asset) (outcome, error) {
	rep := f.chooseFor(q)
	if rep == nil && f.damaged {
		return outcome{}, fmt.Errorf("%w: content %s: the codings that are sound are not what the client takes", kvstore.ErrCorrupt, f.content)
	}
	if rep == nil {
		return to.sendFailure(notAcceptableFailure(f), true), nil // even where identity is the only one
	}
	switch v, tag := rep.evaluateConditions(q.fields); v {
	case failed:
		return to.sendFailure(preconditionFailed, f.vary), nil
	case notModified:
		f.count(0)
		return to.sendNotModified(rep, tag), nil
	}
	if q.head {
		// RFC 9110 §14.2: a range is defined for GET only, so this answers
		// as a GET without one.
		f.count(0)
		return to.sendHead(rep), nil
	}
	out, err := to.sendBody(f, rep)
	if err == nil && out.status != 0 && out.coding != labelNone {
		f.count(out.sent)
	}
	return out, err
}

// ServeHTTP implements http.Handler for requests for assets. It reads the path as the client sent it, so a router in front must neither clean the
// path nor redirect; see [Route].
func (a *Assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.metrics.inFlight.Add(1)
	defer a.metrics.inFlight.Add(-1)
	a.metrics.countResponse(a.serve(overHTTP{a, w, r}))
}

// overHTTP is a recipient over net/http.
type overHTTP struct {
	*Assets
	w http.ResponseWriter
	r *http.Request
}

// serve responds to a request over net/http: to GET and HEAD with an asset, to OPTIONS as a CORS preflight, to other methods with 405, and to a
// request line that is too long with 414.
func (a *Assets) serve(to overHTTP) outcome {
	r := to.r
	fields := requests.FieldsOf(r.Header)
	q := query{head: r.Method == http.MethodHead, ranged: r.Header["Range"] != nil, path: requests.RawPath(r.URL), fields: &fields}
	if requests.LineTooLong(r) {
		return to.sendFailure(answers.LineTooLong, false)
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return respond(a, to, &q)
	case http.MethodOptions:
		answers.RespondPreflight(to.w)
		return outcome{http.StatusNoContent, labelNone, 0}
	}
	return to.sendFailure(answers.WrongMethod, false)
}

// now implements recipient: it returns the present time.
func (overHTTP) now() time.Time { return time.Now() }

// mayBlock implements recipient. It returns true, because each request over net/http has a goroutine of its own.
func (overHTTP) mayBlock() bool { return true }

// sendFailure implements recipient: it sends an error response. varies says that the URL has several encodings.
func (to overHTTP) sendFailure(f *answers.Failure, varies bool) outcome {
	return outcome{f.Status, labelNone, writeFailure(to.w, f, varies, to.r.Method == http.MethodHead, to.r.Header["Accept"])}
}

// sendNotModified implements recipient: it sends 304 with the entity tag.
func (to overHTTP) sendNotModified(r *representation, tag string) outcome {
	setHeader(to.w.Header(), r.notModifiedHead(plain, tag))
	to.w.WriteHeader(http.StatusNotModified)
	return outcome{http.StatusNotModified, codingLabel(r), 0}
}

// sendHead implements recipient: it sends the head of a 200 response.
func (to overHTTP) sendHead(r *representation) outcome {
	setHeader(to.w.Header(), r.okHead(plain))
	to.w.WriteHeader(http.StatusOK)
	return outcome{http.StatusOK, codingLabel(r), 0}
}

// sendBody implements recipient: it sends 200 with the representation, 206 with the ranges that the request names, or 416. If it returns an error, it
// has sent nothing; if decoding fails after the first bytes, it panics with http.ErrAbortHandler.
func (to overHTTP) sendBody(f *asset, r *representation) (outcome, error) {
	var spans []span
	if lines := to.r.Header["Range"]; lines != nil && to.servesRanges(r) && r.rangeApplies(to.r.Header["If-Range"]) {
		var ok bool
		if spans, ok = parseRanges(lines, r.length); !ok {
			return to.sendFailure(rangeFailure(r), r.vary), nil
		}
	}
	return to.sendSpans(f, r, spans)
}

// servesRanges reports whether the server sends ranges of r. It sends ranges of an identity that is not stored only if the cache may contain it:
// otherwise a thousand ranges of one byte would decode it a thousand times.
func (a *Assets) servesRanges(r *representation) bool {
	return r.stored || a.bodies.isCacheable(r.length)
}

// inflateWhole is the size in bytes up to which an identity is inflated into the
// cache. A larger one is inflated while it is sent, unless it is there already.
const inflateWhole = 512 << 10

// sendSpans sends 200 with the representation r of f, or 206 with the given spans of it if there are any. If it returns an error, it has sent
// nothing; if decoding fails after the first bytes, it panics with http.ErrAbortHandler.
func (to overHTTP) sendSpans(f *asset, r *representation, spans []span) (outcome, error) {
	from, _ := requests.ClientOf(to.r.RemoteAddr)
	x, err := to.bodyOf(f, r, spans != nil, from)
	if err != nil {
		return outcome{}, err
	}
	if x == nil {
		return to.sendInflated(to.w, to.r.ProtoMajor, f, r, from, to.mustHurry)
	}
	defer to.bodies.release(x)
	return to.sendBytes(r, x, spans), nil
}

// mustHurry reports whether the client has less time for its response, because connections are scarce and others wait for one.
func (to overHTTP) mustHurry() bool { return answers.IsScarce(to.r.Context()) }

// bodyOf returns the bytes of a representation, from the cache or the store, in memory that is charged to the client from; the caller must release
// them. It returns nil without an error for an identity that is neither stored nor cached and too large (more than inflateWhole, or than the cache
// may contain), unless parts is true: the caller then decodes it while sending. The error is that of acquire.
func (a *Assets) bodyOf(f *asset, r *representation, parts bool, from netip.Prefix) (*body, error) {
	if !r.stored && !parts && (r.length > inflateWhole || !a.bodies.isCacheable(r.length)) {
		x, _ := a.bodies.getCached(r.sum)
		return x, nil
	}
	return a.acquire(f, r, from)
}

// acquire returns the bytes of a representation for the client from, from memory or else from the store, and waits for memory; the caller
// must release them. If a stored encoding is damaged, the error is a *damagedError; if a smaller one has replaced it, it wraps errReplaced.
// If a file has to be decompressed first, the error is that of [kvstore.Store.Identity]. It is errBusy if no memory was free in time.
func (a *Assets) acquire(f *asset, r *representation, from netip.Prefix) (*body, error) {
	return a.bodies.acquire(r.sum, r.length, from, func() ([]byte, error) {
		if !r.stored {
			return a.o.Store.Identity(f.content)
		}
		var coded []byte
		var err error
		if r.coding == coding.DCZ {
			coded, err = a.o.Store.ReadDelta(f.content, r.sum)
		} else {
			coded, err = a.o.Store.Read(f.content, kvstore.Representation{Coding: r.coding, Length: r.length, Sum: r.sum})
		}
		if errors.Is(err, kvstore.ErrNotFound) {
			err = fmt.Errorf("server: content %s in %v: %w", f.content, r.coding, errReplaced)
		}
		if errors.Is(err, kvstore.ErrCorrupt) {
			err = &damagedError{r.coding, err}
		}
		return coded, err
	})
}

// sendBytes sends 200 with all of x, the bytes of r, or 206 with the given spans of it if there are any, several of them as multipart/byteranges. It
// ignores errors of sending: then only outcome.sent is smaller. It does not release x.
func (over overHTTP) sendBytes(r *representation, x *body, spans []span) outcome {
	w, data := over.w, x.bytes
	setHeader(w.Header(), r.okHead(plain))
	to := over.newWriter(w, over.r.ProtoMajor, func() bool { return x.Scarce() || over.mustHurry() })
	switch len(spans) {
	case 0:
		w.WriteHeader(http.StatusOK)
		to.Write(data)
		over.metrics.countSaved(r)
		return outcome{http.StatusOK, codingLabel(r), to.Sent}
	case 1:
		s := spans[0]
		w.Header().Set("Content-Range", s.contentRange(r.length))
		w.Header().Set("Content-Length", strconv.FormatInt(s.length, 10))
		w.WriteHeader(http.StatusPartialContent)
		to.Write(data[s.start : s.start+s.length])
	default:
		m := newMultipart(spans, r.length, r.contentType)
		w.Header().Set("Content-Type", "multipart/byteranges; boundary="+m.boundary)
		w.Header().Set("Content-Length", strconv.FormatInt(m.length, 10))
		w.WriteHeader(http.StatusPartialContent)
		for i, s := range spans {
			to.Write([]byte(m.heads[i]))
			to.Write(data[s.start : s.start+s.length])
		}
		to.Write([]byte(m.tail))
	}
	return outcome{http.StatusPartialContent, codingLabel(r), to.Sent}
}

// newWriter returns a writer of a response body to w, in the given major version of HTTP, that limits the time of a slow client. scarce reports
// whether others wait for memory or a connection that this response holds; the client then has less time.
func (a *Assets) newWriter(w http.ResponseWriter, protocol int, scarce func() bool) *answers.Writer {
	return answers.NewWriter(w, protocol, answers.Pace{Stall: answers.StallTimeout, Least: answers.AssetRate}, scarce)
}

// decoderBytes returns how many bytes of memory a decoder of r takes for a content of size bytes, with its window and its output buffer. A Brotli
// window is as large as the content, up to 16 MiB (RFC 7932 §9.1).
func decoderBytes(r *representation, size int64) int64 {
	const gzip, window = 256 << 10, 16 << 20
	if r.coding == coding.Brotli {
		return answers.Chunk + 2*min(size, window)
	}
	return answers.Chunk + gzip
}

// sendInflated sends r, the identity of f, which it decodes from a stored encoding piece by piece while sending, so that a few large files do not
// evict everything else from memory. client is charged for the memory; hurries reports whether it has less time. If it returns an error, it has sent
// nothing; if decoding fails later, it panics with http.ErrAbortHandler.
func (a *Assets) sendInflated(w http.ResponseWriter, protocol int, f *asset, r *representation, client netip.Prefix, hurries func() bool) (outcome, error) {
	from := f.encodedSource()
	x, err := a.acquire(f, from, client)
	if err != nil {
		return outcome{}, err
	}
	defer a.bodies.release(x)
	room := decoderBytes(from, f.size)
	if err := a.bodies.reserveMemory(client, room); err != nil {
		return outcome{}, err
	}
	defer a.bodies.releaseMemory(client, room)
	reader, err := coding.NewReader(from.coding, bytes.NewReader(x.bytes))
	if err != nil {
		return outcome{}, fmt.Errorf("%w: content %s: %w", kvstore.ErrCorrupt, f.content, err)
	}
	defer reader.Close()
	to := a.newWriter(w, protocol, func() bool { return a.bodies.Scarce() || hurries() })
	chunk := make([]byte, answers.Chunk)
	for left := r.length; left > 0 && to.Err == nil; {
		n := min(left, answers.Chunk)
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
			setHeader(w.Header(), r.okHead(plain))
			w.WriteHeader(http.StatusOK)
		}
		to.Write(chunk[:n])
		left -= n
	}
	return outcome{http.StatusOK, codingLabel(r), to.Sent}, nil
}
