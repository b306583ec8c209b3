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

// compressible is the size in bytes from which a coding is made: a smaller answer and its
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

// A Body is the bytes of an answer, and of each coding that was asked for so far. It is safe for
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

// NewBody returns a body, which keeps identity.
func NewBody(contentType string, identity []byte) *Body {
	return &Body{contentType: contentType, identity: identity, tag: sync.OnceValue(func() string {
		sum := sha256.Sum256(identity)
		return base64.RawURLEncoding.EncodeToString(sum[:18])
	})}
}

// Len returns the size in bytes, without a coding.
func (b *Body) Len() int { return len(b.identity) }

// varies reports whether there may be several forms.
func (b *Body) varies() bool { return len(b.identity) >= compressible }

// etag returns the entity tag of the body in a coding.
func (b *Body) etag(c coding.Coding) string {
	if c == coding.Identity {
		return `"` + b.tag() + `"`
	}
	return `"` + b.tag() + "-" + c.String() + `"`
}

// in returns the form for a coding. It is made quickly also where it is kept: the best codings
// take seconds for a list of thousands of libraries, which changes with every publication.
func (b *Body) in(c coding.Coding) *form {
	f := &b.forms[c]
	f.once.Do(func() {
		f.coding, f.bytes = coding.Identity, b.identity
		if c != coding.Identity {
			// Without a coding the answer is as good, so an encoder's failure does not fail the request.
			if coded, err := coding.Encode(c, coding.Fast, b.identity); err == nil && coding.Worthwhile(len(b.identity), len(coded)) {
				f.coding, f.bytes = c, coded
			}
		}
	})
	return f
}

// Prepare makes what [Body.Send] will send to a client that asks for it with r, which takes processor time.
func (b *Body) Prepare(r *http.Request) {
	c := b.preferred(r)
	if requests.NoneMatch(r.Header["If-None-Match"], b.etag(c)) {
		b.in(c)
	}
}

// preferred returns the coding that a client wants.
func (b *Body) preferred(r *http.Request) coding.Coding {
	if !b.varies() {
		return coding.Identity
	}
	return requests.ParseAcceptEncoding(r.Header["Accept-Encoding"]).Prefer()
}

// Send answers with the body, or with 304 where the status is 200 and the client has it. A client
// that refuses all codings gets identity: an error would help no client.
func (b *Body) Send(w http.ResponseWriter, r *http.Request, status int) {
	h := w.Header()
	c := b.preferred(r)
	if b.varies() {
		h.Set("Vary", "Accept-Encoding")
	}
	// Before the form is made, which takes longest, its tag is known: if it is worthwhile.
	if status == http.StatusOK && !requests.IsAny(r.Header["If-None-Match"]) && b.unchanged(w, r, c) {
		return
	}
	f := b.in(c)
	if status == http.StatusOK && b.unchanged(w, r, f.coding) {
		return
	}
	h.Set("Content-Type", b.contentType)
	h.Set("Content-Length", strconv.Itoa(len(f.bytes)))
	if f.coding != coding.Identity {
		h.Set("Content-Encoding", f.coding.String())
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(f.bytes) // a client that has gone needs no answer
	}
}

// unchanged answers with 304 where the client has the body in that coding.
func (b *Body) unchanged(w http.ResponseWriter, r *http.Request, c coding.Coding) bool {
	tag := b.etag(c)
	w.Header().Set("Etag", tag)
	if requests.NoneMatch(r.Header["If-None-Match"], tag) {
		return false
	}
	w.WriteHeader(http.StatusNotModified)
	return true
}
