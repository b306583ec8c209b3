package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
)

// A cache is a cache in front of Larder, in a test's virtual time. It records the requests to its purge hook.
type cache struct {
	mu       sync.Mutex
	status   func(call string) int // 0 for no response
	calls    []string
	bodies   []string
	running  int
	parallel int // the most requests at once
}

// RoundTrip implements [http.RoundTripper].
func (c *cache) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	call := r.Method + " " + r.URL.RequestURI()
	c.mu.Lock()
	c.calls, c.bodies = append(c.calls, call), append(c.bodies, string(body))
	c.running++
	c.parallel = max(c.parallel, c.running)
	status := c.status(call)
	c.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Location": {"/elsewhere"}}, Body: http.NoBody, Request: r}, nil
}

func succeed(string) int { return http.StatusOK }

// takeCalls returns the calls since it was called last, in order.
func (c *cache) takeCalls() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := slices.Sorted(slices.Values(c.calls))
	c.calls = nil
	return calls
}

// A purgeRig is a store with releases, behind a cache.
type purgeRig struct {
	*testkit.Shelf
	t     *testing.T
	cache *cache
	log   testkit.Buffer
}

func newPurgeRig(t *testing.T, status func(string) int) *purgeRig {
	return &purgeRig{Shelf: testkit.NewShelfOver(t, openStore(t)), t: t, cache: &cache{status: status}}
}

// publish publishes a release with n files.
func (r *purgeRig) publish(name string, n int) {
	files := make(map[string]string, n)
	for i := range n {
		files[fmt.Sprintf("f%03d.js", i)] = "x"
	}
	r.Publish(name, "1.0.0", "", files)
}

// start runs a process with a purge hook until the test ends or stop is called.
func (r *purgeRig) start(hook string) (stop func()) {
	_, stop = r.open(hook)
	return stop
}

// open is start, and also returns the webhooks. With hook "" no purge hook is configured.
func (r *purgeRig) open(hook string) (w *Webhooks, stop func()) {
	r.t.Helper()
	var h PurgeHook
	var err error
	if hook != "" {
		h, err = ParsePurgeHook(hook)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	runtime := durable.New(r.Store, durable.Options{})
	w, err = OpenWebhooks(WebhookOptions{
		Runtime: runtime, Store: r.Store, Log: r.Log, Transport: r.cache, Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
		Purge: PurgeOptions{Hook: h, URLs: func(name, version string, files []string) (urls []string, tag string) {
			for _, f := range files {
				urls = append(urls, "https://cdn.example.com/ajax/libs/"+name+"/"+version+"/"+f)
			}
			return urls, "tag-" + name
		}},
	})
	if err == nil && hook != "" {
		err = w.AddPurgeHook(r.t.Context())
	}
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := runtime.Close(context.Background()); err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	return w, stop
}

// wantPending fails the test unless the pending purges have these reasons. It returns them.
func (r *purgeRig) wantPending(reasons ...string) []Purge {
	r.t.Helper()
	synctest.Wait()
	pending, err := ReadPurges(r.Store)
	if err != nil {
		r.t.Fatal(err)
	}
	var got []string
	for _, p := range pending {
		got = append(got, p.Reason)
	}
	if !slices.Equal(got, reasons) {
		r.t.Fatalf("pending: %q, want %q", got, reasons)
	}
	return pending
}

func TestPurgeOfEveryURL(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newPurgeRig(t, func(call string) int {
			if strings.Contains(call, "f007") {
				return http.StatusNotFound // the cache has no copy
			}
			return http.StatusOK
		})
		r.publish("old", 1)
		r.Withdraw("old", "1.0.0", "before there was a hook")
		r.publish("demo", 150)
		r.start("http://cache{path}")
		r.Withdraw("demo", "1.0.0", "by order")
		time.Sleep(time.Minute)
		r.wantPending()
		calls := r.cache.takeCalls()
		if len(calls) != 150 || calls[0] != "PURGE /ajax/libs/demo/1.0.0/f000.js" || len(slices.Compact(calls)) != 150 {
			t.Errorf("%d calls: %q", len(calls), calls)
		}
		if r.cache.parallel > maxPurgeRequests {
			t.Errorf("%d calls at once", r.cache.parallel)
		}
	})
}

func TestPurgeNotice(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newPurgeRig(t, succeed)
		r.publish("demo", 2)
		r.start("http://larder:word@cache/hook?key=1")
		r.Withdraw("demo", "1.0.0", "by order")
		if calls := r.cache.takeCalls(); !slices.Equal(calls, []string{"POST /hook?key=1"}) {
			t.Fatalf("called %q", calls)
		}
		var got map[string]any
		if err := json.Unmarshal([]byte(r.cache.bodies[0]), &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"event": "withdrawn", "package": "demo", "version": "1.0.0", "reason": "by order", "entry": 1.0, "time": "2024-02-29T12:30:45Z",
			"urls": []any{"https://cdn.example.com/ajax/libs/demo/1.0.0/f000.js", "https://cdn.example.com/ajax/libs/demo/1.0.0/f001.js"},
			"tags": []any{"tag-demo"},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("notice\n%v\nwant\n%v", got, want)
		}
	})
}

// A request that fails is repeated, for a month and by the next process, and delays no other release. URLs that were purged before the failure
// are not purged again.
func TestFailedPurgesAreRepeated(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		broken, failures := true, 0
		r := newPurgeRig(t, func(call string) int {
			if broken && strings.Contains(call, "f069") {
				failures++
				return []int{http.StatusInternalServerError, http.StatusFound, http.StatusForbidden, 0}[failures%4]
			}
			return http.StatusOK
		})
		r.publish("demo", 70)
		r.publish("next", 1)
		stop := r.start("http://cache/secret{path}")
		r.Withdraw("demo", "1.0.0", "by order")
		time.Sleep(time.Minute)
		r.Withdraw("next", "1.0.0", "by order too")
		time.Sleep(30 * 24 * time.Hour)
		p := r.wantPending("by order")[0]
		if p.Package != "demo" || p.Version != "1.0.0" || p.Done != 64 || p.Attempts < 24*30/2 || !p.Next.After(time.Now()) || !strings.Contains(p.Problem, "cache") {
			t.Errorf("pending %+v", p)
		}
		if text := r.log.String() + fmt.Sprintf("%+v", p); strings.Contains(text, "secret") {
			t.Errorf("the secret is in: %s", text)
		}
		stop()
		r.cache.mu.Lock()
		broken = false
		r.cache.mu.Unlock()
		r.start("http://cache/secret{path}")
		time.Sleep(2 * time.Hour)
		r.wantPending()
		times := make(map[string]int)
		for _, call := range r.cache.takeCalls() {
			times[call]++
		}
		for _, file := range []string{"demo/1.0.0/f000", "demo/1.0.0/f063", "next/1.0.0/f000"} {
			if n := times["PURGE /secret/ajax/libs/"+file+".js"]; n != 1 {
				t.Errorf("%s was purged %d times", file, n)
			}
		}
	})
}

// addMany adds 999 webhooks, without reading those that are there for each.
func addMany(ctx context.Context, s *durable.State) (response, error) {
	for i := range MaxWebhooks - 1 {
		id := fmt.Sprintf("webhook%04d", i)
		if err := durable.PutJSON(ctx, s, hookPrefix+id, hook{Webhook: Webhook{ID: id, URL: "https://hook.example/", Subject: Subject{Package: "other"}}}); err != nil {
			return response{}, err
		}
	}
	return response{}, nil
}

// A purge hook that the settings do not name any more is listed and can be removed, with its pending purges, and does not count against the
// limit of webhooks. One that they name cannot.
func TestRemovePurgeHook(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newPurgeRig(t, func(string) int { return http.StatusInternalServerError })
		r.publish("demo", 1)
		w, stop := r.open("http://cache{path}")
		r.Withdraw("demo", "1.0.0", "by order")
		r.wantPending("by order")
		if err := w.Remove(t.Context(), purgeHookID); err == nil || !strings.Contains(err.Error(), "--purge-hook") {
			t.Errorf("removing a purge hook that is configured: %v", err)
		}
		if _, err := w.send(t.Context(), addMany); err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.Add(t.Context(), "https://hook.example/", Subject{Package: "other"}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.Add(t.Context(), "https://hook.example/", Subject{Package: "other"}); err == nil {
			t.Error("more webhooks than MaxWebhooks")
		}
		if hooks, err := w.List(t.Context()); len(hooks) != MaxWebhooks || err != nil {
			t.Errorf("%d webhooks, %v", len(hooks), err)
		}
		stop()

		w, _ = r.open("")
		hooks, err := w.List(t.Context())
		if len(hooks) != MaxWebhooks+1 || err != nil || !slices.ContainsFunc(hooks, func(h Webhook) bool { return h.ID == purgeHookID }) {
			t.Errorf("%d webhooks, %v", len(hooks), err)
		}
		if err := w.Remove(t.Context(), purgeHookID); err != nil {
			t.Fatal(err)
		}
		r.wantPending()
		if has, err := HasPurgeHook(r.Store); has || err != nil {
			t.Errorf("purge hook: %v, %v", has, err)
		}
		if err := w.Remove(t.Context(), purgeHookID); !errors.Is(err, ErrNoWebhook) {
			t.Errorf("removing it again: %v", err)
		}
	})
}

// A process that is killed between taking over the purges of Larder 0.1.0 and adding the hook loses none that come before the next process.
func TestPurgesOfVersion010AfterKill(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newPurgeRig(t, succeed)
		r.publish("demo", 1)
		b := r.Store.NewBatch()
		defer b.Close()
		b.Set(kvstore.Queue, purgeCursor010, []byte{0, 0, 0, 0, 0, 0, 0, 1})
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		w, stop := r.open("")
		if _, err := w.takeOverPurges(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop()
		r.Withdraw("demo", "1.0.0", "by order")
		r.start("http://cache{path}")
		time.Sleep(time.Minute)
		if calls := r.cache.takeCalls(); !slices.Equal(calls, []string{"PURGE /ajax/libs/demo/1.0.0/f000.js"}) {
			t.Errorf("called %q", calls)
		}
	})
}

// A process purges what was withdrawn while none ran, and requests a corrected hook at once, for everything that is pending.
func TestPurgeAfterRestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newPurgeRig(t, func(call string) int {
			if strings.Contains(call, "?") {
				return 0
			}
			return http.StatusOK
		})
		r.publish("demo", 1)
		if has, err := HasPurgeHook(r.Store); has || err != nil {
			t.Errorf("purge hook: %v, %v", has, err)
		}
		r.start("http://cache/?{path}")()
		if has, err := HasPurgeHook(r.Store); !has || err != nil {
			t.Errorf("purge hook: %v, %v", has, err)
		}
		r.Withdraw("demo", "1.0.0", "by order")
		stop := r.start("http://cache/secret?{path}")
		time.Sleep(24 * time.Hour)
		stop()
		if log := r.log.String(); strings.Contains(log, "secret") || !strings.Contains(log, "refused") {
			t.Errorf("logged: %s", log)
		}
		r.wantPending("by order")
		r.cache.takeCalls()
		r.start("http://cache{path}")
		if calls := r.cache.takeCalls(); len(calls) != 1 || calls[0] != "PURGE /ajax/libs/demo/1.0.0/f000.js" {
			t.Errorf("called %q", calls)
		}
		time.Sleep(time.Second)
		r.wantPending()
	})
}

// A release that is withdrawn again after it was restored is purged once, and again if the first purge was complete.
func TestPurgeOfRepeatedWithdrawals(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		status := 0
		r := newPurgeRig(t, func(string) int { return status })
		r.publish("demo", 1)
		r.publish("next", 1)
		r.start("http://cache{path}")
		r.Withdraw("demo", "1.0.0", "the first reason")
		r.Withdraw("next", "1.0.0", "another release's")
		synctest.Wait()
		for _, reason := range []string{"the second reason", "the third reason"} {
			r.Restore("demo", "1.0.0", "a mistake")
			r.Withdraw("demo", "1.0.0", reason)
			time.Sleep(time.Second)
		}
		r.wantPending("another release's", "the third reason")
		r.cache.mu.Lock()
		status = http.StatusOK
		r.cache.mu.Unlock()
		time.Sleep(time.Hour)
		r.wantPending()
		r.cache.takeCalls()
		r.Restore("demo", "1.0.0", "a mistake")
		r.Withdraw("demo", "1.0.0", "the fourth reason")
		time.Sleep(time.Second)
		if calls := r.cache.takeCalls(); len(calls) != 1 {
			t.Errorf("called %q", calls)
		}
	})
}

// The purges that Larder 0.1.0 has left are sent, and those of entries that it has not read.
func TestPurgesOfVersion010(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newPurgeRig(t, succeed)
		for _, name := range []string{"done", "pending", "unread"} {
			r.publish(name, 1)
		}
		r.Withdraw("done", "1.0.0", "done")       // entry 3
		r.Withdraw("pending", "1.0.0", "pending") // entry 4
		entry, err := logs.ReadEntry(r.Store, 4)
		if err != nil {
			t.Fatal(err)
		}
		b := r.Store.NewBatch()
		defer b.Close()
		b.Set(kvstore.Queue, []byte("P"), []byte{0, 0, 0, 0, 0, 0, 0, 5})
		b.Set(kvstore.Queue, []byte("p\x00\x00\x00\x00\x00\x00\x00\x04"), fmt.Appendf(nil, `{"entry": 4, "package": "pending", "version": "1.0.0", "manifest": %q, "attempts": 3}`, entry.Manifest))
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		r.Withdraw("unread", "1.0.0", "unread") // entry 5
		r.start("http://cache{path}")()
		want := []string{"PURGE /ajax/libs/pending/1.0.0/f000.js", "PURGE /ajax/libs/unread/1.0.0/f000.js"}
		r.start("http://cache{path}")
		time.Sleep(time.Minute)
		if calls := slices.Compact(r.cache.takeCalls()); !slices.Equal(calls, want) {
			t.Errorf("called %q", calls)
		}
		r.wantPending()
		for item, err := range r.Store.Scan(kvstore.Queue, kvstore.Range{}) {
			t.Errorf("left: %q, %v", item.Key, err)
		}
	})
}
