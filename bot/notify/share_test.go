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
)

// A town has a receiver that answers at once, and one that does not answer before a time.
type town struct {
	open  time.Time
	mu    sync.Mutex
	alive []time.Time    // when it was sent something
	dead  map[string]int // deliveries by path
	now   int            // how many are under way
	most  int            // likewise, at most
}

func (w *town) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := &http.Response{StatusCode: 204, Body: http.NoBody, Request: r}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.URL.Host == "alive" {
		w.alive = append(w.alive, time.Now())
		return answer, nil
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
	return answer, nil
}

// sent returns when the one that answers was sent something, and how many requests the
// other one had at most at once.
func (w *town) sent() (alive []time.Time, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.alive), w.most
}

// deliveries returns how often the other one took what was sent to path.
func (w *town) deliveries(path string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead[path]
}

// One receiver that is dead, and has more to be sent than there are turns, delays no other
// else; what is for it comes when it is back.
func TestDeadReceiverDelaysNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		w := &town{open: begun.Add(time.Hour), dead: make(map[string]int)}
		s := start(t, SchedulerOptions{Transport: w})
		const pending = 2 * turns
		for i := range pending {
			post(t, s, fmt.Sprintf("dead-%04d", i), Request{URL: fmt.Sprintf("http://dead/%d", i)})
		}
		for i := range 6 {
			at := begun.Add(time.Duration(i)*10*time.Minute + time.Second)
			post(t, s, fmt.Sprint("alive-", i), Request{URL: "http://alive/", TriggerAt: at.UnixMilli()})
			time.Sleep(time.Until(at))
			synctest.Wait()
			if alive, _ := w.sent(); len(alive) != i+1 || !alive[i].Equal(at) {
				t.Fatalf("request %d: was sent %v, want another one at %v", i, alive, at)
			}
		}
		if _, most := w.sent(); most > atOnce {
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

func TestShares(t *testing.T) {
	now := time.Unix(0, 0)
	var s shares
	for i := range atOnce {
		if ok, _ := s.take("a", now); !ok {
			t.Fatalf("turn %d was refused", i)
		}
	}
	last := now
	for range 3 {
		ok, again := s.take("a", now)
		if want := last.Add(firstPace / atOnce); ok || !again.Equal(want) {
			t.Errorf("got %v, %v; want %v", ok, again, want)
		}
		last = again
	}
	if ok, _ := s.take("b", now); !ok {
		t.Error("another receiver was refused")
	}
	for range atOnce {
		s.leave("a", time.Minute, true)
	}
	first, _ := s.take("a", now)
	second, _ := s.take("a", now)
	if !first || second {
		t.Error("a failing receiver has one turn")
	}
	for range 100 {
		if _, again := s.take("a", now); again.After(now.Add(longestAway)) {
			t.Fatalf("sent away until %v", again)
		}
	}
	s.leave("a", 0, false)
	s.leave("b", 0, false)
	for i := range keptShares {
		s.take(fmt.Sprint(i), now)
		s.leave(fmt.Sprint(i), 0, false)
	}
	if n := len(s.of); n > keptShares {
		t.Errorf("%d receivers are remembered", n)
	}
}

// What a request may have at most fits into its rows, whatever becomes of it.
func TestLargestRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{begun: time.Now(), answers: []int{0}}
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
	s := start(t, SchedulerOptions{Transport: &place{}})
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
