package recompression

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// A queue holds the contents that are stored in quick codings only. Its
// rows are written with the release that brings the contents, so it survives a
// restart. A content has two rows: in its turn, which is its release's time, newest
// first, and by its hash, so that it is queued once. Contents that lost codings to damage go
// before all others: the store queues them, below kvstore.Repaired. One whose encoder was killed
// comes again after all others, and stands aside once that happened squeezeTries times.
type queue struct {
	mu      sync.Mutex
	waiting int                       // rows that no goroutine has started
	hot     []kvstore.Hash            // requested by clients meanwhile, latest last
	busy    map[kvstore.Hash]struct{} // that a goroutine works on
	offered []queueRow                // that other nodes work on, as far as is known; latest last
	wake    chan struct{}             // closed and replaced when rows come or a goroutine is done with one
	speed   speed
}

// maxHot bounds the contents that go first.
const maxHot = 1024

// open counts the rows in the store, and from then on those that the store adds after damage.
func (q *queue) open(s *kvstore.Store) error {
	q.busy = make(map[kvstore.Hash]struct{})
	q.wake = make(chan struct{})
	s.OnRepaired(func() { q.countAdded(1) })
	left, err := ReadQueue(s)
	q.countAdded(left.Contents)
	return err
}

// Enqueue adds the release's contents that are not at their best to a batch, with the release itself if its files may have deltas, and
// returns the number of contents. The caller passes that to [Recompressor.Enqueued] once the batch is committed.
func (r *Recompressor) Enqueue(batch *kvstore.Batch, m *logs.Manifest) (int, error) {
	seen := make(map[kvstore.Hash]struct{}, len(m.Files))
	added := 0
	for _, f := range m.Files {
		if _, ok := seen[f.SHA256]; ok {
			continue
		}
		seen[f.SHA256] = struct{}{}
		content, err := r.store.Content(f.SHA256)
		if err != nil {
			return 0, err
		}
		if content.Squeezed {
			continue
		}
		switch _, err := r.store.Get(kvstore.Queue, queuedKey(f.SHA256)); {
		case errors.Is(err, kvstore.ErrNotFound):
			batch.Set(kvstore.Queue, releaseOrderKey(m.Released, f.SHA256), turnRow{size: content.Size}.encode())
			batch.Delete(kvstore.Queue, givenUpKey(f.SHA256))
			batch.Set(kvstore.Queue, queuedKey(f.SHA256), nil)
			added++
		case err != nil:
			return 0, err
		}
	}
	if r.options.Dictionaries {
		batch.Set(kvstore.Queue, releaseKey(m), nil)
	}
	return added, nil
}

// Enqueued counts contents that [Recompressor.Enqueue] has added, and wakes the goroutines that wait for them.
func (r *Recompressor) Enqueued(n int) { r.queue.countAdded(n) }

// countAdded counts n more waiting contents, fewer if n is negative, and wakes goroutines that wait for them.
func (q *queue) countAdded(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting += n
	if n > 0 {
		q.wakeLocked()
	}
}

// wakeLocked wakes the goroutines that wait for the queue. The caller holds mu.
func (q *queue) wakeLocked() {
	close(q.wake)
	q.wake = make(chan struct{})
}

// turns, queued and givenUp are the prefixes of the keys of the three kinds of rows.
var turns, queued, givenUp = []byte("t"), []byte("h"), []byte("x")

// A turnRow is the value of a row that is in its turn, or given up.
type turnRow struct {
	crashes int   // of its encoders
	size    int64 // in bytes
}

// encode returns the value of the row.
func (r turnRow) encode() []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(r.crashes)), uint64(r.size))
}

// decodeTurn reads the value of a row, the zero value if it is malformed.
func decodeTurn(value []byte) turnRow {
	crashes, n := binary.Uvarint(value)
	size, m := binary.Uvarint(value[max(0, n):])
	if n <= 0 || m <= 0 || crashes > squeezeTries || size > math.MaxInt64 {
		return turnRow{}
	}
	return turnRow{int(crashes), int64(size)}
}

// inTurn has the keys of the contents to recompress, first what comes first. They end with the
// hash.
var inTurn = []struct {
	prefix []byte
	size   int
}{
	{kvstore.Repaired, 1 + len(kvstore.Hash{})},
	{turns, 1 + 8 + len(kvstore.Hash{})},
}

// releaseOrderKey returns the key of a content's row in the queue. Contents of newer releases come first.
func releaseOrderKey(released time.Time, h kvstore.Hash) []byte {
	newestFirst := ^uint64(max(0, released.Unix()))
	return append(binary.BigEndian.AppendUint64(turns[:1:1], newestFirst), h[:]...)
}

// queuedKey returns the key of the row that says that a content is in the queue.
func queuedKey(h kvstore.Hash) []byte { return append(queued[:1:1], h[:]...) }

// givenUpKey returns the key of the row of a content that was given up.
func givenUpKey(h kvstore.Hash) []byte { return append(givenUp[:1:1], h[:]...) }

// Prioritize moves a content to the front of the queue, because it is being served. It never blocks.
func (r *Recompressor) Prioritize(h kvstore.Hash) {
	q := &r.queue
	if !q.mu.TryLock() {
		return
	}
	defer q.mu.Unlock()
	if len(q.hot) < maxHot {
		q.hot = append(q.hot, h)
	}
}

// Backlog returns how many contents wait to be squeezed.
func (r *Recompressor) Backlog() int {
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	return max(0, r.queue.waiting)
}

// changes returns a channel that is closed when the queue changes.
func (q *queue) changes() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.wake
}

// wakeAll wakes the goroutines that wait for the queue.
func (q *queue) wakeAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeLocked()
}

// anyBusy reports whether a goroutine works on a content.
func (q *queue) anyBusy() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.busy) > 0
}

// rowsAtOnce is how many rows are taken from the queue at a time; what is published
// meanwhile waits for that many contents at most.
const rowsAtOnce = 64

type queueRow struct {
	key  []byte
	hash kvstore.Hash
	turn turnRow

	done    bool // with it; then it may be
	again   bool // to be tried again, after all others
	givenUp bool
}

// owner returns the owner of the child process for a row: the release that the content came with, or the content if that is not known.
func (row queueRow) owner() string {
	before, ok := bytes.CutSuffix(row.key, row.hash[:])
	if !ok || len(before) <= len(turns) || bytes.Equal(row.key, lastKey(row.hash)) {
		return row.hash.String()
	}
	return string(before)
}

// acquireRows takes the first rows of the queue that no other goroutine or node works on; if there are none, those that nodes work on, which may be gone.
func (r *Recompressor) acquireRows() ([]queueRow, error) {
	q := &r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	rows, err := r.unclaimedRows(rowsAtOnce, func(queueRow) bool { return true })
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		rows, q.offered = q.offered, nil
		rows = slices.DeleteFunc(rows, func(row queueRow) bool { _, busy := q.busy[row.hash]; return busy })
	}
	for _, row := range rows {
		q.busy[row.hash] = struct{}{}
	}
	return rows, nil
}

// unclaimedRows returns up to most of the first rows that suits accepts and that no goroutine or node works on. The caller holds mu.
func (r *Recompressor) unclaimedRows(most int, suits func(queueRow) bool) (rows []queueRow, err error) {
	for _, keys := range inTurn {
		for item, err := range r.store.Scan(kvstore.Queue, kvstore.Range{Prefix: keys.prefix}) {
			if err != nil {
				return nil, fmt.Errorf("bot: couldn't read the squeeze queue: %w", err)
			}
			if len(item.Key) != keys.size {
				r.logger.Error("the squeeze queue has a malformed row", "key", fmt.Sprintf("%x", item.Key))
				continue
			}
			row := queueRow{key: bytes.Clone(item.Key), hash: kvstore.Hash(item.Key[keys.size-len(kvstore.Hash{}):]), turn: decodeTurn(item.Value)}
			if _, busy := r.queue.busy[row.hash]; busy || r.queue.offeredIndex(row.hash) >= 0 || !suits(row) {
				continue
			}
			if rows = append(rows, row); len(rows) == most {
				return rows, nil
			}
		}
	}
	return rows, nil
}

// finishRows deletes the rows that are done. Of these, it queues those to try again at the end, and records those that are given up. Then
// it releases all rows and wakes the waiting goroutines.
func (r *Recompressor) finishRows(rows []*queueRow) error {
	batch := r.store.NewBatch()
	defer batch.Close()
	for _, row := range rows {
		if !row.done {
			continue
		}
		batch.Delete(kvstore.Queue, row.key)
		switch {
		case row.again:
			batch.Set(kvstore.Queue, lastKey(row.hash), row.turn.encode())
			batch.Set(kvstore.Queue, queuedKey(row.hash), nil)
			continue
		case row.givenUp:
			batch.Set(kvstore.Queue, givenUpKey(row.hash), row.turn.encode())
		}
		if bytes.HasPrefix(row.key, turns) {
			batch.Delete(kvstore.Queue, queuedKey(row.hash))
		}
	}
	if speed := r.queue.speed.bytesPerSecond(); speed > 0 {
		batch.Set(kvstore.Meta, speedKey, binary.AppendUvarint(nil, uint64(speed)))
	}
	err := batch.Commit()
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	for _, row := range rows {
		delete(r.queue.busy, row.hash)
	}
	r.queue.wakeLocked()
	return err
}

// requeueGivenUp puts the contents that were given up back into the queue.
func (r *Recompressor) requeueGivenUp() error {
	batch := r.store.NewBatch()
	defer batch.Close()
	n := 0
	for item, err := range r.store.Scan(kvstore.Queue, kvstore.Range{Prefix: givenUp}) {
		if err != nil {
			return fmt.Errorf("bot: couldn't read the squeeze queue: %w", err)
		}
		batch.Delete(kvstore.Queue, bytes.Clone(item.Key))
		if len(item.Key) != len(givenUp)+len(kvstore.Hash{}) {
			continue
		}
		h := kvstore.Hash(item.Key[len(givenUp):])
		batch.Set(kvstore.Queue, lastKey(h), turnRow{size: decodeTurn(item.Value).size}.encode())
		batch.Set(kvstore.Queue, queuedKey(h), nil)
		n++
	}
	if n == 0 {
		return nil
	}
	err := batch.Commit()
	if err == nil {
		r.queue.countAdded(n)
	}
	return err
}

// lastKey returns the key of a content's row after all others.
func lastKey(h kvstore.Hash) []byte { return releaseOrderKey(time.Unix(0, 0), h) }

// acquireRequested acquires the content that clients requested last and that no goroutine works on; ok is false if there is none.
func (r *Recompressor) acquireRequested() (kvstore.Hash, bool) {
	q := &r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	for last := len(q.hot) - 1; last >= 0; last-- {
		h := q.hot[last]
		q.hot = q.hot[:last]
		if _, ok := q.busy[h]; !ok {
			q.busy[h] = struct{}{}
			return h, true
		}
	}
	return kvstore.Hash{}, false
}

// release lets other goroutines work on a content.
func (q *queue) release(h kvstore.Hash) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.busy, h)
	q.wakeLocked()
}
