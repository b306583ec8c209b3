package notify

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// receivers are one that responds at once, and one that does not respond before a time.
type receivers struct {
	open  time.Time
	mu    sync.Mutex
	alive []time.Time    // times of the requests to the first
	dead  map[string]int // deliveries to the second by path
	now   int            // requests to the second under way
	most  int            // likewise, at most
}

func (w *receivers) RoundTrip(r *http.Request) (*http.Response, error) {
	response := &http.Response{StatusCode: 204, Body: http.NoBody, Request: r}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.URL.Host == "alive" {
		w.alive = append(w.alive, time.Now())
		return response, nil
	}
	w.now++
	w.most = max(w.most, w.now)
	defer func() { w.now-- }()
	if time.Now().Before(w.open) {
		w.mu.Unlock()
		<-r.Context().Done()
		w.mu.Lock()
		return nil, r.Context().Err()
	}
	w.dead[r.URL.Path]++
	return response, nil
}

// sent returns the times of the requests to the first receiver, and the most concurrent requests to the second.
func (w *receivers) sent() (alive []time.Time, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.alive), w.most
}

// deliveries returns how many requests to path the second receiver has accepted.
func (w *receivers) deliveries(path string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead[path]
}

// A receiver that does not respond delays no other one, even with more requests than are sent at once. It gets its requests when it responds again.
func TestDeadReceiverDelaysNoOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		startedAt := time.Now()
		w := &receivers{open: startedAt.Add(time.Hour), dead: make(map[string]int)}
		s := start(t, SchedulerOptions{Transport: w})
		const pending = 2 * maxConcurrent
		for i := range pending {
			post(t, s, fmt.Sprintf("dead-%04d", i), Request{URL: fmt.Sprintf("http://dead/%d", i)})
		}
		for i := range 6 {
			at := startedAt.Add(time.Duration(i)*10*time.Minute + time.Second)
			post(t, s, fmt.Sprint("alive-", i), Request{URL: "http://alive/", TriggerAt: at.UnixMilli()})
			time.Sleep(time.Until(at))
			synctest.Wait()
			if alive, _ := w.sent(); len(alive) != i+1 || !alive[i].Equal(at) {
				t.Fatalf("request %d: was sent %v, want another one at %v", i, alive, at)
			}
		}
		if _, most := w.sent(); most > maxPerReceiver {
			t.Errorf("%d requests at once for one receiver", most)
		}
		time.Sleep(time.Until(w.open) + 3*time.Hour)
		synctest.Wait()
		for i := range pending {
			if n := w.deliveries(fmt.Sprintf("/%d", i)); n != 1 {
				t.Fatalf("request %d was delivered %d times", i, n)
			}
		}
	})
}

func TestLimiter(t *testing.T) {
	now := time.Unix(0, 0)
	var l limiter
	for i := range maxPerReceiver {
		if ok, _ := l.acquire("a", now); !ok {
			t.Fatalf("request %d was refused", i)
		}
	}
	last := now
	for range 3 {
		ok, retryAt := l.acquire("a", now)
		if want := last.Add(initialDuration / maxPerReceiver); ok || !retryAt.Equal(want) {
			t.Errorf("got %v, %v; want %v", ok, retryAt, want)
		}
		last = retryAt
	}
	if ok, _ := l.acquire("b", now); !ok {
		t.Error("another receiver was refused")
	}
	for range maxPerReceiver {
		l.release("a", time.Minute, true)
	}
	first, _ := l.acquire("a", now)
	second, _ := l.acquire("a", now)
	if !first || second {
		t.Error("a failing receiver does not get one request")
	}
	for range 100 {
		if _, retryAt := l.acquire("a", now); retryAt.After(now.Add(maxDelay)) {
			t.Fatalf("delayed until %v", retryAt)
		}
	}
	l.release("a", 0, false)
	l.release("b", 0, false)
	for i := range maxReceivers {
		l.acquire(fmt.Sprint(i), now)
		l.release(fmt.Sprint(i), 0, false)
	}
	if n := len(l.receivers); n > maxReceivers {
		t.Errorf("%d receivers are remembered", n)
	}
}

// What a request may have at most fits into its rows, whatever becomes of it.
func TestLargestRequest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &virtualReceiver{startedAt: time.Now(), answers: []int{0}}
		s := start(t, SchedulerOptions{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if _, err := p.RoundTrip(r); err != nil {
				return nil, errors.New(strings.Repeat("<", 64<<10))
			}
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
		})})
		body := strings.Repeat("<", maxBody)
		largest := Request{
			URL: "http://a/" + strings.Repeat("&", maxURL-len("http://a/")), Method: "POST", Body: body,
			Headers: map[string]string{"A": strings.Repeat("<", maxHeader-1)},
		}
		state := post(t, s, "", largest)
		synctest.Wait()
		got, err := s.Get(t.Context(), state.ID)
		if err != nil || got.Attempts != 1 || len(got.Problem) > maxProblem+len("…") || got.Request.Body != body {
			t.Fatalf("%v: %d attempts, a problem of %d bytes, a body of %d", err, got.Attempts, len(got.Problem), len(got.Request.Body))
		}
		time.Sleep(time.Hour)
		if got, err = s.Get(t.Context(), state.ID); err != nil || got.Status != Delivered || got.Deliveries != 1 {
			t.Errorf("%v: %s after %d deliveries", err, got.Status, got.Deliveries)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestImpossibleIDs(t *testing.T) {
	s := start(t, SchedulerOptions{Transport: &virtualReceiver{}})
	for _, id := range []string{"a\x00b", strings.Repeat("x", 513)} {
		if _, err := s.Get(t.Context(), id); !errors.Is(err, ErrNoRequest) {
			t.Errorf("Get: %v", err)
		}
		if err := s.Remove(t.Context(), id); !errors.Is(err, ErrNoRequest) {
			t.Errorf("Remove: %v", err)
		}
		if _, err := s.PostOnce(context.Background(), id, Request{URL: "http://a/"}); !errors.As(err, new(*RequestError)) {
			t.Errorf("PostOnce: %v", err)
		}
	}
}
