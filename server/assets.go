package server

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/server/cachetag"
	"github.com/larder-cdn/larder/server/demand"
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
	// are not kept. Default 256 MiB. Beyond it a request that needs more waits for
	// SendWait and is then answered with 503. While more than half of it is used,
	// who holds some of it must take 32 KiB a second on average, after StallTimeout:
	// 25 MiB take 14 minutes at most, where a client may else have hours.
	SendBytes int64
	// SendWait is how long a request waits for room. Default 1 s.
	SendWait time.Duration
	// StallTimeout is how long a client may take for 64 KiB of a body. Default
	// 30 s. It is then disconnected. Over HTTP/2 that is for all its streams together.
	StallTimeout time.Duration
	// Logger gets failures of the store, once a second at most. Default: nothing is
	// logged.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: nobody does.
	Registerer prometheus.Registerer
	// Hot is called with contents that are asked for while they could still be
	// smaller, at most once a minute for each file that is kept. It must not block.
	Hot func(kvstore.Hash)
	// CacheTags are the fields that say what an answer is about, for a CDN to purge by.
	// Default: none.
	CacheTags cachetag.Headers
	// Demand counts the requests that are answered with a file of a package, or
	// could be: ranges, HEAD and 304 too. Default: nobody does.
	Demand *demand.Demand
}

func (o *Options) defaults() {
	o.CacheBytes = cmp.Or(o.CacheBytes, 256<<20)
	o.SendBytes = cmp.Or(o.SendBytes, 256<<20)
	o.SendWait = cmp.Or(o.SendWait, time.Second)
	o.StallTimeout = cmp.Or(o.StallTimeout, 30*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Assets serves assets. It is an http.Handler.
type Assets struct {
	store   *kvstore.Store
	rows    *rows
	bodies  *bodies
	stall   time.Duration
	metrics *metrics
	logger  *slog.Logger
	logged  throttle
}

// rowShare is the part of the cache that says where files are, not what is in them. A
// file takes about 900 bytes of it, and the mean body has 18 KB. So many more files are
// known than are in memory: knowing one saves two reads of the store, and all of a 304.
const rowShare = 4

const leastCache = 1 << 20

// New returns a handler for the assets in a store.
func New(o Options) (*Assets, error) {
	if o.Store == nil {
		return nil, errors.New("server: Options.Store is missing")
	}
	o.defaults()
	if o.CacheBytes < leastCache || o.SendBytes < 0 {
		return nil, fmt.Errorf("server: CacheBytes is %d and SendBytes %d; they must be at least %d and 0", o.CacheBytes, o.SendBytes, leastCache)
	}
	a := &Assets{store: o.Store, stall: o.StallTimeout, metrics: newMetrics(), logger: o.Logger}
	var err error
	rowBytes := o.CacheBytes / rowShare
	if a.rows, err = newRows(o.Store, rowBytes, o.Hot, o.Demand, a.metrics.rows); err != nil {
		return nil, fmt.Errorf("server: couldn't make the cache of assets: %w", err)
	}
	a.rows.tags = o.CacheTags
	if a.bodies, err = newBodies(o.CacheBytes-rowBytes, o.SendBytes, o.SendWait, a.metrics.bodies); err != nil {
		return nil, fmt.Errorf("server: couldn't make the cache of bodies: %w", err)
	}
	if o.Registerer != nil {
		if err := a.metrics.register(o.Registerer, a); err != nil {
			return nil, fmt.Errorf("server: couldn't register the metrics: %w", err)
		}
	}
	return a, nil
}

// Forget drops what is kept of a version. Call it after a withdrawal is committed;
// no request that begins later is answered with a file of that version. The
// bytes may stay in memory until they are evicted: other versions may have the
// same ones.
func (a *Assets) Forget(pkg, version string) {
	a.rows.generation.Add(1)
	a.logger.Debug("server: forgot a version", "package", pkg, "version", version)
}
