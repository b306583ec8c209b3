package bot

import (
	"cmp"
	"container/heap"
	"context"
	"strings"
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
	fresh    bool // it has appeared since the first look at the package, so it goes ahead of every backlog
	tried    int  // attempts that failed
	rank     int  // 0 for a package's newest, so that every package's newest come first
	actor    string
	override string // that of [intake]
}

// id names the version in queues and claims.
func (t task) id() string { return releaseID(t.pkg.Name, t.version.name) }

func releaseID(pkg, version string) string { return pkg + " " + version }

// A queue holds tasks: fresh ones first, then those that never failed, then by rank.
type queue struct {
	mu      sync.Mutex
	tasks   taskHeap
	pending map[string]struct{} // ids from push until done
	changed chan struct{}       // closed, and replaced, when there is something new for goroutines that wait
	closed  bool
}

func newQueue() *queue {
	return &queue{pending: make(map[string]struct{}), changed: make(chan struct{})}
}

// push adds the tasks that are not pending already. Of those that wait, it makes fresh what is fresh now.
func (q *queue) push(tasks ...task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range tasks {
		if _, ok := q.pending[t.id()]; !ok {
			q.pending[t.id()] = struct{}{}
			heap.Push(&q.tasks, t)
		} else if t.fresh {
			q.freshen(t)
		}
	}
	q.signal()
}

// freshen is called with mu held.
func (q *queue) freshen(t task) {
	for i, waiting := range q.tasks {
		if waiting.version.name == t.version.name && waiting.pkg.Name == t.pkg.Name {
			q.tasks[i].fresh = true
			heap.Fix(&q.tasks, i)
			return
		}
	}
}

// hasten makes the newest release of a package that waits a fresh one.
func (q *queue) hasten(pkg string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, waiting := range q.tasks {
		if waiting.pkg.Name == pkg && waiting.rank == 0 && !waiting.fresh {
			q.tasks[i].fresh = true
			heap.Fix(&q.tasks, i)
			q.signal()
			return
		}
	}
}

// putBack adds tasks again that pop has returned, and that are not done.
func (q *queue) putBack(tasks ...task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range tasks {
		heap.Push(&q.tasks, t)
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

// pop waits for a task, or only for a fresh one. ok is false at the end.
func (q *queue) pop(ctx context.Context, fresh bool) (t task, ok bool, err error) {
	for {
		q.mu.Lock()
		if len(q.tasks) > 0 && (!fresh || q.tasks[0].fresh) {
			t = heap.Pop(&q.tasks).(task)
			q.mu.Unlock()
			return t, true, nil
		}
		closed, changed := q.closed, q.changed
		q.mu.Unlock()
		if closed {
			return task{}, false, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return task{}, false, ctx.Err()
		}
	}
}

// signal wakes what waits. It is called with mu held.
func (q *queue) signal() {
	close(q.changed)
	q.changed = make(chan struct{})
}

type taskHeap []task

func (h taskHeap) Len() int { return len(h) }
func (h taskHeap) Less(i, j int) bool {
	a, b := &h[i], &h[j]
	if a.fresh != b.fresh {
		return a.fresh
	}
	return cmp.Or(cmp.Compare(a.tried, b.tried), cmp.Compare(a.rank, b.rank), strings.Compare(a.pkg.Name, b.pkg.Name)) < 0
}
func (h taskHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *taskHeap) Push(x any)   { *h = append(*h, x.(task)) }
func (h *taskHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = task{}
	*h = (*h)[:last]
	return t
}

// freshDownloads are the downloads, beside those of the options, that only fresh releases get.
const freshDownloads = 2

// drain releases tasks until the queue ends. Where it is patient, tasks wait while their upstream is down, and fresh
// ones do not wait for the others.
func (b *Bot) drain(ctx context.Context, q *queue, patient bool) error {
	g, ctx := errgroup.WithContext(ctx)
	work := func(fresh bool) error {
		for {
			t, ok, err := q.pop(ctx, fresh)
			if !ok {
				return err
			}
			if patient && !b.outages.admit(archivesOf(t.pkg), t.id(), func() { q.putBack(t) }) {
				continue
			}
			// A release that an operator's command is publishing is left to that.
			_, err = b.release(ctx, t)
			q.done(t)
			if err != nil {
				return err
			}
		}
	}
	for range b.options.Downloads {
		g.Go(func() error { return work(false) })
	}
	if patient {
		for range freshDownloads {
			g.Go(func() error { return work(true) })
		}
	}
	return g.Wait()
}

// claims sees that no two goroutines work on the same thing, such as a version.
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

// hold is take for a goroutine that waits for its turn.
func (c *claims) hold(ctx context.Context, id string) error {
	for {
		wait := c.take(id)
		if wait == nil {
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *claims) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.held[id])
	delete(c.held, id)
}
