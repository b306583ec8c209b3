package answers

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"sync"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// compressible is the size in bytes from which a coding is made: a smaller response and its
// headers fit into one packet as they are.
const compressible = 1 << 10

// codings is how many codings there are; they are numbered from 0.
const codings = int(coding.Gzip) + 1

// The Content-Types of what is not from a file.
const (
	JSON  = "application/json"
	Plain = "text/plain; charset=utf-8"
	HTML  = "text/html; charset=utf-8"
)

// A Body is the bytes of a response, and of each coding that was requested so far. It is safe for
// concurrent use.
type Body struct {
	contentType string
	identity    []byte
	tag         func() string // of identity, without quotes
	forms       [codings]form // by coding.Coding
}

// A form is a body in one coding, which is identity where the other is not worthwhile.
type form struct {
	once   sync.Once
	coding coding.Coding
	bytes  []byte
}

// NewBody returns a body with the bytes identity, which must not change from then on.
func NewBody(contentType string, identity []byte) *Body {
	return &Body{contentType: contentType, identity: identity, tag: sync.OnceValue(func() string {
		sum := sha256.Sum256(identity)
		return base64.RawURLEncoding.EncodeToString(sum[:18])
	})}
}

// Len returns the size in bytes without encoding.
func (b *Body) Len() int { return len(b.identity) }

// isEncodable reports whether the body is large enough to be sent encoded.
func (b *Body) isEncodable() bool { return len(b.identity) >= compressible }

// etag returns the entity tag of the body in a coding, with its quotes.
func (b *Body) etag(c coding.Coding) string {
	if c == coding.Identity {
		return `"` + b.tag() + `"`
	}
	return `"` + b.tag() + "-" + c.String() + `"`
}

// encode returns the body in a coding, and caches it. If that is not worthwhile or fails, the form is identity. It uses the fast
// level of the encoder: the best level takes seconds for a list of thousands of libraries, which changes with every publication.
func (b *Body) encode(c coding.Coding) *form {
	f := &b.forms[c]
	f.once.Do(func() {
		f.coding, f.bytes = coding.Identity, b.identity
		if c != coding.Identity {
			// Without a coding the response is as good, so an encoder's failure does not fail the request.
			if coded, err := coding.Encode(c, coding.Fast, b.identity); err == nil && coding.Worthwhile(len(b.identity), len(coded)) {
				f.coding, f.bytes = c, coded
			}
		}
	})
	return f
}

// Prepare encodes the body, and caches it, as [Body.Send] will send it in response to r, since encoding takes processor time. It
// does nothing if the client has the body.
func (b *Body) Prepare(r *http.Request) {
	c := b.chooseCoding(r)
	if requests.IfNoneMatch(r.Header["If-None-Match"], b.etag(c)) {
		b.encode(c)
	}
}

// chooseCoding returns the coding in which the client of r should receive the body: identity if the body is small, or the client
// accepts no coding.
func (b *Body) chooseCoding(r *http.Request) coding.Coding {
	if !b.isEncodable() {
		return coding.Identity
	}
	return requests.ParseAcceptEncoding(r.Header["Accept-Encoding"]).PreferredCoding()
}

// Send responds with the body, or with 304 if status is 200 and the client has it. HEAD gets the header only. A client that refuses
// all codings gets identity, because an error would not help it. If the body is large enough to be encoded, Send replaces Vary by
// Accept-Encoding. It ignores errors of writing.
func (b *Body) Send(w http.ResponseWriter, r *http.Request, status int) {
	h := w.Header()
	c := b.chooseCoding(r)
	if b.isEncodable() {
		h.Set("Vary", "Accept-Encoding")
	}
	// Before the form is made, which takes longest, its tag is known: if it is worthwhile.
	if status == http.StatusOK && !requests.IsAny(r.Header["If-None-Match"]) && b.sendNotModified(w, r, c) {
		return
	}
	f := b.encode(c)
	if status == http.StatusOK && b.sendNotModified(w, r, f.coding) {
		return
	}
	h.Set("Content-Type", b.contentType)
	h.Set("Content-Length", strconv.Itoa(len(f.bytes)))
	if f.coding != coding.Identity {
		h.Set("Content-Encoding", f.coding.String())
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(f.bytes) // a client that has gone needs no response
	}
}

// sendNotModified sets the entity tag of the body in a coding. If the client has the body in that coding, it responds with 304 and
// returns true. Otherwise the response is not sent yet.
func (b *Body) sendNotModified(w http.ResponseWriter, r *http.Request, c coding.Coding) bool {
	tag := b.etag(c)
	w.Header().Set("Etag", tag)
	if requests.IfNoneMatch(r.Header["If-None-Match"], tag) {
		return false
	}
	w.WriteHeader(http.StatusNotModified)
	return true
}
