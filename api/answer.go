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

// The contract's kinds of caching.
var (
	notCached     = answers.Uncached
	fiveMinutes   = answers.CacheFor(5 * time.Minute).WithExpires()
	sixHours      = answers.CacheFor(6 * time.Hour).WithExpires()
	oneDay        = answers.CacheFor(24 * time.Hour).WithExpires()
	cachedForGood = answers.CacheImmutable(answers.Forever).WithExpires()
)

// ofFiles is the caching of what is said of a release's files. Those for which nothing but another
// origin's word vouches may become others.
func ofFiles(files []views.PublishedFile) answers.Caching {
	for _, f := range files {
		if f.Provisional {
			return answers.Provisional
		}
	}
	return cachedForGood
}

func newJSON(identity []byte) *answers.Body { return answers.NewBody(answers.JSON, identity) }

// send answers with b, or with 304 where the client has it.
func send(c *gin.Context, k answers.Caching, b *answers.Body) {
	k.SetHeader(c.Writer.Header())
	b.Send(c.Writer, c.Request, http.StatusOK)
	c.Writer.WriteHeaderNow()
}

// sendText answers with a few words.
func sendText(c *gin.Context, k answers.Caching, text string) {
	send(c, k, answers.NewBody(answers.Plain, []byte(text)))
}

var (
	queryTooLong = failure(http.StatusRequestURITooLong, "The query is over "+strconv.Itoa(maxQuery)+" bytes")
	badLimit     = failure(http.StatusBadRequest, "limit must be a whole number")
	badHost      = failure(http.StatusBadRequest, "The Host header is missing or malformed")

	// noPage is the contract's failure of unknown paths where people get a page.
	noPage   = failure(http.StatusNotFound, answers.NoEndpoint.Message)
	notReady = unavailable("The libraries are still being read", 5)
	busy     = unavailable("There are too many large answers on their way", 1)
	noTurn   = unavailable("Too many answers are being made for you or others", 2)
	// changing is for the moment between a withdrawal and the index's next update.
	changing = unavailable("The library is just changing", 1)
)

// failure returns one that must not be cached.
func failure(status int, message string) *answers.Failure {
	return &answers.Failure{Status: status, Message: message, Caching: notCached}
}

func unavailable(message string, retry int) *answers.Failure {
	return &answers.Failure{Status: http.StatusServiceUnavailable, Message: message, Caching: notCached, Retry: retry}
}

func unexpected() *answers.Failure {
	f := failure(http.StatusInternalServerError, "An unexpected error occurred")
	f.Ref = rand.Text()
	return f
}

// fail answers with what err comes to, in this one place. What is the server's own fault gets into the log.
func fail(c *gin.Context, logger *slog.Logger, err error) {
	var known *answers.Failure
	var gone *library.WithdrawnError
	switch {
	case errors.As(err, &known):
	case errors.Is(err, library.ErrNoLibrary):
		known = answers.NoLibrary
	case errors.Is(err, library.ErrNoVersion):
		known = answers.NoVersion
	case errors.As(err, &gone):
		known = failure(http.StatusGone, "Version withdrawn: "+gone.Reason)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		known = notReady
	default:
		known = unexpected()
		if errors.Is(err, kvstore.ErrCorrupt) { // as of assets: the stored copy is damaged, not gone
			known = unavailable("This cannot be read at the moment", 5)
			known.Ref = rand.Text()
		}
		logger.Error("request failed", "ref", known.Ref, "method", c.Request.Method, "path", c.Request.URL.Path, "err", err)
	}
	refuse(c, known)
}

// refuse answers with a failure, and ends the handling of the request.
func refuse(c *gin.Context, f *answers.Failure) {
	c.Abort()
	f.SendJSON(c.Writer, c.Request)
	c.Writer.WriteHeaderNow()
}

// recovered answers a panic with a 500 whose reference is in the log beside the stack.
func recovered(logger *slog.Logger) gin.HandlerFunc {
	return func(c *gin.Context) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if cause == http.ErrAbortHandler { // how a handler has net/http close the connection
				panic(cause)
			}
			f := unexpected()
			logger.Error("request panicked", "ref", f.Ref, "method", c.Request.Method, "path", c.Request.URL.Path,
				"panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			if c.Writer.Written() {
				panic(http.ErrAbortHandler) // too late for another answer: let the client see that this one broke off
			}
			refuse(c, f)
		}()
		c.Next()
	}
}

// A jsonWriter writes JSON whose objects have their fields in the order of the calls, and in which "<" and "&" are what
// they are: the answers are data, not part of a page. The zero value is ready.
type jsonWriter struct {
	buffer  bytes.Buffer
	encoder *json.Encoder
}

func (w *jsonWriter) beginObject() { w.separate(); w.buffer.WriteByte('{') }
func (w *jsonWriter) endObject()   { w.buffer.WriteByte('}') }
func (w *jsonWriter) beginArray()  { w.separate(); w.buffer.WriteByte('[') }
func (w *jsonWriter) endArray()    { w.buffer.WriteByte(']') }

// name begins a field; its value must follow.
func (w *jsonWriter) name(name string) {
	w.value(name)
	w.buffer.WriteByte(':')
}

func (w *jsonWriter) field(name string, value any) {
	w.name(name)
	w.value(value)
}

// raw writes a value that is JSON already.
func (w *jsonWriter) raw(text []byte) {
	w.separate()
	w.buffer.Write(text)
}

func (w *jsonWriter) value(value any) {
	w.separate()
	if text, ok := value.(string); ok && isPlain(text) {
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
		panic(fmt.Sprintf("api: an answer has a value that JSON cannot hold: %v", err))
	}
	w.buffer.Truncate(w.buffer.Len() - len("\n"))
}

// isPlain reports whether text is in JSON what it is, as most names and addresses are.
func isPlain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// separate writes a comma where a value ended. Only the last byte needs a look: it is never called within a string.
func (w *jsonWriter) separate() {
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

// copyValue writes the decoder's next value, its fields in their order. The value's own bytes may be escaped in ways that
// ours are not.
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
			w.name(name.(string)) // else Token had failed
			if err := w.copyValue(d); err != nil {
				return err
			}
		}
		w.endObject()
	default:
		w.value(t)
		return nil
	}
	_, err = d.Token() // the end of it
	return err
}

func (w *jsonWriter) bytes() []byte { return w.buffer.Bytes() }
func (w *jsonWriter) len() int      { return w.buffer.Len() }

// newJSONOf returns the body that is one value.
func newJSONOf(value any) *answers.Body {
	var w jsonWriter
	w.value(value)
	return newJSON(w.bytes())
}

// maxQuery bounds what is after the question mark, in bytes.
const maxQuery = 8 << 10

// maxSearch is how much of a search text counts, in bytes.
const maxSearch = 512

// words splits values that are lists, at commas and white space, into lower-case words.
func words(values []string) []string {
	var all []string
	for _, v := range values {
		all = append(all, strings.FieldsFunc(strings.ToLower(v), func(r rune) bool { return r == ',' || r == ' ' || '\t' <= r && r <= '\r' })...)
	}
	return all
}

// A fieldSet is some of a vocabulary's names: bit i stands for name i.
type fieldSet uint32

// A vocabulary is the fields that an answer can have, in its order.
type vocabulary []string

func (v vocabulary) all() fieldSet { return 1<<len(v) - 1 }

// has reports whether name is in the set.
func (v vocabulary) has(set fieldSet, name string) bool {
	i := slices.Index(v, name)
	return i >= 0 && set&(1<<i) != 0
}

// parse returns the fields that a query names, and whether it names any, known or not.
func (v vocabulary) parse(values []string) (set fieldSet, given bool) {
	all := words(values)
	for _, word := range all {
		if word == "*" {
			return v.all(), true
		}
		if i := slices.IndexFunc(v, func(name string) bool { return strings.ToLower(name) == word }); i >= 0 {
			set |= 1 << i
		}
	}
	return set, len(all) > 0
}

// parseOrAll is parse for answers that are whole unless the query names fields.
func (v vocabulary) parseOrAll(values []string) fieldSet {
	if set, given := v.parse(values); given {
		return set
	}
	return v.all()
}

// names returns those in the set.
func (v vocabulary) names(set fieldSet) []string {
	var names []string
	for i, name := range v {
		if set&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// parseLimit returns how many results are wanted at most, and whether what the query says of that is a whole number.
func parseLimit(q url.Values) (limit int, ok bool) {
	text := strings.TrimSpace(q.Get("limit"))
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n == 0 { // of a number that is out of range the limit is none either
		return math.MaxInt, text == "" || err == nil || errors.Is(err, strconv.ErrRange)
	}
	return int(n), true
}
