package review

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/lazyregexp"
)

// Why a look ended before it was over.
var (
	errSuperseded = errors.New("there is something newer to look at")
	errClosed     = errors.New("the pull request is closed")
)

// errFull: more pull requests wait than are kept.
var errFull = errors.New("too many pull requests wait to be looked at")

// queue holds the pull requests that are to be looked at, each once. One that is being looked at is not
// given to another goroutine meanwhile.
type queue struct {
	most  int
	ready chan int // pull requests that are due; each is in it once at most, so it never is full

	mu   sync.Mutex
	jobs map[int]*job
}

type job struct {
	again    bool   // look even where there is a finished check
	head     string // what is being looked at, "" where GitHub has yet to say
	told     string // the last commit that a delivery asked for before GitHub said
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

// An event is what a delivery asks for.
type event struct {
	repository string // OWNER/NAME
	pull       int    // 0: those whose newest commit is head
	head       string // commit
	again      bool   // look even where there is a finished check
	closed     bool   // the pull request is over
}

// errUnwanted: the event is none that there is something to do for.
var errUnwanted = errors.New("nothing to do for such an event")

var (
	repositoryName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9-]{0,99}/[A-Za-z0-9._-]{1,100}$`)
	commitHash     = lazyregexp.New(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)
)

// parseEvent reads a delivery. Of the text in it only the repository's name and commits are used.
func parseEvent(kind string, payload []byte) (event, error) {
	type head struct {
		SHA string `json:"sha"`
	}
	var p struct {
		Action     string
		Repository struct {
			FullName string `json:"full_name"`
		}
		PullRequest struct {
			Number int
			Head   head
		} `json:"pull_request"`
		Changes struct{ Base json.RawMessage }
		Check   struct {
			Name       string
			HeadSHA    string `json:"head_sha"`
			ExternalID string `json:"external_id"`
		} `json:"check_run"`
		Suite struct {
			HeadSHA string `json:"head_sha"`
		} `json:"check_suite"`
	}
	switch kind {
	case "pull_request", "check_run", "check_suite":
	default:
		return event{}, errUnwanted
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return event{}, fmt.Errorf("the payload of %s is not what GitHub sends: %w", kind, err)
	}
	e := event{repository: p.Repository.FullName}
	switch kind + " " + p.Action {
	case "pull_request opened", "pull_request synchronize", "pull_request reopened":
		e.pull, e.head = p.PullRequest.Number, p.PullRequest.Head.SHA
	case "pull_request edited":
		if len(p.Changes.Base) == 0 {
			return event{}, errUnwanted
		}
		e.pull, e.head, e.again = p.PullRequest.Number, p.PullRequest.Head.SHA, true // it changes other files now
	case "pull_request closed":
		e.pull, e.head, e.closed = p.PullRequest.Number, p.PullRequest.Head.SHA, true
	case "check_run rerequested":
		if p.Check.Name != Name {
			return event{}, errUnwanted
		}
		e.pull, e.head, e.again = pullOf(p.Check.ExternalID), p.Check.HeadSHA, true
	case "check_suite rerequested":
		e.head, e.again = p.Suite.HeadSHA, true // GitHub names no pull requests from forks here
	default:
		return event{}, errUnwanted
	}
	switch {
	case !repositoryName.MatchString(e.repository):
		return event{}, fmt.Errorf("the payload of %s names no repository", kind)
	case !commitHash.MatchString(e.head):
		return event{}, fmt.Errorf("the payload of %s names no commit", kind)
	case e.pull < 0, e.pull == 0 && kind == "pull_request":
		return event{}, fmt.Errorf("the payload of %s names no pull request", kind)
	}
	return e, nil
}

// A check run knows its pull request by its external id.
const externalPrefix = "larder-pull-"

func externalID(pull int) string { return externalPrefix + strconv.Itoa(pull) }

// pullOf returns 0 for an id that this program did not write.
func pullOf(externalID string) int {
	digits, ok := strings.CutPrefix(externalID, externalPrefix)
	n, err := strconv.ParseUint(digits, 10, 31)
	if !ok || err != nil {
		return 0
	}
	return int(n)
}
