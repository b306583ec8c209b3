package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// How long caches may store responses, by the contract.
var (
	notCached     = answers.Uncached
	fiveMinutes   = answers.CacheFor(5 * time.Minute).WithExpires()
	sixHours      = answers.CacheFor(6 * time.Hour).WithExpires()
	oneDay        = answers.CacheFor(24 * time.Hour).WithExpires()
	cachedForGood = answers.CacheImmutable(answers.Forever).WithExpires()
)

// cachingOfFiles returns how long caches may store a response about files of a release: for good, or if a file is
// provisional for ten minutes. The content of a provisional file, which only another origin vouches for, may change.
func cachingOfFiles(files []views.PublishedFile) answers.Caching {
	for _, f := range files {
		if f.Provisional {
			return answers.Provisional
		}
	}
	return cachedForGood
}

// newJSON returns a response body of a text that is JSON already.
func newJSON(identity []byte) *answers.Body { return answers.NewBody(answers.JSON, identity) }

// send responds with a body, its caching k and status 200, or with 304 if the client has the body. To HEAD it sends only the
// header. It ignores errors of writing.
func send(c *gin.Context, k answers.Caching, b *answers.Body) {
	k.SetHeader(c.Writer.Header())
	b.Send(c.Writer, c.Request, http.StatusOK)
	c.Writer.WriteHeaderNow()
}

// redirect responds with a redirect to a location, its caching k and a status.
func redirect(c *gin.Context, k answers.Caching, status int, location string) {
	k.SetHeader(c.Writer.Header())
	c.Writer.Header().Set("Location", location)
	c.Status(status)
	c.Writer.WriteHeaderNow()
}

// sendText responds with a plain text and its caching k, or with 304 if the client has the text.
func sendText(c *gin.Context, k answers.Caching, text string) {
	send(c, k, answers.NewBody(answers.Plain, []byte(text)))
}

var (
	queryTooLong = newFailure(http.StatusRequestURITooLong, "The query is over "+strconv.Itoa(maxQuery)+" bytes")
	badLimit     = newFailure(http.StatusBadRequest, "limit must be a whole number")
	badHost      = newFailure(http.StatusBadRequest, "The Host header is missing or malformed")

	// noPage is the failure of unknown paths on hosts where a browser would get a page.
	noPage   = newFailure(http.StatusNotFound, answers.NoEndpoint.Message)
	notReady = newUnavailable("The libraries are still being read", 5)
	busy     = newUnavailable("Too many large responses are being sent", 1)
	noTurn   = newUnavailable("Too many responses are being made for you or others", 2)
	// changing is for the time between a withdrawal and the index's next update.
	changing = newUnavailable("The library is changing", 1)
)

// newFailure returns a failure that responds with an HTTP status and a message, and that caches must not store.
func newFailure(status int, message string) *answers.Failure {
	return &answers.Failure{Status: status, Message: message, Caching: notCached}
}

// newUnavailable returns a failure with status 503 and a message that asks the client to retry after this number of seconds,
// and that caches must not store.
func newUnavailable(message string, retry int) *answers.Failure {
	return &answers.Failure{Status: http.StatusServiceUnavailable, Message: message, Caching: notCached, Retry: retry}
}

// newUnexpected returns a failure with status 500 and a new random reference, under which the caller logs the cause.
func newUnexpected() *answers.Failure {
	f := newFailure(http.StatusInternalServerError, "An unexpected error occurred")
	f.Ref = rand.Text()
	return f
}

// respondError responds with the failure that an error means, and stops gin from calling further handlers: with the
// [answers.Failure] that the error is, with 404 for an unknown library or version, 410 for a withdrawn version, 503 if a
// context ended or the store is damaged, and else 500. For damage and unknown errors, it logs the error with a reference
// that the response has, too.
func respondError(c *gin.Context, logger *slog.Logger, err error) {
	var known *answers.Failure
	var gone *library.WithdrawnError
	switch {
	case errors.As(err, &known):
	case errors.Is(err, library.ErrNoLibrary):
		known = answers.NoLibrary
	case errors.Is(err, library.ErrNoVersion):
		known = answers.NoVersion
	case errors.As(err, &gone):
		known = newFailure(http.StatusGone, "Version withdrawn: "+gone.Reason)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		known = notReady
	default:
		known = newUnexpected()
		if errors.Is(err, kvstore.ErrCorrupt) { // as for assets: the stored copy is damaged, not missing
			known = newUnavailable("This cannot be read at the moment", 5)
			known.Ref = rand.Text()
		}
		logger.Error("request failed", "ref", known.Ref, "method", c.Request.Method, "path", c.Request.URL.Path, "err", err)
	}
	respondFailure(c, known)
}

// respondFailure responds with a failure, and stops gin from calling further handlers.
func respondFailure(c *gin.Context, f *answers.Failure) {
	c.Abort()
	f.SendJSON(c.Writer, c.Request)
	c.Writer.WriteHeaderNow()
}

// recoverPanics returns a middleware that responds to a panic with 500 and a reference, and logs the panic and its stack
// under that reference. If the response has begun, it makes net/http close the connection instead. It passes
// [http.ErrAbortHandler] on.
func recoverPanics(logger *slog.Logger) gin.HandlerFunc {
	return func(c *gin.Context) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if cause == http.ErrAbortHandler { // by which a handler makes net/http close the connection
				panic(cause)
			}
			f := newUnexpected()
			logger.Error("request panicked", "ref", f.Ref, "method", c.Request.Method, "path", c.Request.URL.Path,
				"panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			if c.Writer.Written() {
				panic(http.ErrAbortHandler) // too late for another response: let the client see that this one is incomplete
			}
			respondFailure(c, f)
		}()
		c.Next()
	}
}

// A jsonWriter writes JSON with the fields of objects in the order of the calls. It does not escape "<" and "&", because
// responses are data and not part of a page. The zero value is ready to use.
type jsonWriter struct {
	buffer  bytes.Buffer
	encoder *json.Encoder
}

// beginObject writes an opening brace, after a comma if needed; fields and endObject follow.
func (w *jsonWriter) beginObject() { w.writeComma(); w.buffer.WriteByte('{') }

// endObject writes the closing brace of an object.
func (w *jsonWriter) endObject() { w.buffer.WriteByte('}') }

// beginArray writes an opening bracket, after a comma if needed; values and endArray follow.
func (w *jsonWriter) beginArray() { w.writeComma(); w.buffer.WriteByte('[') }

// endArray writes the closing bracket of an array.
func (w *jsonWriter) endArray() { w.buffer.WriteByte(']') }

// writeName writes the name of an object's field, after a comma if needed; the caller writes its value next.
func (w *jsonWriter) writeName(name string) {
	w.writeValue(name)
	w.buffer.WriteByte(':')
}

// writeField writes a field of an object: its name, and its value encoded as JSON.
func (w *jsonWriter) writeField(name string, value any) {
	w.writeName(name)
	w.writeValue(value)
}

// writeRaw writes a value that is JSON already, after a comma if needed. It does not check it.
func (w *jsonWriter) writeRaw(text []byte) {
	w.writeComma()
	w.buffer.Write(text)
}

// writeValue writes a value encoded as JSON, after a comma if needed. It panics if JSON cannot encode the value.
func (w *jsonWriter) writeValue(value any) {
	w.writeComma()
	if text, ok := value.(string); ok && isPlainJSON(text) {
		w.buffer.WriteByte('"')
		w.buffer.WriteString(text)
		w.buffer.WriteByte('"')
		return
	}
	if w.encoder == nil {
		w.encoder = json.NewEncoder(&w.buffer)
		w.encoder.SetEscapeHTML(false)
	}
	if err := w.encoder.Encode(value); err != nil {
		panic(fmt.Sprintf("api: a response has a value that JSON cannot encode: %v", err))
	}
	w.buffer.Truncate(w.buffer.Len() - len("\n"))
}

// isPlainJSON reports whether a text needs no escaping in JSON, as most names and addresses do.
func isPlainJSON(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// writeComma writes a comma if the next value follows another one in the same array or object. It looks at the last byte
// only, so it must not be called within a string.
func (w *jsonWriter) writeComma() {
	text := w.buffer.Bytes()
	if len(text) == 0 {
		return
	}
	switch text[len(text)-1] {
	case '{', '[', ':', ',':
	default:
		w.buffer.WriteByte(',')
	}
}

// copyValue writes the decoder's next value, with the fields of objects in their order, after a comma if needed. It may
// escape characters in another way than the source. If the source is malformed, it returns an error after it has written a
// part.
func (w *jsonWriter) copyValue(d *json.Decoder) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	switch t {
	case json.Delim('['):
		w.beginArray()
		for d.More() {
			if err := w.copyValue(d); err != nil {
				return err
			}
		}
		w.endArray()
	case json.Delim('{'):
		w.beginObject()
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return err
			}
			w.writeName(name.(string)) // else Token had failed
			if err := w.copyValue(d); err != nil {
				return err
			}
		}
		w.endObject()
	default:
		w.writeValue(t)
		return nil
	}
	_, err = d.Token() // the closing bracket
	return err
}

// bytes returns the JSON text that was written so far, without a copy, so it may change with the next write.
func (w *jsonWriter) bytes() []byte { return w.buffer.Bytes() }

// len returns how many bytes were written so far.
func (w *jsonWriter) len() int { return w.buffer.Len() }

// encodeJSON returns a response body with the value encoded as JSON. It panics if JSON cannot encode it.
func encodeJSON(value any) *answers.Body {
	var w jsonWriter
	w.writeValue(value)
	return newJSON(w.bytes())
}

// maxQuery is the limit of the query, in bytes.
const maxQuery = 8 << 10

// maxSearch is how many bytes of a search text count.
const maxSearch = 512

// splitWords splits each of values at commas and ASCII white space, and returns all the words in lower case.
func splitWords(values []string) []string {
	var all []string
	for _, v := range values {
		all = append(all, strings.FieldsFunc(strings.ToLower(v), func(r rune) bool { return r == ',' || r == ' ' || '\t' <= r && r <= '\r' })...)
	}
	return all
}

// A fieldSet is a set of a vocabulary's names: bit i stands for name i.
type fieldSet uint32

// A vocabulary lists the fields that a response can have, in their order.
type vocabulary []string

// all returns the set of all the vocabulary's names.
func (v vocabulary) all() fieldSet { return 1<<len(v) - 1 }

// parse returns the known fields that values of the query parameter "fields" name, in any case, separated by commas or white
// space; all for "*". given reports whether they name any field, known or unknown.
func (v vocabulary) parse(values []string) (set fieldSet, given bool) {
	all := splitWords(values)
	if slices.Contains(all, "*") {
		return v.all(), true
	}
	return v.named(values), len(all) > 0
}

// named returns the known fields that values of the query parameter "fields" name, in any case. "*" names none, unlike in
// parse.
func (v vocabulary) named(values []string) (set fieldSet) {
	for _, word := range splitWords(values) {
		if i := slices.IndexFunc(v, func(name string) bool { return strings.ToLower(name) == word }); i >= 0 {
			set |= 1 << i
		}
	}
	return set
}

// parseOrAll returns the known fields that values of the query parameter "fields" name, in any case. It returns all fields
// if values name none or contain "*", and no field if they name only unknown ones.
func (v vocabulary) parseOrAll(values []string) fieldSet {
	if set, given := v.parse(values); given {
		return set
	}
	return v.all()
}

// names returns the names of the fields in the set, in the order of the vocabulary; nil if it is empty.
func (v vocabulary) names(set fieldSet) []string {
	var names []string
	for i, name := range v {
		if set&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// parseLimit returns the query parameter "limit", the number of results. It is [math.MaxInt], which means no limit, if the
// parameter is missing, 0 or over 2^31-1. ok is false, and there is no limit, if it is not a whole number or is negative.
func parseLimit(q url.Values) (limit int, ok bool) {
	text := strings.TrimSpace(q.Get("limit"))
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n == 0 { // a number that is out of range is no limit either
		return math.MaxInt, text == "" || err == nil || errors.Is(err, strconv.ErrRange)
	}
	return int(n), true
}
