package server

import (
	"net/http"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server/cachetag"
	"github.com/larder-cdn/larder/server/demand"
	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/negotiate"
)

// cacheForever is 355 days. A published file never changes.
const cacheForever = "public, max-age=30672000, immutable"

// A field is one header field. The name is canonical as net/http wants it; the
// value is a slice so that it goes into an http.Header as it is, shared by all
// answers.
type field struct {
	name  string
	value []string
}

func newField(name, value string) *field { return &field{name, []string{value}} }

// tagFields are what a CDN can purge a release by.
func tagFields(h cachetag.Headers, name, version string) []*field {
	var fields []*field
	for _, f := range h.Fields(name, version) {
		fields = append(fields, newField(f.Name, f.Value))
	}
	return fields
}

// crossOrigin goes with every answer, failures included: without it a script
// cannot even see why it failed.
var crossOrigin = []*field{
	newField("Access-Control-Allow-Origin", "*"),
	newField("Timing-Allow-Origin", "*"),
	newField("Cross-Origin-Resource-Policy", "cross-origin"),
	newField("X-Content-Type-Options", "nosniff"),
}

var (
	varyByCoding = newField("Vary", "Accept-Encoding")
	mayBeKept    = newField("Cache-Control", cacheForever)
	hasRanges    = newField("Accept-Ranges", "bytes")
)

// An asset is what there is to know of one published file.
type asset struct {
	content  kvstore.Hash
	size     int64 // of identity
	squeezed bool
	// representations are the stored ones, smallest first, and last identity
	// where that must be inflated.
	representations []representation
	forms           []negotiate.Form // of representations, in the same order

	demand *demand.Counter // of its package; nil where nobody counts

	loaded     time.Time
	generation uint64 // of the rows, see rows.go
}

// A representation is an asset in one coding, ready to be sent but for the bytes.
type representation struct {
	coding   coding.Coding
	length   int64
	sum      kvstore.Hash // of the bytes that are sent
	stored   bool         // false for an identity that must be inflated
	tag      string
	released time.Time // zero where upstream does not say

	contentType string
	ok          []*field // of a 200 answer
	notModified []*field // of a 304 answer that carries tag
	// The same, as they go over the fast lane.
	okHead, notModifiedHead lane.Head

	vary bool
}

// newAsset describes the file at path. The tags go with all its representations.
func newAsset(path string, file views.File, content kvstore.Content, tags []*field) *asset {
	f := &asset{content: file.Hash, size: content.Size, squeezed: content.Squeezed}
	stored := content.Representations
	_, identity := content.Find(coding.Identity)
	// Where identity is the only coding, there is nothing to vary by.
	vary := len(stored) > 1 || !identity
	f.representations = make([]representation, 0, len(stored)+1)
	for _, r := range stored {
		f.representations = append(f.representations, newRepresentation(path, file, r, true, vary, tags))
	}
	if !identity {
		r := kvstore.Representation{Coding: coding.Identity, Length: content.Size, Sum: file.Hash}
		f.representations = append(f.representations, newRepresentation(path, file, r, false, vary, tags))
	}
	f.forms = make([]negotiate.Form, 0, len(f.representations))
	for _, r := range f.representations {
		f.forms = append(f.forms, negotiate.Form{Coding: r.coding, Length: r.length})
	}
	return f
}

func newRepresentation(path string, file views.File, r kvstore.Representation, stored, vary bool, tags []*field) representation {
	rep := representation{
		coding:      r.Coding,
		length:      r.Length,
		sum:         r.Sum,
		stored:      stored,
		tag:         makeTag(file.Hash, r),
		released:    file.Released.UTC().Truncate(time.Second),
		contentType: contentType(path),
		vary:        vary,
	}
	// RFC 9110 §15.4.5: a 304 repeats what a cache may have to update, and
	// nothing that describes the body it does not have.
	tag := newField("Etag", rep.tag)
	rep.notModified = append(rep.notModified, tag, mayBeKept)
	rep.ok = append(rep.ok, newField("Content-Type", rep.contentType))
	if !rep.identity() {
		rep.ok = append(rep.ok, newField("Content-Encoding", r.Coding.String()))
	}
	rep.ok = append(rep.ok, newField("Content-Length", strconv.FormatInt(r.Length, 10)), tag)
	if !rep.released.IsZero() {
		rep.ok = append(rep.ok, newField("Last-Modified", rep.released.Format(http.TimeFormat)))
	}
	rep.ok = append(rep.ok, mayBeKept, hasRanges)
	if vary {
		rep.ok = append(rep.ok, varyByCoding)
		rep.notModified = append(rep.notModified, varyByCoding)
	}
	rep.ok = append(append(rep.ok, tags...), crossOrigin...)
	rep.notModified = append(append(rep.notModified, tags...), crossOrigin...)
	// They are kept for long, and appending has left room behind them.
	rep.ok, rep.notModified = slices.Clone(rep.ok), slices.Clone(rep.notModified)
	rep.okHead = newHead(http.StatusOK, rep.ok)
	rep.notModifiedHead = newHead(http.StatusNotModified, rep.notModified)
	return rep
}

func (r *representation) identity() bool { return r.coding == coding.Identity }

// choose returns the representation to send, nil where none is acceptable.
func (f *asset) choose(w negotiate.Weights) *representation {
	if i := w.Choose(f.forms); i >= 0 {
		return &f.representations[i]
	}
	return nil
}

// count notes that the asset was asked for.
func (f *asset) count() {
	if f.demand != nil {
		f.demand.Add()
	}
}

// inflatable returns the stored representation that is cheapest to inflate.
// Gzip takes a third of Brotli's time.
func (f *asset) inflatable() *representation {
	best := &f.representations[0]
	for i := range f.representations {
		if r := &f.representations[i]; r.stored && r.coding == coding.Gzip {
			best = r
		}
	}
	return best
}

// weigh is the memory that an asset takes in the cache, in bytes, roughly; a test
// measures that it is not less. The values of tags are not in it, which are short.
func (f *asset) weigh() int64 {
	const (
		perAsset = 600 // with its place in the cache
		perField = int64(unsafe.Sizeof((*field)(nil)))
		// own are the fields that no other asset has, each a slice of one string, and texts.
		own = 5*int64(unsafe.Sizeof(field{})+unsafe.Sizeof("")) + 240
	)
	n := int64(perAsset)
	for i := range f.representations {
		r := &f.representations[i]
		n += int64(unsafe.Sizeof(*r)) + int64(unsafe.Sizeof(negotiate.Form{})) + own
		n += int64(cap(r.ok)+cap(r.notModified))*perField + int64(len(r.okHead)+len(r.notModifiedHead))
	}
	return n
}
