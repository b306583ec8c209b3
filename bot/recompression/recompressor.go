// Package recompression replaces the quick encodings of published contents by smaller ones, which take long to make, and adds deltas between the
// versions of a file: at the lowest priority, in child processes, in the order of a queue that survives restarts.
//
// Guarantees: each content that is queued with its release ends recompressed, erased, or given up after its encoders were killed several times;
// a content is always served from complete encodings; memory is bounded by the budget that ingest shares.
//
// The package must not know what a release is: it gets contents by hash. Other nodes may recompress for it, see [Recompressor.OfferContent].
package recompression

import (
	"log/slog"
	"time"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore"
)

// Options configures a [Recompressor].
type Options struct {
	Store  *kvstore.Store
	Logger *slog.Logger
	// Program is that of [worker.Options], and Workers how many contents are encoded at once.
	Program string
	Workers int
	// Budget decides when an encoder may start.
	Budget *worker.Budget
	// Squeezed is called with each content that has smaller encodings, from several goroutines; it may be nil.
	Squeezed func(kvstore.Hash)
	// DeltaStored is called with each content that has a delta against a dictionary; it may be nil.
	DeltaStored func(h, dictionary kvstore.Hash)
	Events      sources.Sink
	Now         func() time.Time
	// Dictionaries has the recompressor make deltas between the versions of a file.
	Dictionaries bool
}

// A Recompressor recompresses the contents of one store. Its methods may be called at the same time.
type Recompressor struct {
	options   Options
	store     *kvstore.Store
	logger    *slog.Logger
	squeezers *worker.Pool
	queue     queue
}

// New returns a recompressor that continues with the queue in the store. It creates the pool of child processes and sets it as
// o.Budget.Squeezers. It starts no work: see [Recompressor.Run]. The error is that of reading the queue. The caller calls Close
// at the end.
func New(o Options) (*Recompressor, error) {
	r := &Recompressor{
		options: o, store: o.Store, logger: o.Logger,
		squeezers: worker.NewPool(worker.Options{Program: o.Program, Size: o.Workers + 1, Nice: true, Timeout: encodeTimeout}),
	}
	o.Budget.Squeezers = r.squeezers
	return r, r.queue.open(o.Store)
}

// Close ends the child processes. The caller makes sure that no method is running, and calls none afterwards.
func (r *Recompressor) Close() { r.squeezers.Close() }
