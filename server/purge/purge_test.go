package purge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/server/purge"
)

// A cache is what stands in front of Larder, and takes down what it is told.
type cache struct {
	*httptest.Server
	mu     sync.Mutex
	status func(call string) int
	calls  []string
	bodies []string
	most   int // calls at once
	now    int
	told   chan struct{} // gets something after every call
}

func newCache(t *testing.T, status func(call string) int) *cache {
	c := &cache{status: status, told: make(chan struct{}, 1000)}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		call := r.Method + " " + r.URL.RequestURI()
		c.mu.Lock()
		c.calls, c.bodies = append(c.calls, call), append(c.bodies, string(body))
		if user, password, ok := r.BasicAuth(); ok {
			c.bodies[len(c.bodies)-1] += user + ":" + password
		}
		c.now++
		c.most = max(c.most, c.now)
		c.mu.Unlock()
		status := c.status(call)
		c.mu.Lock()
		c.now--
		c.mu.Unlock()
		if status/100 == 3 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
		c.told <- struct{}{}
	}))
	t.Cleanup(c.Close)
	return c
}

func fine(string) int { return http.StatusOK }

func (c *cache) seen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.calls))
}

func urls(name, version string, files []string) (all []string) {
	for _, f := range files {
		all = append(all, "https://cdn.example.com/ajax/libs/"+name+"/"+version+"/"+f)
	}
	return all
}

// start runs a purger until the test ends or stop is called.
func start(t *testing.T, s *testkit.Shelf, hook string, log io.Writer) (stop func()) {
	t.Helper()
	h, err := purge.ParseHook(hook)
	if err != nil {
		t.Fatal(err)
	}
	p, err := purge.New(purge.Options{
		Store: s.Store, Log: s.Log, Hook: h, URLs: urls, Pause: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// empty waits until nothing is to be purged.
func empty(t *testing.T, s *testkit.Shelf) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		jobs, err := purge.Pending(s.Store)
		if err != nil {
			t.Fatal(err)
		}
		if len(jobs) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still to be purged: %+v", jobs)
		}
	}
}

func await(t *testing.T, c *cache, n int) {
	t.Helper()
	for range n {
		select {
		case <-c.told:
		case <-time.After(time.Minute):
			t.Fatalf("called %q only", c.seen())
		}
	}
}

func files(n int) map[string]string {
	all := make(map[string]string, n)
	for i := range n {
		all[fmt.Sprintf("f%03d.js", i)] = "x"
	}
	return all
}

func TestEveryURL(t *testing.T) {
	s := testkit.NewShelf(t)
	s.Publish("old", "1.0.0", "", files(1))
	s.Withdraw("old", "1.0.0", "before there was a hook")
	s.Publish("demo", "1.0.0", "", files(150))
	c := newCache(t, func(call string) int {
		if strings.Contains(call, "f007") {
			return http.StatusNotFound // the cache does not have it
		}
		return http.StatusOK
	})
	start(t, s, "PURGE "+c.URL+"{path}", io.Discard)
	s.Withdraw("demo", "1.0.0", "by order")
	await(t, c, 150)
	empty(t, s)
	seen := c.seen()
	if len(seen) != 150 || seen[0] != "PURGE /ajax/libs/demo/1.0.0/f000.js" || len(slices.Compact(seen)) != 150 {
		t.Errorf("called %d times: %q", len(seen), seen)
	}
	if c.most > 4 {
		t.Errorf("%d calls at once", c.most)
	}
}

func TestOneNotice(t *testing.T) {
	s := testkit.NewShelf(t)
	s.Publish("demo", "1.0.0", "", files(2))
	c := newCache(t, fine)
	start(t, s, strings.Replace(c.URL, "//", "//larder:word@", 1)+"/hook?key=1", io.Discard)
	s.Withdraw("demo", "1.0.0", "by order")
	await(t, c, 1)
	empty(t, s)
	if got := c.seen(); !reflect.DeepEqual(got, []string{"POST /hook?key=1"}) {
		t.Fatalf("called %q", got)
	}
	body, ok := strings.CutSuffix(c.bodies[0], "larder:word")
	if !ok {
		t.Errorf("no credentials with %s", body)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"event": "withdrawn", "package": "demo", "version": "1.0.0", "reason": "by order", "entry": 1.0, "time": "2024-02-29T12:30:45Z",
		"urls": []any{"https://cdn.example.com/ajax/libs/demo/1.0.0/f000.js", "https://cdn.example.com/ajax/libs/demo/1.0.0/f001.js"},
		"tags": []any{"ver~demo~1.0.0"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("told\n%v\nwant\n%v", got, want)
	}
}

// A cache that fails is told again, also by the next process and through another hook;
// what it was told before the failure is not repeated.
func TestFailuresAreRepeated(t *testing.T) {
	s := testkit.NewShelf(t)
	s.Publish("demo", "1.0.0", "", files(70))
	s.Publish("next", "1.0.0", "", files(1))
	var mu sync.Mutex
	broken, failures := true, 0
	c := newCache(t, func(call string) int {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(call, "f069") && broken {
			failures++
			return []int{http.StatusInternalServerError, http.StatusFound, http.StatusForbidden}[failures%3]
		}
		return http.StatusOK
	})
	var log strings.Builder
	stop := start(t, s, c.URL+"/secret{path}", &log)
	s.Withdraw("demo", "1.0.0", "by order")
	for failed := 0; failed < 4; {
		await(t, c, 1)
		mu.Lock()
		failed = failures
		mu.Unlock()
	}
	s.Withdraw("next", "1.0.0", "by order too") // one that cannot be purged stops no other
	for !slices.Contains(c.seen(), "PURGE /secret/ajax/libs/next/1.0.0/f000.js") {
		await(t, c, 1)
	}
	stop()
	jobs, err := purge.Pending(s.Store)
	if err != nil || len(jobs) == 0 {
		t.Fatalf("%+v, %v", jobs, err)
	}
	j := jobs[0]
	if j.Package != "demo" || j.Version != "1.0.0" || j.Done != 64 || j.Attempts < 3 || j.Next.IsZero() || !strings.Contains(j.Problem, " answered ") {
		t.Errorf("job %+v", j)
	}
	if text := log.String() + fmt.Sprintf("%+v", jobs); strings.Contains(text, "secret") || !strings.Contains(text, "127.0.0.1") {
		t.Errorf("told: %s", text)
	}

	// The next process.
	mu.Lock()
	broken = false
	mu.Unlock()
	start(t, s, c.URL+"/secret{path}", io.Discard)
	empty(t, s)
	times := make(map[string]int)
	for _, call := range c.seen() {
		times[call]++
	}
	for _, file := range []string{"f000", "f063"} {
		if n := times["PURGE /secret/ajax/libs/demo/1.0.0/"+file+".js"]; n != 1 {
			t.Errorf("%s was purged %d times", file, n)
		}
	}
	if known, err := purge.Known(s.Store); !known || err != nil {
		t.Errorf("known: %v, %v", known, err)
	}
}

// What is withdrawn while no process runs is purged by the next; a mended hook is
// called at once, and for everything.
func TestRestart(t *testing.T) {
	s := testkit.NewShelf(t)
	s.Publish("demo", "1.0.0", "", files(1))
	c := newCache(t, fine)
	if known, err := purge.Known(s.Store); known || err != nil {
		t.Errorf("known: %v, %v", known, err)
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	start(t, s, closed.URL+"/?{path}", io.Discard)()
	s.Withdraw("demo", "1.0.0", "by order")

	var log testkit.Buffer
	stop := start(t, s, closed.URL+"/secret?{path}", &log)
	for !strings.Contains(log.String(), "couldn't purge") {
		time.Sleep(time.Millisecond)
	}
	stop()
	if strings.Contains(log.String(), "secret") || !strings.Contains(log.String(), "refused") {
		t.Errorf("logged: %s", log.String())
	}

	start(t, s, c.URL+"{path}", io.Discard)
	await(t, c, 1)
	empty(t, s)
	if got := c.seen(); !reflect.DeepEqual(got, []string{"PURGE /ajax/libs/demo/1.0.0/f000.js"}) {
		t.Errorf("called %q", got)
	}
}

// A release that is withdrawn again, after it was restored, is to be purged once.
func TestWithdrawnAgain(t *testing.T) {
	s := testkit.NewShelf(t)
	s.Publish("demo", "1.0.0", "", files(1))
	s.Publish("next", "1.0.0", "", files(1))
	closed := httptest.NewServer(nil)
	closed.Close()
	var log testkit.Buffer
	stop := start(t, s, closed.URL+"{path}", &log)
	s.Withdraw("demo", "1.0.0", "the first reason")
	s.Withdraw("next", "1.0.0", "another release's")
	for !strings.Contains(log.String(), "package=demo") || !strings.Contains(log.String(), "package=next") {
		time.Sleep(time.Millisecond)
	}
	s.Restore("demo", "1.0.0", "a mistake")
	s.Withdraw("demo", "1.0.0", "the second reason")
	s.Restore("demo", "1.0.0", "a mistake again")
	s.Withdraw("demo", "1.0.0", "the third reason")
	var reasons []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		jobs, err := purge.Pending(s.Store)
		if err != nil {
			t.Fatal(err)
		}
		reasons = nil
		for _, j := range jobs {
			reasons = append(reasons, j.Reason)
		}
		if slices.Contains(reasons, "the third reason") {
			break
		}
	}
	stop()
	if want := []string{"another release's", "the third reason"}; !slices.Equal(reasons, want) {
		t.Errorf("to be purged: %q, want %q", reasons, want)
	}
}
