package bot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
)

// A squeezeQueue holds the contents that are stored in quick codings only. Its
// rows are written with the release that brings the contents, so it survives a
// restart. A content has two rows: in its turn, which is its release's time, newest
// first, and by its hash, so that it is queued once.
type squeezeQueue struct {
	mu      sync.Mutex
	waiting int                       // rows that nobody has begun
	hot     []kvstore.Hash            // asked for meanwhile, latest last
	busy    map[kvstore.Hash]struct{} // in somebody's hands
	wake    chan struct{}             // closed and replaced when rows come or leave somebody's hands
}

// maxHot bounds the contents that go first.
const maxHot = 1024

func (q *squeezeQueue) open(r kvstore.Reader) error {
	q.busy = make(map[kvstore.Hash]struct{})
	q.wake = make(chan struct{})
	var err error
	q.waiting, err = Unsqueezed(r)
	return err
}

// Unsqueezed returns how many contents in a store wait to be squeezed. A running
// bot knows without looking: Backlog.
func Unsqueezed(r kvstore.Reader) (int, error) {
	n := 0
	for _, err := range r.Scan(kvstore.Queue, kvstore.Range{Prefix: turns}) {
		if err != nil {
			return 0, fmt.Errorf("couldn't read the squeeze queue: %w", err)
		}
		n++
	}
	return n, nil
}

// add adds the release's contents that are not at their best to a batch and
// returns how many; call added with that once the batch is committed.
func (q *squeezeQueue) add(batch *kvstore.Batch, store *kvstore.Store, m *logs.Manifest) (int, error) {
	seen := make(map[kvstore.Hash]struct{}, len(m.Files))
	added := 0
	for _, f := range m.Files {
		if _, ok := seen[f.SHA256]; ok {
			continue
		}
		seen[f.SHA256] = struct{}{}
		content, err := store.Content(f.SHA256)
		if err != nil {
			return 0, err
		}
		if content.Squeezed {
			continue
		}
		switch _, err := store.Get(kvstore.Queue, queuedKey(f.SHA256)); {
		case errors.Is(err, kvstore.ErrNotFound):
			batch.Set(kvstore.Queue, turnKey(m.Released, f.SHA256), nil)
			batch.Set(kvstore.Queue, queuedKey(f.SHA256), nil)
			added++
		case err != nil:
			return 0, err
		}
	}
	return added, nil
}

func (q *squeezeQueue) added(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting += n
	if n > 0 {
		q.changed()
	}
}

// changed wakes whoever waits; the caller holds mu.
func (q *squeezeQueue) changed() {
	close(q.wake)
	q.wake = make(chan struct{})
}

// turns and queued begin the keys of the two kinds of rows.
var turns, queued = []byte("t"), []byte("h")

// turnSize is the length of a key that begins with turns.
const turnSize = 1 + 8 + len(kvstore.Hash{})

func turnKey(released time.Time, h kvstore.Hash) []byte {
	newestFirst := ^uint64(max(0, released.Unix()))
	return append(binary.BigEndian.AppendUint64(turns[:1:1], newestFirst), h[:]...)
}

func queuedKey(h kvstore.Hash) []byte { return append(queued[:1:1], h[:]...) }

// Hot asks for a content to be squeezed before others, because it is being
// served. It never waits.
func (b *Bot) Hot(h kvstore.Hash) {
	q := &b.squeeze
	if !q.mu.TryLock() {
		return
	}
	defer q.mu.Unlock()
	if len(q.hot) < maxHot {
		q.hot = append(q.hot, h)
	}
}

// Backlog returns how many contents wait to be squeezed.
func (b *Bot) Backlog() int {
	b.squeeze.mu.Lock()
	defer b.squeeze.mu.Unlock()
	return max(0, b.squeeze.waiting)
}

// A SqueezeSummary counts what squeezing did.
type SqueezeSummary struct {
	Contents int   `json:"contents"`
	Before   int64 `json:"before"` // bytes of their codings
	After    int64 `json:"after"`
}

// Squeeze works off the whole queue.
func (b *Bot) Squeeze(ctx context.Context) (SqueezeSummary, error) {
	var mu sync.Mutex
	var sum SqueezeSummary
	for {
		wake := b.squeeze.waker()
		err := b.squeezeAll(ctx, func(s squeezed) {
			mu.Lock()
			defer mu.Unlock()
			sum.Contents++
			sum.Before += s.before
			sum.After += s.after
		})
		if err != nil || !b.squeeze.anyBusy() {
			return sum, err
		}
		// The rest is in the hands of Run.
		select {
		case <-wake:
		case <-ctx.Done():
			return sum, ctx.Err()
		}
	}
}

func (q *squeezeQueue) waker() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.wake
}

func (q *squeezeQueue) anyBusy() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.busy) > 0
}

// squeezeForever works the queue off whenever there is something in it.
func (b *Bot) squeezeForever(ctx context.Context) error {
	for {
		wake := b.squeeze.waker()
		if err := b.squeezeAll(ctx, func(squeezed) {}); err != nil {
			return err
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// squeezed says what became of one content.
type squeezed struct{ before, after int64 }

// rowsAtOnce is how many rows are taken from the queue at a time; what is published
// meanwhile waits for that many contents at most.
const rowsAtOnce = 64

// squeezeAll works off the queue, newest release first, until nothing is left in it
// that nobody has in hand.
func (b *Bot) squeezeAll(ctx context.Context, done func(squeezed)) error {
	for {
		// What was published during a pass is the next one's.
		n, err := b.squeezePass(ctx, done)
		if err != nil || n == 0 {
			return err
		}
	}
}

// squeezePass works off the queue until nothing is left that nobody has in hand,
// itself included, and returns how many rows it took.
func (b *Bot) squeezePass(ctx context.Context, done func(squeezed)) (taken int, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(b.options.Workers)
	var dropping errgroup.Group
	for {
		var rows []queueRow
		if err = ctx.Err(); err == nil {
			rows, err = b.nextRows()
		}
		if err != nil || len(rows) == 0 {
			return taken, errors.Join(g.Wait(), dropping.Wait(), err)
		}
		taken += len(rows)
		var batch sync.WaitGroup
		batch.Add(len(rows))
		for i := range rows {
			g.Go(func() error { // waits while all workers are busy
				defer batch.Done()
				if err := b.squeezeHot(ctx, done); err != nil {
					return err
				}
				b.squeeze.added(-1)
				if err := b.squeezeOne(ctx, rows[i].hash, done); err != nil {
					b.squeeze.added(+1)
					return err
				}
				rows[i].done = true
				return nil
			})
		}
		// The last of these rows are still being worked on when the next are taken.
		dropping.Go(func() error {
			batch.Wait()
			return b.dropRows(rows)
		})
	}
}

// squeezeHot squeezes what is being asked for.
func (b *Bot) squeezeHot(ctx context.Context, done func(squeezed)) error {
	for {
		h, ok := b.takeHot()
		if !ok {
			return nil
		}
		err := b.squeezeOne(ctx, h, done)
		b.squeeze.release(h)
		if err != nil {
			return err
		}
	}
}

type queueRow struct {
	key  []byte
	hash kvstore.Hash
	done bool
}

// nextRows takes the first rows of the queue that nobody else has in hand.
func (b *Bot) nextRows() ([]queueRow, error) {
	b.squeeze.mu.Lock()
	defer b.squeeze.mu.Unlock()
	var rows []queueRow
	for item, err := range b.store.Scan(kvstore.Queue, kvstore.Range{Prefix: turns}) {
		if err != nil {
			for _, row := range rows {
				delete(b.squeeze.busy, row.hash)
			}
			return nil, fmt.Errorf("bot: couldn't read the squeeze queue: %w", err)
		}
		if len(item.Key) != turnSize {
			b.logger.Error("the squeeze queue has a malformed row", "key", fmt.Sprintf("%x", item.Key))
			continue
		}
		hash := kvstore.Hash(item.Key[9:])
		if _, ok := b.squeeze.busy[hash]; ok {
			continue
		}
		b.squeeze.busy[hash] = struct{}{}
		rows = append(rows, queueRow{key: append([]byte(nil), item.Key...), hash: hash})
		if len(rows) == rowsAtOnce {
			break
		}
	}
	return rows, nil
}

// dropRows deletes the rows that are done and lets go of the others.
func (b *Bot) dropRows(rows []queueRow) error {
	batch := b.store.NewBatch()
	defer batch.Close()
	for _, row := range rows {
		if row.done {
			batch.Delete(kvstore.Queue, row.key)
			batch.Delete(kvstore.Queue, queuedKey(row.hash))
		}
	}
	err := batch.Commit()
	b.squeeze.mu.Lock()
	defer b.squeeze.mu.Unlock()
	for _, row := range rows {
		delete(b.squeeze.busy, row.hash)
	}
	b.squeeze.changed()
	return err
}

// takeHot takes the content asked for last that nobody has in hand.
func (b *Bot) takeHot() (kvstore.Hash, bool) {
	q := &b.squeeze
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

func (q *squeezeQueue) release(h kvstore.Hash) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.busy, h)
	q.changed()
}

// squeezeOne replaces a content's codings by the best ones. A content that an
// encoder cannot cope with keeps the codings it has.
func (b *Bot) squeezeOne(ctx context.Context, h kvstore.Hash, done func(squeezed)) error {
	content, err := b.store.Content(h)
	if errors.Is(err, kvstore.ErrNotFound) || err == nil && content.Squeezed {
		return nil
	}
	if errors.Is(err, kvstore.ErrCorrupt) {
		b.logger.Error("not squeezed", "content", h, "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	weight := min(b.options.MemoryBytes, coding.Memory(coding.Brotli, coding.Best, content.Size))
	if err := b.squeezing.Acquire(ctx, weight); err != nil {
		return err
	}
	defer b.squeezing.Release(weight)
	data, err := b.store.Identity(h)
	if err != nil {
		// Others must not wait for a content that is damaged; `larder fsck
		// --deep` and whoever asks for it are told.
		b.logger.Error("not squeezed", "content", h, "err", err)
		return nil
	}
	var coded []kvstore.Coded
	best := true
	for _, c := range compressed {
		small, err := b.squeezers.Do(ctx, squeezeTasks[c], data)
		var crash *worker.CrashError
		if errors.As(err, &crash) && crash.Killed && ctx.Err() == nil {
			small, err = b.squeezers.Do(ctx, squeezeTasks[c], data) // once more: somebody killed the process
		}
		if ctx.Err() != nil || stops(err) {
			return errors.Join(ctx.Err(), err)
		}
		if err != nil {
			b.logger.Warn("not squeezed", "content", h, "coding", c, "err", err)
			best = best && !(errors.As(err, &crash) && crash.Killed)
			continue
		}
		if coding.Worthwhile(len(data), len(small)) {
			coded = append(coded, kvstore.Coded{Coding: c, Bytes: small})
		}
	}
	var after kvstore.Content
	if err = b.store.ImproveContent(h, content.Size, best, coded); err == nil {
		after, err = b.store.Content(h)
	}
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil // it was erased meanwhile
	}
	if err != nil {
		return err
	}
	s := squeezed{before: codedBytes(content), after: codedBytes(after)}
	done(s)
	b.emit(ctx, Event{Kind: Squeezed, Bytes: s.before - s.after, Waiting: b.Backlog()})
	return nil
}

var squeezeTasks = map[coding.Coding]worker.Task{
	coding.Brotli: worker.SqueezeBr,
	coding.Gzip:   worker.SqueezeGzip,
}

func codedBytes(c kvstore.Content) (n int64) {
	for _, r := range c.Representations {
		n += r.Length
	}
	return n
}
