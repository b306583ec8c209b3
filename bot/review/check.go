package review

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	gogithub "github.com/google/go-github/v60/github"

	"github.com/larder-cdn/larder/github"
	"github.com/larder-cdn/larder/packages/lint"
)

// A check is where the report about a commit goes: a check run, or a commit status where GitHub takes no
// check run of us.
type check struct {
	commit string
	id     int64 // of the check run; 0: a commit status
}

// batch is how many annotations GitHub takes in a request.
const batch = 50

// begin makes the check of a pull request's commit, or takes up one that was begun. It is nil where there is
// a finished one already, unless it is wanted again.
func (r *Reviewer) begin(ctx context.Context, p pull, again bool) (*check, error) {
	if r.statuses.Load() {
		return r.beginStatus(ctx, p, again)
	}
	last, err := r.lastRun(ctx, p)
	if err != nil {
		return nil, err
	}
	if last != nil {
		done := last.GetStatus() == "completed"
		switch {
		case done && last.GetConclusion() != "cancelled" && !again:
			return nil, nil
		case !done && last.GetOutput().GetAnnotationsCount() == 0:
			// "queued" where somebody asked for it again; else a process that ended before it was done.
			check := &check{p.head, last.GetID()}
			return check, r.update(ctx, check, gogithub.UpdateCheckRunOptions{Status: gogithub.String("in_progress"), Output: looking()})
		case !done:
			// GitHub adds annotations to those that are there, so another run has to take its place.
			if err := r.cancel(ctx, &check{p.head, last.GetID()}, "It is looked at anew."); err != nil {
				return nil, err
			}
		}
	}
	run, _, err := r.o.Client.Checks.CreateCheckRun(ctx, r.owner, r.name, gogithub.CreateCheckRunOptions{
		Name: Name, HeadSHA: p.head, ExternalID: gogithub.String(externalID(p.number)), Status: gogithub.String("in_progress"),
		StartedAt: &gogithub.Timestamp{Time: time.Now()}, Output: looking(),
	})
	if github.Status(err) == http.StatusForbidden {
		r.statuses.Store(true)
		r.o.Logger.Warn("GitHub takes no check runs, which only a GitHub App may write; commit statuses are written instead, which have no annotations", "err", github.Describe(err))
		return r.beginStatus(ctx, p, again)
	}
	if err != nil {
		return nil, err
	}
	return &check{p.head, run.GetID()}, nil
}

func looking() *gogithub.CheckRunOutput {
	return &gogithub.CheckRunOutput{Title: gogithub.String("Being looked at"), Summary: gogithub.String("The package JSON files and their upstreams are being looked at.")}
}

// lastRun returns the newest check run of a pull request's commit, nil where there is none.
func (r *Reviewer) lastRun(ctx context.Context, p pull) (last *gogithub.CheckRun, err error) {
	o := &gogithub.ListCheckRunsOptions{CheckName: gogithub.String(Name), Filter: gogithub.String("all"), ListOptions: gogithub.ListOptions{PerPage: 100}}
	found, _, err := r.o.Client.Checks.ListCheckRunsForRef(ctx, r.owner, r.name, p.head, o)
	if err != nil {
		return nil, err
	}
	for _, run := range found.CheckRuns {
		if run.GetExternalID() == externalID(p.number) && run.GetName() == Name && (last == nil || run.GetID() > last.GetID()) {
			last = run
		}
	}
	return last, nil
}

func (r *Reviewer) update(ctx context.Context, c *check, o gogithub.UpdateCheckRunOptions) error {
	o.Name = Name
	_, _, err := r.o.Client.Checks.UpdateCheckRun(ctx, r.owner, r.name, c.id, o)
	return err
}

// finish writes the report. A check is done only when all annotations are there.
func (r *Reviewer) finish(ctx context.Context, c *check, report *report) error {
	if c.id == 0 {
		return r.finishStatus(ctx, c, report)
	}
	title, text := report.title(), cmp.Or(report.summary(), "Nothing was found.")
	annotations, _ := report.annotations()
	for len(annotations) > batch {
		o := gogithub.UpdateCheckRunOptions{Status: gogithub.String("in_progress"), Output: &gogithub.CheckRunOutput{Title: &title, Summary: &text, Annotations: annotations[:batch]}}
		if err := r.update(ctx, c, o); err != nil {
			return err
		}
		annotations = annotations[batch:]
	}
	return r.update(ctx, c, gogithub.UpdateCheckRunOptions{
		Status: gogithub.String("completed"), Conclusion: gogithub.String(report.conclusion()), CompletedAt: &gogithub.Timestamp{Time: time.Now()},
		Output: &gogithub.CheckRunOutput{Title: &title, Summary: &text, Annotations: annotations},
	})
}

// abandon says of a check that nobody is at it any more.
func (r *Reviewer) abandon(ctx context.Context, c *check, cause error) {
	why := "A newer commit is looked at instead."
	if cause == errClosed {
		why = "The pull request was closed."
	}
	if err := r.cancel(ctx, c, why); err != nil {
		r.o.Logger.Warn("a check stays as if somebody were at it", "commit", c.commit, "err", github.Describe(err))
	}
}

func (r *Reviewer) cancel(ctx context.Context, c *check, why string) error {
	if c.id == 0 {
		return r.status(ctx, c.commit, "error", why)
	}
	return r.update(ctx, c, gogithub.UpdateCheckRunOptions{
		Status: gogithub.String("completed"), Conclusion: gogithub.String("cancelled"), CompletedAt: &gogithub.Timestamp{Time: time.Now()},
		Output: &gogithub.CheckRunOutput{Title: gogithub.String("Not looked at to the end"), Summary: &why},
	})
}

// beginStatus is begin where there are no check runs.
func (r *Reviewer) beginStatus(ctx context.Context, p pull, again bool) (*check, error) {
	if !again {
		o := &gogithub.ListOptions{PerPage: 100}
		found, _, err := r.o.Client.Repositories.GetCombinedStatus(ctx, r.owner, r.name, p.head, o)
		if err != nil {
			return nil, err
		}
		for _, s := range found.Statuses {
			if state := s.GetState(); s.GetContext() == Name && (state == success || state == failure) {
				return nil, nil
			}
		}
	}
	return &check{commit: p.head}, r.status(ctx, p.head, "pending", "The package JSON files and their upstreams are being looked at.")
}

func (r *Reviewer) finishStatus(ctx context.Context, c *check, report *report) error {
	state := report.conclusion()
	if state == neutral {
		state = success
	}
	text := report.title()
	if annotations, _ := report.annotations(); state == failure && len(annotations) > 0 {
		first := annotations[0]
		text += fmt.Sprintf("; %s:%d: %s", lint.Plain(first.GetPath()), first.GetStartLine(), first.GetMessage())
	}
	return r.status(ctx, c.commit, state, text)
}

// status writes a commit status.
func (r *Reviewer) status(ctx context.Context, commit, state, description string) error {
	const most = 140 // of GitHub's
	_, _, err := r.o.Client.Repositories.CreateStatus(ctx, r.owner, r.name, commit, &gogithub.RepoStatus{
		State: &state, Context: gogithub.String(Name), Description: gogithub.String(clip(description, most)),
	})
	return err
}
