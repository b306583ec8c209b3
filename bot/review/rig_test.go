package review

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/github"
	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/internal/testkit/githubtest"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
	"github.com/larder-cdn/larder/packages"
)

const (
	secret    = "a secret of sixteen bytes or more"
	token     = "ghs_0123456789"
	catalogue = "example/catalogue"
	fork      = "contributor/catalogue"
)

// file is a package JSON as it should be; pairs change it.
func packageJSON(t testing.TB, name string, pairs ...string) string {
	t.Helper()
	text := fmt.Sprintf(`{
  "name": %q,
  "filename": "slider.js",
  "description": "Slides.",
  "keywords": [
    "slider"
  ],
  "homepage": "https://slider.example/",
  "license": "MIT",
  "repository": {
    "type": "git",
    "url": "https://git.example/owner/%[1]s.git"
  },
  "autoupdate": {
    "source": "npm",
    "target": %[1]q,
    "fileMap": [
      {
        "basePath": "dist",
        "files": [
          "*.js"
        ]
      }
    ]
  }
}
`, name)
	for i := 0; i < len(pairs); i += 2 {
		changed := strings.ReplaceAll(text, pairs[i], pairs[i+1])
		if changed == text {
			t.Fatalf("%q changes nothing", pairs[i])
		}
		text = changed
	}
	return text
}

// rig is a catalogue at GitHub, a fork of it, and a reviewer of the former.
type rig struct {
	t        testing.TB
	hub      *githubtest.Server
	base     *gittest.Repository
	fork     *gittest.Repository
	files    gittest.Files // of the catalogue
	options  Options
	reviewer *Reviewer
	now      time.Time
	sent     int
	before   func(*http.Request) // is called with each request to GitHub before it is answered; may be nil
}

func newRig(t testing.TB, change func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, hub: githubtest.New(token), now: time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC)}
	if err := r.hub.Add(catalogue, t.TempDir(), "main"); err != nil {
		t.Fatal(err)
	}
	r.base = gittest.Use(t, r.hub.Repository(catalogue))
	r.files = gittest.Files{
		"README.md":                   "# A catalogue\n",
		"packages/o/old.json":         packageJSON(t, "old"),
		"packages/k/known.json":       packageJSON(t, "known"),
		"packages/u/unused/NOTES.txt": "x",
	}
	r.base.Commit(r.tick(), r.files)
	if err := r.hub.Fork(catalogue, fork, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	r.fork = gittest.Use(t, r.hub.Repository(fork))
	r.options = Options{Client: r.client(), Repository: catalogue, Look: lookAt, Tag: func(name, version, file string, integrity *Integrity) string {
		return fmt.Sprintf("<tag %s/%s/%s %v>", name, version, file, integrity)
	}}
	if change != nil {
		change(&r.options)
	}
	r.restart()
	return r
}

func (r *rig) client() *github.Client {
	client, err := github.New(github.Options{Token: token, Transport: transport{r}, Pause: time.Millisecond})
	if err != nil {
		r.t.Fatal(err)
	}
	return client
}

type transport struct{ *rig }

func (r transport) RoundTrip(q *http.Request) (*http.Response, error) {
	if r.before != nil {
		r.before(q)
	}
	return r.hub.RoundTrip(q)
}

func (r *rig) tick() time.Time {
	r.now = r.now.Add(time.Minute)
	return r.now
}

// restart makes another reviewer, which knows nothing.
func (r *rig) restart() {
	r.t.Helper()
	var err error
	r.options.Client = r.client()
	if r.reviewer, err = New(r.options); err != nil {
		r.t.Fatal(err)
	}
}

// run runs the reviewer until the test ends or stop is called.
func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	reviewer := r.reviewer
	go func() {
		reviewer.Run(ctx)
		close(done)
	}()
	stop = func() { cancel(); <-done }
	r.t.Cleanup(stop)
	return stop
}

// commit makes a commit in the fork: the catalogue's files, changed by pairs of path and content, where ""
// removes one.
func (r *rig) commit(pairs ...string) string {
	r.t.Helper()
	files := gittest.Files{}
	maps.Copy(files, r.files)
	for i := 0; i < len(pairs); i += 2 {
		if files[pairs[i]] = pairs[i+1]; pairs[i+1] == "" {
			delete(files, pairs[i])
		}
	}
	head := r.fork.Commit(r.tick(), files)
	r.hub.Notice()
	return head
}

// open opens a pull request of the fork's newest commit.
func (r *rig) open() int {
	r.t.Helper()
	number, err := r.hub.OpenPull(catalogue, fork, "main", "Add things")
	if err != nil {
		r.t.Fatal(err)
	}
	return number
}

func pullEvent(action string, number int, head string) map[string]any {
	return map[string]any{
		"action": action, "number": number,
		"pull_request": map[string]any{"number": number, "head": map[string]any{"sha": head}},
		"repository":   map[string]any{"full_name": catalogue},
	}
}

func payload(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// deliver sends an event to the reviewer's webhook.
func (r *rig) deliver(event string, v any) int {
	r.t.Helper()
	r.sent++
	return r.deliverAs(fmt.Sprint("delivery-", r.sent), secret, event, payload(r.t, v))
}

func (r *rig) deliverAs(id, secret, event string, payload []byte) int {
	r.t.Helper()
	request, err := githubtest.Delivery("http://hook.example/", secret, event, id, payload)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.send(request)
}

func (r *rig) send(request *http.Request) int {
	hook := &github.Webhook{Secret: secret, MaxBytes: 1 << 20, Take: r.reviewer.Take, Logger: slog.New(slog.DiscardHandler)}
	w := httptest.NewRecorder()
	hook.ServeHTTP(w, request)
	_, _ = io.Copy(io.Discard, w.Body)
	return w.Code
}

// only returns the check run of a commit, and fails where there is none or more than one.
func (r *rig) only(commit string) githubtest.Check {
	r.t.Helper()
	var found []githubtest.Check
	for _, c := range r.hub.Checks(catalogue) {
		if c.SHA == commit {
			found = append(found, c)
		}
	}
	if len(found) != 1 {
		r.t.Fatalf("commit %s has %d check runs: %+v", commit, len(found), found)
	}
	return found[0]
}

// lines writes annotations as "path:line:column level title".
func lines(annotations []githubtest.Annotation) string {
	var all []string
	for _, a := range annotations {
		column := 0
		if a.Column != nil {
			column = *a.Column
		}
		all = append(all, fmt.Sprintf("%s:%d:%d %s %s", a.Path, a.StartLine, column, a.Level, a.Title))
	}
	return strings.Join(all, "\n")
}

// lookAt is an upstream whose every package has one release with slider.js in dist.
func lookAt(_ context.Context, p *packages.Package, _ int) (*submission.Preview, error) {
	preview := &submission.Preview{Package: p, Latest: submission.Release{
		Version: submission.Version{Name: "2.0.0"}, Entries: 2, Sources: []string{"dist/slider.js", "package.json"},
		Files:     []packages.PlannedFile{{Path: "slider.js", Source: "dist/slider.js", Size: 5}, {Path: "slider.min.js", Source: "dist/slider.js", Minified: true}},
		Integrity: map[string][sha512.Size]byte{"slider.js": sha512.Sum512([]byte("slide"))},
		Default:   "slider.js",
	}}
	return preview, nil
}
