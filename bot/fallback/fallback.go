// Package fallback fetches releases that are missing here from other origins: another Larder, whose signed log proves them,
// or an origin with cdnjs's API, whose API states their integrities.
//
// What it guarantees: it compares each byte with its SHA-512 before it passes the byte on. It fetches complete releases, each
// once however many clients request its files, and publishes them through the bot with their proof. It requests only
// versions of packages in the catalogue that were neither published nor refused here. The requests to origins, the sizes of
// their responses, the record of failed releases and the bytes stored in all have limits. A request that came
// through this Larder before is not passed on.
//
// The package must not know how files are served.
package fallback

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/views"
)

// Options configure a [Fallback]. Bot, Store and Origins are required.
type Options struct {
	Bot   *bot.Bot
	Store *kvstore.Store
	// Origins are larder:URL and cdnjs:URL, which are queried in this order.
	Origins []string
	// Key is the verifier key of the log of every larder: origin. Default: the key that the origin states the first time,
	// which is stored in Known.
	Key string
	// Root, if set, is the verifier key of the offline root key of every larder: origin's log. The keys that it lists count in
	// place of Key.
	Root string
	// Known is the file in which the fallback stores what it has seen of the origins' logs.
	Known string
	// Quota bounds the bytes of all mirrored releases that are here.
	Quota int64
	// Allow are hosts that origins may name although their address is private; the origins' own are allowed.
	Allow     []string
	UserAgent string
	Logger    *slog.Logger
	// Now is the clock. Default: the real one.
	Now func() time.Time
}

// The bounds.
const (
	clientTimeout = 2 * time.Second  // that a client waits
	flightTime    = 10 * time.Minute // that a release may take
	mostFlight    = 8                // releases under way
	mostAsking    = 64               // clients' requests that wait
	atOnce        = 2                // files of a release
	mostHops      = 4                // Larders that a request came through
	mostFile      = 32 << 20         // bytes of a file
	mostFiles     = 50_000           // of a release
	stall         = 10 * time.Second // that an origin may say nothing
)

// HopsField is the header field of a request that lists the Larders which it came through, separated by commas.
const HopsField = "Larder-Hops"

// errMismatch says that an origin sent or said something else than it promised.
var errMismatch = errors.New("it is not what the origin promised")

// errBusy says that a budget is used up for the moment.
var errBusy = errors.New("too much is being asked for")

// errLoop says that a request came through here before, or through too many Larders.
var errLoop = errors.New("the request goes round in circles")

// errQuota says that [Options].Quota is reached, so that nothing more is stored from other origins.
var errQuota = errors.New("the quota of bytes from other origins is used up")

// An origin has releases.
type origin interface {
	String() string
	// find looks for a release because a client wants its file at path, and returns what may be fetched. The error wraps
	// [fetch.ErrNotFound] if the origin has no such release or, for some origins, no such file.
	find(ctx context.Context, pkg, version, path string) (*offer, error)
}

// An offer is a release that an origin has, and how its files are fetched.
type offer struct {
	manifest *logs.Manifest
	mirror   logs.Mirror
	// files are those to be fetched; of an origin with a log as the manifest has them.
	files []logs.File
	// strict: a file that is not as promised ends the release; else it is left out.
	strict bool
	// contents are those of the files.
	contents replication.Contents
}

// A Fallback fetches releases that are missing here from other origins. Its methods may be called at the same time, except Run
// and CheckMirrored, of which one may run.
type Fallback struct {
	o       Options
	id      string // of this process, for hops
	origins []*limitedOrigin
	getter  *fetch.Client
	asking  *answers.Shares
	ctx     context.Context // of what is under way
	end     context.CancelFunc
	running sync.WaitGroup
	follow  follower

	waiting  atomic.Int32 // clients' requests
	stored   atomic.Int64 // bytes of mirrored releases; -1 until it is known
	counting sync.Mutex   // held while stored is compared with the quota, and while it is counted the first time

	mu                 sync.Mutex // of what follows
	flights            map[release]*flight
	failed             failedReleases
	clients            clientBudgets
	requests, releases map[Outcome]int64
}

// A release is the name of a package and one of its versions.
type release struct{ pkg, version string }

// New returns a fallback, which sends no request yet. It returns an error for a malformed origin or host in the options. The
// caller closes the result before the bot.
func New(o Options) (*Fallback, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	getter, err := fetch.New(fetch.Options{UserAgent: o.UserAgent, Allow: o.Allow, Concurrency: mostFlight * atOnce, Tries: 1, Stall: stall, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	f := &Fallback{
		o: o, id: rand.Text(), getter: getter, asking: answers.NewTurns(mostAsking),
		flights: map[release]*flight{}, failed: failedReleases{}, clients: clientBudgets{},
		requests: map[Outcome]int64{}, releases: map[Outcome]int64{},
	}
	f.stored.Store(-1)
	f.follow = follower{Fallback: f, backoffs: map[release]backoff{}, caughtUp: map[release]bool{}, applied: map[release]int64{}, stale: map[string]bool{}}
	for _, text := range o.Origins {
		made, err := f.parseOrigin(text)
		if err != nil {
			return nil, err
		}
		f.origins = append(f.origins, &limitedOrigin{origin: made, now: o.Now, budget: newTokenBucket(originRate, originBurst, o.Now())})
	}
	f.ctx, f.end = context.WithCancel(context.Background())
	return f, nil
}

// CheckOrigins returns an error for people unless each of origins has the form larder:URL or cdnjs:URL, and none is given twice.
// It sends no request.
func CheckOrigins(origins []string) error {
	seen := map[string]bool{}
	for _, text := range origins {
		o, err := (&Fallback{}).parseOrigin(text)
		if err != nil {
			return fmt.Errorf("%q %w", text, err)
		}
		if seen[o.String()] {
			return fmt.Errorf("%q is given twice", text)
		}
		seen[o.String()] = true
	}
	return nil
}

// Close cancels the releases that are being fetched, waits for their goroutines, and closes idle connections.
func (f *Fallback) Close() {
	f.end()
	f.running.Wait()
	f.getter.Close()
}

// The responses to clients.
var (
	notThere = &answers.Failure{Status: http.StatusNotFound, Caching: answers.CacheFor(10 * time.Second),
		Message: "No such file, neither here nor at the origins that are asked. Names, versions and paths are case-sensitive, and versions are exact."}
	mismatch = &answers.Failure{Status: http.StatusBadGateway, Message: "Another origin has this file, but its bytes are not those that it promises."}
	later    = &answers.Failure{Status: http.StatusServiceUnavailable, Message: "The file is being fetched from another origin. Try again in a moment.", Retry: 2}
	crowded  = &answers.Failure{Status: http.StatusServiceUnavailable, Message: "Too much is being fetched from other origins at the moment. Try again later.", Retry: 10}
	down     = &answers.Failure{Status: http.StatusServiceUnavailable, Message: "The origin that may have this file does not answer at the moment. Try again later.", Retry: 10}
)

// Answer has the release of a missing file fetched from another origin, and waits for the file, two seconds at most. It returns
// the file's bytes, or the response that says why there are none. If it returns neither, the store has the release by now, and
// the caller looks there. The fetch goes on after the client has left.
func (f *Fallback) Answer(r *http.Request, pkg, version, path string) ([]byte, *answers.Failure) {
	data, err := f.findFile(r, release{pkg, version}, path)
	outcome := outcomeOf(err)
	f.mu.Lock()
	f.requests[outcome]++
	f.mu.Unlock()
	return data, failures[outcome]
}

// findFile returns the bytes of a file of the release id, which is missing here, after waiting for another origin to send it. It
// returns neither bytes nor an error if the release was published meanwhile. The error is errLoop for a request that came through
// here before, and ingest.ErrStays if the release must not be requested elsewhere.
func (f *Fallback) findFile(r *http.Request, id release, path string) ([]byte, error) {
	hops, loops := f.appendHop(r.Header)
	switch err := f.o.Bot.CheckWanted(id.pkg, id.version); {
	case loops:
		return nil, errLoop
	case err != nil && f.isPublished(id): // published meanwhile
		return nil, nil
	case err != nil:
		return nil, ingest.ErrStays // or it cannot be known
	}
	return f.fetchFile(r, id, path, hops)
}

// fetchFile has the release id fetched from an origin, unless that is under way, and waits up to two seconds for the file at
// path. hops are the Larders that the client's request r came through, for requests to origins. It returns neither bytes nor an
// error if the store has the release by now. The error is errBusy if a limit is reached.
func (f *Fallback) fetchFile(r *http.Request, id release, path, hops string) ([]byte, error) {
	fl, err := f.joinFlight(r, id, path, hops)
	if err != nil {
		return nil, err
	}
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	ctx, cancel := context.WithTimeout(r.Context(), clientTimeout)
	defer cancel()
	ctx, leave, err := f.asking.Enter(ctx, r.RemoteAddr, clientTimeout)
	if err != nil {
		return nil, errBusy
	}
	defer leave()
	data, err := fl.waitForFile(ctx, path)
	if (errors.Is(err, ingest.ErrStays) || errors.Is(err, fetch.ErrNotFound)) && f.isPublished(id) {
		return nil, nil // the store has the release and knows its files
	}
	return data, err
}

// isPublished reports whether a version is or was published here, a withdrawn one included. It is false if the store cannot be
// read.
func (f *Fallback) isPublished(id release) bool {
	_, err := views.LookupVersion(f.o.Store, id.pkg, id.version)
	return err == nil
}

// appendHop returns the value of HopsField for requests to origins: the Larders in the header h of a client's request, and this
// one. loops is true, and the value "", if this one is among them or they are mostHops already: then the request must go no
// further.
func (f *Fallback) appendHop(h http.Header) (list string, loops bool) {
	var members []string
	for _, line := range h[HopsField] {
		for member := range strings.SplitSeq(line, ",") {
			members = append(members, strings.TrimSpace(member))
		}
	}
	if len(members) >= mostHops || slices.Contains(members, f.id) {
		return "", true
	}
	return strings.Join(append(members, f.id), ", "), false
}

// hopsKey is the key of a context's value: the header fields to add to requests to origins.
type hopsKey struct{}

// hopHeader returns the header fields to add to a request to an origin: the Larders that the client's request came through, which
// ctx has; nil if it has none.
func hopHeader(ctx context.Context) http.Header {
	fields, _ := ctx.Value(hopsKey{}).(http.Header)
	return fields
}

// joinFlight returns the flight of the release id, the goroutine that fetches it. It starts one unless one is under way. It
// returns an error and starts none if the release failed a short time ago, with that failure, or if there are too many flights or
// the client has used up its budget, errBusy. path is the file to fetch first, and hops are the Larders that the request r came
// through.
func (f *Fallback) joinFlight(r *http.Request, id release, path, hops string) (*flight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.flights[id]; fl != nil {
		return fl, nil
	}
	now := f.o.Now()
	if err := f.failed.recentError(id, now); err != nil {
		return nil, err
	}
	if len(f.flights) >= mostFlight || f.ctx.Err() != nil || !f.clients.take(r.RemoteAddr, now) {
		return nil, errBusy
	}
	fl := &flight{Fallback: f, id: id, first: path, listed: make(chan struct{})}
	f.flights[id] = fl
	f.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithValue(f.ctx, hopsKey{}, http.Header{HopsField: {hops}}), flightTime)
		defer cancel()
		fl.run(ctx)
	})
	return fl, nil
}

// takeQuota counts bytes as stored, within the quota of bytes of mirrored releases. If they exceed it, it counts nothing and
// returns an error that wraps [errQuota]. The first call reads all entries about mirrored releases. No client's request waits for that;
// storing files of a release does.
func (f *Fallback) takeQuota(bytes int64) error {
	f.counting.Lock()
	defer f.counting.Unlock()
	if f.stored.Load() < 0 {
		var sum int64
		for v, err := range f.mirroredVersions(f.ctx) {
			if err != nil {
				return err
			}
			sum += v.Bytes
		}
		f.stored.Store(sum)
	}
	if stored := f.stored.Load(); stored+bytes > f.o.Quota {
		return fmt.Errorf("%w: %d of %d bytes", errQuota, stored, f.o.Quota)
	}
	f.stored.Add(bytes)
	return nil
}

// setStored sets f.stored to found, the bytes of mirrored releases that a check has found. It does nothing if f.stored is no
// longer what it was before the check, or while a release is fetched.
func (f *Fallback) setStored(before, found int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.flights) == 0 {
		f.stored.CompareAndSwap(before, found)
	}
}
