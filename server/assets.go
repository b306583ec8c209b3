// Package server answers requests for assets: /ajax/libs/{package}/{version}/{path}.
//
// The way of a request is lookup, representation, bytes:
//
//   - a target is what the path names (target.go);
//   - an asset is what the store knows about that file, kept in a cache (rows.go);
//     the heads of its responses are put together when they are sent (head.go);
//   - negotiation, conditions and ranges choose what of it to send (package requests,
//     conditions.go); they know neither the store nor net/http's writer;
//   - a body is a representation's bytes in memory, shared by all who send it (bodies.go);
//   - one decision (serve.go) answers a client, over net/http or over the fast lane
//     in front of it (fastlane.go, package lane), which has HTTP/1.1, HTTP/2 and TLS. What
//     they send differs in nothing but the order of the fields, and tests compare them;
//   - cache tags (cachetags.go) name the release for a CDN in front, which purges it by them.
//
// What it guarantees:
//
//   - Bytes are sent only after their checksum was verified; where that fails the
//     answer is 503.
//   - An entity tag, a length and the bytes of one answer belong together, also while codings
//     are being replaced by smaller ones. Another node gives the same tag for the same
//     bytes.
//   - Memory is bounded: Options.CacheBytes for what is kept, Options.SendBytes for
//     what is being sent and is not (or no longer) kept. A few clients cannot hold all of
//     that for long.
//   - After Forget no withdrawn file is served.
//   - No client keeps others out by doing nothing: one that stalls is closed, and idle
//     connections make room when there are too many.
//   - A server that stops answers each client that has connected, however slowly it takes its
//     steps, within the deadline of each phase (lane.Deadlines) and the time that Stop allows.
//     Only connections that are idle after a response end soon (connections.go).
//
// What it does not: a request that cannot be read, or has too large headers (400, 417,
// 431, 501, 505), net/http answers by itself. That answer is replaced by one in the shape of
// the API's errors (failures.go), and ends the connection. Over HTTP/2 the lane resets such a
// request; 431 is answered in that shape, too. A 405 says nothing of codings, because the file
// was not looked up.
//
// Package usage counts the requests for each file. An [AccessLog] (accesslog.go) has a line for each request. A [CertificateManager] (acme.go)
// gets the certificates of the public address.
//
// It must not know where releases come from, nor how the API looks.
package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/server/usage"
)

// Options says what assets are served from and with how much memory. Only Store
// is required.
type Options struct {
	// Store has the files.
	Store *kvstore.Store
	// CacheBytes bounds the memory for what is kept, in bytes. Default 256 MiB, at
	// least 1 MiB. A body over about a tenth of it is not kept, but shared by those who ask for
	// it at the same time.
	CacheBytes int64
	// SendBytes bounds the memory for bodies that are being sent, or read, and
	// are not kept. Default 256 MiB. A client may use as much of it as then remains free, so half of it if no other client uses any.
	// A request that needs more waits for a second and is then answered with 503. While more than half of it is used,
	// a client that uses some must take 32 KiB a second on average, after 30 s:
	// 25 MiB take 14 minutes at most. Otherwise a client may take hours.
	SendBytes int64
	// Logger gets failures of the store; it has to bound what repeats. Default: nothing is
	// logged.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: none.
	Registerer prometheus.Registerer
	// Hot is called with contents that are requested while they could still be
	// smaller, at most once a minute for each file that is kept. It must not block.
	Hot func(kvstore.Hash)
	// Dictionaries makes the responses offer files as dictionaries, and sends deltas to clients that have one (RFC 9842).
	Dictionaries bool
	// Complete makes the gzip form of files that the store has in Brotli alone, when they are first requested.
	Complete bool
	// CacheTags adds the header fields by whose tags a CDN can purge responses.
	// Default: none.
	CacheTags CacheTags
	// Lacking says that the store lacks some of what was published, so that what is not
	// found is 503, rather than 404.
	Lacking bool
	// Elsewhere answers for files of versions that the store does not know. Default: these are
	// not there.
	Elsewhere Elsewhere
	// Page returns the URL of the page about a path below [Prefix] that is not a file, such as a folder. Browsers are redirected to it,
	// programs get 404. Default: browsers get 404 too.
	Page func(path string) string
	// Usage counts the requests that are answered with a file, or
	// could be: ranges, HEAD and 304 too. Default: none.
	Usage *usage.Usage
	// Proxies say on the fast lane which client a request is from. Default: the peer of its connection.
	Proxies *requests.Proxies
	// AccessLog logs the responses of the fast lane; those of net/http, [AccessLog.Handler]
	// logs. Default: none.
	AccessLog *AccessLog
}

// Assets serves assets. It is an http.Handler.
type Assets struct {
	o       Options // as they were given, with defaults; see SetMemory
	rows    *rows
	bodies  *bodies
	metrics *metrics
}

// rowShare is the part of the cache that says where files are, not what is in them. A
// file takes about 900 bytes of it, and the mean body has 18 KB. So many more files are
// known than are in memory: knowing one saves two reads of the store, and all of a 304.
const rowShare = 4

const leastCache = 1 << 20

// sendWait is how long a request waits for memory.
const sendWait = time.Second

// New returns a handler for the assets in o.Store. It returns an error if the memory limits are too small, or the metrics cannot be registered.
func New(o Options) (*Assets, error) {
	o.CacheBytes = cmp.Or(o.CacheBytes, 256<<20)
	o.SendBytes = cmp.Or(o.SendBytes, 256<<20)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	mediaTypes()
	if err := checkMemory(o.CacheBytes, o.SendBytes); err != nil {
		return nil, err
	}
	a := &Assets{o: o, metrics: newMetrics()}
	var err error
	rowBytes := o.CacheBytes / rowShare
	if a.rows, err = newRows(&a.o, rowBytes, a.metrics.rows); err != nil {
		return nil, fmt.Errorf("server: couldn't make the cache of assets: %w", err)
	}
	if a.bodies, err = newBodies(o.CacheBytes-rowBytes, o.SendBytes, sendWait, a.metrics.bodies); err != nil {
		return nil, fmt.Errorf("server: couldn't make the cache of bodies: %w", err)
	}
	if o.Registerer != nil {
		if err := a.metrics.register(o.Registerer, a); err != nil {
			return nil, fmt.Errorf("server: couldn't register the metrics: %w", err)
		}
	}
	return a, nil
}

// checkMemory returns an error unless cacheBytes is at least 1 MiB and sendBytes is not negative.
func checkMemory(cacheBytes, sendBytes int64) error {
	if cacheBytes < leastCache || sendBytes < 0 {
		return fmt.Errorf("server: CacheBytes is %d and SendBytes %d; they must be at least %d and 0", cacheBytes, sendBytes, leastCache)
	}
	return nil
}

// SetMemory changes [Options.CacheBytes] and [Options.SendBytes] while the assets serve. Unlike in the options, zero does not stand for a default.
// It returns an error, and changes nothing, if they are too small. Bodies that are being sent stay in memory.
func (a *Assets) SetMemory(cacheBytes, sendBytes int64) error {
	if err := checkMemory(cacheBytes, sendBytes); err != nil {
		return err
	}
	rowBytes := cacheBytes / rowShare
	assetCache(a.rows).SetMaximum(uint64(rowBytes))
	a.bodies.setLimits(cacheBytes-rowBytes, sendBytes)
	return nil
}

// Forget makes all cached rows stale, those of every version, so that they are read from the store again. It is called after the withdrawal of a
// version is committed: no later request gets a file of it. pkg and version are only logged. Bytes of files may stay in memory until they are
// evicted, because other versions may have the same ones.
func (a *Assets) Forget(pkg, version string) {
	a.rows.generation.Add(1)
	a.o.Logger.Debug("server: forgot a version", "package", pkg, "version", version)
}

// A Follower makes [Assets] forget a release when the log says that it is withdrawn, restored, erased or confirmed.
type Follower struct {
	store  *kvstore.Store
	log    *logs.Log
	forget func(name, version string)
	logger *slog.Logger

	mu      sync.Mutex
	seen    int64         // how many entries, from the beginning of the log, Run has processed
	changed chan struct{} // closed when seen grows
}

// Follow returns a follower of the log that has these assets forget changed releases. It starts with the first entry after the log's present
// checkpoint, so the assets must not have served before; the caller runs it with [Follower.Run] or [Follower.Part].
func (a *Assets) Follow(log *logs.Log) *Follower {
	return &Follower{
		store: a.o.Store, log: log, forget: a.Forget, logger: a.o.Logger,
		seen: log.Checkpoint().Size, changed: make(chan struct{}),
	}
}

// Part returns the part of a role that runs [Follower.Run] until the role stops.
func (f *Follower) Part() parts.Part {
	return parts.Part{Name: "follower", Run: parts.RunUntilDone(f.Run)}
}

// Run waits for new entries of the log until ctx ends. For each one that withdraws, restores, erases or confirms a release it calls [Assets.Forget],
// so that the caches read rows again. After an entry that cannot be read, which it logs, it calls Forget once and skips the others up to the log's
// checkpoint. Wait sees the progress. Run must be called once.
func (f *Follower) Run(ctx context.Context) {
	for seen := f.seen; ; {
		checkpoint, err := f.log.Wait(ctx, seen)
		if err != nil {
			return
		}
		for e, err := range logs.Entries(f.store, seen) {
			if err != nil {
				// It may be a withdrawal, so every release is forgotten.
				f.logger.Error("an entry of the log cannot be read; `larder fsck` tells more", "err", err)
				f.forget("", "")
				break
			}
			switch e.Kind {
			case logs.Withdrawn, logs.Restored, logs.Erased, logs.Confirmed:
				f.forget(e.Package, e.Version)
			}
			seen = e.Index + 1
		}
		seen = max(seen, checkpoint.Size)
		f.mu.Lock()
		f.seen = seen
		close(f.changed)
		f.changed = make(chan struct{})
		f.mu.Unlock()
	}
}

// Wait waits until Run has processed the first entries entries of the log, so that no cache serves anything older. It returns the error of ctx if
// that ends before, or has ended already, else nil.
func (f *Follower) Wait(ctx context.Context, entries int64) error {
	for {
		f.mu.Lock()
		seen, changed := f.seen, f.changed
		f.mu.Unlock()
		if seen >= entries {
			return ctx.Err()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
