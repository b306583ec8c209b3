package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/maypok86/otter/v2"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server/usage"
)

// recheck is how long an asset is believed whose codings are still to be replaced by
// smaller ones. Later it is read again, so hot files move to the smaller ones
// without being evicted.
const recheck = time.Minute

// A withdrawnError says that the version was withdrawn.
type withdrawnError struct{ views.Withdrawal }

// Error implements error. It names the log entry of the withdrawal, not its reason.
func (e *withdrawnError) Error() string { return fmt.Sprintf("withdrawn by log entry %d", e.Entry) }

// rows finds assets, in a cache or in the store.
//
// Forgetting is by generation: each asset remembers the generation in which its
// reading began, and one of an earlier generation is read again before it is
// used. So a reading that a withdrawal overtakes cannot survive it, and a
// withdrawal, which is rare, costs each hot asset one more reading.
type rows struct {
	o          *Options
	memory     any        // see assetCache
	completer  *completer // nil for none
	now        func() time.Time
	generation atomic.Uint64
	metrics    *cacheMetrics
}

// newRows returns an empty cache, of up to cacheBytes, of the assets of o.Store, by the options that concern single assets. m counts the
// cache's work.
func newRows(o *Options, cacheBytes int64, m *cacheMetrics) (*rows, error) {
	cache, err := otter.New(&otter.Options[string, *asset]{
		MaximumWeight: uint64(cacheBytes),
		Weigher:       func(key string, f *asset) uint32 { return uint32(int64(len(key)) + f.weight()) },
		StatsRecorder: m,
	})
	r := &rows{o: o, memory: cache, now: time.Now, metrics: m}
	if o.Complete {
		r.completer = &completer{o.Store, make(chan struct{}, 1), o.Logger}
	}
	return r, err
}

// assetCache returns the in-memory cache of r with its type. No field and no method mentions otter's generic types: otherwise each importer of this
// package compiles them once more.
func assetCache(r *rows) *otter.Cache[string, *asset] { return r.memory.(*otter.Cache[string, *asset]) }

// getCached returns the cached asset of a target, nil if none exists. The bool reports that it may be used at the time now; it is false for a stale
// asset too, which the caller passes to rows.load.
func (r *rows) getCached(t target, now time.Time) (*asset, bool) {
	f, ok := assetCache(r).GetIfPresent(t.key)
	return f, ok && r.isCurrent(f, now)
}

// load reads the asset of a target from the store into the cache and returns it. stale is the asset in the cache that it replaces, nil for none.
// Concurrent calls for the same target read once. It returns errNoFile, errUnknown, a *withdrawnError, or an error of the store. It does not cache
// absence: a published file is available at once.
func (r *rows) load(t target, stale *asset) (*asset, error) {
	r.metrics.misses.Inc()
	t = t.clone() // the cache keeps the key, and who waits for it may outlive the request
	for {
		if stale != nil {
			r.replace(t, stale, nil)
		}
		mine := false
		f, err := assetCache(r).Get(context.Background(), t.key, otter.LoaderFunc[string, *asset](func(context.Context, string) (*asset, error) {
			mine = true
			return r.read(t)
		}))
		if errors.Is(err, errNoFile) && !mine { // another goroutine's look may have begun before the file was published
			return r.read(t)
		}
		if err != nil || r.isCurrent(f, r.now()) {
			return f, err
		}
		stale = f
	}
}

// isCurrent reports whether a cached asset may be used at a time: no [Assets.Forget] came since it was read, and it was read less than a minute ago,
// or it has all that the store will have of it: its encodings are the smallest, its bytes are final, and no delta was stored since.
func (r *rows) isCurrent(f *asset, now time.Time) bool {
	age := now.Sub(f.loaded)
	return f.generation == r.generation.Load() && (age < recheck || f.squeezed && !f.provisional && f.storedDeltas == r.o.Store.StoredDeltas())
}

// replace puts another asset in the place of the asset f of a target in the cache, or with nil nothing, unless another goroutine has
// replaced f.
func (r *rows) replace(t target, f, by *asset) {
	assetCache(r).ComputeIfPresent(t.key, func(have *asset) (*asset, otter.ComputeOp) {
		switch {
		case have != f:
			return have, otter.CancelOp
		case by == nil:
			return nil, otter.InvalidateOp
		}
		return by, otter.WriteOp
	})
}

// recoverFrom prepares another attempt after sending the asset f failed with err. For a damaged coding it returns f without it, which
// takes the place of f in the cache; a minute later that is read again, when the store may have repaired the coding. For a replaced coding
// it evicts f and returns nil, so that the caller reads the asset again. goesOn is false after other errors, and if no other coding is left.
func (r *rows) recoverFrom(t target, f *asset, err error) (rest *asset, goesOn bool) {
	var damaged *damagedError
	switch {
	case errors.As(err, &damaged):
		if rest = f.withoutCoding(damaged.coding); rest != nil {
			rest.loaded = r.now()
		}
	case !errors.Is(err, errReplaced):
		return nil, false
	}
	r.replace(t, f, rest)
	return rest, rest != nil || damaged == nil
}

// read reads the asset of a target from the store, without the cache. It may store a gzip encoding (see completer), and reports contents that are not
// recompressed to hot. It returns errNoFile, errUnknown, a *withdrawnError, or an error of the store.
func (r *rows) read(t target) (*asset, error) {
	generation, storedDeltas := r.generation.Load(), r.o.Store.StoredDeltas()
	file, err := views.LookupFile(r.o.Store, t.pkg, t.version, t.path)
	if errors.Is(err, kvstore.ErrNotFound) {
		if err = r.explainAbsence(t); err == errNoFile { // the version may have been published between the two looks
			file, err = views.LookupFile(r.o.Store, t.pkg, t.version, t.path)
			if errors.Is(err, kvstore.ErrNotFound) {
				err = errNoFile
			}
		}
	}
	if err != nil {
		return nil, err
	}
	content, err := r.o.Store.Content(file.Hash)
	if err != nil {
		// Not even ErrNotFound is a 404 here: the store contradicts itself.
		return nil, fmt.Errorf("server: %s names the content %s: %w", t.key, file.Hash, err)
	}
	if r.completer != nil {
		content = r.completer.addGzip(file.Hash, content)
	}
	f := newAsset(t, file, content, r.o.CacheTags)
	if r.o.Dictionaries && !file.Provisional {
		if err := f.addDictionaries(r.o.Store, t); err != nil {
			return nil, fmt.Errorf("server: the deltas of %s: %w", t.key, err)
		}
	}
	f.generation, f.storedDeltas, f.loaded = generation, storedDeltas, r.now()
	if r.o.Usage != nil {
		f.usage = r.o.Usage.File(t.pkg, t.version, t.key)
	}
	if !f.squeezed && r.o.Hot != nil {
		r.o.Hot(file.Hash)
	}
	return f, nil
}

// explainAbsence returns why the store has no file for a target: errUnknown for an unknown version, a *withdrawnError for a withdrawn one, errNoFile
// if the version has no such path, or an error of the store.
func (r *rows) explainAbsence(t target) error {
	v, err := views.LookupVersion(r.o.Store, t.pkg, t.version)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return errUnknown
	case err != nil:
		return err
	case v.Withdrawn != nil:
		return &withdrawnError{*v.Withdrawn}
	}
	return errNoFile
}

// An asset has the data of one published file. Many are kept, so it is small:
// the heads of its responses are made when they are sent (head.go).
type asset struct {
	content  kvstore.Hash
	size     int64 // of identity
	squeezed bool
	damaged  bool // whether it was in more codings
	vary     bool // whether there is more than one coding to choose from
	// provisional: it may yet become other bytes, so no cache keeps it for long.
	provisional bool
	// representations are the stored ones, smallest first, and last identity
	// where that must be inflated.
	representations []representation
	forms           []requests.Representation // of representations, in the same order
	deltas          []delta
	dictionary      string // Use-As-Dictionary; empty if clients should not use the file as a dictionary

	*mediaType
	released     time.Time          // zero where upstream does not say, or HTTP cannot
	lastModified [lastModified]byte // released as text
	purged       releaseTags        // by which a CDN can purge its responses

	usage *usage.Counter // nil where requests are not counted

	loaded       time.Time
	generation   uint64 // of the rows, see rows.go
	storedDeltas uint64 // [kvstore.Store.StoredDeltas] when it was read

	// The memory of the slices, so that an asset is one allocation, apart from its tags.
	ownRepresentations [storedCodings]representation
	ownForms           [storedCodings]requests.Representation
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

// newAsset returns the asset of the file t with the given content, with a representation and an entity tag for each stored encoding, and for identity
// if it must be decoded. headers say whether it has cache tags. The asset retains the memory of t.
func newAsset(t target, file views.File, content kvstore.Content, headers CacheTags) *asset {
	_, identity := content.Find(coding.Identity)
	f := &asset{
		content: file.Hash, size: content.Size, squeezed: content.Squeezed,
		// If identity is the only coding, the response does not vary.
		vary:        len(content.Representations) > 1 || !identity,
		provisional: file.Provisional,
		mediaType:   mediaTypeOf(t.path),
		released:    file.Released.UTC().Truncate(time.Second),
		purged:      headers.release(t.pkg, t.version),
	}
	if text := f.released.AppendFormat(f.lastModified[:0], http.TimeFormat); len(text) != lastModified {
		f.released = time.Time{} // HTTP has no date with such a year
	}
	f.representations, f.forms = f.ownRepresentations[:0], f.ownForms[:0]
	tags := make([]byte, 0, storedCodings*tagLength)
	add := func(r kvstore.Representation, stored bool) {
		f.addRepresentation(representation{coding: r.Coding, stored: stored, length: r.Length, sum: r.Sum})
		tags = appendETag(tags, file.Hash, r)
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

// addRepresentation adds a representation to those of the asset, behind the others.
func (f *asset) addRepresentation(r representation) {
	r.asset = f
	f.representations = append(f.representations, r)
	f.forms = append(f.forms, requests.Representation{Coding: r.coding, Length: r.length})
}

// withoutCoding returns a copy of the asset without the coding c, whose bytes cannot be read, and without deltas; nil if no other coding is stored.
// If c is identity, the copy has identity decoded from another coding.
func (f *asset) withoutCoding(c coding.Coding) *asset {
	rest := *f
	rest.squeezed, rest.damaged = false, true
	rest.deltas = nil // the next read, soon, has those that are sound
	rest.representations, rest.forms = rest.ownRepresentations[:0], rest.ownForms[:0]
	for _, r := range f.representations {
		if r.stored && r.coding != c {
			rest.addRepresentation(r)
		}
	}
	if len(rest.representations) == 0 {
		return nil
	}
	for _, r := range f.representations {
		if r.isIdentity() && (!r.stored || r.coding == c) {
			r.stored = false
			rest.addRepresentation(r)
		}
	}
	return &rest
}

// isIdentity reports whether the representation is the content itself, without encoding.
func (r *representation) isIdentity() bool { return r.coding == coding.Identity }

// chooseRepresentation returns the representation to send by the weights of a client's Accept-Encoding, deltas excluded, nil if none is acceptable.
func (f *asset) chooseRepresentation(w requests.Weights) *representation {
	if i := w.Choose(f.forms); i >= 0 {
		return &f.representations[i]
	}
	return nil
}

// count counts a request for the asset, and sent bytes of the body, in the usage of its release. It does nothing if requests are not counted.
func (f *asset) count(sent int64) {
	if f.usage != nil {
		f.usage.CountRequest()
		f.usage.CountSent(sent)
	}
}

// encodedSource returns the stored representation from which identity is decoded: gzip if there is one, which takes a third of Brotli's time, or else
// the smallest.
func (f *asset) encodedSource() *representation {
	best := &f.representations[0]
	for i := range f.representations {
		if r := &f.representations[i]; r.stored && r.coding == coding.Gzip {
			best = r
		}
	}
	return best
}

// weight returns about how many bytes of memory an asset takes in the cache, without its key. A test measures that it is not less.
func (f *asset) weight() int64 {
	const place = 200 // in the cache
	return place + int64(unsafe.Sizeof(*f)+unsafe.Sizeof(usage.Counter{})) + int64(len(f.representations)*tagLength) +
		int64(len(f.dictionary)) + int64(len(f.deltas)*(int(unsafe.Sizeof(delta{}))+tagLength+availableLength))
}
