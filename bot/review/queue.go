package review

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Why a look ended before it was over.
var (
	errSuperseded = errors.New("there is something newer to look at")
	errClosed     = errors.New("the pull request is closed")
)

// errFull: more pull requests wait than are kept.
var errFull = errors.New("too many pull requests wait to be looked at")

// queue holds the pull requests that are to be looked at, each once. One that is being looked at is not
// given to somebody else meanwhile.
type queue struct {
	most  int
	ready chan int // pull requests that are due; each is in it once at most, so it never is full

	mu   sync.Mutex
	jobs map[int]*job
}

type job struct {
	again    bool   // look even where somebody has looked
	head     string // what is being looked at, "" where GitHub has yet to say
	told     string // the last commit that somebody asked for before GitHub said
	stop     context.CancelCauseFunc
	rerun    bool        // as soon as the present look has ended
	rest     *time.Timer // after a failure, until the next attempt
	failures int
}

func newQueue(most int) *queue {
	return &queue{most: most, ready: make(chan int, most), jobs: map[int]*job{}}
}

// add has a pull request looked at soon. head is the commit that it is about, "" where that is not known.
func (q *queue) add(pull int, head string, again bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[pull]
	switch {
	case j == nil && len(q.jobs) == q.most:
		return errFull
	case j == nil:
		q.jobs[pull] = &job{again: again}
		q.ready <- pull
	case j.stop != nil:
		if !again && (head == "" || head == j.head) {
			return nil
		}
		if !again && j.head == "" {
			j.told = head
			return nil
		}
		j.again, j.rerun = again, true
		j.stop(errSuperseded)
	default:
		j.again = j.again || again
		if j.rest != nil && j.rest.Stop() {
			j.rest = nil
			q.ready <- pull
		}
	}
	return nil
}

// remove ends the look at a pull request, where there is one.
func (q *queue) remove(pull int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if j := q.jobs[pull]; j != nil && j.stop != nil {
		j.rerun = false
		j.stop(errClosed)
	}
}

// take begins to look at a pull request that is due. The context ends where the look is in vain.
func (q *queue) take(ctx context.Context, pull int) (_ context.Context, again bool) {
	ctx, stop := context.WithCancelCause(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[pull]
	j.head, j.told, j.stop, j.rest = "", "", stop, nil
	again, j.again = j.again, false
	return ctx, again
}

// at notes which commit of a pull request is being looked at.
func (q *queue) at(pull int, head string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[pull]
	if j.head = head; j.told != "" && j.told != head {
		j.rerun = true // it may be newer than what GitHub said
	}
}

// done ends a look. After a failure the next one begins in a while, up to attempts times in all.
func (q *queue) done(pull int, failed bool, again bool) (wait time.Duration, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[pull]
	j.stop(nil)
	j.stop = nil
	switch {
	case j.rerun:
		j.rerun, j.failures = false, 0
		q.ready <- pull
	case !failed:
		delete(q.jobs, pull)
	default:
		j.again = again
		if j.failures++; j.failures == attempts {
			delete(q.jobs, pull)
			return 0, false
		}
		wait = min(firstPause<<(j.failures-1), longestPause)
		j.rest = time.AfterFunc(wait, func() { q.ready <- pull })
	}
	return wait, true
}

// waiting is how many pull requests there are.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.jobs)
}

// After a failure. What has failed attempts times is left to the next survey.
const (
	firstPause   = 5 * time.Second
	longestPause = 10 * time.Minute
	attempts     = 8
)
