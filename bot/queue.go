package bot

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/packages"
)

// A task is a release to fetch.
type task struct {
	pkg      *packages.Package
	version  candidate
	released time.Time
	rank     int // 0 for a package's newest, so that every package's newest come first
	actor    string
}

// id names the version in queues and claims.
func (t task) id() string { return releaseID(t.pkg.Name, t.version.name) }

func releaseID(pkg, version string) string { return pkg + " " + version }

// A queue holds tasks, lowest rank first.
type queue struct {
	mu      sync.Mutex
	tasks   taskHeap
	pending map[string]struct{} // ids from push until done
	ready   chan struct{}       // holds a token while tasks may be taken or the queue is closed
	closed  bool
}

func newQueue() *queue {
	return &queue{pending: make(map[string]struct{}), ready: make(chan struct{}, 1)}
}

// push adds the tasks that are not pending already.
func (q *queue) push(tasks ...task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range tasks {
		if _, ok := q.pending[t.id()]; !ok {
			q.pending[t.id()] = struct{}{}
			heap.Push(&q.tasks, t)
		}
	}
	q.signal()
}

// has reports whether a task with this id waits or is being worked on.
func (q *queue) has(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, ok := q.pending[id]
	return ok
}

// done ends a task that pop returned.
func (q *queue) done(t task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.pending, t.id())
}

// close lets pop report the end once the queue is empty.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.signal()
}

// pop waits for a task. ok is false at the end.
func (q *queue) pop(ctx context.Context) (t task, ok bool, err error) {
	for {
		q.mu.Lock()
		if len(q.tasks) > 0 {
			t = heap.Pop(&q.tasks).(task)
			q.signal()
			q.mu.Unlock()
			return t, true, nil
		}
		closed := q.closed
		q.mu.Unlock()
		if closed {
			q.signal() // for the next one that waits
			return task{}, false, nil
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return task{}, false, ctx.Err()
		}
	}
}

func (q *queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

type taskHeap []task

func (h taskHeap) Len() int { return len(h) }
func (h taskHeap) Less(i, j int) bool {
	if h[i].rank != h[j].rank {
		return h[i].rank < h[j].rank
	}
	return h[i].pkg.Name < h[j].pkg.Name
}
func (h taskHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *taskHeap) Push(x any)   { *h = append(*h, x.(task)) }
func (h *taskHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	*h = (*h)[:last]
	return t
}

// drain releases tasks until the queue ends.
func (b *Bot) drain(ctx context.Context, q *queue) error {
	g, ctx := errgroup.WithContext(ctx)
	for range b.options.Downloads {
		g.Go(func() error {
			for {
				t, ok, err := q.pop(ctx)
				if !ok {
					return err
				}
				// One that an operator's command has in hand is left to it.
				_, err = b.release(ctx, t)
				q.done(t)
				if err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// claims sees that nobody works on a version that somebody else works on.
type claims struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// take claims id and returns nil, or what is closed once its holder is done.
func (c *claims) take(id string) (wait <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done, ok := c.held[id]; ok {
		return done
	}
	if c.held == nil {
		c.held = make(map[string]chan struct{})
	}
	c.held[id] = make(chan struct{})
	return nil
}

func (c *claims) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.held[id])
	delete(c.held, id)
}
