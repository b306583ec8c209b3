// Package answers has what all responses over HTTP have in common: for how long they may be kept,
// by which pages they may be read, a body in the coding that the client likes best, one shape of
// failures, as text, as JSON or as a page, and what one client may cost: how many responses at once,
// how much time for what it is sent. [Shares] are places for which clients wait in turn. A [Cache] has
// what is expensive to make, within limits on number and size, and makes it once for all who wait.
//
// What it guarantees:
//
//   - HEAD gets the header fields of GET and no body.
//   - An entity tag is strong, names the body and its coding, and is the same on every node.
//   - One client cannot take all that there is for the others.
//   - A failure has no fields that describe the requested response, and is not stored
//     unless it says so.
//
// It must not know what is served, nor what can go wrong.
package answers

import (
	"cmp"
	"net/http"
	"strconv"
	"time"
)

// Methods are those that what is published can be read with.
const Methods = "GET, HEAD, OPTIONS"

// A Field is one header field; its name is canonical as net/http wants it.
type Field struct{ Name, Value string }

// AnyOrigin lets scripts of every page read a response, and see why it failed.
var AnyOrigin = []Field{
	{"Access-Control-Allow-Origin", "*"},
	{"Timing-Allow-Origin", "*"},
	{"Cross-Origin-Resource-Policy", "cross-origin"},
	{"X-Content-Type-Options", "nosniff"},
}

// SetFields sets header fields, in place of those with the same names.
func SetFields(h http.Header, fields ...Field) {
	for _, f := range fields {
		h.Set(f.Name, f.Value)
	}
}

// RespondPreflight responds 204 to an OPTIONS request: scripts of every page may read everything, with any header.
func RespondPreflight(w http.ResponseWriter) {
	h := w.Header()
	SetFields(h, AnyOrigin...)
	h.Set("Allow", Methods)
	h.Set("Access-Control-Allow-Methods", Methods)
	h.Set("Access-Control-Allow-Headers", "*")
	h.Set("Access-Control-Max-Age", "86400")
	NoStore.SetHeader(h)
	w.WriteHeader(http.StatusNoContent)
}

// Forever is for how long what never changes may be kept: 355 days, which some caches take for
// the most there is.
const Forever = 355 * 24 * time.Hour

// A Caching says which caches may keep a response, and for how long. The zero value is NoStore.
type Caching struct {
	control string // Cache-Control
	age     time.Duration
	old     bool // whether the response has fields for caches of HTTP/1.0, too
}

var (
	// NoStore is for what must not be cached, and Uncached also has fields for caches of HTTP/1.0.
	NoStore  = Caching{control: "no-store"}
	Uncached = Caching{control: "no-cache, no-store, must-revalidate", old: true}
	// Revalidated is for responses that caches may store but must revalidate for each request.
	Revalidated = Caching{control: "no-cache"}
	// Provisional is for files, and what is said of them, that may yet become others.
	Provisional = CacheFor(10 * time.Minute)
)

// CacheFor returns a Caching by which all caches, shared ones too, may store a response for age.
func CacheFor(age time.Duration) Caching {
	return Caching{control: "public, max-age=" + strconv.Itoa(int(age.Seconds())), age: age}
}

// CacheImmutable returns a Caching by which caches may store a response for age, which does not change in that time.
func CacheImmutable(age time.Duration) Caching {
	return Caching{control: CacheFor(age).control + ", immutable", age: age}
}

// WithExpires returns a copy of the caching with the header fields that caches of HTTP/1.0 understand, too.
func (k Caching) WithExpires() Caching {
	k.old = true
	return k
}

// Control returns the value of the header field Cache-Control; no-store for the zero value.
func (k Caching) Control() string { return cmp.Or(k.control, NoStore.control) }

// SetHeader sets the header fields of the caching: Cache-Control, and those for caches of HTTP/1.0 if it has them. It sets Date
// with Expires, so that their difference is exact.
func (k Caching) SetHeader(h http.Header) {
	h.Set("Cache-Control", k.Control())
	switch {
	case k.old && k.age == 0:
		h.Set("Pragma", "no-cache")
		h.Set("Expires", "0")
	case k.old:
		now := time.Now().UTC()
		h.Set("Date", now.Format(http.TimeFormat))
		h.Set("Expires", now.Add(k.age).Format(http.TimeFormat))
	}
}
