package server

import (
	"net/http"
	"time"
	"unsafe"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server/cachetag"
	"github.com/larder-cdn/larder/server/demand"
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

// crossOrigin goes with every answer, failures included: without it a script
// cannot even see why it failed.
var crossOrigin = []*field{
	newField("Access-Control-Allow-Origin", "*"),
	newField("Timing-Allow-Origin", "*"),
	newField("Cross-Origin-Resource-Policy", "cross-origin"),
	newField("X-Content-Type-Options", "nosniff"),
}

// An asset is what there is to know of one published file. Many are kept, so it is small:
// the heads of its answers are made when they are sent (head.go).
type asset struct {
	content  kvstore.Hash
	size     int64 // of identity
	squeezed bool
	vary     bool // whether there is more than one coding to choose from
	// representations are the stored ones, smallest first, and last identity
	// where that must be inflated.
	representations []representation
	forms           []negotiate.Form // of representations, in the same order

	*mediaType
	released     time.Time          // zero where upstream does not say, or HTTP cannot
	lastModified [lastModified]byte // released as text
	purged       cachetag.Release   // by which a CDN can purge its answers

	demand *demand.Counter // of its package; nil where nobody counts

	loaded     time.Time
	generation uint64 // of the rows, see rows.go

	// What the slices are made of, so that an asset is one piece of memory but for its tags.
	ownRepresentations [codings]representation
	ownForms           [codings]negotiate.Form
}

// A representation is an asset in one coding, ready to be sent but for the bytes.
type representation struct {
	*asset
	coding coding.Coding
	stored bool // false for an identity that must be inflated
	length int64
	sum    kvstore.Hash // of the bytes that are sent
	tag    string
}

// newAsset describes the file that t names. It keeps t's text.
func newAsset(t target, file views.File, content kvstore.Content, headers cachetag.Headers) *asset {
	_, identity := content.Find(coding.Identity)
	f := &asset{
		content: file.Hash, size: content.Size, squeezed: content.Squeezed,
		// Where identity is the only coding, there is nothing to vary by.
		vary:      len(content.Representations) > 1 || !identity,
		mediaType: mediaTypeOf(t.path),
		released:  file.Released.UTC().Truncate(time.Second),
		purged:    headers.Release(t.pkg, t.version),
	}
	if text := f.released.AppendFormat(f.lastModified[:0], http.TimeFormat); len(text) != lastModified {
		f.released = time.Time{} // HTTP has no date with such a year
	}
	f.representations, f.forms = f.ownRepresentations[:0], f.ownForms[:0]
	tags := make([]byte, 0, codings*tagLength)
	add := func(r kvstore.Representation, stored bool) {
		f.representations = append(f.representations, representation{asset: f, coding: r.Coding, stored: stored, length: r.Length, sum: r.Sum})
		f.forms = append(f.forms, negotiate.Form{Coding: r.Coding, Length: r.Length})
		tags = appendTag(tags, file.Hash, r)
	}
	for _, r := range content.Representations {
		add(r, true)
	}
	if !identity {
		add(kvstore.Representation{Coding: coding.Identity, Length: content.Size, Sum: file.Hash}, false)
	}
	text := string(tags)
	for i := range f.representations {
		f.representations[i].tag = text[i*tagLength : (i+1)*tagLength]
	}
	return f
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

// weigh is the memory that an asset takes in the cache beside its key, in bytes, roughly; a
// test measures that it is not less.
func (f *asset) weigh() int64 {
	const place = 200 // in the cache
	return place + int64(unsafe.Sizeof(*f)) + int64(len(f.representations)*tagLength)
}
