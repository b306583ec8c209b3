package gitlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/internal/testkit/githubtest"
	"github.com/larder-cdn/larder/logs/gitlog"
)

const token = "ghp_0123456789secret"

// A rig is a log, and a GitHub with one repository.
type rig struct {
	t      *testing.T
	hub    *githubtest.Server
	dir    string
	token  string
	branch string
	log    bytes.Buffer // of the pusher, which writes it from one goroutine

	mu      sync.Mutex
	changes []gitlog.Change
	grown   chan struct{}
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, hub: githubtest.New(token), dir: t.TempDir(), token: token, branch: "main", grown: make(chan struct{})}
	if err := r.hub.Add("example/logs", r.dir, "main"); err != nil {
		t.Fatal(err)
	}
	return r
}

// grow appends entries, two of three of which are about files of their own.
func (r *rig) grow(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range n {
		i := int64(len(r.changes))
		path := fmt.Sprintf("packages/%c/p%d/1.%d.0/publish.log", 'a'+rune(i%3), i%20, i)
		if i%3 == 0 {
			path = "packages/v/vue#1..2/_package/package-changed.log"
		}
		r.changes = append(r.changes, gitlog.Change{
			Index: i, Hash: fmt.Sprintf("hash%d", i), Time: time.Date(2026, 1, 2, 12, 0, 0, 250e6, time.UTC).Add(time.Duration(i) * time.Hour),
			Path: path, Subject: fmt.Sprintf("entry %d", i), Text: fmt.Sprintf("text %d\n", i),
		})
	}
	close(r.grown)
	r.grown = make(chan struct{})
}

func (r *rig) after(p gitlog.Position) iter.Seq2[gitlog.Change, error] {
	return func(yield func(gitlog.Change, error) bool) {
		r.mu.Lock()
		all := slices.Clone(r.changes)
		r.mu.Unlock()
		if p.Index >= int64(len(all)) || p.Index >= 0 && all[p.Index].Hash != p.Hash {
			yield(gitlog.Change{}, errors.New("it is another log's"))
			return
		}
		for _, c := range all[p.Index+1:] {
			if !yield(c, nil) {
				return
			}
		}
	}
}

func (r *rig) wait(ctx context.Context, p gitlog.Position) error {
	for {
		r.mu.Lock()
		size, grown := int64(len(r.changes)), r.grown
		r.mu.Unlock()
		if size > p.Index+1 {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *rig) pusher() (*gitlog.Pusher, *prometheus.Registry) {
	r.t.Helper()
	logger := slog.New(slog.NewTextHandler(&r.log, nil))
	client, err := git.NewGitHubClient(git.GitHubOptions{URL: "https://github.example/api/v3", Token: r.token, Transport: prefixed{r.hub}, Logger: logger})
	if err != nil {
		r.t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	return gitlog.NewPusher(gitlog.PushOptions{
		Client: client.HTTP, BaseURL: client.BaseURL, Remote: gitlog.Remote{Owner: "example", Name: "logs", Branch: r.branch},
		Changes: r.after, Wait: r.wait, Describe: git.DescribeGitHubError, Logger: logger, Registerer: registry,
	}), registry
}

// prefixed takes away where a GitHub Enterprise Server has its API.
type prefixed struct{ http.RoundTripper }

func (p prefixed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	path, ok := strings.CutPrefix(r.URL.Path, "/api/v3")
	if !ok {
		return nil, fmt.Errorf("%s is not below the base", r.URL)
	}
	r.URL.Path, r.URL.RawPath = path, strings.TrimPrefix(r.URL.RawPath, "/api/v3")
	return p.RoundTripper.RoundTrip(r)
}

// run has a pusher run until stop.
func (r *rig) run() (p *gitlog.Pusher, stop func()) {
	p, _ = r.pusher()
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx)
	}()
	return p, func() {
		cancel()
		<-done
	}
}

// hash is the last commit of a branch, "" where there is none.
func (r *rig) hash(branch string) string {
	r.t.Helper()
	opened, err := gogit.PlainOpen(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	ref, err := opened.Reference(plumbing.NewBranchReferenceName(branch), true)
	if err != nil {
		return ""
	}
	return ref.Hash().String()
}

// same holds the branch against what an export of so many entries makes: the last
// commit's hash is one of all commits, their messages, times and trees.
func (r *rig) same(n int) {
	r.t.Helper()
	if got, want := r.hash(r.branch), r.exported(n); got != want {
		r.t.Errorf("the branch is at %q and an export of %d entries at %s", got, n, want)
	}
}

// exports has the last commits of exports, by the text of what was exported. Most tests export the same changes.
var exports sync.Map

// exported returns the last commit of an export of n entries.
func (r *rig) exported(n int) string {
	r.t.Helper()
	changes := fmt.Sprint(r.changes[:n])
	if commit, ok := exports.Load(changes); ok {
		return commit.(string)
	}
	dir := filepath.Join(r.t.TempDir(), "export")
	export, err := gitlog.Open(dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range r.changes[:n] {
		if err := export.Add(c); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := export.Flush(); err != nil {
		r.t.Fatal(err)
	}
	opened, err := gogit.PlainOpen(dir)
	if err != nil {
		r.t.Fatal(err)
	}
	ref, err := opened.Reference(plumbing.NewBranchReferenceName(gitlog.Branch), true)
	if err != nil {
		r.t.Fatal(err)
	}
	exports.Store(changes, ref.Hash().String())
	return ref.Hash().String()
}

func (r *rig) count(method, path string) (n int) {
	for _, q := range r.hub.Requests() {
		if q.Method == method && strings.Contains(q.Path, path) {
			n++
		}
	}
	return n
}

func (r *rig) quiet() {
	r.t.Helper()
	if strings.Contains(r.log.String(), token) {
		r.t.Error("the token is in the log")
	}
}

func inBubble(t *testing.T, f func(*testing.T, *rig)) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		f(t, r)
		r.quiet()
	})
}

func TestCatchUpAndFollow(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, r *rig) {
		r.grow(130)
		p, stop := r.run()
		defer stop()
		time.Sleep(time.Hour)
		synctest.Wait()
		r.same(130)
		if got := p.State(); got != (gitlog.PushState{Entries: 130}) {
			t.Errorf("state: %+v", got)
		}
		if n := r.count("PATCH", "/git/refs/heads/main"); n != 3 {
			t.Errorf("the branch was moved %d times for 130 entries", n)
		}
		r.grow(2)
		time.Sleep(time.Minute)
		synctest.Wait()
		r.same(132)
		before := len(r.hub.Requests())
		time.Sleep(24 * time.Hour)
		if after := len(r.hub.Requests()); after != before {
			t.Errorf("%d requests while nothing happened", after-before)
		}
		var last time.Time
		for _, q := range r.hub.Requests() {
			if q.Method != "GET" {
				if d := q.Time.Sub(last); d < time.Second {
					t.Fatalf("a change %s after the last one", d)
				}
				last = q.Time
			}
		}
	})
}

// Each pusher is stopped after another time, in the middle of whatever it does.
func TestRestarts(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, r *rig) {
		r.grow(30)
		for i := range 30 {
			_, stop := r.run()
			time.Sleep(time.Duration(i) * 5 * time.Second)
			stop()
		}
		r.same(30)
	})
}

func TestNewBranch(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.grow(3)
		first, _ := r.pusher()
		if err := first.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.branch = "cdn/logs"
		p, registry := r.pusher()
		if err := p.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.same(3)
		if err := p.CatchUp(t.Context()); err != nil {
			t.Errorf("with nothing to do: %v", err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "larder_log_pushed_entries" {
				if got := f.GetMetric()[0].GetGauge().GetValue(); got != 3 {
					t.Errorf("%s is %v", f.GetName(), got)
				}
				return
			}
		}
		t.Error("the metrics do not tell how far it has come")
	})
}

func TestLargeFiles(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, r *rig) {
		r.grow(8)
		for _, i := range []int{1, 3, 6} {
			r.changes[i].Text = strings.Repeat("a long line\n", 100_000)
		}
		for range 2 { // the second finds nothing to do
			p, _ := r.pusher()
			if err := p.CatchUp(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		r.same(8)
		r.grow(2) // to a file that is too large to be told in JSON
		p, _ := r.pusher()
		if err := p.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.same(10)
	})
}

// Whatever fails passes, and leaves no trace in the history.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault githubtest.Fault
		told  string // in the log; "" where it is no failure
	}{
		{"first commit refused", githubtest.Fault{Method: "PUT", Times: 2, Status: 500}, "couldn't make the first commit: GitHub answered 500"},
		{"first commit's reply lost", githubtest.Fault{Method: "PUT", Times: 1, Lose: true}, "the connection was cut"},
		{"tree", githubtest.Fault{Path: "/git/trees", Skip: 4, Times: 1, Status: 502}, "entry 5: couldn't make a tree: GitHub answered 502 Bad Gateway"},
		{"commit's reply lost", githubtest.Fault{Path: "/git/commits", Skip: 7, Times: 1, Lose: true}, "couldn't make a commit: the connection was cut"},
		{"branch's reply lost", githubtest.Fault{Method: "PATCH", Times: 1, Lose: true}, "couldn't move the branch: the connection was cut"},
		{"branch refused", githubtest.Fault{Method: "PATCH", Times: 3, Status: 503, Message: "no server\nis there"}, "GitHub answered 503 Service Unavailable"},
		{"branch in conflict", githubtest.Fault{Method: "PATCH", Times: 1, Status: 422, Message: "Update is not a fast forward"}, "another writer has moved it, or it is protected"},
		{"reading", githubtest.Fault{Method: "GET", Times: 5, Status: 500}, "couldn't read the branch"},
		{"everything, now and then", githubtest.Fault{Skip: 9, Times: 4, Lose: true}, "the connection was cut"},
		{"moved", githubtest.Fault{Method: "GET", Path: "/git/ref/", Times: 1, Status: 301, Message: "Moved Permanently"}, "name it as it is called now"},
		{"secondary limit", githubtest.Fault{Path: "/git/trees", Skip: 3, Times: 2, Status: 403, Header: map[string]string{"Retry-After": "90"}, Message: "You have exceeded a secondary rate limit."}, ""},
		{"secondary limit without a time", githubtest.Fault{Path: "/git/commits", Skip: 3, Times: 3, Status: 429, Message: "Slow down."}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, r *rig) {
				r.grow(53)
				r.hub.Break(tt.fault)
				p, stop := r.run()
				time.Sleep(24 * time.Hour)
				stop()
				r.same(53)
				if got := p.State(); got.Problem != "" || got.Entries != 53 {
					t.Errorf("state: %+v", got)
				}
				told := strings.Count(r.log.String(), "level=ERROR")
				if tt.told == "" {
					if told > 0 {
						t.Errorf("a limit is a failure:\n%s", &r.log)
					}
				} else if told < 1 || !strings.Contains(r.log.String(), tt.told) {
					t.Errorf("not told of:\n%s", &r.log)
				}
			})
		})
	}
}

func TestPrimaryLimit(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, r *rig) {
		r.grow(53)
		r.hub.Limit(50, time.Hour)
		_, stop := r.run()
		time.Sleep(24 * time.Hour)
		stop()
		r.same(53)
		for _, q := range r.hub.Requests() {
			if q.Status == http.StatusForbidden {
				t.Error("was asked for more than it said there is")
			}
		}
		if strings.Contains(r.log.String(), "level=ERROR") || !strings.Contains(r.log.String(), "limit=primary") {
			t.Errorf("log:\n%s", &r.log)
		}
	})
}

// A failure that lasts is told once, and again when it is over.
func TestToldOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.grow(3)
		r.token = "ghp_wrong"
		p, stop := r.run()
		time.Sleep(24 * time.Hour)
		state := p.State()
		stop()
		if !strings.Contains(state.Problem, "GitHub answered 401 Unauthorized: Bad credentials; the token is wrong, or has expired") || state.Entries != -1 {
			t.Errorf("state: %+v", state)
		}
		if rest := time.Until(state.Next); rest <= 0 || time.Since(state.Since) < 23*time.Hour {
			t.Errorf("the next attempt is in %s, and it began at %s", rest, state.Since)
		}
		if n := strings.Count(r.log.String(), "level=ERROR"); n != 1 || strings.Contains(r.log.String(), "ghp_") {
			t.Errorf("told %d times:\n%s", n, &r.log)
		}
		if n := len(r.hub.Requests()); n < 24*4 || n > 24*20 {
			t.Errorf("%d attempts in a day", n)
		}
		r.token = token
		r.hub.Break(githubtest.Fault{Status: 500, Times: 3})
		_, stop = r.run()
		time.Sleep(time.Hour)
		stop()
		if n := strings.Count(r.log.String(), "the log is pushed again"); n != 1 {
			t.Errorf("told %d times that it is over:\n%s", n, &r.log)
		}
		r.same(3)
	})
}

// What somebody else commits to the branch is not overwritten.
func TestMovedBranch(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.grow(3)
		p, stop := r.run()
		time.Sleep(time.Minute)
		ours := r.hash("main")
		theirs := r.commit(ours)
		r.grow(1)
		time.Sleep(time.Hour)
		if got := r.hash("main"); got != theirs {
			t.Errorf("the branch is at %s, and %s is gone", got, theirs)
		}
		want := "the last commit of the branch, " + theirs + ", was not made by Larder; nothing is pushed there"
		if got := p.State(); !strings.Contains(got.Problem, want) {
			t.Errorf("state: %+v", got)
		}
		r.move(ours)
		time.Sleep(time.Hour)
		r.same(4)
		if got := p.State(); got.Problem != "" {
			t.Errorf("state: %+v", got)
		}
		stop()
	})
}

// commit makes a commit of somebody else's on the branch.
func (r *rig) commit(parent string) string {
	r.t.Helper()
	opened, err := gogit.PlainOpen(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	before, err := opened.CommitObject(plumbing.NewHash(parent))
	if err != nil {
		r.t.Fatal(err)
	}
	e := opened.Storer.NewEncodedObject()
	if err := (&object.Commit{Message: "mine", TreeHash: before.TreeHash, ParentHashes: []plumbing.Hash{before.Hash}}).Encode(e); err != nil {
		r.t.Fatal(err)
	}
	h, err := opened.Storer.SetEncodedObject(e)
	if err != nil {
		r.t.Fatal(err)
	}
	r.move(h.String())
	return h.String()
}

func (r *rig) move(to string) {
	r.t.Helper()
	opened, err := gogit.PlainOpen(r.dir)
	if err == nil {
		err = opened.Storer.SetReference(plumbing.NewHashReference(plumbing.NewBranchReferenceName(r.branch), plumbing.NewHash(to)))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(*rig)
		want string
	}{
		{"no such repository", func(r *rig) { r.hub.Break(githubtest.Fault{Status: 404, Message: "Not Found"}) }, "couldn't find the repository: GitHub answered 404 Not Found: Not Found; there is no such repository, or the token must not know of it"},
		{"read only", func(r *rig) {
			r.hub.Break(githubtest.Fault{Method: "PUT", Status: 403, Message: "Resource not accessible by personal access token"})
		}, "must be allowed to write the contents"},
		{"another default branch", func(r *rig) { r.branch = "trunk" }, "name it example/logs@main"},
		{"another log", func(r *rig) {
			p, _ := r.pusher()
			if err := p.CatchUp(r.t.Context()); err != nil {
				r.t.Fatal(err)
			}
			for i := range r.changes {
				r.changes[i].Hash = "other"
			}
		}, "it is another log's"},
		{"a folder where the file is to be", func(r *rig) {
			r.changes[0].Path, r.changes[1].Path = "a/b/c.log", "a/b"
		}, "entry 1: couldn't read a/b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				r.grow(2)
				tt.do(r)
				p, _ := r.pusher()
				if err := p.CatchUp(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), token) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

func TestParseRemote(t *testing.T) {
	for s, want := range map[string]gitlog.Remote{
		"example/logs":             {Owner: "example", Name: "logs", Branch: "main"},
		"example/logs.x@cdn":       {Owner: "example", Name: "logs.x", Branch: "cdn"},
		"e_x-1/l-o_gs@cdn/logs@v2": {Owner: "e_x-1", Name: "l-o_gs", Branch: "cdn/logs@v2"},
	} {
		if got, err := gitlog.ParseRemote(s); err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "logs", "/logs", "example/", "example/..", "example/.", "a/b/c", "example/logs@", "example/logs@a..b", "example/logs@a b", "example/logs@-x", "https://github.com/example/logs", "ex ample/logs", "example/logs@x.lock", "example/lo%2fgs"} {
		if got, err := gitlog.ParseRemote(s); err == nil {
			t.Errorf("%q is %+v", s, got)
		}
	}
}
