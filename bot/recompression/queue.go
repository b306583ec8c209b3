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
	waiting int                       // rows that no goroutine has begun
	hot     []kvstore.Hash            // asked for meanwhile, latest last
	busy    map[kvstore.Hash]struct{} // that a goroutine has in hand
	offered []queueRow                // that other nodes have in hand, as far as is known; latest last
	wake    chan struct{}             // closed and replaced when rows come or a goroutine is done with one
	speed   Speed
}

// maxHot bounds the contents that go first.
const maxHot = 1024

func (q *queue) open(s *kvstore.Store) error {
	q.busy = make(map[kvstore.Hash]struct{})
	q.wake = make(chan struct{})
	s.OnRepaired(func() { q.added(1) })
	left, err := ReadSqueezing(s)
	q.added(left.Contents)
	return err
}

// Enqueue adds the release's contents that are not at their best to a batch, with the deltas that its files may have, and
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
			batch.Set(kvstore.Queue, turnKey(m.Released, f.SHA256), turnRow{size: content.Size}.encode())
			batch.Delete(kvstore.Queue, givenUpKey(f.SHA256))
			batch.Set(kvstore.Queue, queuedKey(f.SHA256), nil)
			added++
		case err != nil:
			return 0, err
		}
	}
	if !r.options.Dictionaries {
		return added, nil
	}
	return added, r.enqueueDeltas(batch, m)
}

// Enqueued counts contents that [Recompressor.Enqueue] has added, and wakes the goroutines that wait for them.
func (r *Recompressor) Enqueued(n int) { r.queue.added(n) }

func (q *queue) added(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting += n
	if n > 0 {
		q.changed()
	}
}

// changed wakes the goroutines that wait; the caller holds mu.
func (q *queue) changed() {
	close(q.wake)
	q.wake = make(chan struct{})
}

// turns, queued and givenUp begin the keys of the three kinds of rows.
var turns, queued, givenUp = []byte("t"), []byte("h"), []byte("x")

// A turnRow is what a row that is in its turn, or given up, says of its content.
type turnRow struct {
	crashes int   // of its encoders
	size    int64 // in bytes
}

func (r turnRow) encode() []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(r.crashes)), uint64(r.size))
}

// decodeTurn reads a row's value; what is not one is a content of which nothing is known.
func decodeTurn(value []byte) turnRow {
	crashes, n := binary.Uvarint(value)
	size, m := binary.Uvarint(value[max(0, n):])
	if n <= 0 || m <= 0 || crashes > squeezeTries || size > math.MaxInt64 {
		return turnRow{}
	}
	return turnRow{int(crashes), int64(size)}
}

// inTurn has the keys of what is to be squeezed, first what comes first. They end with the
// hash.
var inTurn = []struct {
	prefix []byte
	size   int
}{
	{kvstore.Repaired, 1 + len(kvstore.Hash{})},
	{turns, 1 + 8 + len(kvstore.Hash{})},
}

func turnKey(released time.Time, h kvstore.Hash) []byte {
	newestFirst := ^uint64(max(0, released.Unix()))
	return append(binary.BigEndian.AppendUint64(turns[:1:1], newestFirst), h[:]...)
}

func queuedKey(h kvstore.Hash) []byte { return append(queued[:1:1], h[:]...) }

func givenUpKey(h kvstore.Hash) []byte { return append(givenUp[:1:1], h[:]...) }

// Hot asks for a content to be squeezed before others, because it is being
// served. It never waits.
func (r *Recompressor) Hot(h kvstore.Hash) {
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

func (q *queue) waker() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.wake
}

func (q *queue) wakeAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changed()
}

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

// owner names the release that a row's content came with: the time of that, which the key has. Rows that have no such time own
// a process each.
func (row queueRow) owner() string {
	before, ok := bytes.CutSuffix(row.key, row.hash[:])
	if !ok || len(before) <= len(turns) || bytes.Equal(row.key, lastKey(row.hash)) {
		return row.hash.String()
	}
	return string(before)
}

// nextRows takes the first rows of the queue that no other goroutine has in hand. What other nodes have in hand comes when
// nothing else is left: they may be gone, and work that is done twice does no harm.
func (r *Recompressor) nextRows() ([]queueRow, error) {
	q := &r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	rows, err := r.freeRows(rowsAtOnce, func(queueRow) bool { return true })
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

// freeRows returns the first rows, so many at most, that suit and that neither a goroutine nor another node has in hand; the
// caller holds mu.
func (r *Recompressor) freeRows(most int, suits func(queueRow) bool) (rows []queueRow, err error) {
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

// dropRows deletes the rows that are done and lets go of the others.
func (r *Recompressor) dropRows(rows []*queueRow) error {
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
	if speed := r.queue.speed.Value(); speed > 0 {
		batch.Set(kvstore.Meta, speedKey, binary.AppendUvarint(nil, uint64(speed)))
	}
	err := batch.Commit()
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	for _, row := range rows {
		delete(r.queue.busy, row.hash)
	}
	r.queue.changed()
	return err
}

// squeezeAgain puts the contents that were given up back into the queue.
func (r *Recompressor) squeezeAgain() error {
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
		r.queue.added(n)
	}
	return err
}

// lastKey is the turn after all others.
func lastKey(h kvstore.Hash) []byte { return turnKey(time.Unix(0, 0), h) }

// takeHot takes the content asked for last that no goroutine has in hand.
func (r *Recompressor) takeHot() (kvstore.Hash, bool) {
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

func (q *queue) release(h kvstore.Hash) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.busy, h)
	q.changed()
}
