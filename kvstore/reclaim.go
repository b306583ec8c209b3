package kvstore

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// A reclaimer gives back the space of blobs that were replaced or removed.
//
// Pebble learns that a value is garbage when a compaction drops its key; then
// it deletes or rewrites the blob file by itself. But beside their values keys
// are so small that their levels are hardly ever due: a store whose codings had
// all been replaced once stayed at 1.6 times its size. A compaction of the blobs'
// keys alone is cheap and brings it down to 1.1.
type reclaimer struct {
	// Guarded by Store.contents.
	stale int64 // bytes since the last compaction; also in the store, under staleKey
	due   int64 // the bytes at which the next one begins
	busy  bool  // whether one runs
	soon  bool  // whether the next one begins whatever is due, because something was erased

	wait sync.WaitGroup
	ctx  context.Context // ends when the store closes
	end  context.CancelFunc
}

// A compaction begins when so many bytes are stale, and one part in so many of
// all that is in blob files.
const (
	reclaimBytes = 64 << 20
	reclaimPart  = 16
)

var staleKey = []byte("stale")

// startReclaim prepares the reclaiming of disk space: it creates the context that ends when the store closes, reads how many stale bytes earlier
// processes have left, and computes how many make a compaction due. It starts no goroutine.
func (s *Store) startReclaim() error {
	s.reclaim.ctx, s.reclaim.end = context.WithCancel(context.Background())
	value, err := s.Get(Meta, staleKey)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	s.reclaim.stale, _ = binary.Varint(value)
	s.reclaim.due = s.reclaimDue()
	return nil
}

// reclaimDue returns the number of stale bytes from which on a compaction is worth its cost: 64 MiB, or a 16th of all live values in blob files if
// that is more.
func (s *Store) reclaimDue() int64 {
	due := s.opts.reclaimBytes
	if m := readMetrics(s); m != nil {
		due = max(due, int64(m.BlobFiles.ReferencedValueSize)/reclaimPart)
	}
	return due
}

// writeReplacing writes a batch that makes stale bytes of stored encodings useless, and closes it. In the same write it adds that number to the
// store's count of them. If enough are stale, or something was erased, it starts a compaction in the background. A stale of 0 only writes the batch.
// The caller holds s.contents.
func (s *Store) writeReplacing(b *Batch, stale int64, o *pebble.WriteOptions) error {
	r := &s.reclaim
	if stale == 0 {
		return s.write(b, o)
	}
	b.Set(Meta, staleKey, binary.AppendVarint(nil, r.stale+stale))
	if err := s.write(b, o); err != nil {
		return err
	}
	r.stale += stale
	if (r.stale >= r.due || r.soon) && !r.busy && r.ctx.Err() == nil {
		r.busy = true
		r.wait.Go(s.compactBlobs)
	}
	return nil
}

// compactBlobs compacts the keys of all encodings, so that Pebble deletes or rewrites files with stale values, again and again until few are stale.
// It logs an error, after which as many bytes as make one due have to become stale before the next compaction. It runs in a goroutine of its own, one
// at a time, and takes s.contents for moments.
func (s *Store) compactBlobs() {
	r := &s.reclaim
	for {
		s.contents.Lock()
		stale := r.stale
		r.busy = (stale >= r.due || r.soon) && r.ctx.Err() == nil
		r.soon = false
		if !r.busy {
			s.contents.Unlock()
			return
		}
		s.contents.Unlock()
		err := s.guard.do(func() error {
			return pebbleOf(s).Compact(r.ctx, []byte{byte(Blobs)}, []byte{byte(Blobs) + 1}, false)
		})
		if err != nil && r.ctx.Err() == nil {
			s.opts.Logger.Warn("couldn't reclaim the space of replaced files", "dir", s.dir, "err", err)
		}
		due := s.reclaimDue()
		s.contents.Lock()
		if err == nil {
			r.stale -= stale // the row follows with the next replacement
		} else {
			due += r.stale // not at once again
		}
		r.due = due
		s.contents.Unlock()
	}
}

// stopReclaim cancels the compactions that are running, also that of moveRowsToTables, and waits for their end. Later writes start none. It also ends
// the updates of the mark file, without waiting for that.
func (s *Store) stopReclaim() {
	s.contents.Lock()
	s.reclaim.end()
	s.contents.Unlock()
	s.reclaim.wait.Wait()
}
