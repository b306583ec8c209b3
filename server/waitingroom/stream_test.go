package waitingroom

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// An eventStream is a user's event stream.
type eventStream struct {
	t     *testing.T
	lines *bufio.Scanner
	close func()
}

// stream opens an event stream of the user.
func (u *user) stream() (*http.Response, *eventStream) {
	u.Helper()
	ctx, cancel := context.WithCancel(u.Context())
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, u.url+"/", nil)
	req.Header.Set("Accept", "text/event-stream")
	res, err := u.client.Do(req)
	if err != nil {
		u.Fatal(err)
	}
	s := &eventStream{u.T, bufio.NewScanner(res.Body), func() { cancel(); res.Body.Close() }}
	u.Cleanup(s.close)
	return res, s
}

// next returns the name and the data of the next event.
func (s *eventStream) next() (name, data string) {
	s.t.Helper()
	for s.lines.Scan() {
		line := s.lines.Text()
		switch {
		case strings.HasPrefix(line, "event: "):
			name = strings.TrimPrefix(line, "event: ")
		case strings.HasPrefix(line, "data: "):
			return name, strings.TrimPrefix(line, "data: ")
		}
	}
	s.t.Fatalf("the stream ends: %v", s.lines.Err())
	return "", ""
}

// TestStream has visitors hold event streams: they receive their place, are called in their order, and enter.
func TestStream(t *testing.T) {
	t.Parallel()
	h := open(t, small(2))
	for range 2 {
		if r := h.user().get("/"); !r.in() {
			t.Fatal(r.body)
		}
	}
	stranger := h.user()
	if res, _ := stranger.stream(); res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") == "" {
		t.Errorf("a client without a ticket gets %d", res.StatusCode)
	}
	first, second := h.user(), h.user()
	first.header.Set("Accept-Language", "de")
	first.get("/")
	h.add(time.Second)
	second.get("/")
	res, ofFirst := first.stream()
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("Cache-Control") != private || res.Header.Get("Set-Cookie") == "" {
		t.Fatalf("%d %v", res.StatusCode, res.Header)
	}
	if name, data := ofFirst.next(); name != "place" || !strings.HasPrefix(data, `{"queuePosition":1,"usersAhead":0,`) {
		t.Fatalf("%s %s", name, data)
	}
	_, ofSecond := second.stream()
	if name, data := ofSecond.next(); name != "place" || !strings.HasPrefix(data, `{"queuePosition":2,"usersAhead":1,`) {
		t.Fatalf("%s %s", name, data)
	}
	h.pass(3 * time.Minute) // those inside have gone
	for name := ""; name != "called"; {
		name, _ = ofFirst.next()
	}
	if r := first.get("/"); !r.in() {
		t.Errorf("a visitor who was called gets %s", r.body)
	}
	for name := ""; name != "called"; {
		name, _ = ofSecond.next()
	}
	if r := second.get("/"); !r.in() {
		t.Errorf("the second visitor who was called gets %s", r.body)
	}
	if s, _ := h.rooms.Status("shop"); s.Active != 2 {
		t.Errorf("%+v", s)
	}
}

// TestStreamsOfTabs has ten tabs of a browser wait: they have one place, and take one slot.
func TestStreamsOfTabs(t *testing.T) {
	t.Parallel()
	h := open(t, small(1))
	h.user().get("/")
	tabs := h.user()
	tabs.get("/")
	for range maxTicketStreams {
		_, s := tabs.stream()
		if name, data := s.next(); name != "place" || !strings.HasPrefix(data, `{"queuePosition":1,`) {
			t.Fatalf("%s %s", name, data)
		}
	}
	for range 2 {
		if res, _ := tabs.stream(); res.StatusCode != http.StatusNoContent {
			t.Errorf("another stream gets %d", res.StatusCode)
		}
	}
	if s, _ := h.rooms.Status("shop"); s.Queued != 1 {
		t.Errorf("%d wait", s.Queued)
	}
	h.pass(3 * time.Minute)
	for range 10 {
		if r := tabs.get("/"); !r.in() {
			t.Fatalf("a tab waits: %s", r.body)
		}
	}
	if s, _ := h.rooms.Status("shop"); s.Active != 1 {
		t.Errorf("ten tabs take %d slots", s.Active)
	}
}

// TestStreamMemory has as much memory as one event stream takes: the visitor with the second one polls.
func TestStreamMemory(t *testing.T) {
	t.Parallel()
	h := openWith(t, houseOptions{yaml: small(1), memory: streamMemory})
	h.user().get("/")
	for _, want := range []int{http.StatusOK, http.StatusNoContent} {
		u := h.user()
		u.get("/")
		if res, _ := u.stream(); res.StatusCode != want {
			t.Errorf("the stream gets %d, want %d", res.StatusCode, want)
		}
	}
}

// TestEndStreams has the process stop while a visitor holds a stream.
func TestEndStreams(t *testing.T) {
	t.Parallel()
	h := open(t, small(1))
	h.user().get("/")
	u := h.user()
	u.get("/")
	_, s := u.stream()
	s.next()
	h.rooms.EndStreams()
	for s.lines.Scan() { // until the end
	}
	if res, _ := u.stream(); res.StatusCode != http.StatusNoContent {
		t.Errorf("while the process stops, another stream gets %d", res.StatusCode)
	}
}

// A streamWriter is the client of an event stream in memory.
type streamWriter struct {
	header http.Header
	called func()
	placed func()
}

func (w *streamWriter) Header() http.Header { return w.header }
func (w *streamWriter) WriteHeader(int)     {}
func (w *streamWriter) Flush()              {}
func (w *streamWriter) Write(b []byte) (int, error) {
	switch {
	case strings.HasPrefix(string(b), "event: called"):
		w.called()
	case w.placed != nil && strings.HasPrefix(string(b), "event: place"):
		w.placed()
	}
	return len(b), nil
}

// A streamCrowd are users who hold event streams in one process.
type streamCrowd struct {
	*house
	handler http.Handler
	cookies []string
	ends    func()
	running sync.WaitGroup

	mu     sync.Mutex
	called []int
	more   sync.Cond // called has grown
}

// newStreamCrowd has n users come, some time apart, and open event streams.
func newStreamCrowd(h *house, n int, apart time.Duration) *streamCrowd {
	c := &streamCrowd{house: h, handler: h.rooms.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "origin") }))}
	c.more.L = &c.mu
	ctx, cancel := context.WithCancel(h.Context())
	c.ends = cancel
	request := func(cookie, accept string) *http.Request {
		req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		req.Header.Set("Accept", accept)
		if cookie != "" {
			req.Header.Set("Cookie", cookie)
		}
		return req
	}
	for i := range n {
		h.add(apart)
		w := httptest.NewRecorder()
		c.handler.ServeHTTP(w, request("", browserAccept))
		cookie := strings.TrimSuffix(strings.SplitAfterN(w.Header().Get("Set-Cookie"), ";", 2)[0], ";")
		c.cookies = append(c.cookies, cookie)
		c.running.Go(func() {
			c.handler.ServeHTTP(&streamWriter{header: http.Header{}, called: func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.called = append(c.called, i)
				c.more.Broadcast()
			}}, request(cookie, "text/event-stream"))
		})
	}
	for h.rooms.streaming.Load() < int64(n) {
		runtime.Gosched()
	}
	return c
}

// await waits until n users were called.
func (c *streamCrowd) await(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.called) < n {
		c.more.Wait()
	}
}

// enter has the users enter who were called in a minute, and returns how many did.
func (c *streamCrowd) enter(from int) int {
	c.mu.Lock()
	called := slices.Clone(c.called[from:])
	c.mu.Unlock()
	for _, i := range called {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.Header.Set("Accept", browserAccept)
		req.Header.Set("Cookie", c.cookies[i])
		w := httptest.NewRecorder()
		if c.handler.ServeHTTP(w, req); w.Body.String() != "origin" {
			c.Fatalf("user %d was called and waits", i)
		}
	}
	return len(called)
}

// TestManyStreams has thousands of users hold event streams in one process: in each minute as many are called as there are slots, in
// their order, and all enter.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	n, apart := 300, 20*time.Millisecond
	if os.Getenv("LARDER_TEST_WHOLE") != "" {
		n, apart = 10_000, 5*time.Millisecond
	}
	perMinute := n / 2
	h := open(t, fmt.Sprintf("- {name: shop, total_active_users: %d, new_users_per_minute: %d, session_duration: 30}", 2*n, perMinute))
	for range perMinute { // the slots of this minute
		h.user().get("/")
	}
	c := newStreamCrowd(h, n, apart)
	defer c.running.Wait()
	defer c.ends()
	entered := 0
	for entered < n {
		// The turn of the minute, and the time over which the users are called.
		h.add(queue.MinuteOf(h.Now()).Time().Add(time.Minute + 100*time.Millisecond).Sub(h.Now()))
		h.pass(2 * time.Second)
		c.await(min(n, entered+perMinute))
		entered += c.enter(entered)
		if s, _ := h.rooms.Status("shop"); s.Active != perMinute+entered {
			t.Fatalf("%d active, %d entered", s.Active, entered)
		}
	}
	// The streams of a minute run at once, so only the minutes have an order; those who came within a tick of each other have none.
	for at, i := range c.called {
		if first := at / perMinute * perMinute; time.Duration(max(first-i, i-first-perMinute+1))*apart > 200*time.Millisecond {
			t.Errorf("user %d was called as number %d", i, at)
		}
	}
}

// BenchmarkStreams is a round of places, which the event streams of a process, 10,000 and 100,000, send every five seconds: the memory
// of a stream, and the processor time that a round takes for each. One form has connections in memory, which costs the room's part only;
// the other one real connections over HTTP/1.1, as many as the limit of open files allows, with the time of the kernel.
func BenchmarkStreams(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprintf("memory/%d", n), func(b *testing.B) { benchmarkStreams(b, n, serveInMemory) })
		b.Run(fmt.Sprintf("connections/%d", n), func(b *testing.B) {
			limit := openFiles(b, uint64(n+1000))
			if limit < 3000 {
				b.Skipf("only %d open files are allowed", limit)
			}
			benchmarkStreams(b, min(n, int(limit-1000)), serveOverConnections)
		})
	}
}

// TestConnections has 200 users hold event streams over real connections: each gets its place, and takes no more memory than the bound of
// their number is for.
func TestConnections(t *testing.T) {
	const n = 200
	c := newQueuers(t, n, 15*time.Second/n)
	before := inUseWithStacks()
	var sent atomic.Int64
	defer serveOverConnections(t, c.handler, c.cookies[10:], func() { sent.Add(1) })()
	for sent.Load() < n-10 {
		time.Sleep(time.Millisecond)
	}
	if each := (inUseWithStacks() - before) / n; each > streamMemory {
		t.Errorf("a stream takes %d bytes, and the bound of their number is for %d", each, streamMemory)
	}
}

// openFiles raises the limit of open files of the process to want, if that is allowed, and returns the limit.
func openFiles(tb testing.TB, want uint64) uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		tb.Fatal(err)
	}
	if limit.Cur < want {
		for _, most := range []uint64{max(want, limit.Max), limit.Max} {
			if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: min(want, most), Max: most}) == nil {
				return min(want, most)
			}
		}
	}
	return limit.Cur
}

// A streamServer serves event streams of users with these cookies, and calls placed for each place that it sends. close ends it.
type streamServer func(b testing.TB, handler http.Handler, cookies []string, placed func()) (close func())

// serveInMemory serves the streams without connections.
func serveInMemory(b testing.TB, handler http.Handler, cookies []string, placed func()) func() {
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	for _, cookie := range cookies {
		req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set("Cookie", cookie)
		running.Go(func() { handler.ServeHTTP(&streamWriter{header: http.Header{}, placed: placed}, req) })
	}
	return func() { cancel(); running.Wait() }
}

// benchmarkStreams has n users wait, all but ten with event streams.
func benchmarkStreams(b *testing.B, n int, serve streamServer) {
	c := newQueuers(b, n, 15*time.Second/time.Duration(n))
	before := inUseWithStacks()
	var sent atomic.Int64
	defer serve(b, c.handler, c.cookies[10:], func() { sent.Add(1) })() // ten are in
	left := 10                                                          // users who are in or have left
	round := func() {
		_, value, _ := strings.Cut(c.cookies[left], "=")
		gone, _ := c.room.codec.open(value)
		left++
		if err := c.room.do(b.Context(), func(_ context.Context, _ *durable.State, m *centre) error { // all others move up
			m.machine.Revoke(c.Now(), gone.ID, true)
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		until := sent.Load() + int64(n-left-n/50) // those who came within a tick of the one who left do not move up
		c.add(placeInterval)
		c.report(b)
		for sent.Load() < until {
			time.Sleep(time.Millisecond)
		}
	}
	for sent.Load() < int64(n-10) {
		time.Sleep(time.Millisecond)
	}
	each := float64(inUseWithStacks()-before) / float64(n)
	began := processorTime()
	rounds := 0
	for b.Loop() {
		round()
		rounds++
	}
	b.ReportMetric(float64(n), "streams")
	b.ReportMetric(each, "B/stream")
	b.ReportMetric(float64((processorTime()-began).Nanoseconds())/float64(rounds)/float64(n), "cpu-ns/stream")
}

// inUseWithStacks is the memory of the heap and of goroutines' stacks that is in use.
func inUseWithStacks() uint64 {
	heap := inUse()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return heap + m.StackInuse
}

// processorTime is the processor time that the process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
