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

// A queue holds the contents that are stored in quick codings only. Its rows are written with the
// release that brings the contents, so it survives a restart. A content has two rows: in its turn,
// which is its release's time, newest first, and by its hash, so that it is queued once. Contents
// that lost codings to damage go before all others: the store queues them, below kvstore.Repaired.
// A content whose encoder was killed is queued again after all others, and given up when that
// happened squeezeTries times.
type queue struct {
	mu        sync.Mutex
	unclaimed int                       // about how many rows are not busy; acquireRows sets it whenever it reads the queue to its end
	acquired  int                       // rows that are busy, but wait for an encoder
	hot       []kvstore.Hash            // requested by clients meanwhile, latest last
	busy      map[kvstore.Hash]struct{} // that a goroutine works on
	offered   []queueRow                // that other nodes work on, as far as is known; latest last
	wake      chan struct{}             // closed and replaced when rows come or a goroutine is done with one
	speed     speed
}

// maxHot bounds the contents that go first.
const maxHot = 1024

// open initializes the queue: it counts the waiting rows in the store, and has the store report the contents that it queues later
// because damage cost them encodings.
func (q *queue) open(s *kvstore.Store) error {
	q.busy = make(map[kvstore.Hash]struct{})
	q.wake = make(chan struct{})
	s.OnRepaired(func() { q.countAdded(1) })
	left, err := ReadQueue(s)
	q.countAdded(left.Contents)
	return err
}

// Enqueue adds rows to a batch that queue the contents of a release for recompression, except those that are recompressed or
// queued already. One that was given up is queued again. If deltas are on, it adds a row for the release's deltas. It returns how
// many contents it added, which the caller passes to [Recompressor.Enqueued] after the batch is committed.
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
		batch.Set(kvstore.Queue, releaseKey(m.Released, m.Package, m.Version), nil)
	}
	return added, nil
}

// Enqueued adds n to the count of waiting contents, and wakes the goroutines that wait for the queue. The publisher calls it
// after it has committed the rows of [Recompressor.Enqueue].
func (r *Recompressor) Enqueued(n int) { r.queue.countAdded(n) }

// countAdded adds n to the count of waiting contents. If n is positive, the goroutines that wait for the queue are woken.
func (q *queue) countAdded(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unclaimed += n
	if n > 0 {
		q.wakeLocked()
	}
}

// wakeLocked wakes all goroutines that wait for a change of the queue. The caller holds mu.
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

// encode returns the value of a queue row in the store: the number of crashes of the content's encoders, and the content's size.
func (r turnRow) encode() []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(r.crashes)), uint64(r.size))
}

// decodeTurn reads the value of a queue row: the crashes of the content's encoders and its size. It returns the zero value if the
// bytes are malformed.
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

// releaseOrderKey returns the key of a content's queue row in the order of release times: contents of newer releases sort first.
func releaseOrderKey(released time.Time, h kvstore.Hash) []byte {
	newestFirst := ^uint64(max(0, released.Unix()))
	return append(binary.BigEndian.AppendUint64(turns[:1:1], newestFirst), h[:]...)
}

// queuedKey returns the key of the row that marks a content as queued, whatever its place in the queue.
func queuedKey(h kvstore.Hash) []byte { return append(queued[:1:1], h[:]...) }

// givenUpKey returns the key of the row of a content that is no longer recompressed, because its encoder crashed squeezeTries
// times.
func givenUpKey(h kvstore.Hash) []byte { return append(givenUp[:1:1], h[:]...) }

// Prioritize has a content recompressed before others that no goroutine has started, because a client just requested it. The
// latest one goes first. It does nothing if the queue's lock is held or 1,024 contents are prioritized already, so that it never
// blocks.
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

// Backlog returns how many queued contents no goroutine here has started to recompress. Rows that another package deletes are counted
// until the queue is next read to its end.
func (r *Recompressor) Backlog() int {
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	return max(0, r.queue.unclaimed) + r.queue.acquired
}

// startRow records that the work on an acquired row starts, so that the row no longer counts as one that waits for an encoder.
func (q *queue) startRow(row *queueRow) {
	q.mu.Lock()
	defer q.mu.Unlock()
	row.started = true
	q.acquired--
}

// changes returns a channel that is closed at the next change of the queue: rows were added, or a goroutine finished one. A
// caller gets it before it reads the queue, so that it misses no change.
func (q *queue) changes() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.wake
}

// wakeAll takes the lock and wakes all goroutines that wait for a change of the queue.
func (q *queue) wakeAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeLocked()
}

// anyBusy reports whether any goroutine of this process has claimed a content, to recompress it or to store what another node
// made of it.
func (q *queue) anyBusy() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.busy) > 0
}

// rowsAtOnce is how many rows are taken from the queue at a time; what is published
// meanwhile waits for that many contents at most.
const rowsAtOnce = 64

// A queueRow is a row of the queue that says when a content's turn is, and what came of the work on the content.
type queueRow struct {
	key  []byte
	hash kvstore.Hash
	turn turnRow

	started bool // counted as acquired no more
	done    bool // the work on the content has ended, so finishRows deletes the row
	again   bool // with done: the content is queued again, after all others
	givenUp bool // with done: the content is not queued any more
}

// owner returns the name under which the row's child process and memory are accounted, so that releases share them fairly: bytes
// of the row's key that are the same for all contents of a release, or the content's hash if the release is not known.
func (row queueRow) owner() string {
	before, ok := bytes.CutSuffix(row.key, row.hash[:])
	if !ok || len(before) <= len(turns) || bytes.Equal(row.key, lastKey(row.hash)) {
		return row.hash.String()
	}
	return string(before)
}

// acquireRows returns up to 64 first rows of the queue that no goroutine or other node works on, and marks their contents as
// busy. If there are none, it takes back the rows that were offered to other nodes, which may never report. If it reads the queue to
// its end, it corrects the count of waiting contents.
func (r *Recompressor) acquireRows() ([]queueRow, error) {
	q := &r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	rows, err := r.unclaimedRows(rowsAtOnce, func(queueRow) bool { return true })
	if err != nil {
		return nil, err
	}
	if len(rows) < rowsAtOnce {
		q.unclaimed = len(rows) + len(q.offered)
	}
	if len(rows) == 0 {
		rows, q.offered = q.offered, nil
		rows = slices.DeleteFunc(rows, func(row queueRow) bool { _, busy := q.busy[row.hash]; return busy })
		q.unclaimed = len(rows)
	}
	for _, row := range rows {
		q.busy[row.hash] = struct{}{}
	}
	q.unclaimed -= len(rows)
	q.acquired += len(rows)
	return rows, nil
}

// unclaimedRows returns the first rows of the queue for which suits returns true and that no goroutine or other node works on, at
// most most of them. It marks nothing. The caller holds queue.mu.
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

// finishRows deletes those of the rows that are done from the store; it queues those with again set once more, behind all others,
// and records those that are given up. It stores the measured speed. Then it marks the contents of all rows, done or not, as no
// longer busy, and wakes waiting goroutines, also after an error of the store, with which the stored rows stay as they were.
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
		if !row.started {
			r.queue.acquired--
		}
		if !row.done || row.again {
			r.queue.unclaimed++
		}
	}
	r.queue.wakeLocked()
	return err
}

// requeueGivenUp puts all contents that were given up, because their encoders crashed too often, back at the end of the queue,
// with no crashes counted.
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

// lastKey returns the key of a content's queue row that sorts behind those of all releases, for a content whose encoder has
// crashed.
func lastKey(h kvstore.Hash) []byte { return releaseOrderKey(time.Unix(0, 0), h) }

// acquireRequested takes the content that clients requested last from the prioritized ones, marks it as busy and returns it; the
// caller ends that with release. It also drops contents that a goroutine works on already from the prioritized ones. The second
// result is false if no other content is left there.
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

// release marks a content as no longer busy, so that any goroutine may acquire it, and wakes the waiting goroutines.
func (q *queue) release(h kvstore.Hash) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.busy, h)
	q.wakeLocked()
}
