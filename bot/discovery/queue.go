package discovery

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
)

// A queue holds tasks: fresh ones first, then those with fewer failed attempts, then by rank, then by the package's name.
type queue struct {
	mu      sync.Mutex
	tasks   taskHeap
	pending map[string]struct{} // ids of tasks from push until finishTask, also while they are worked on
	changed chan struct{}       // closed, and replaced, when there is something new for goroutines that wait
	closed  bool
}

// newQueue returns an empty queue of releases to fetch.
func newQueue() *queue {
	return &queue{pending: make(map[string]struct{}), changed: make(chan struct{})}
}

// push adds tasks, but those whose release waits already or is being worked on. If such a waiting release is fresh now, push
// marks it as fresh, which moves it ahead.
func (q *queue) push(tasks ...ingest.Task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range tasks {
		if _, ok := q.pending[t.ID()]; !ok {
			q.pending[t.ID()] = struct{}{}
			heap.Push(&q.tasks, t)
		} else if t.Fresh {
			q.markFresh(func(waiting ingest.Task) bool {
				return waiting.Pkg.Name == t.Pkg.Name && waiting.Version.Name == t.Version.Name
			})
		}
	}
	q.wakeAll()
}

// markFresh marks the first waiting task that matches as fresh, which moves it ahead, if there is one. The caller holds mu, and
// wakes the goroutines in pop.
func (q *queue) markFresh(matches func(ingest.Task) bool) {
	if i := slices.IndexFunc(q.tasks, matches); i >= 0 {
		q.tasks[i].Fresh = true
		heap.Fix(&q.tasks, i)
	}
}

// markNewestFresh marks as fresh a waiting task of the package pkg that was the newest of its poll (Rank 0) and is not fresh yet, which
// moves it ahead. It does nothing if no such task waits, even if others of the package wait. It locks q.mu.
func (q *queue) markNewestFresh(pkg string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.markFresh(func(waiting ingest.Task) bool { return waiting.Pkg.Name == pkg && waiting.Rank == 0 && !waiting.Fresh })
	q.wakeAll()
}

// putBack adds tasks again that pop has returned and that could not be done, because their upstream did not respond. Their
// releases counted as being worked on until now, so push has not added them meanwhile.
func (q *queue) putBack(tasks ...ingest.Task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range tasks {
		heap.Push(&q.tasks, t)
	}
	q.wakeAll()
}

// has reports whether the task with an id, that of ingest.ReleaseID, waits or is being worked on.
func (q *queue) has(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, ok := q.pending[id]
	return ok
}

// finishTask records that the task t, which pop has returned, is done, so that push may add its release again.
func (q *queue) finishTask(t ingest.Task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.pending, t.ID())
}

// close says that no push follows. From then on pop does not wait: it returns false if no suitable task is there.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.wakeAll()
}

// pop waits for the first task, or with fresh only for a fresh one, removes it from the queue and returns it. ok is false after
// close if there is no such task, and, with an error, when ctx ends. The caller calls finishTask when the task is done, or
// putBack.
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

// wakeAll wakes the goroutines in pop. The caller holds mu.
func (q *queue) wakeAll() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// A taskHeap is a heap of tasks in the order of a [queue].
type taskHeap []ingest.Task

// Len implements heap.Interface. It returns the number of tasks.
func (h taskHeap) Len() int { return len(h) }

// Less implements heap.Interface. Fresh tasks come first, then those with fewer failed attempts, then by rank and package.
func (h taskHeap) Less(i, j int) bool {
	a, b := &h[i], &h[j]
	if a.Fresh != b.Fresh {
		return a.Fresh
	}
	return cmp.Or(cmp.Compare(a.Tried, b.Tried), cmp.Compare(a.Rank, b.Rank), strings.Compare(a.Pkg.Name, b.Pkg.Name)) < 0
}

// Swap implements heap.Interface. It exchanges the tasks at two indexes.
func (h taskHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface. It appends a task; callers use heap.Push, which then moves the task to its place.
func (h *taskHeap) Push(x any) { *h = append(*h, x.(ingest.Task)) }

// Pop implements heap.Interface. It removes and returns the last element; callers use heap.Pop, which moves the first task there.
func (h *taskHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = ingest.Task{}
	*h = (*h)[:last]
	return t
}

// publishTasks fetches and publishes the releases in q, several at a time, until q is closed and empty, ctx ends, or an error
// stops the bot. It skips a release that another goroutine is publishing. With waits, the tasks of an upstream whose circuit
// breaker is open wait until it responds, and additional goroutines serve only fresh tasks.
func (sc *Scheduler) publishTasks(ctx context.Context, q *queue, waits bool) error {
	g, ctx := errgroup.WithContext(ctx)
	work := func(fresh bool) error {
		for {
			t, ok, err := q.pop(ctx, fresh)
			if !ok {
				return err
			}
			if waits && !sc.options.Breakers.Admit(sources.ArchivesName(t.Pkg), t.ID(), func() { q.putBack(t) }) {
				continue
			}
			// A release that an operator's command is publishing is left to that.
			_, err = sc.options.Publisher.PublishTask(ctx, t)
			q.finishTask(t)
			if err != nil {
				return err
			}
		}
	}
	for range sc.options.Downloads {
		g.Go(func() error { return work(false) })
	}
	if waits {
		for range ingest.FreshDownloads {
			g.Go(func() error { return work(true) })
		}
	}
	return g.Wait()
}
