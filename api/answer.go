package api

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/server/negotiate"
)

// caching says who may keep an answer for how long.
type caching struct {
	control string        // Cache-Control
	age     time.Duration // 0 where nobody may
}

// The contract's kinds of caching. What is immutable is kept for 355 days.
var (
	notCached      = caching{control: "no-cache, no-store, must-revalidate"}
	fiveMinutes    = cachedFor(5 * time.Minute)
	oneHour        = cachedFor(time.Hour)
	sixHours       = cachedFor(6 * time.Hour)
	oneDay         = cachedFor(24 * time.Hour)
	cachedForGood  = caching{control: cachedFor(355*24*time.Hour).control + ", immutable", age: 355 * 24 * time.Hour}
	withoutCharset = "application/json" // the contract's type of every JSON answer
)

func cachedFor(d time.Duration) caching {
	return caching{control: "public, max-age=" + strconv.Itoa(int(d.Seconds())), age: d}
}

// set writes the headers. Date is written too, so that Expires is the age away from it whenever net/http gets to it.
func (k caching) set(h http.Header) {
	h.Set("Cache-Control", k.control)
	if k.age == 0 {
		h.Set("Pragma", "no-cache")
		h.Set("Expires", "0")
		return
	}
	now := time.Now().UTC()
	h.Set("Date", now.Format(http.TimeFormat))
	h.Set("Expires", now.Add(k.age).Format(http.TimeFormat))
}

// compressible is the size in bytes from which a coding is made: a smaller answer and its headers fit into one packet
// as they are.
const compressible = 1 << 10

// codings is how many codings there are; they are numbered from 0.
const codings = int(coding.Gzip) + 1

// A body is the bytes of an answer, and of each coding that was asked for so far. It may be used by many at once.
type body struct {
	contentType string
	identity    []byte
	forms       [codings]form // by coding.Coding
}

// A form is the body in one coding, which is identity where the other is not worthwhile.
type form struct {
	once   sync.Once
	coding coding.Coding
	bytes  []byte
	tag    string // the strong entity tag
}

func newBody(contentType string, identity []byte) *body {
	return &body{contentType: contentType, identity: identity}
}

func newJSON(identity []byte) *body { return newBody(withoutCharset, identity) }

// varies reports whether there may be several forms.
func (b *body) varies() bool { return len(b.identity) >= compressible }

// choose returns the form that a request asks for. Who refuses all gets identity: an error would help nobody.
func (b *body) choose(r *http.Request) *form {
	c := coding.Identity
	if b.varies() {
		c = negotiate.ParseAcceptEncoding(r.Header["Accept-Encoding"]).Prefer()
	}
	f := &b.forms[c]
	f.once.Do(func() { f.make(c, b.identity) })
	return f
}

// make encodes quickly also what is kept: the best codings take seconds for a list of thousands of libraries, which
// changes with every publication.
func (f *form) make(c coding.Coding, identity []byte) {
	f.coding, f.bytes = coding.Identity, identity
	if c != coding.Identity {
		// Without a coding the answer is as good, so an encoder's failure is none of the request.
		if coded, err := coding.Encode(c, coding.Quick, identity); err == nil && coding.Worthwhile(len(identity), len(coded)) {
			f.coding, f.bytes = c, coded
		}
	}
	sum := sha256.Sum256(f.bytes)
	f.tag = `"` + base64.RawURLEncoding.EncodeToString(sum[:18]) + `"`
}

// send answers with b, or with 304 where the client has it.
func send(c *gin.Context, status int, k caching, b *body) {
	h := c.Writer.Header()
	k.set(h)
	if b.varies() {
		h.Set("Vary", "Accept-Encoding")
	}
	f := b.choose(c.Request)
	if status == http.StatusOK {
		h.Set("Etag", f.tag)
		if !negotiate.NoneMatch(c.Request.Header["If-None-Match"], f.tag) {
			c.Writer.WriteHeader(http.StatusNotModified)
			c.Writer.WriteHeaderNow()
			return
		}
	}
	h.Set("Content-Type", b.contentType)
	h.Set("Content-Length", strconv.Itoa(len(f.bytes)))
	if f.coding != coding.Identity {
		h.Set("Content-Encoding", f.coding.String())
	}
	c.Writer.WriteHeader(status)
	c.Writer.WriteHeaderNow()
	if c.Request.Method != http.MethodHead {
		_, _ = c.Writer.Write(f.bytes) // who has gone needs no answer
	}
}

// sendText answers with a few words.
func sendText(c *gin.Context, k caching, text string) {
	send(c, http.StatusOK, k, newBody("text/plain; charset=utf-8", []byte(text)))
}
