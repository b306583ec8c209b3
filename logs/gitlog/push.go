package gitlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/google/go-github/v60/github"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
)

// A Remote is a branch of a repository on GitHub.
type Remote struct {
	Owner, Name, Branch string
}

var (
	ownerName      = text.NewRegexp(`^[A-Za-z0-9_-]{1,100}$`)
	repositoryName = text.NewRegexp(`^[A-Za-z0-9._-]{1,100}$`)
)

// ParseRemote parses OWNER/NAME or OWNER/NAME@BRANCH. The default branch is [Branch].
func ParseRemote(s string) (Remote, error) {
	r := Remote{Branch: Branch}
	path, branch, hasBranch := strings.Cut(s, "@")
	if hasBranch {
		r.Branch = branch
	}
	r.Owner, r.Name, _ = strings.Cut(path, "/")
	if !ownerName.MatchString(r.Owner) || !repositoryName.MatchString(r.Name) || r.Name == "." || r.Name == ".." ||
		r.ref().Validate() != nil || len(r.Branch) > 200 || strings.HasPrefix(r.Branch, "-") {
		return Remote{}, errors.New("must be a repository such as example/logs, with its branch if that is not main: example/logs@cdn")
	}
	return r, nil
}

// String returns OWNER/NAME@BRANCH.
func (r Remote) String() string { return r.Owner + "/" + r.Name + "@" + r.Branch }

// ref returns the name of the branch's reference: refs/heads/ and the branch.
func (r Remote) ref() plumbing.ReferenceName { return plumbing.NewBranchReferenceName(r.Branch) }

// PushOptions are what a Pusher needs. The first five are required.
type PushOptions struct {
	// Client sends requests to GitHub's API at BaseURL. It should wait for GitHub's limits by itself.
	Client *http.Client
	// BaseURL is the address of the API, with a slash at its end.
	BaseURL *url.URL
	Remote  Remote
	// Changes returns the changes after a position that may be shown now, oldest first. The
	// error for a position that is not the log's says so, and what to do.
	Changes func(after Position) iter.Seq2[Change, error]
	// Wait returns when there may be changes after a position, or ctx's error.
	Wait func(ctx context.Context, after Position) error
	// Describe is a client's error in words. Default: its own.
	Describe func(error) string
	// Logger gets each kind of failure once, and that it is over. Default: none.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: none.
	Registerer prometheus.Registerer
}

// A PushState is how far a Pusher has come.
type PushState struct {
	// Entries are those that the branch has, or -1 until that is known.
	Entries int64 `json:"entries"`
	// Problem is why the last attempt failed, or "", and Since when that began.
	Problem string    `json:"problem,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	// Next is when the next attempt is made after one that failed.
	Next time.Time `json:"next,omitzero"`
}

// A Pusher pushes the log to one branch of a repository on GitHub, through its API. There should be one for a branch.
//
// The branch only ever gets commits behind its last one, in the log's order, none left out and none twice, wherever a
// process is killed. How far it has come is what its last commit says. A branch that has another program's commits is
// left alone, and the error says what to do. What fails is tried again after pauses that grow.
type Pusher struct {
	PushOptions
	failures prometheus.Counter

	mu    sync.Mutex
	state PushState
}

// The pauses after failures.
const (
	minRetryInterval = 5 * time.Second
	maxRetryInterval = 10 * time.Minute
)

// A batch ends with either, and with it the branch moves.
const (
	batchChanges = 50
	batchBytes   = 8 << 20
)

// NewPusher returns a pusher, with the defaults of missing options, and registers its metrics; it panics if they are
// registered already. It sends nothing: Run or CatchUp push.
func NewPusher(o PushOptions) *Pusher {
	if o.Describe == nil {
		o.Describe = error.Error
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	p := &Pusher{PushOptions: o, state: PushState{Entries: -1}}
	p.registerMetrics()
	return p
}

// newClient returns a client of GitHub's API. It is created for each call and not a method, because the linker includes all of
// the API's functions (1.5 MB) if a type that an interface value may have mentions it.
func newClient(p *Pusher) *github.Client {
	calls := github.NewClient(p.Client)
	calls.BaseURL = p.BaseURL
	return calls
}

// State returns how far the pusher has come.
func (p *Pusher) State() PushState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// Part returns a [parts.Part] that runs the pusher until its context ends.
func (p *Pusher) Part() parts.Part {
	return parts.Part{Name: "pushing", Run: parts.RunUntilDone(p.Run)}
}

// Run pushes the log until ctx ends. After a failure it tries again, from 5 seconds later to 10 minutes after many, and
// [Pusher.State] has the reason. A push that is interrupted is dropped; the next one starts where the branch is.
func (p *Pusher) Run(ctx context.Context) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = minRetryInterval, maxRetryInterval
	for {
		before := p.State().Entries
		err := p.pushAll(ctx, true)
		if ctx.Err() != nil {
			return
		}
		if p.State().Entries > before {
			pause.Reset()
		}
		rest := pause.NextBackOff()
		p.recordFailure(err, rest)
		if retry.Sleep(ctx, rest) != nil {
			return
		}
	}
}

// CatchUp pushes what the branch lacks now. It does not try again. After an error, the branch may have some of it. If ctx has ended,
// the error wraps that of ctx.
func (p *Pusher) CatchUp(ctx context.Context) error {
	if err := p.pushAll(ctx, false); err != nil {
		if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
			err = errors.Join(ended, err)
		}
		return fmt.Errorf("couldn't push the log to %s: %w", p.Remote, err)
	}
	return nil
}

// pushAll pushes all changes that the branch lacks. If wait is true, it then waits for more until something fails.
func (p *Pusher) pushAll(ctx context.Context, wait bool) error {
	at, err := p.readTip(ctx)
	if err != nil {
		return err
	}
	p.recordProgress(at.position, false)
	for {
		batch, err := p.nextBatch(at.position)
		if err != nil {
			return err
		}
		if len(batch) > 0 {
			at, err = p.push(ctx, at, batch)
		}
		p.recordProgress(at.position, err == nil)
		switch {
		case err != nil:
			return err
		case len(batch) > 0:
			continue
		case !wait:
			return nil
		}
		if err := p.Wait(ctx, at.position); err != nil {
			return err
		}
	}
}

// nextBatch returns the next changes after a position, at most batchChanges; the one with which their text reaches
// batchBytes is the last. It returns nil if there are none. It reads all of them before it returns, so that reading the log
// does not wait for GitHub.
func (p *Pusher) nextBatch(after Position) (batch []Change, err error) {
	size := 0
	for c, err := range p.Changes(after) {
		if err != nil {
			return nil, err
		}
		if err := c.Check(after); err != nil {
			return nil, err
		}
		after = c.Position()
		batch = append(batch, c)
		if size += len(c.Text); len(batch) == batchChanges || size >= batchBytes {
			break
		}
	}
	return batch, nil
}

// recordFailure counts and stores a failure, after which the next attempt comes in rest. It logs the failure unless the last
// one was the same.
func (p *Pusher) recordFailure(err error, rest time.Duration) {
	p.failures.Inc()
	now, text := time.Now().UTC(), err.Error()
	p.mu.Lock()
	known := p.state.Problem == text
	if p.state.Problem == "" {
		p.state.Since = now
	}
	p.state.Problem, p.state.Next = text, now.Add(rest)
	p.mu.Unlock()
	if !known {
		p.Logger.Error("couldn't push the log; trying again until it succeeds", "repository", p.Remote.String(), "err", err, "after", rest.Round(time.Second))
	}
}

// recordProgress stores how far the branch has come. well says that pushing succeeded, which ends a problem; the end is
// logged.
func (p *Pusher) recordProgress(at Position, well bool) {
	p.mu.Lock()
	over := well && p.state.Problem != ""
	p.state.Entries = at.Index + 1
	if well {
		p.state = PushState{Entries: at.Index + 1}
	}
	p.mu.Unlock()
	if over {
		p.Logger.Info("the log is pushed again", "repository", p.Remote.String(), "entries", at.Index+1)
	}
}

// registerMetrics creates the metrics of the pusher, and registers them if it has a registerer.
func (p *Pusher) registerMetrics() {
	p.failures = prometheus.NewCounter(prometheus.CounterOpts{Name: "larder_log_push_failures_total", Help: "Attempts to push the log to GitHub that failed."})
	if p.Registerer == nil {
		return
	}
	gauge := func(name, help string, value func(PushState) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(p.State()) })
	}
	p.Registerer.MustRegister(p.failures,
		gauge("larder_log_pushed_entries", "Entries of the log that the repository on GitHub has; -1 until it was asked.", func(s PushState) float64 { return float64(s.Entries) }),
		gauge("larder_log_push_failing", "Whether the last attempt to push the log failed.", func(s PushState) float64 {
			if s.Problem != "" {
				return 1
			}
			return 0
		}))
}
