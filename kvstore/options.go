package kvstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options tunes a store. The zero value is what Larder runs with.
type Options struct {
	// CacheBytes bounds the memory that holds blocks read from the disk, in
	// bytes. Default 128 MiB. A lookup that finds its blocks there costs a
	// microsecond or two, one that doesn't a read from the disk or from the
	// system's page cache.
	CacheBytes int64

	// MemTableBytes is how much is gathered in memory before it is written out
	// as a sorted table, in bytes. Default 32 MiB. Up to four times as much is
	// held before writers have to wait; after a crash as much is replayed.
	MemTableBytes int64

	// MinFreeBytes is the free space on the folder's disk, in bytes, below
	// which writes are refused with [ErrDiskFull], so that what was accepted
	// can still be written out. Default 256 MiB; negative never refuses.
	MinFreeBytes int64

	// ReadOnly refuses every write. The folder must hold a store already.
	ReadOnly bool

	// Mark is the path of a small file outside of the store's folder. While the store is open for writing, it records there
	// what is durable, at most a second late and up to date after Close. A store that has less is [Behind], and its mark stays
	// as it is until [Store.KeepMark]. If the folder of the file is missing, nothing is recorded. A program that replaces the
	// store by another one removes the file. Default: none.
	Mark string

	// Program is the version of the program that opens the store, kept in it to be named where an
	// older program may not open it. Default: the stored version stays.
	Program string

	// Logger gets warnings and errors, and at debug level Pebble's routine work. Default: none.
	Logger *slog.Logger

	// FS is the file system that the folder is in. Default: the real one.
	FS vfs.FS

	// VirtualTime keeps Pebble from polling the store for compactions ten times a second. A test sets it where days
	// pass in a moment.
	VirtualTime bool

	fullDiskTimeout time.Duration // how long a write waits for room on a full disk
	markEvery       time.Duration // how old a mark may be
	reclaimBytes    int64         // see reclaimBytes
	rewriteAge      time.Duration // how old a blob file is before it is rewritten
}

// setDefaults sets the fields that are zero to their defaults, CacheBytes and MemTableBytes also if they are negative.
func (o *Options) setDefaults() {
	if o.CacheBytes <= 0 {
		o.CacheBytes = 128 << 20
	}
	if o.MemTableBytes <= 0 {
		o.MemTableBytes = 32 << 20
	}
	if o.MinFreeBytes == 0 {
		o.MinFreeBytes = 256 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.fullDiskTimeout == 0 {
		o.fullDiskTimeout = 20 * time.Second
	}
	if o.markEvery == 0 {
		o.markEvery = time.Second
	}
	if o.rewriteAge == 0 {
		o.rewriteAge = time.Minute
	}
	if o.reclaimBytes == 0 {
		o.reclaimBytes = reclaimBytes
	}
}

// separateFrom is the size, in bytes, from which values live in blob files, beside the
// tables that refer to them. Index rows are far below it.
const separateFrom = 2 << 10

// memTables is how many memtables there are before writers have to wait.
const memTables = 4

// compression is fast for keys and rows. Blob files are left alone: what is in
// them is Brotli, gzip or something that neither made smaller.
var compression = func() *sstable.CompressionProfile {
	p := *sstable.FastestCompression
	p.Name = "larder"
	p.ValueBlocks = sstable.NoCompression.ValueBlocks
	return &p
}()

// pebbleOptions returns Pebble's options for o, in which the caller has set the defaults, or at least CacheBytes and MemTableBytes. Lock, FS, Logger
// and EventListener are not set. docs/store.md has the measurements behind the numbers.
func pebbleOptions(o *Options) *pebble.Options {
	po := &pebble.Options{
		CacheSize: o.CacheBytes,
		ReadOnly:  o.ReadOnly,

		// A value lives in a sorted table for keys, and in a blob file beside it
		// from separateFrom on, so that compactions move keys, not megabytes.
		FormatMajorVersion: pebble.FormatNewest,

		MemTableSize:                uint64(o.MemTableBytes),
		MemTableStopWritesThreshold: memTables,

		// Releases arrive in bursts: let level 0 grow before writers wait.
		L0CompactionThreshold: 4,
		L0StopWritesThreshold: 24,
		LBaseMaxBytes:         64 << 20,
		CompactionConcurrencyRange: func() (int, int) {
			return 1, max(2, runtime.GOMAXPROCS(0)/2)
		},

		// Write steadily instead of in gulps that make a later sync wait.
		BytesPerSync:    1 << 20,
		WALBytesPerSync: 1 << 20,

		MaxOpenFiles: 1000,

		// A missing table is an error to the caller that reads it.
		DisableConsistencyCheck: o.ReadOnly,
	}
	// Compactions that reads trigger would make a reader wait for the manifest.
	po.Experimental.ReadSamplingMultiplier = -1
	po.Experimental.SpanPolicyFunc = spanPolicy
	if o.VirtualTime {
		po.Experimental.CompactionScheduler = pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()
	}
	po.MaxManifestFileSize = 4 << 20 // the mark reads it again
	po.TargetFileSizes[0] = 4 << 20
	for i := range po.Levels {
		l := &po.Levels[i]
		l.BlockSize = 4 << 10        // a row is read alone
		l.IndexBlockSize = 512 << 10 // mostly one level of index in a table
		l.FilterPolicy = bloom.FilterPolicy(10)
		l.Compression = func() *sstable.CompressionProfile { return compression }
	}
	po.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{
			Enabled:     true,
			MinimumSize: separateFrom,
			// Values are found by hash, one at a time, so there is no locality to
			// restore by rewriting them: only garbage is worth it.
			MaxBlobReferenceDepth: 256,
			RewriteMinimumAge:     o.rewriteAge,
			TargetGarbageRatio:    0.1,
		}
	}
	return po
}

// spanPolicy implements Pebble's SpanPolicyFunc: it returns the policy for the keys from start, included, to end, excluded; a nil end is the end of
// all keys. All values but the bytes of contents stay in the tables. Only the MANIFEST says which blob file a table refers to, and what is in a blob
// file has to be found without it: contents are, by their hash.
func spanPolicy(start []byte) (policy pebble.SpanPolicy, end []byte, err error) {
	switch ns := []byte{byte(Blobs)}; {
	case bytes.Compare(start, ns) < 0:
		end = ns
	case start[0] == ns[0]:
		return pebble.SpanPolicy{}, prefixSuccessor(ns), nil
	}
	return pebble.SpanPolicy{DisableValueSeparationBySuffix: true, ValueStoragePolicy: pebble.ValueStorageLowReadLatency}, end, nil
}

// HeapBytes returns how many bytes of Go's heap a store with these options takes at most for its block cache and its memtables, so that the garbage
// collector and its limit can consider it. Zero fields count as their defaults. It returns 0 if Larder was built with cgo, because then C allocates
// them.
func (o Options) HeapBytes() int64 {
	if !inGoHeap {
		return 0
	}
	o.setDefaults()
	return o.CacheBytes + memTables*o.MemTableBytes
}

// pebbleLogger gives Pebble's lines to slog: its daily work at debug level.
type pebbleLogger struct{ log *slog.Logger }

// Infof implements pebble.Logger: it logs Pebble's routine work at debug level.
func (l pebbleLogger) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug(fmt.Sprintf(format, args...))
	}
}

// Errorf implements pebble.Logger: it logs at warning level.
func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Warn(fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger: it logs the message, then panics with fatal. The guard handles errors of the disk, so the cause is a broken
// invariant, and Pebble cannot continue.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	f := fatal{message: fmt.Sprintf(format, args...)}
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			f.cause = err
		}
	}
	l.log.Error("the store cannot go on", "err", f)
	panic(f)
}

// fatal is what Fatalf panics with.
type fatal struct {
	message string
	cause   error
}

// Error returns the message that Pebble logged.
func (f fatal) Error() string { return f.message }

// Unwrap returns the last error among the arguments of that message, nil if there was none.
func (f fatal) Unwrap() error { return f.cause }

// newEventListener returns a listener for Pebble's events that logs failed background work as a warning, damage as an error, and write stalls at
// debug level. It does not log a compaction that was cancelled. Damage found while reading is also an error to the caller that reads.
func newEventListener(log *slog.Logger) *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			if !errors.Is(err, pebble.ErrCancelledCompaction) {
				log.Warn("the store will try again", "err", stripTrace(err))
			}
		},
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			log.Error("the store is damaged", "file", info.Path, "err", stripTrace(info.Details))
		},
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			log.Debug("writes wait", "reason", info.Reason)
		},
		WriteStallEnd: func() { log.Debug("writes go on") },
	}
}
