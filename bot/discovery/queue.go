package discovery

import (
	"cmp"
	"container/heap"
	"context"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
)

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
func (q *queue) push(tasks ...ingest.Task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range tasks {
		if _, ok := q.pending[t.Id()]; !ok {
			q.pending[t.Id()] = struct{}{}
			heap.Push(&q.tasks, t)
		} else if t.Fresh {
			q.freshen(t)
		}
	}
	q.signal()
}

// freshen is called with mu held.
func (q *queue) freshen(t ingest.Task) {
	for i, waiting := range q.tasks {
		if waiting.Version.Name == t.Version.Name && waiting.Pkg.Name == t.Pkg.Name {
			q.tasks[i].Fresh = true
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
		if waiting.Pkg.Name == pkg && waiting.Rank == 0 && !waiting.Fresh {
			q.tasks[i].Fresh = true
			heap.Fix(&q.tasks, i)
			q.signal()
			return
		}
	}
}

// putBack adds tasks again that pop has returned, and that are not done.
func (q *queue) putBack(tasks ...ingest.Task) {
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
func (q *queue) done(t ingest.Task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.pending, t.Id())
}

// close lets pop report the end once the queue is empty.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.signal()
}

// pop waits for a task, or only for a fresh one. ok is false at the end.
func (q *queue) pop(ctx context.Context, fresh bool) (t ingest.Task, ok bool, err error) {
	for {
		q.mu.Lock()
		if len(q.tasks) > 0 && (!fresh || q.tasks[0].Fresh) {
			t = heap.Pop(&q.tasks).(ingest.Task)
			q.mu.Unlock()
			return t, true, nil
		}
		closed, changed := q.closed, q.changed
		q.mu.Unlock()
		if closed {
			return ingest.Task{}, false, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ingest.Task{}, false, ctx.Err()
		}
	}
}

// signal wakes what waits. It is called with mu held.
func (q *queue) signal() {
	close(q.changed)
	q.changed = make(chan struct{})
}

type taskHeap []ingest.Task

func (h taskHeap) Len() int { return len(h) }

func (h taskHeap) Less(i, j int) bool {
	a, b := &h[i], &h[j]
	if a.Fresh != b.Fresh {
		return a.Fresh
	}
	return cmp.Or(cmp.Compare(a.Tried, b.Tried), cmp.Compare(a.Rank, b.Rank), strings.Compare(a.Pkg.Name, b.Pkg.Name)) < 0
}

func (h taskHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *taskHeap) Push(x any) { *h = append(*h, x.(ingest.Task)) }

func (h *taskHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = ingest.Task{}
	*h = (*h)[:last]
	return t
}

// drain releases tasks until the queue ends. Where it is patient, tasks wait while their upstream is down, and fresh
// ones do not wait for the others.
func (sc *Scheduler) drain(ctx context.Context, q *queue, patient bool) error {
	g, ctx := errgroup.WithContext(ctx)
	work := func(fresh bool) error {
		for {
			t, ok, err := q.pop(ctx, fresh)
			if !ok {
				return err
			}
			if patient && !sc.options.Breakers.Admit(sources.ArchivesOf(t.Pkg), t.Id(), func() { q.putBack(t) }) {
				continue
			}
			// A release that an operator's command is publishing is left to that.
			_, err = sc.options.Publisher.Release(ctx, t)
			q.done(t)
			if err != nil {
				return err
			}
		}
	}
	for range sc.options.Downloads {
		g.Go(func() error { return work(false) })
	}
	if patient {
		for range ingest.FreshDownloads {
			g.Go(func() error { return work(true) })
		}
	}
	return g.Wait()
}
