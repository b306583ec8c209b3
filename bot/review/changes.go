package review

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	gogithub "github.com/google/go-github/v60/github"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/bot/github"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/lint"
)

// What is read of a pull request. Beyond that it is not looked at, and does not pass.
const (
	mostChanged = 3000     // files; GitHub tells of no more
	mostFiles   = 200      // package JSON files
	mostBytes   = 16 << 20 // of all of them
)

// changes are what a pull request changes.
type changes struct {
	files   []*file  // package JSON files that it adds or changes
	removed []string // package JSON files that it removes
	other   []string // files that are not looked at here
	left    int      // package JSON files over the limits
	cut     bool     // there may be more than GitHub tells
}

// A file is a package JSON file of a pull request.
type file struct {
	path  string
	blob  string // its hash in git
	isNew bool   // the catalogue does not have it yet
	data  []byte
	// unreadable says why data is not there, "" where it is.
	unreadable string
}

// isPackageFile tells whether a catalogue takes a file for a package JSON.
func isPackageFile(name string) bool {
	return strings.HasPrefix(name, "packages/") && path.Ext(name) == ".json" && !strings.Contains(name, "/.")
}

// changes asks what a pull request changes, without reading any of it.
func (r *Reviewer) changes(ctx context.Context, number int) (*changes, error) {
	c := &changes{}
	total := 0
	o := &gogithub.ListOptions{PerPage: 100}
	for o.Page = 1; total < mostChanged; o.Page++ {
		files, _, err := r.o.Client.PullRequests.ListFiles(ctx, r.owner, r.name, number, o)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			c.add(f)
		}
		total += len(files)
		if len(files) < o.PerPage {
			return c, nil
		}
	}
	c.cut = true
	return c, nil
}

func (c *changes) add(f *gogithub.CommitFile) {
	name := f.GetFilename()
	// What GitHub calls renamed is one file that goes and one that comes, which may have changed, too.
	if before := f.GetPreviousFilename(); f.GetStatus() == "renamed" && isPackageFile(before) {
		c.removed = append(c.removed, before)
	}
	switch {
	case !isPackageFile(name):
		c.other = append(c.other, name)
	case f.GetStatus() == "removed":
		c.removed = append(c.removed, name)
	case len(c.files) == mostFiles:
		c.left++
	default:
		isNew := f.GetStatus() == "added" || f.GetStatus() == "renamed" || f.GetStatus() == "copied"
		c.files = append(c.files, &file{path: name, blob: f.GetSHA(), isNew: isNew})
	}
}

// read reads the files as they are at a commit.
func (r *Reviewer) read(ctx context.Context, c *changes, commit string) error {
	total := 0
	for i, f := range c.files {
		if total > mostBytes {
			c.left += len(c.files) - i
			c.files = c.files[:i]
			return nil
		}
		if err := r.readFile(ctx, f, commit); err != nil {
			return fmt.Errorf("couldn't read a file of the submission: %w", err)
		}
		total += len(f.data)
	}
	return nil
}

// readFile asks for one file. GitHub's answer has no content of more than 1 MiB, which is what a package
// JSON may have; and about a link it tells what the link leads to, which shows in the hash.
func (r *Reviewer) readFile(ctx context.Context, f *file, commit string) error {
	segments := strings.Split(f.path, "/")
	for i, s := range segments {
		if s == "" || s == "." || s == ".." {
			f.unreadable = "its path cannot be asked for"
			return nil
		}
		segments[i] = url.PathEscape(s)
	}
	request, err := r.o.Client.NewRequest(http.MethodGet, fmt.Sprintf("repos/%s/%s/contents/%s?ref=%s", r.owner, r.name, strings.Join(segments, "/"), commit), nil)
	if err != nil {
		return err
	}
	var answer struct {
		Type, SHA, Encoding, Content string
		Size                         int64
	}
	_, err = r.o.Client.Do(ctx, request, &answer)
	switch {
	case github.Status(err) == http.StatusNotFound:
		f.unreadable = "GitHub does not have it at this commit"
	case err != nil:
		return err
	case answer.Type != "file" || answer.SHA != f.blob:
		f.unreadable = "it is a link or something else that is no regular file; only regular files are read"
	case answer.Encoding != "base64" || answer.Size > packages.MaxFileSize:
		f.unreadable = fmt.Sprintf("it has %d bytes; a package JSON has %d at most", answer.Size, packages.MaxFileSize)
	default:
		if f.data, err = base64.StdEncoding.DecodeString(answer.Content); err != nil { // line breaks in it do not matter
			return errors.New("GitHub's answer has broken base64 in it")
		}
	}
	return nil
}

// seen remembers the newest deliveries, by their ids and by what they say: the id is not signed, so a client that
// sends again what GitHub sent can choose another.
type seen struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]bool
	order [][sha256.Size]byte // a ring
	next  int
}

func newSeen(most int) *seen {
	return &seen{known: map[[sha256.Size]byte]bool{}, order: make([][sha256.Size]byte, 2*most)}
}

func keysOf(d github.Delivery) [2][sha256.Size]byte {
	return [2][sha256.Size]byte{sha256.Sum256([]byte("id " + d.ID)), sha256.Sum256(append([]byte("payload "+d.Event+" "), d.Payload...))}
}

// first reports whether a delivery comes for the first time.
func (s *seen) first(d github.Delivery) bool {
	keys := keysOf(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.ID != "" && s.known[keys[0]] || s.known[keys[1]] {
		return false
	}
	for _, key := range keys {
		delete(s.known, s.order[s.next])
		s.order[s.next], s.known[key] = key, true
		s.next = (s.next + 1) % len(s.order)
	}
	return true
}

// forget lets a delivery come again that could not be taken.
func (s *seen) forget(d github.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keysOf(d) {
		delete(s.known, key)
	}
}

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
			// "queued" where a person asked for it again; else a process that ended before it was done.
			check := &check{p.head, last.GetID()}
			return check, r.update(ctx, check, gogithub.UpdateCheckRunOptions{Status: new("in_progress"), Output: looking()})
		case !done:
			// GitHub adds annotations to those that are there, so another run has to take its place.
			if err := r.cancel(ctx, &check{p.head, last.GetID()}, "It is looked at anew."); err != nil {
				return nil, err
			}
		}
	}
	run, _, err := r.o.Client.Checks.CreateCheckRun(ctx, r.owner, r.name, gogithub.CreateCheckRunOptions{
		Name: Name, HeadSHA: p.head, ExternalID: new(externalID(p.number)), Status: new("in_progress"),
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
	return &gogithub.CheckRunOutput{Title: new("Being looked at"), Summary: new("The package JSON files and their upstreams are being looked at.")}
}

// lastRun returns the newest check run of a pull request's commit, nil where there is none.
func (r *Reviewer) lastRun(ctx context.Context, p pull) (last *gogithub.CheckRun, err error) {
	o := &gogithub.ListCheckRunsOptions{CheckName: new(Name), Filter: new("all"), ListOptions: gogithub.ListOptions{PerPage: 100}}
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
		o := gogithub.UpdateCheckRunOptions{Status: new("in_progress"), Output: &gogithub.CheckRunOutput{Title: &title, Summary: &text, Annotations: annotations[:batch]}}
		if err := r.update(ctx, c, o); err != nil {
			return err
		}
		annotations = annotations[batch:]
	}
	return r.update(ctx, c, gogithub.UpdateCheckRunOptions{
		Status: new("completed"), Conclusion: new(report.conclusion()), CompletedAt: &gogithub.Timestamp{Time: time.Now()},
		Output: &gogithub.CheckRunOutput{Title: &title, Summary: &text, Annotations: annotations},
	})
}

// abandon says of a check that it is not worked on any more.
func (r *Reviewer) abandon(ctx context.Context, c *check, cause error) {
	why := "A newer commit is looked at instead."
	if cause == errClosed {
		why = "The pull request was closed."
	}
	if err := r.cancel(ctx, c, why); err != nil {
		r.o.Logger.Warn("a check stays marked as in progress", "commit", c.commit, "err", github.Describe(err))
	}
}

func (r *Reviewer) cancel(ctx context.Context, c *check, why string) error {
	if c.id == 0 {
		return r.status(ctx, c.commit, "error", why)
	}
	return r.update(ctx, c, gogithub.UpdateCheckRunOptions{
		Status: new("completed"), Conclusion: new("cancelled"), CompletedAt: &gogithub.Timestamp{Time: time.Now()},
		Output: &gogithub.CheckRunOutput{Title: new("Not looked at to the end"), Summary: &why},
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
		State: &state, Context: new(Name), Description: new(clip(description, most)),
	})
	return err
}

type metrics struct {
	reviews  *prometheus.CounterVec
	failures prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer, waiting func() int) metrics {
	m := metrics{
		prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "larder_reviews_total",
			Help: "Commits of pull requests that were looked at, by the conclusion.",
		}, []string{"conclusion"}),
		prometheus.NewCounter(prometheus.CounterOpts{
			Name: "larder_review_failures_total",
			Help: "Attempts to look at a pull request that failed, most of them because GitHub could not be asked.",
		}),
	}
	if registerer != nil {
		registerer.MustRegister(m.reviews, m.failures, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_reviews_waiting",
			Help: "Pull requests that are being looked at or are going to be.",
		}, func() float64 { return float64(waiting()) }))
	}
	return m
}
