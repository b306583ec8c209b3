// Package answers has what all answers over HTTP have in common: for how long they may be kept,
// by which pages they may be read, a body in the coding that the client likes best, one shape of
// failures, as text, as JSON or as a page, and what one client may cost: how many answers at once,
// how much time for what it is sent, how many lines of the log when things fail.
//
// What it guarantees:
//
//   - HEAD gets the header fields of GET and no body.
//   - An entity tag is strong, names the body and its coding, and is the same on every node.
//   - One client cannot take all that there is for the others.
//   - A failure carries nothing that describes the answer that was asked for, and is not stored
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

// AnyOrigin lets scripts of every page read an answer, and see why it failed.
var AnyOrigin = []Field{
	{"Access-Control-Allow-Origin", "*"},
	{"Timing-Allow-Origin", "*"},
	{"Cross-Origin-Resource-Policy", "cross-origin"},
	{"X-Content-Type-Options", "nosniff"},
}

// Set sets header fields.
func Set(h http.Header, fields ...Field) {
	for _, f := range fields {
		h.Set(f.Name, f.Value)
	}
}

// Preflight answers OPTIONS where everything may be read from every page, with any header that
// a script can set.
func Preflight(w http.ResponseWriter) {
	h := w.Header()
	Set(h, AnyOrigin...)
	h.Set("Allow", Methods)
	h.Set("Access-Control-Allow-Methods", Methods)
	h.Set("Access-Control-Allow-Headers", "*")
	h.Set("Access-Control-Max-Age", "86400")
	NoStore.Set(h)
	w.WriteHeader(http.StatusNoContent)
}

// Forever is for how long what never changes may be kept: 355 days, which some caches take for
// the most there is.
const Forever = 355 * 24 * time.Hour

// A Caching says which caches may keep an answer, and for how long. The zero value is NoStore.
type Caching struct {
	control string // Cache-Control
	age     time.Duration
	old     bool // whether the response has fields for caches of HTTP/1.0, too
}

var (
	// NoStore is for what must not be cached, and Uncached also has fields for caches of HTTP/1.0.
	NoStore  = Caching{control: "no-store"}
	Uncached = Caching{control: "no-cache, no-store, must-revalidate", old: true}
	// Revalidated is for what may be kept if its entity tag is asked about each time.
	Revalidated = Caching{control: "no-cache"}
	// Provisional is for files, and what is said of them, that may yet become others.
	Provisional = For(10 * time.Minute)
)

// For returns the caching of what may be kept for that long.
func For(age time.Duration) Caching {
	return Caching{control: "public, max-age=" + strconv.Itoa(int(age.Seconds())), age: age}
}

// Immutable returns the caching of what does not change for that long.
func Immutable(age time.Duration) Caching {
	return Caching{control: For(age).control + ", immutable", age: age}
}

// Expiring returns a caching that tells caches of HTTP/1.0, too.
func (k Caching) Expiring() Caching {
	k.old = true
	return k
}

// Control returns the value of Cache-Control.
func (k Caching) Control() string { return cmp.Or(k.control, NoStore.control) }

// Set sets the header fields. With Expires goes Date, so that the two are apart by the right time
// whenever net/http gets to it.
func (k Caching) Set(h http.Header) {
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
