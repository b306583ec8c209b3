// Package review looks at the pull requests of a catalogue that lives on GitHub, and says beside the lines
// what is wrong: what `larder lint` says, what the upstream has, which files the bot would publish, and in
// what that differs from what is published.
//
// What it guarantees: nothing of a submission is checked out or run; package JSON files are read through
// GitHub's API, under limits, and what they name is fetched under the rules of package fetch. Each look at a
// commit is one check run of that commit, and what belongs to an older commit or an older look never takes
// the place of the newer. What a stranger wrote cannot become Markdown or more than text. GitHub's rate
// limits are waited for.
//
// It keeps nothing. What is to be done is what GitHub says: at the start and each hour it asks for the
// open pull requests, and those whose newest commit has no finished check are looked at. So neither a
// restart nor a lost delivery loses work.
//
// The package must not know what a store is, how files are served, or how a delivery came; the caller that hands one to
// [Reviewer.Take] has verified its signature.
package review

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	gogithub "github.com/google/go-github/v60/github"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/bot/github"
	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/packages"
)

// Name is what check runs and commit statuses are called.
const Name = "larder review"

// Options say what a [Reviewer] works with. Client, Repository and Look are required.
type Options struct {
	Client *github.Client
	// Repository is the catalogue's, OWNER/NAME.
	Repository string
	// Look shows what the bot would publish of a package: of the latest release, and of up to older others.
	// Its errors are those of [submission.Look].
	Look func(ctx context.Context, p *packages.Package, older int) (*submission.Preview, error)
	// Popularity returns warnings about how few people use a package, and what could not be found out.
	// Default: that is not looked at.
	Popularity func(ctx context.Context, p *packages.Package) (problems []packages.Problem, unknown []string)
	// Catalogue returns the catalogue as it is before the change, where duplicates are looked for. Default:
	// only the change is searched.
	Catalogue func(ctx context.Context) (*packages.Catalogue, error)
	// Published returns the latest release that is published of a package, nil where there is none. Default:
	// nothing is compared.
	Published func(ctx context.Context, name string) (*Published, error)
	// Tag returns the HTML that loads a file in a page, "" where no tag does. integrity is nil for a file
	// that is still to be made. Default: no tags are shown.
	Tag func(name, version, file string, integrity *Integrity) string
	// Interval is the time between two surveys of the open pull requests; default an hour.
	Interval time.Duration
	// Logger is told of what was looked at; default: none.
	Logger *slog.Logger
	// Registerer gets the metrics; default: none.
	Registerer prometheus.Registerer
}

const (
	// mostWaiting bounds the pull requests that wait.
	mostWaiting = 1000
	// mostDeliveries is how many deliveries are remembered, so that none counts twice.
	mostDeliveries = 4096
	// atOnce is how many pull requests are looked at at the same time.
	atOnce = 2
)

// A Reviewer looks at the pull requests of one repository. It is safe for concurrent use.
type Reviewer struct {
	o           Options
	owner, name string
	queue       *queue
	seen        *seen
	survey      chan struct{} // holds one where a survey is asked for
	metrics     metrics

	statuses atomic.Bool // GitHub takes no check runs of us

	mu       sync.Mutex
	surveyed map[int]string // the head that a pull request had when its check was seen to be finished
	wanted   map[string]bool
}

// New returns a reviewer. It asks for nothing until Run.
func New(o Options) (*Reviewer, error) {
	owner, name, _ := strings.Cut(o.Repository, "/")
	if !repositoryName.MatchString(o.Repository) {
		return nil, fmt.Errorf("review: the repository must be OWNER/NAME, and not %.100q", o.Repository)
	}
	o.Interval = cmp.Or(o.Interval, time.Hour)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	r := &Reviewer{
		o: o, owner: owner, name: name, queue: newQueue(mostWaiting), seen: newSeen(mostDeliveries),
		survey: make(chan struct{}, 1), surveyed: map[int]string{}, wanted: map[string]bool{},
	}
	r.metrics = newMetrics(o.Registerer, r.queue.waiting)
	return r, nil
}

// Take takes a delivery whose signature has been verified, and returns at once: an HTTP status, and what to
// tell the operator in the list of deliveries.
func (r *Reviewer) Take(d github.Delivery) (status int, message string) {
	if d.Event == "ping" {
		return http.StatusOK, "the secret is right"
	}
	e, err := parseEvent(d.Event, d.Payload)
	switch {
	case errors.Is(err, errUnwanted):
		return http.StatusOK, err.Error()
	case err != nil:
		return http.StatusBadRequest, err.Error()
	case !strings.EqualFold(e.repository, r.o.Repository):
		return http.StatusBadRequest, "pull requests of this repository are not looked at here, but those of " + r.o.Repository
	case !r.seen.first(d):
		return http.StatusOK, "this delivery came before"
	case e.closed:
		r.queue.remove(e.pull)
		return http.StatusOK, "the pull request is not looked at any more"
	case e.pull == 0:
		r.want(e.head)
	default:
		if err := r.queue.add(e.pull, e.head, e.again); err != nil {
			r.seen.forget(d)
			return http.StatusServiceUnavailable, err.Error() + "; they are looked at when there is time"
		}
	}
	return http.StatusAccepted, "it is going to be looked at"
}

// want has a survey find the pull requests of a commit.
func (r *Reviewer) want(head string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.wanted) < mostWaiting {
		r.wanted[head] = true
	}
	select {
	case r.survey <- struct{}{}:
	default: // there is going to be one
	}
}

// Run looks at pull requests until ctx ends.
func (r *Reviewer) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { r.keepSurveying(ctx) })
	for range atOnce {
		group.Go(func() {
			for {
				select {
				case pull := <-r.queue.ready:
					r.attempt(ctx, pull)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	group.Wait()
}

// keepSurveying asks for the open pull requests at once, at each interval, and when a delivery asks for it.
func (r *Reviewer) keepSurveying(ctx context.Context) {
	failures := 0
	for {
		next := r.o.Interval
		if err := r.lookAround(ctx); ctx.Err() != nil {
			return
		} else if err != nil {
			failures++
			next = min(retry.Doubled(failures, firstPause, longestPause), r.o.Interval)
			r.o.Logger.Error("couldn't ask for the open pull requests; trying again", "err", github.Describe(err), "after", next)
		} else {
			failures = 0
		}
		if retry.SleepUnless(ctx, next, r.survey) != nil {
			return
		}
	}
}

// mostPages is how many pages of open pull requests are asked for, a hundred on each.
const mostPages = 50

// lookAround has the open pull requests looked at, as far as they have not been.
func (r *Reviewer) lookAround(ctx context.Context) error {
	r.mu.Lock()
	wanted := r.wanted
	r.wanted = map[string]bool{}
	r.mu.Unlock()
	open := map[int]string{}
	o := &gogithub.PullRequestListOptions{State: "open", Sort: "updated", Direction: "desc", ListOptions: gogithub.ListOptions{PerPage: 100}}
	for o.Page = 1; o.Page <= mostPages; o.Page++ {
		pulls, _, err := r.o.Client.PullRequests.List(ctx, r.owner, r.name, o)
		if err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			for head := range wanted {
				r.wanted[head] = true
			}
			return err
		}
		for _, p := range pulls {
			open[p.GetNumber()] = p.GetHead().GetSHA()
		}
		if len(pulls) < o.PerPage {
			break
		}
	}
	for number, head := range open {
		r.mu.Lock()
		finished := r.surveyed[number] == head
		r.mu.Unlock()
		if finished && !wanted[head] {
			continue
		}
		if err := r.queue.add(number, head, wanted[head]); err != nil {
			r.o.Logger.Warn("not all open pull requests are looked at now", "err", err)
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for number := range r.surveyed {
		if _, ok := open[number]; !ok {
			delete(r.surveyed, number)
		}
	}
	return nil
}

// finished notes that the check of a pull request's newest commit is.
func (r *Reviewer) finished(p pull) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.surveyed[p.number] = p.head
}

// attempt looks at a pull request, and says what becomes of it.
func (r *Reviewer) attempt(parent context.Context, number int) {
	ctx, again := r.queue.take(parent, number)
	logger := r.o.Logger.With("pull", number)
	err := r.review(parent, ctx, logger, number, again)
	if parent.Err() != nil {
		r.queue.done(number, false, false)
		return
	}
	cause := context.Cause(ctx)
	if err == nil || errors.Is(cause, errSuperseded) || errors.Is(cause, errClosed) {
		r.queue.done(number, false, false)
		return
	}
	var moved *movedError
	if errors.As(err, &moved) {
		r.queue.done(number, false, false)
		if err := r.queue.add(number, moved.to, false); err != nil {
			logger.Warn("the newest commit is looked at later", "err", err)
		}
		return
	}
	r.metrics.failures.Inc()
	if wait, ok := r.queue.done(number, true, again); ok {
		logger.Warn("a pull request could not be looked at; trying again", "err", github.Describe(err), "after", wait)
	} else {
		logger.Error("a pull request could not be looked at", "err", github.Describe(err), "again", "with the next survey")
	}
}

// A pull is a pull request as it is at a moment.
type pull struct {
	number int
	head   string // commit
	open   bool
}

func (r *Reviewer) pull(ctx context.Context, number int) (pull, error) {
	p, _, err := r.o.Client.PullRequests.Get(ctx, r.owner, r.name, number)
	if err != nil {
		return pull{}, err
	}
	found := pull{number: number, head: p.GetHead().GetSHA(), open: p.GetState() == "open"}
	if !commitHash.MatchString(found.head) {
		return pull{}, fmt.Errorf("the head %.100q of pull request %d is no commit", found.head, number)
	}
	return found, nil
}

// movedError says that a pull request has got another commit meanwhile.
type movedError struct{ to string }

func (e *movedError) Error() string { return "the pull request has a newer commit" }

// review looks at a pull request once. What is written does not end with looking, which ends where there is
// something newer: a check that was begun is finished, one way or the other.
func (r *Reviewer) review(ctx, looking context.Context, logger *slog.Logger, number int, again bool) error {
	p, err := r.pull(ctx, number)
	if github.Status(err) == http.StatusNotFound {
		return nil // of another repository, or gone
	}
	if err != nil || !p.open {
		return err
	}
	r.queue.at(number, p.head)
	begun := time.Now()
	check, err := r.begin(ctx, p, again)
	if err != nil {
		return err
	}
	if check == nil { // another process has looked
		r.finished(p)
		return nil
	}
	report, err := r.look(looking, p)
	var moved *movedError
	if cause := context.Cause(looking); err != nil && (errors.As(err, &moved) || errors.Is(cause, errSuperseded) || errors.Is(cause, errClosed)) {
		r.abandon(ctx, check, cause)
		return err
	}
	if err != nil {
		return err
	}
	if err := r.finish(ctx, check, report); err != nil {
		return err
	}
	r.finished(p)
	r.metrics.reviews.WithLabelValues(report.conclusion()).Inc()
	logger.Info("pull request looked at", "commit", p.head, "files", len(report.files), "conclusion", report.conclusion(), "said", report.title(), "took", time.Since(begun).Round(time.Millisecond))
	return nil
}
