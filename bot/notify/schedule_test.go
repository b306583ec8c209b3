package notify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs"
)

// A virtualReceiver receives requests in a test's virtual time.
type virtualReceiver struct {
	mu        sync.Mutex
	startedAt time.Time
	answers   []int // statuses; afterwards 200. 0 breaks the connection
	got       []string
	hold      time.Duration
}

func (p *virtualReceiver) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(p.hold):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	p.got = append(p.got, strings.TrimSpace(fmt.Sprintf("%v %s %s %s", time.Since(p.startedAt).Round(time.Millisecond), r.Method, r.URL.Path, body)))
	status := 200
	if len(p.answers) > 0 {
		status, p.answers = p.answers[0], p.answers[1:]
	}
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Location": {"http://elsewhere/"}}, Body: io.NopCloser(strings.NewReader("x")), Request: r}, nil
}

func (p *virtualReceiver) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.Sort(p.got) // those of one moment come in any order
	slices.Sort(want)
	if !slices.Equal(p.got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(p.got, "\n"), strings.Join(want, "\n"))
	}
	p.got = nil
}

func openStore(t *testing.T) *kvstore.Store {
	t.Helper()
	store, err := kvstore.Open("store", kvstore.Options{FS: vfs.NewMem(), MinFreeBytes: -1, CacheBytes: 1 << 20, MemTableBytes: 1 << 20, VirtualTime: true})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func open(t *testing.T, store *kvstore.Store, o SchedulerOptions) (*Scheduler, *durable.Runtime) {
	t.Helper()
	o.jitter = func(time.Duration) time.Duration { return 0 }
	r := durable.New(store, durable.Options{})
	s, err := OpenScheduler(r, o)
	if err != nil {
		t.Fatal(err)
	}
	return s, r
}

func start(t *testing.T, o SchedulerOptions) *Scheduler {
	t.Helper()
	store := openStore(t)
	s, r := open(t, store, o)
	t.Cleanup(func() {
		if err := errors.Join(r.Close(context.Background()), store.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func post(t *testing.T, s *Scheduler, id string, r Request) State {
	t.Helper()
	state, err := s.Post(t.Context(), id, r)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func TestRequestsAreSentInTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &virtualReceiver{startedAt: time.Now()}
		s := start(t, SchedulerOptions{Transport: p})
		at := func(d time.Duration) int64 { return time.Now().Add(d).UnixMilli() }
		post(t, s, "", Request{URL: "https://example.com/now"})
		time.Sleep(time.Second)
		post(t, s, "", Request{URL: "http://127.0.0.1/later", TriggerAt: at(time.Hour), Method: "POST", Body: "hello", Headers: map[string]string{"X-A": "b"}})
		repeats := post(t, s, "", Request{URL: "https://example.com/every", TriggerEverySeconds: 1800})
		moved := post(t, s, "", Request{URL: "https://example.com/old", TriggerAt: at(time.Minute)})
		post(t, s, moved.ID, Request{URL: "https://example.com/new", TriggerAt: at(2 * time.Minute)})
		removed := post(t, s, "", Request{URL: "https://example.com/removed", TriggerAt: at(time.Minute)})
		if err := s.Remove(t.Context(), removed.ID); err != nil {
			t.Error(err)
		}
		if err := s.Remove(t.Context(), removed.ID); !errors.Is(err, ErrNoRequest) {
			t.Errorf("removed twice: %v", err)
		}
		time.Sleep(time.Hour + time.Minute)
		p.want(t, "0s GET /now", "2m1s GET /new", "30m1s GET /every", "1h0m1s POST /later hello", "1h0m1s GET /every")
		if state, err := s.Get(t.Context(), repeats.ID); err != nil || state.Deliveries != 2 || state.Status != Waiting || time.Until(state.Next) != 29*time.Minute {
			t.Errorf("got %+v, %v", state, err)
		}
		if state, err := s.Get(t.Context(), moved.ID); err != nil || state.Status != Delivered || state.Answer != 200 {
			t.Errorf("got %+v, %v", state, err)
		}
		if states, err := s.List(t.Context(), "", 100); err != nil || len(states) != 4 {
			t.Errorf("got %d, %v", len(states), err)
		}
		// What is done is forgotten, what repeats can be ended.
		if err := s.Remove(t.Context(), repeats.ID); err != nil {
			t.Error(err)
		}
		time.Sleep(25 * time.Hour)
		if states, err := s.List(t.Context(), "", 100); err != nil || len(states) != 0 {
			t.Errorf("got %+v, %v", states, err)
		}
		p.want(t)
	})
}

func TestFailuresAreTriedAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &virtualReceiver{startedAt: time.Now(), answers: []int{0, 500, 302, 404}}
		s := start(t, SchedulerOptions{Transport: p})
		id := post(t, s, "", Request{URL: "https://u:secret@example.com/x?token=secret"}).ID
		time.Sleep(10 * time.Second)
		state, err := s.Get(t.Context(), id)
		if err != nil || state.Attempts != 3 || state.Problem != "example.com answered 302 Found" || state.Answer != 302 {
			t.Errorf("got %+v, %v", state, err)
		}
		time.Sleep(time.Hour)
		p.want(t, "0s GET /x", "2s GET /x", "6s GET /x", "14s GET /x", "30s GET /x")
		if state, err = s.Get(t.Context(), id); err != nil || state.Status != Delivered || state.Problem != "" {
			t.Errorf("got %+v, %v", state, err)
		}
	})
}

func TestGivingUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &virtualReceiver{startedAt: time.Now(), answers: slices.Repeat([]int{500}, 1000)}
		s := start(t, SchedulerOptions{Transport: p})
		once := post(t, s, "", Request{URL: "https://example.com/once"}).ID
		time.Sleep(giveUpAfter - time.Hour)
		if state, err := s.Get(t.Context(), once); err != nil || state.Status != Waiting || time.Until(state.Next) > maxBackoff {
			t.Errorf("got %+v, %v", state, err)
		}
		time.Sleep(time.Hour + time.Minute)
		if state, err := s.Get(t.Context(), once); err != nil || state.Status != GivenUp {
			t.Errorf("got %+v, %v", state, err)
		}
		synctest.Wait()
		p.mu.Lock()
		p.got, p.startedAt = nil, time.Now()
		p.mu.Unlock()
		repeats := post(t, s, "", Request{URL: "https://example.com/every", TriggerEverySeconds: 10}).ID
		time.Sleep(31 * time.Second)
		p.want(t, "10s GET /every", "12s GET /every", "16s GET /every", "20s GET /every", "22s GET /every", "26s GET /every", "30s GET /every")
		if state, err := s.Get(t.Context(), repeats); err != nil || state.Missed != 2 || state.Attempts != 1 {
			t.Errorf("got %+v, %v", state, err)
		}
	})
}

func TestReplacedWhileItIsSent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &virtualReceiver{startedAt: time.Now(), hold: 10 * time.Second}
		s := start(t, SchedulerOptions{Transport: p})
		replaced := post(t, s, "", Request{URL: "https://example.com/old"}).ID
		removed := post(t, s, "", Request{URL: "https://example.com/gone"}).ID
		time.Sleep(time.Second)
		post(t, s, replaced, Request{URL: "https://example.com/new", TriggerAt: time.Now().Add(time.Minute).UnixMilli()})
		if state, err := s.PostOnce(t.Context(), replaced, Request{URL: "https://example.com/once"}); err != nil || !strings.HasSuffix(state.Request.URL, "/new") {
			t.Errorf("got %+v, %v", state, err)
		}
		if err := s.Remove(t.Context(), removed); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		p.want(t, "10s GET /gone", "10s GET /old", "1m11s GET /new")
		if _, err := s.Get(t.Context(), removed); !errors.Is(err, ErrNoRequest) {
			t.Errorf("got %v", err)
		}
	})
}

func TestScheduleOutlastsRestarts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := openStore(t)
		defer store.Close()
		p := &virtualReceiver{startedAt: time.Now(), hold: time.Second}
		s, r := open(t, store, SchedulerOptions{Transport: p})
		post(t, s, "", Request{URL: "https://example.com/interrupted"})
		post(t, s, "", Request{URL: "https://example.com/later", TriggerAt: time.Now().Add(time.Hour).UnixMilli()})
		time.Sleep(time.Second / 2)
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		p.want(t)
		time.Sleep(2 * time.Hour)
		_, r = open(t, store, SchedulerOptions{Transport: p})
		time.Sleep(time.Minute)
		p.want(t, "2h0m1.5s GET /interrupted", "2h0m1.5s GET /later")
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestCheck(t *testing.T) {
	good := Request{URL: "https://example.com/", Method: "PUT", TriggerAt: 1, TriggerEverySeconds: 30, Headers: map[string]string{"X-A": "1"}, Body: "ü"}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	many := make(map[string]string)
	for i := range 33 {
		many[fmt.Sprint("X-", i)] = ""
	}
	for want, spoil := range map[string]func(*Request){
		"url: it is missing":                 func(r *Request) { r.URL = "" },
		"url: it is malformed":               func(r *Request) { r.URL = "https://exa mple.com" },
		"url: it has to begin":               func(r *Request) { r.URL = "file:///etc/passwd" },
		"url: it has no host":                func(r *Request) { r.URL = "https://" },
		"url: it has 2049 bytes":             func(r *Request) { r.URL += strings.Repeat("x", 2049-len(r.URL)) },
		`method: "TRACE" is none of`:         func(r *Request) { r.Method = "TRACE" },
		"triggerAt: want":                    func(r *Request) { r.TriggerAt = -1 },
		"triggerEverySeconds: want":          func(r *Request) { r.TriggerEverySeconds = 1e9 },
		"body: it has 65537 bytes":           func(r *Request) { r.Body = strings.Repeat("x", 65537) },
		"body: it is not valid UTF-8":        func(r *Request) { r.Body = "\xff" },
		"headers: there are 33":              func(r *Request) { r.Headers = many },
		`headers: "a b" is not a valid`:      func(r *Request) { r.Headers = map[string]string{"a b": ""} },
		`headers: "A" is not a valid header`: func(r *Request) { r.Headers = map[string]string{"A": "b\r\nc: d"} },
		"headers: Host cannot be set":        func(r *Request) { r.Headers = map[string]string{"host": "x"} },
		"headers: they have 8193 bytes":      func(r *Request) { r.Headers = map[string]string{"A": strings.Repeat("x", 8192)} },
	} {
		r := good
		spoil(&r)
		if err := r.Check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestHandler(t *testing.T) {
	s := start(t, SchedulerOptions{Transport: &virtualReceiver{startedAt: time.Now()}})
	server := httptest.NewServer(s.Handler("/schedule"))
	defer server.Close()
	do := func(method, path, body string, status int, want ...string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		got, _ := io.ReadAll(response.Body)
		for _, want := range want {
			if !strings.Contains(string(got), want) {
				t.Errorf("%s %s: %s, want %s", method, path, got, want)
			}
		}
		if response.StatusCode != status {
			t.Errorf("%s %s: %d, want %d: %s", method, path, response.StatusCode, status, got)
		}
		return string(got)
	}
	made := do("POST", "/schedule", `{"url": "https://example.com", "triggerEverySeconds": 30}`, 201, `"status":"waiting"`)
	_, rest, _ := strings.Cut(made, `"id":"`)
	id, _, _ := strings.Cut(rest, `"`)
	do("POST", "/schedule/"+id, `{"url": "https://example.com", "triggerEverySeconds": 60}`, 200, id, `"triggerEverySeconds":60`)
	do("GET", "/schedule/"+id, "", 200, id)
	do("GET", "/schedule", "", 200, id, "[")
	do("GET", "/schedule?after="+id, "", 200, "[]")
	do("GET", "/schedule?limit=0", "", 400, "limit: want 1 to 1000")
	do("POST", "/schedule", `{"url": "ftp://example.com"}`, 400, "url: it has to begin")
	do("POST", "/schedule", `{"uri": "https://example.com"}`, 400, "unknown field")
	do("POST", "/schedule", `{`, 400, "error")
	do("POST", "/schedule", strings.Repeat(" ", maxPosted+1), 400, "too large")
	do("POST", "/schedule/unknown", `{"url": "https://example.com"}`, 404, "no request is scheduled")
	do("DELETE", "/schedule/"+id, "", 204)
	do("DELETE", "/schedule/"+id, "", 404, "no request is scheduled")
	do("GET", "/schedule/"+id, "", 404)
	do("PUT", "/schedule/"+id, "", 405)
}

// TestRedirectsAreNotFollowed holds that a receiver cannot send a message, its signature or its body on to another address, such as one of the network that the bot runs in.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var inside atomic.Int64
	internal := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside.Add(1) }))
	defer internal.Close()
	for _, status := range []int{301, 302, 303, 307, 308, 300, 304, 305} {
		receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", internal.URL+"/admin")
			w.Header().Set("Refresh", "0; url="+internal.URL)
			w.WriteHeader(status)
		}))
		sent := make(chan struct{}, 10)
		s := start(t, SchedulerOptions{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			response, err := http.DefaultTransport.RoundTrip(r)
			sent <- struct{}{}
			return response, err
		})})
		state := post(t, s, "", Request{URL: receiver.URL, Method: "POST", Body: "secret"})
		<-sent
		got, err := s.Get(t.Context(), state.ID) // once the attempt has ended
		for deadline := time.Now().Add(time.Minute); err == nil && got.Answer == 0 && time.Now().Before(deadline); got, err = s.Get(t.Context(), state.ID) {
			runtime.Gosched()
		}
		if err != nil || got.Answer != status || got.Deliveries != 0 {
			t.Errorf("%d: %+v, %v", status, got, err)
		}
		receiver.Close()
	}
	if n := inside.Load(); n != 0 {
		t.Errorf("%d requests arrived elsewhere", n)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestClockThatWasAhead has an attempt fail, and a repeating request delivered, while the clock is a year ahead. Once they are read under the right clock, they
// wait no longer than their backoff or interval.
func TestClockThatWasAhead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		p := &virtualReceiver{startedAt: time.Now(), answers: []int{500}}
		store := openStore(t)
		r := durable.New(store, durable.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
		s, err := OpenScheduler(r, SchedulerOptions{Transport: p, jitter: func(time.Duration) time.Duration { return 0 }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(r.Close(context.Background()), store.Close()); err != nil {
				t.Error(err)
			}
		})
		ahead.Store(int64(365 * 24 * time.Hour))
		post(t, s, "failed", Request{URL: "https://a/failed"})
		p.want(t, "0s GET /failed")
		post(t, s, "repeating", Request{URL: "https://a/repeating", TriggerAt: time.Now().Add(time.Duration(ahead.Load())).UnixMilli(), TriggerEverySeconds: 3600})
		synctest.Wait()
		ahead.Store(0)
		p.want(t, "0s GET /repeating")
		if all, err := s.List(t.Context(), "", 10); err != nil || len(all) != 2 {
			t.Fatalf("%+v, %v", all, err)
		}
		time.Sleep(2 * time.Minute)
		p.want(t, "0s GET /failed")
		time.Sleep(time.Hour)
		p.want(t, "1h0m0s GET /repeating")
	})
}

// TestAlarmsAfterClockWasAhead has an attempt fail while the clock is a year ahead. A process that starts under the right clock repeats it
// within an hour, although no client reads the request, and makes the first attempt of those that had none; a request for next year stays where it is.
func TestAlarmsAfterClockWasAhead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const year = 365 * 24 * time.Hour
		store := openStore(t)
		defer store.Close()
		log, err := logs.Open(store)
		if err != nil {
			t.Fatal(err)
		}
		p := &virtualReceiver{startedAt: time.Now(), answers: []int{500}}
		ahead := durable.New(store, durable.Options{Now: func() time.Time { return time.Now().Add(year) }})
		interrupt := func(ctx context.Context, id string, _ *http.Request, _ []byte) error {
			if id == "interrupted" {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		s, err := OpenScheduler(ahead, SchedulerOptions{Transport: p, Before: interrupt, jitter: func(time.Duration) time.Duration { return 0 }})
		if err != nil {
			t.Fatal(err)
		}
		post(t, s, "failed", Request{URL: "https://a/failed"})
		post(t, s, "next-year", Request{URL: "https://a/next-year", TriggerAt: time.Now().Add(year + 100*24*time.Hour).UnixMilli()})
		p.want(t, "0s GET /failed")
		post(t, s, "interrupted", Request{URL: "https://a/interrupted"})
		post(t, s, "repeating", Request{URL: "https://b/repeating", TriggerEverySeconds: 3600})
		synctest.Wait()
		if err := ahead.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		r := durable.New(store, durable.Options{})
		o, err := OpenOutbox(WebhookOptions{Runtime: r, Store: store, Log: log, Transport: p})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); o.run(ctx) }()
		time.Sleep(2*time.Hour - time.Second)
		p.want(t, "0s GET /failed", "0s GET /interrupted", "1h0m0s GET /repeating")
		cancel()
		<-done
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// TestBoundTimes holds which times of a request a clock that was a year ahead can have stored, and what they become.
func TestBoundTimes(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const year, never = 365 * 24 * time.Hour, -time.Hour
	client := now.Add(year / 2).UnixMilli()
	for name, tt := range map[string]struct {
		request         Request
		attempts        int
		delivered       int64
		due, next       time.Duration // from now
		wantDue, wanted time.Duration
	}{
		"immediate, not attempted":           {due: year, next: year},
		"immediate, waits for its receiver":  {due: year, next: year + time.Second},
		"immediate, failed":                  {attempts: 1, due: year, next: year + time.Minute},
		"immediate, waits for its backoff":   {attempts: 1, due: never, next: time.Hour, wantDue: never, wanted: time.Hour},
		"repeating, not attempted":           {request: Request{TriggerEverySeconds: 60}, due: year, next: year, wantDue: time.Minute, wanted: time.Minute},
		"repeating, waits for its interval":  {request: Request{TriggerEverySeconds: 86400}, due: 23 * time.Hour, next: 23 * time.Hour, wantDue: 23 * time.Hour, wanted: 23 * time.Hour},
		"repeating from a time, delivered":   {request: Request{TriggerAt: client, TriggerEverySeconds: 60}, delivered: 1, due: year, next: year, wantDue: time.Minute, wanted: time.Minute},
		"repeating from a time, not yet due": {request: Request{TriggerAt: client, TriggerEverySeconds: 60}, due: year / 2, next: year / 2, wantDue: year / 2, wanted: year / 2},
		"at a time, not yet due":             {request: Request{TriggerAt: client}, due: year / 2, next: year / 2, wantDue: year / 2, wanted: year / 2},
		"at a time, waits for its receiver":  {request: Request{TriggerAt: 1}, due: never, next: year, wantDue: never},
		"at a time, was due too early":       {request: Request{TriggerAt: client}, due: year / 2, next: year, wantDue: year / 2, wanted: year / 2},
	} {
		s := State{Request: tt.request, Attempts: tt.attempts, Deliveries: tt.delivered, Due: now.Add(tt.due), Next: now.Add(tt.next)}
		s.boundTimes(now)
		if !s.Due.Equal(now.Add(tt.wantDue)) || !s.Next.Equal(now.Add(tt.wanted)) {
			t.Errorf("%s: due after %v, next after %v; want %v and %v", name, s.Due.Sub(now), s.Next.Sub(now), tt.wantDue, tt.wanted)
		}
	}
}
