// Package purge tells the cache in front of Larder what it must not answer with any
// longer. Files are published to be kept for a year, so a withdrawal that only Larder
// knows of would show only to clients without a copy.
//
// Guarantees: every withdrawal in the log from the first start on leads to a call that
// was answered with success, whatever fails and whichever side restarts in between, or to that
// of a later withdrawal of the same release; calls are made at least once, a few at a
// time, and again after pauses that grow. The hook's URL, in which there may be a
// password, is in no error and no log.
//
// The package does not know what is served under which URL, nor whose cache it is.
package purge

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/internal/lazyregexp"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// Options configures a Purger. The first four are required.
type Options struct {
	Store *kvstore.Store
	Log   *logs.Log
	Hook  Hook
	// URLs returns what a release's files, by path, were served under. Where the hook
	// does not need a host, it may be any.
	URLs func(name, version string, files []string) []string
	// UserAgent is sent with every call; default "larder".
	UserAgent string
	// Timeout bounds a call; default 30 s.
	Timeout time.Duration
	// Pause is the pause after the first failure, doubled after each further one up to
	// an hour; default 5 s.
	Pause  time.Duration
	Logger *slog.Logger
}

// A Job is a withdrawal that was not sent to the purge hook yet.
type Job struct {
	Entry    int64        `json:"entry"` // of the withdrawal
	Package  string       `json:"package"`
	Version  string       `json:"version"`
	Reason   string       `json:"reason"`
	Time     time.Time    `json:"time"`
	Manifest kvstore.Hash `json:"manifest"`
	// Done counts the URLs that need not be purged again, by the hook with this id.
	Done     int       `json:"done,omitempty"`
	Hook     string    `json:"hook,omitempty"`
	Attempts int       `json:"attempts,omitempty"` // that failed
	Problem  string    `json:"problem,omitempty"`  // of the last one
	Next     time.Time `json:"next,omitzero"`      // of the next one
}

// The rows, in the Queue namespace: one for the next entry of the log to be looked at,
// and one for each job.
var (
	cursorKey = []byte("P")
	jobs      = []byte("p")
)

// Prefixes are those of the rows, for copies.
var Prefixes = [][]byte{cursorKey, jobs}

func (j Job) key() []byte { return binary.BigEndian.AppendUint64(jobs[:1:1], uint64(j.Entry)) }

// Pending returns the jobs in a store, oldest first.
func Pending(r kvstore.Reader) ([]Job, error) {
	all := []Job{}
	for item, err := range r.Scan(kvstore.Queue, kvstore.Range{Prefix: jobs}) {
		if err != nil {
			return nil, fmt.Errorf("purge: couldn't read the pending purges: %w", err)
		}
		var j Job
		if err := json.Unmarshal(item.Value, &j); err != nil {
			return nil, fmt.Errorf("purge: the row %x is malformed: %w", item.Key, err)
		}
		all = append(all, j)
	}
	return all, nil
}

// Known reports whether a Purger was ever at work on a store: then the next one learns
// of what is withdrawn until it starts.
func Known(r kvstore.Reader) (bool, error) {
	_, err := r.Get(kvstore.Queue, cursorKey)
	if errors.Is(err, kvstore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// A Purger calls the hook for every withdrawal. There must be one for a store.
type Purger struct {
	Options
	client *http.Client
	cursor int64
}

// longestPause is the longest pause between two attempts.
const longestPause = time.Hour

// New returns a purger that learns of what is withdrawn from its first start on.
func New(o Options) (*Purger, error) {
	o.UserAgent = cmp.Or(o.UserAgent, "larder")
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.Pause = cmp.Or(o.Pause, 5*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	p := &Purger{Options: o, client: &http.Client{
		Timeout: o.Timeout,
		// A redirected PURGE would become a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	row, err := o.Store.Get(kvstore.Queue, cursorKey)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		p.cursor = o.Log.Checkpoint().Size
		if err := p.write(func(*kvstore.Batch) error { return nil }); err != nil {
			// Such as a full disk, with which nothing can be withdrawn either.
			p.Logger.Warn("couldn't note from where on withdrawals are purged", "entry", p.cursor, "err", err)
		}
		return p, nil
	case err != nil:
		return nil, fmt.Errorf("purge: %w", err)
	case len(row) != 8:
		return nil, fmt.Errorf("purge: the row of the next entry is malformed: %x", row)
	}
	p.cursor = int64(binary.BigEndian.Uint64(row))
	return p, nil
}

// write commits what fn adds, and the cursor.
func (p *Purger) write(fn func(*kvstore.Batch) error) error {
	b := p.Store.NewBatch()
	defer b.Close()
	if err := fn(b); err != nil {
		return err
	}
	b.Set(kvstore.Queue, cursorKey, binary.BigEndian.AppendUint64(nil, uint64(p.cursor)))
	return b.Commit()
}

func (p *Purger) save(j Job) error {
	return p.write(func(b *kvstore.Batch) error { return setJob(b, j) })
}

func setJob(b *kvstore.Batch, j Job) error {
	data, err := json.Marshal(j)
	if err != nil {
		return err
	}
	b.Set(kvstore.Queue, j.key(), data)
	return nil
}

// Run follows the log until ctx ends.
func (p *Purger) Run(ctx context.Context) {
	for ctx.Err() == nil {
		next, err := p.round(ctx)
		if err != nil && ctx.Err() == nil {
			p.Logger.Error("couldn't store the state of pending purges; trying again", "err", err, "after", p.Pause)
			next = time.Now().Add(p.Pause)
		}
		wait, cancel := ctx, context.CancelFunc(func() {})
		if !next.IsZero() {
			wait, cancel = context.WithDeadline(ctx, next)
		}
		if err == nil {
			_, _ = p.Log.Wait(wait, p.cursor) // until there is more, or a job is due
		} else {
			<-wait.Done()
		}
		cancel()
	}
}

// round takes up what was withdrawn and does what is due. It returns when the next job
// is, zero for never.
func (p *Purger) round(ctx context.Context) (next time.Time, err error) {
	if err := p.takeUp(); err != nil {
		return next, err
	}
	pending, err := Pending(p.Store)
	if err != nil {
		return next, err
	}
	for _, j := range pending {
		if j.Hook != p.Hook.id() {
			// The operator has corrected the hook, or moved to another cache.
			j.Hook, j.Done, j.Next = p.Hook.id(), 0, time.Time{}
		}
		if !j.Next.After(time.Now()) {
			if err := p.do(ctx, &j); err != nil {
				return next, err
			}
		}
		if !j.Next.IsZero() && (next.IsZero() || j.Next.Before(next)) {
			next = j.Next
		}
	}
	return next, nil
}

// A release is what two jobs may both be about.
type release struct{ name, version string }

func (j Job) release() release { return release{j.Package, j.Version} }

// takeUp makes jobs of the withdrawals that the log has from the cursor on. One that is withdrawn again, after it was
// restored, takes the place of what was left to do of it.
func (p *Purger) takeUp() error {
	from := p.cursor
	found := map[release]Job{}
	for e, err := range logs.Entries(p.Store, from) {
		if err != nil {
			return err
		}
		p.cursor = e.Index + 1
		if e.Kind == logs.Withdrawn {
			j := Job{Entry: e.Index, Package: e.Package, Version: e.Version, Reason: e.Reason, Time: e.Time, Manifest: e.Manifest}
			found[j.release()] = j
		}
	}
	if len(found) == 0 {
		return nil // the cursor is written with the next job
	}
	before, err := Pending(p.Store)
	if err != nil {
		p.cursor = from
		return err
	}
	err = p.write(func(b *kvstore.Batch) error {
		for _, j := range before {
			if _, again := found[j.release()]; again {
				b.Delete(kvstore.Queue, j.key())
			}
		}
		for _, j := range found {
			if err := setJob(b, j); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		p.cursor = from
	}
	return err
}

// do makes an attempt at a job. Afterwards it is done and its row is gone, or Next says
// when to try again. The error is for what could not be written down.
func (p *Purger) do(ctx context.Context, j *Job) error {
	err := p.call(ctx, j)
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // stopping is not a failure of the hook
	case err == nil:
		j.Next = time.Time{}
		p.Logger.Info("purged", "package", j.Package, "version", j.Version, "entry", j.Entry)
		return p.write(func(b *kvstore.Batch) error {
			b.Delete(kvstore.Queue, j.key())
			return nil
		})
	}
	j.Attempts++
	j.Problem = err.Error()
	j.Next = time.Now().Add(retry.After(j.Attempts, p.Pause, longestPause)).UTC()
	p.Logger.Warn("couldn't purge; trying again", "package", j.Package, "version", j.Version, "err", err, "attempts", j.Attempts, "next", j.Next)
	return p.save(*j)
}

// Calls for single URLs are made so many at once, and counted as done so many at a
// time.
const (
	callsAtOnce = 4
	callsAStep  = 64
)

func (p *Purger) call(ctx context.Context, j *Job) error {
	m, err := logs.ReadManifest(p.Store, j.Manifest)
	if err != nil {
		return err
	}
	files := make([]string, len(m.Files))
	for i, f := range m.Files {
		files[i] = f.Path
	}
	urls := p.URLs(j.Package, j.Version, files)
	if !p.Hook.Each() {
		return p.tell(ctx, j, urls)
	}
	for j.Done < len(urls) {
		step := urls[j.Done:min(len(urls), j.Done+callsAStep)]
		var g errgroup.Group
		g.SetLimit(callsAtOnce)
		for _, u := range step {
			g.Go(func() error { return p.purge(ctx, u) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
		j.Done += len(step)
		if err := p.save(*j); err != nil {
			return err
		}
	}
	return nil
}

// A notice is what a hook that is called once for each withdrawal gets.
type notice struct {
	Event   string    `json:"event"` // "withdrawn"
	Package string    `json:"package"`
	Version string    `json:"version"`
	Reason  string    `json:"reason"`
	Entry   int64     `json:"entry"` // of the log
	Time    time.Time `json:"time"`
	URLs    []string  `json:"urls"`
	Tags    []string  `json:"tags"` // one that all of the URLs' answers had, and nothing else
}

func (p *Purger) tell(ctx context.Context, j *Job, urls []string) error {
	body, err := json.Marshal(notice{
		Event: string(logs.Withdrawn), Package: j.Package, Version: j.Version, Reason: j.Reason,
		Entry: j.Entry, Time: j.Time, URLs: urls, Tags: []string{VersionTag(j.Package, j.Version)},
	})
	if err != nil {
		return err
	}
	to, err := p.Hook.expand("")
	if err != nil {
		return err
	}
	status, err := p.request(ctx, to, body)
	if err == nil && status/100 != 2 {
		err = statusError(to, status)
	}
	return err
}

func (p *Purger) purge(ctx context.Context, target string) error {
	to, err := p.Hook.expand(target)
	if err != nil {
		return err
	}
	status, err := p.request(ctx, to, nil)
	// Caches also say so where they had no copy.
	if err == nil && status/100 != 2 && status != http.StatusNotFound && status != http.StatusGone {
		err = statusError(to, status)
	}
	return err
}

// statusError names the host alone: the rest may be secret.
func statusError(to *url.URL, status int) error {
	return fmt.Errorf("%s answered %d %s", to.Host, status, http.StatusText(status))
}

func (p *Purger) request(ctx context.Context, to *url.URL, body []byte) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, p.Hook.method, to.String(), bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("couldn't make a request to %s", to.Host)
	}
	r.Header.Set("User-Agent", p.UserAgent)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := p.client.Do(r)
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the other part is the URL
	}
	if err != nil {
		return 0, fmt.Errorf("couldn't reach %s: %w", to.Host, err)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, 64<<10) // so that the connection can be used again
	return response.StatusCode, nil
}

// Placeholders in a hook's URL.
const (
	urlHolder  = "{url}"  // the whole URL
	pathHolder = "{path}" // its path, which begins with a slash
)

// A Hook is what to call. The zero value is none.
type Hook struct {
	method   string
	template string
}

// ParseHook reads a hook: a URL, with an HTTP method in front where that is not to be
// the default. One with {url} or {path} in it is called with the method PURGE for each
// URL, another once for each withdrawal, by POST, with JSON.
func ParseHook(s string) (Hook, error) {
	var h Hook
	fields := strings.Fields(s)
	switch len(fields) {
	case 1:
		h.template = fields[0]
	case 2:
		h.method, h.template = fields[0], fields[1]
	default:
		return h, errors.New("must be a URL, or an HTTP method and a URL")
	}
	switch {
	case h.method != "" && !methods.MatchString(h.method):
		return h, errors.New("begins with what is no HTTP method: write it in capitals, such as PURGE")
	case h.method != "" && !h.Each() && h.method != http.MethodPost && h.method != http.MethodPut:
		return h, errors.New("has neither {url} nor {path} in it, so JSON is sent to it: by POST or PUT")
	case strings.Contains(h.template, "/"+pathHolder):
		return h, errors.New("has a slash before {path}, which begins with one itself: leave that out, or no cache finds what is meant")
	case h.method == "" && h.Each():
		h.method = "PURGE"
	case h.method == "":
		h.method = http.MethodPost
	}
	if _, err := h.expand("https://example.com/ajax/libs/a/1/a.js"); err != nil {
		return h, err
	}
	return h, nil
}

var methods = lazyregexp.New(`^[A-Z]{1,20}$`)

// Each reports whether the hook is called for each URL.
func (h Hook) Each() bool {
	return strings.Contains(h.template, urlHolder) || strings.Contains(h.template, pathHolder)
}

// NeedsHost reports whether the hook needs complete URLs, and paths are not enough.
func (h Hook) NeedsHost() bool { return !h.Each() || strings.Contains(h.template, urlHolder) }

// expand returns the hook's URL for a purge target. Its errors do not repeat the hook, which may contain a password.
func (h Hook) expand(target string) (*url.URL, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("%q is not a URL to purge", target)
	}
	path := u.EscapedPath()
	front, query, hasQuery := strings.Cut(h.template, "?")
	if rest, ok := strings.CutPrefix(front, urlHolder); ok {
		front = target + strings.ReplaceAll(rest, urlHolder, url.PathEscape(target))
	} else {
		front = strings.ReplaceAll(front, urlHolder, url.PathEscape(target))
	}
	expanded := strings.ReplaceAll(front, pathHolder, path)
	if hasQuery {
		query = strings.ReplaceAll(query, urlHolder, url.QueryEscape(target))
		expanded += "?" + strings.ReplaceAll(query, pathHolder, url.QueryEscape(path))
	}
	if strings.ContainsAny(expanded, "{}") {
		return nil, errors.New("may have {url} and {path} in braces, and nothing else")
	}
	called, err := url.Parse(expanded)
	if err != nil || called.Host == "" || called.Scheme != "http" && called.Scheme != "https" {
		return nil, errors.New("must be an http or https URL with a host")
	}
	return called, nil
}

// id tells this hook from others without giving it away.
func (h Hook) id() string { return kvstore.Sum([]byte(h.method + " " + h.template)).String()[:16] }
