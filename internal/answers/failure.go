package answers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/internal/requests"
)

// A Failure is a response in place of the requested one. It is an error, too, so that the code
// that detects the error can choose the response.
type Failure struct {
	Status  int
	Message string
	Caching Caching // default: it must not be cached
	// Retry is after how many seconds the client may try again, 0 for nothing said.
	Retry int
	// Fields are further header fields.
	Fields []Field
	// Ref is the reference by which the process's log has details, and Entry the entry of the public log that has them; ""
	// and nil if there are none.
	Ref   string
	Entry *int64
}

// Failures that several routes have.
var (
	BadPath = &Failure{Status: http.StatusBadRequest,
		Message: `The path is malformed: it has a "." or ".." segment, an encoded slash in a name, a backslash, a control character or a bad percent-encoding.`}
	LineTooLong = &Failure{Status: http.StatusRequestURITooLong, Message: fmt.Sprintf("The request line is over %d bytes.", requests.MaxLine)}
	WrongMethod = &Failure{Status: http.StatusMethodNotAllowed, Message: "This can only be read: use GET, HEAD or OPTIONS.", Fields: []Field{{"Allow", Methods}}}
	NoEndpoint  = NotFound("Endpoint")
	NoLibrary   = NotFound("Library")
	NoVersion   = NotFound("Version")
)

// NotFound returns the failure (404) for something that the API does not have; what is its name, such as Library. Caches may store
// it for an hour.
func NotFound(what string) *Failure {
	return &Failure{Status: http.StatusNotFound, Message: what + " not found", Caching: CacheFor(time.Hour).WithExpires()}
}

// Error implements error.
func (f *Failure) Error() string { return f.Message }

// JSON returns the body of the response as JSON, without a line feed at its end. It does not escape "<" and "&", because it is never
// part of a page.
func (f *Failure) JSON() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(struct {
		Error   bool   `json:"error"`
		Status  int    `json:"status"`
		Message string `json:"message"`
		Ref     string `json:"ref,omitempty"`
		Entry   *int64 `json:"logEntry,omitempty"`
	}{true, f.Status, f.Message, f.Ref, f.Entry})
	if err != nil {
		panic(err) // there is nothing in it that does not encode
	}
	return bytes.TrimSpace(b.Bytes())
}

// SetHeader sets Cache-Control, with the fields for HTTP/1.0 that go with it, Retry-After if f.Retry is positive, and f.Fields. It
// removes the fields that describe the requested response: Etag, Last-Modified and Content-Encoding. It sets neither Vary, nor the fields
// for other origins, nor those that depend on the body.
func (f *Failure) SetHeader(h http.Header) {
	for _, name := range []string{"Etag", "Last-Modified", "Content-Encoding"} {
		h.Del(name)
	}
	f.Caching.SetHeader(h)
	if f.Retry > 0 {
		h.Set("Retry-After", strconv.Itoa(f.Retry))
	}
	SetFields(h, f.Fields...)
}

// SendJSON responds with the failure as JSON, to HEAD without the body.
func (f *Failure) SendJSON(w http.ResponseWriter, r *http.Request) {
	f.sendBody(w, r.Method == http.MethodHead, JSON, f.JSON())
}

// Send responds with the failure as text or as JSON, as the lines of the Accept field prefer, and adds Accept to Vary. With head it
// sends no body. It returns how many bytes of the body were sent.
func (f *Failure) Send(w http.ResponseWriter, head bool, accept []string) int64 {
	h := w.Header()
	if coded := h.Get("Vary"); coded != "" {
		h.Set("Vary", coded+", Accept")
	} else {
		h.Set("Vary", "Accept")
	}
	if requests.PrefersJSON(accept) {
		return f.sendBody(w, head, JSON, append(f.JSON(), '\n'))
	}
	return f.sendBody(w, head, Plain, []byte(f.Message+"\n"))
}

// sendBody responds with the failure and a body. With head it sends only the header. It returns how many bytes of the body were
// sent.
func (f *Failure) sendBody(w http.ResponseWriter, head bool, contentType string, body []byte) int64 {
	h := w.Header()
	f.SetHeader(h)
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(f.Status)
	if head {
		return 0
	}
	n, _ := w.Write(body) // a client that has gone needs no response
	return int64(n)
}

// SendPage responds with the status and the header fields of the failure, and with a page that describes it, sent by [Body.Send].
func (f *Failure) SendPage(w http.ResponseWriter, r *http.Request, page *Body) {
	f.SetHeader(w.Header())
	page.Send(w, r, f.Status)
}
