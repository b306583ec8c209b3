package library

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/api/search"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// Options says what an Index reads. Store and Log are required.
type Options struct {
	Store *kvstore.Store
	Log   *logs.Log
	// Popularity returns how much a library is in demand, 0 for unknown. Rankings use only the order of the numbers; a
	// search compares their logarithms. Default: nothing is known.
	Popularity func(l *Library) float64
	// Downloads returns how many downloads of a library npm counted in a month, and when it counted them. Default: it is not
	// known.
	Downloads func(name string) (n int64, asOf time.Time, ok bool)
	// GitHub returns the last known counts of a library's repository at GitHub, and false if they are not known. Default:
	// they are not known.
	GitHub func(name string) (GitHubCounts, bool)
	// Accounts reads what became of every version that a library's upstream has or had, newest first. Default: only the
	// versions that have a state in the store.
	Accounts func(r kvstore.Reader, name string) ([]views.Account, error)
	// Deprecations reads which versions upstream has deprecated, with the reason of each: an empty map if none is, nil if
	// that is not known. Default: it is not known.
	Deprecations func(r kvstore.Reader, name string) (map[string]string, error)
	// Upstream reads from the store a sentence about what upstream has of a version, "" if that is not known. differs
	// reports whether that is different from what was published. Default: it is not known.
	Upstream func(r kvstore.Reader, name, version string) (note string, differs bool, err error)
	// Dictionaries says that the server sends deltas to browsers that have another version of a file.
	Dictionaries bool
	// Changes records the libraries that new log entries are about. Code that changes other rows from which pages about a
	// library are made records that there, too. Default: a new one.
	Changes *Changes
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Logger logs what cannot be read. Default: nothing is logged.
	Logger *slog.Logger
}

// An Index has all libraries in memory. Call Run once; the other methods may be called at any time, from any goroutine.
type Index struct {
	options  Options
	store    *kvstore.Store
	notified atomic.Int64
	search   *search.Index

	// unread has the libraries that could not be read, with the errors; reading them is tried again. Run replaces the map,
	// which never changes.
	unread atomic.Pointer[map[string]error]

	mu      sync.Mutex
	listing *Listing
	seen    int64         // entries of the log that listing and search know of
	err     error         // why there is no listing
	changed chan struct{} // closed when one of them changes

	abouts    answers.Cache[kvstore.Hash, *logs.About] // that were requested lately, by manifest
	releases  answers.Cache[releaseKey, *Release]      // too
	manifests answers.Cache[kvstore.Hash, *logs.Manifest]

	rankingMu sync.Mutex
	ranking   *Ranking // nil until it is requested
}

// New returns an index without libraries. The caller runs [Index.Run], which reads them from the store. Until they are read,
// methods that need the list of libraries wait, and return [ErrNotReady] if their context ends; the other methods read the
// store at each call.
func New(o Options) *Index {
	if o.Popularity == nil {
		o.Popularity = func(*Library) float64 { return 0 }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Changes = cmp.Or(o.Changes, new(Changes))
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	x := &Index{options: o, store: o.Store, search: search.New(), changed: make(chan struct{})}
	x.unread.Store(new(map[string]error))
	x.abouts.Most, x.abouts.MostBytes = maxAbouts, maxAboutBytes
	x.releases.Most, x.releases.MostBytes = maxReleases, maxReleaseBytes
	x.manifests.Most, x.manifests.MostBytes = maxManifests, maxReleaseBytes
	return x
}

// How long Run waits after it couldn't read the store, each time twice as long, and
// how long until it tries again to read single libraries that it couldn't.
const (
	firstPause   = time.Second
	longestPause = time.Minute
	reread       = time.Minute
)

// Run reads all libraries, then follows the log until ctx ends. It always returns nil. It logs an error, and reads all
// libraries again after a pause of 1 s to 1 min. If only single libraries cannot be read, it tries these again each minute.
func (x *Index) Run(ctx context.Context) error {
	seen := int64(-1) // nothing has been read
	failures := 0
	for ctx.Err() == nil {
		size, err := x.refresh(ctx, seen)
		if err == nil {
			seen, failures = size, 0
			x.waitForChanges(ctx, seen)
			continue
		}
		if ctx.Err() != nil {
			break
		}
		failures++
		pause := retry.Doubled(failures, firstPause, longestPause)
		x.recordFailure(err, pause)
		// If an entry of the log is damaged, the index reads all packages instead.
		seen = -1
		_ = retry.Sleep(ctx, pause) // its error is that of ctx
	}
	return nil
}

// waitForChanges returns when the log has more than the first seen entries, when ctx ends, or, if some libraries could not
// be read, after a minute.
func (x *Index) waitForChanges(ctx context.Context, seen int64) {
	if len(*x.unread.Load()) > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, reread)
		defer cancel()
	}
	_, _ = x.options.Log.Wait(ctx, seen) // it fails only where ctx has ended
}

// refresh reads the libraries that log entries from index seen on are about, or all libraries if seen is negative, and those
// that could not be read before. It updates the search index, publishes the listing, and records the changes in [Changes].
// It returns how many entries of the log the listing now reflects. An error leaves the index as it was.
func (x *Index) refresh(ctx context.Context, seen int64) (int64, error) {
	c, err := x.readChanges(ctx, seen)
	if err != nil {
		return 0, err
	}
	next := x.listing
	if next == nil || len(c.read) > 0 {
		next = newListing(c.before, c.read)
	}
	x.updateSearch(c.read)
	x.unread.Store(&c.unread)
	x.publish(next, c.size)
	x.notifyChanges(seen, c)
	x.notified.Store(c.size)
	return c.size, nil
}

// notifyChanges records changes in x.options.Changes: of all libraries if seen is negative, else of those that new log entries are
// about, even if the listing has the same of them, of those that the listing has otherwise now, and of [Catalogue] if the
// listing has gained or lost a library. The caller publishes the listing first.
func (x *Index) notifyChanges(seen int64, c changes) {
	if seen < 0 {
		x.options.Changes.recordAllChanged()
		return
	}
	listed := false
	for name, l := range c.read {
		c.touched = append(c.touched, name) // also one that could not be read before, which no new entry is about
		listed = listed || l == nil || c.before[name] == nil
	}
	if listed {
		c.touched = append(c.touched, Catalogue)
	}
	if len(c.touched) > 0 {
		x.options.Changes.RecordChange(c.touched...)
	}
}

// Notified returns how many entries of the log the index has read and reported to [Index.Changes], counted from the first
// entry; 0 before all libraries were read.
func (x *Index) Notified() int64 { return x.notified.Load() }

// Changes returns the record of changed libraries, never nil. The index adds to it.
func (x *Index) Changes() *Changes { return x.options.Changes }

// changes are the changes of the libraries since they were read before.
type changes struct {
	size    int64               // entries of the log
	touched []string            // libraries that new log entries concern
	before  map[string]*Library // as they were
	read    map[string]*Library // those that are different now, nil where gone
	unread  map[string]error    // those that couldn't be read
}

// readChanges reads from one snapshot of the store the libraries that log entries from index seen on are about, or all if
// seen is negative, and those that could not be read before. A library that cannot be read is in changes.unread; readChanges
// logs it unless it could not be read the last time either. It does not change the index; only the goroutine of Run calls
// it, because it reads x.listing without the lock. It closes the snapshot before any goroutine is notified, because a
// notified goroutine may close the store next.
func (x *Index) readChanges(ctx context.Context, seen int64) (changes, error) {
	snapshot := x.store.Snapshot()
	defer snapshot.Close()
	checkpoint, err := logs.ReadCheckpoint(snapshot)
	if err != nil {
		return changes{}, err
	}
	names, touched, err := changedNames(snapshot, seen)
	if err != nil {
		return changes{}, err
	}
	c := changes{size: checkpoint.Size, touched: touched, read: make(map[string]*Library), unread: make(map[string]error)}
	unread := *x.unread.Load()
	if x.listing != nil {
		c.before = x.listing.byName
	}
	names = slices.AppendSeq(names, maps.Keys(unread))
	if seen < 0 {
		names = slices.AppendSeq(names, maps.Keys(c.before)) // some may be gone
	}
	slices.Sort(names)
	names = slices.Compact(names)
	libraries, failures, err := readLibraries(ctx, snapshot, names)
	if err != nil {
		return changes{}, err
	}
	for i, name := range names {
		if err := failures[i]; err != nil {
			// One damaged row must not hide the others, nor this library what was
			// known of it.
			if c.unread[name] = err; unread[name] == nil {
				x.options.Logger.Error("library: couldn't read a library; it is shown as it was, if at all", "package", name, "err", err)
			}
			continue
		}
		// Some entries of the log change nothing that the listing has of a library.
		if !reflect.DeepEqual(c.before[name], libraries[i]) {
			c.read[name] = libraries[i]
		}
	}
	return c, nil
}

// readLibraries reads the libraries with these names on all processors, because parsing package JSONs takes much of a start.
// Both slices are in the order of names. A library is nil if it is not registered, or if its failure is not
// nil. err is that of ctx, and then both slices are incomplete.
func readLibraries(ctx context.Context, r kvstore.Reader, names []string) (libraries []*Library, failures []error, err error) {
	libraries, failures = make([]*Library, len(names)), make([]error, len(names))
	var next atomic.Int64
	readers, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), len(names)) {
		readers.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(names)); i = next.Add(1) - 1 {
				if err := ctx.Err(); err != nil {
					return err
				}
				libraries[i], failures[i] = newLibrary(r, names[i])
			}
			return nil
		})
	}
	return libraries, failures, readers.Wait()
}

// changedNames returns the libraries that the log entries from index seen on are about, in their order, a name for each
// entry, so a name may occur more than once: touched has all of them, names only those of which the listing may change. The
// name of an entry about the log itself is "". For a negative seen, names has all packages of the store, and touched is nil.
func changedNames(r kvstore.Reader, seen int64) (names, touched []string, err error) {
	if seen < 0 {
		for item, err := range r.Scan(kvstore.Packages, kvstore.Range{}) {
			if err != nil {
				return nil, nil, fmt.Errorf("library: couldn't list the packages: %w", err)
			}
			names = append(names, string(item.Key))
		}
		return names, nil, nil
	}
	for e, err := range logs.Entries(r, seen) {
		if err != nil {
			return nil, nil, err
		}
		touched = append(touched, e.Package)
		switch e.Kind {
		case logs.Detected, logs.Refused, logs.Processed, logs.Confirmed, logs.Erased, logs.UpstreamChanged, logs.KeyChanged, logs.LossAccepted:
		default:
			names = append(names, e.Package)
		}
	}
	return names, touched, nil
}

// publish makes l, a listing that reflects the first seen entries of the log, the current one, clears x.err, and wakes the
// goroutines that wait in await.
func (x *Index) publish(l *Listing, seen int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.listing, x.seen, x.err = l, seen, nil
	x.wakeWaiting()
}

// wakeWaiting wakes the goroutines that wait in await for a newer listing of all libraries or for an error. The caller holds
// x.mu.
func (x *Index) wakeWaiting() {
	close(x.changed)
	x.changed = make(chan struct{})
}

// recordFailure logs that the log could not be read, and that the index tries again after pause. Before the first listing,
// it also makes waiting and later calls return the error, until a listing is published.
func (x *Index) recordFailure(err error, pause time.Duration) {
	x.options.Logger.Error("library: couldn't follow the log; all is read again", "after", pause, "err", err)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.listing == nil {
		x.err = err
		x.wakeWaiting()
	}
}

// A Listing is all libraries at one moment, also hidden and removed ones and those without versions. It never changes.
type Listing struct {
	// Libraries are in the order of their names without regard to case.
	Libraries []*Library

	byName map[string]*Library
	byNPM  map[string]*Library // by the npm package that releases come from
}

// newListing returns a listing of the libraries in before, in which those in changed replace those with their names; a nil
// library in changed is left out. It does not change the maps.
func newListing(before, changed map[string]*Library) *Listing {
	byName := make(map[string]*Library, len(before)+len(changed))
	maps.Copy(byName, before)
	for name, l := range changed {
		if l == nil {
			delete(byName, name)
		} else {
			byName[name] = l
		}
	}
	l := &Listing{Libraries: slices.Collect(maps.Values(byName)), byName: byName}
	slices.SortFunc(l.Libraries, func(a, b *Library) int {
		return cmp.Or(cmp.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	l.byNPM = byNPM(l.Libraries)
	return l
}

// Library returns the library with this name, nil if it does not exist.
func (l *Listing) Library(name string) *Library { return l.byName[name] }

// Listing returns all libraries as they are now. A library that cannot be read is as it was when it was last read, or
// missing. The pointer stays the same as long as nothing has changed. Listing waits until all have been read for the first
// time. It returns [ErrNotReady] if ctx ends before, or the error of that reading if it fails.
func (x *Index) Listing(ctx context.Context) (*Listing, error) {
	return x.await(ctx, 0)
}

// Wait waits until the listing reflects the first entries entries of the log. It returns [ErrNotReady] if ctx ends before,
// or, without a first listing, the error of reading it.
func (x *Index) Wait(ctx context.Context, entries int64) error {
	_, err := x.await(ctx, entries)
	return err
}

// await returns the listing as soon as it reflects at least that many entries of the log. It returns [ErrNotReady] if ctx
// ends before, or, without a first listing, the error of reading it.
func (x *Index) await(ctx context.Context, entries int64) (*Listing, error) {
	for {
		x.mu.Lock()
		listing, seen, err, changed := x.listing, x.seen, x.err, x.changed
		x.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case listing != nil && seen >= entries:
			return listing, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrNotReady, ctx.Err())
		}
	}
}

// ErrNotReady says that the libraries are still being read.
var ErrNotReady = errors.New("library: the libraries are still being read")

// Ready returns nil if there is a listing of all libraries, [ErrNotReady] until all have been read for the first time, or
// the error of that reading.
func (x *Index) Ready() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil && x.listing == nil {
		return ErrNotReady
	}
	return x.err
}

// Library returns the library with this name, or [ErrNoLibrary]. If its rows could never be read, it returns the error of
// reading them, so that callers do not take it for removed. It waits for the first listing, as [Index.Listing] does.
func (x *Index) Library(ctx context.Context, name string) (*Library, error) {
	listing, err := x.Listing(ctx)
	if err != nil {
		return nil, err
	}
	if l := listing.Library(name); l != nil {
		return l, nil
	}
	if err := (*x.unread.Load())[name]; err != nil {
		return nil, err
	}
	return nil, ErrNoLibrary
}

// PackageJSON returns the current package JSON of a library from the store, with its values and order as published, but
// without white space between tokens, and with <, > and & as escapes. It returns [ErrNoLibrary] if the library is not
// registered.
func (x *Index) PackageJSON(name string) ([]byte, error) {
	if !validName(name) {
		return nil, ErrNoLibrary
	}
	p, err := views.LookupPackage(x.store, name)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, ErrNoLibrary
	}
	return p.JSON, err
}

// Versions returns a library's published versions from the store, without withdrawn ones, in the order of
// [packages.CompareVersions], the greatest first; none for an unknown library.
func (x *Index) Versions(name string) ([]views.Version, error) {
	if !validName(name) {
		return nil, nil
	}
	return readPublishedVersions(x.store, name)
}

// Accounts returns, newest first, what became of every version that upstream has or had, also of those that the bot never
// tried, as far as the store has that; none for an unknown library. Without [Options.Accounts] it has only the versions of
// [Index.States]. It takes longer than [Index.States].
func (x *Index) Accounts(name string) ([]views.Account, error) {
	if !validName(name) {
		return nil, nil
	}
	if x.options.Accounts != nil {
		snapshot := x.store.Snapshot()
		defer snapshot.Close()
		return x.options.Accounts(snapshot, name)
	}
	states, err := x.States(name)
	all := make([]views.Account, len(states))
	for i, s := range states {
		all[i] = views.Account{State: s}
	}
	return all, err
}

// NotMirrored returns how many of a library's [Index.Accounts] are versions that the bot never tried to publish. It needs
// [Options.Accounts]; without, it returns 0.
func (x *Index) NotMirrored(name string) (n int, err error) {
	all, err := x.Accounts(name)
	for _, a := range all {
		if a.Kind.IsUntried() {
			n++
		}
	}
	return n, err
}

// States returns the state of every version that the bot has detected or that was published here: whether it waits, failed,
// or was published, refused or withdrawn. The newest is first; an unknown library has none.
func (x *Index) States(name string) ([]views.State, error) {
	if !validName(name) {
		return nil, nil
	}
	states, err := views.States(x.store, name)
	slices.SortFunc(states, func(a, b views.State) int { return packages.CompareVersions(b.Version, a.Version) })
	return states, err
}

// Release returns a published version with its files, from memory if it was read lately and has not changed; the caller must
// not change it. It returns [ErrNoLibrary], [ErrNoVersion] or a [*WithdrawnError] if the version is not served. It waits for
// the first listing, as [Index.Listing] does.
func (x *Index) Release(ctx context.Context, name, version string) (*Release, error) {
	if _, err := x.Library(ctx, name); err != nil {
		return nil, err
	}
	v, err := readVersion(x.store, name, version)
	if err != nil {
		return nil, err
	}
	return x.releases.Get(releaseKey{name, version, v.Entry, v.Manifest}, func() (*Release, int, error) {
		snapshot := x.store.Snapshot()
		defer snapshot.Close()
		r, err := readRelease(snapshot, name, version)
		if err != nil {
			return nil, 0, err
		}
		return r, bytesOfFile * len(r.Files), nil
	})
}

// A releaseKey is a release as it was published, or served again, by an entry of the log.
type releaseKey struct {
	name, version string
	entry         int64
	manifest      kvstore.Hash
}

// Releases and manifests that were requested lately are kept: reading one of thousands of files takes a hundred times as
// long as showing it.
const (
	maxReleases     = 200
	maxManifests    = 20
	maxReleaseBytes = 24 << 20
	bytesOfFile     = 300 // about
)

// Content returns the size of the content with the hash h, and the encodings in which it is stored with their lengths. It
// returns [kvstore.ErrNotFound] if the content is not stored, and [kvstore.ErrCorrupt] if its row is damaged.
func (x *Index) Content(h kvstore.Hash) (kvstore.Content, error) { return x.store.Content(h) }

// File returns the decoded bytes of the content with the hash h, which it verifies. It returns [kvstore.ErrNotFound] if the
// content is not stored, and [kvstore.ErrCorrupt] if no encoding of it is intact. Damage schedules a repair, also if another
// encoding is intact.
func (x *Index) File(h kvstore.Hash) ([]byte, error) { return x.store.Identity(h) }

// Manifest returns a release's manifest, which also says where its files came from and what was left out, from memory if it
// was read lately; the caller must not change it.
func (x *Index) Manifest(r *Release) (*logs.Manifest, error) { return x.manifest(r.Manifest) }

// manifest returns the manifest with the hash h, from memory if it was read lately, else from the store. It does not cache
// errors.
func (x *Index) manifest(h kvstore.Hash) (*logs.Manifest, error) {
	return x.manifests.Get(h, func() (*logs.Manifest, int, error) {
		m, err := logs.ReadManifest(x.store, h)
		if err != nil {
			return nil, 0, err
		}
		size := 2 * bytesOfFile * len(m.Files)
		if m.About != nil {
			size += len(m.About.Readme) + sizeOfModules(m.About.Modules)
		}
		return m, size, nil
	})
}

// validName reports whether a library can have this name: it is not empty and has no zero byte, which separates the parts of
// keys in the store.
func validName(name string) bool { return name != "" && !strings.ContainsRune(name, 0) }
