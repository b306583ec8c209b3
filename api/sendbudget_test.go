package api

import (
	"context"
	"net/http"
	"testing"

	"github.com/larder-cdn/larder/internal/answers"
)

func TestRoom(t *testing.T) {
	of := func(n int) *answers.Body { return newJSON(make([]byte, n)) }
	r := sendBudget{most: 5 * largeAnswer}
	first, second, third := of(3*largeAnswer), of(2*largeAnswer), of(largeAnswer)
	for _, step := range []struct {
		b    *answers.Body
		want bool
	}{{first, true}, {first, true}, {second, true}, {third, false}, {of(largeAnswer - 1), true}, {second, true}} {
		if got := r.acquire(step.b); got != step.want {
			t.Errorf("room for %d bytes beside %d: %v", step.b.Len(), r.bytes, got)
		}
	}
	r.release(first)
	equal(t, "room while another sends the same", r.acquire(third), false)
	r.release(first)
	equal(t, "room after both", r.acquire(third), true)
	for _, b := range []*answers.Body{second, second, third} {
		r.release(b)
	}
	equal(t, "bytes at the end", r.bytes, 0)
	equal(t, "bodies at the end", len(r.sender), 0)
	equal(t, "room for the largest alone", r.acquire(of(9*largeAnswer)), true)
}

// stalled is a client that takes nothing until it is told to.
type stalled struct {
	sink
	begun, finish chan struct{}
}

func (s *stalled) Write(b []byte) (int, error) {
	close(s.begun)
	<-s.finish
	return s.sink.Write(b)
}

func TestNoRoom(t *testing.T) {
	s := crowded(t, 2000)
	s.public.sending.most = largeAnswer
	slow := &stalled{sink{header: http.Header{}}, make(chan struct{}), make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.handler.ServeHTTP(slow, newRequest("GET", "/libraries?fields=*"))
	}()
	<-slow.begun
	if got := s.get("/libraries?fields=description"); got.status != 503 || got.get("Retry-After") == "" || got.get("Expires") != "0" {
		t.Errorf("a large answer beside another: %d %v", got.status, got.header)
	}
	for _, target := range []string{"/libraries?fields=*", "/libraries?limit=3", "/libraries/library-7"} {
		if got := s.get(target); got.status != 200 {
			t.Errorf("%s beside a large answer: %d", target, got.status)
		}
	}
	close(slow.finish)
	<-done
	if got := s.get("/libraries?fields=description"); got.status != 200 {
		t.Errorf("a large answer after another: %d", got.status)
	}
}

func TestAnswersWaitTheirTurn(t *testing.T) {
	turns := answers.NewTurns(1)
	s := newService(t, func(o *PublicOptions) { o.Turns = turns })
	_, leave, err := turns.Enter(t.Context(), "203.0.113.7:1", 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, target := range []string{"/libraries?search=jquery", "/libraries/jquery", "/packages"} {
		if got := serve(s.handler, newRequest("GET", target).WithContext(ctx)); got.status != 503 || got.get("Retry-After") == "" {
			t.Errorf("%s where all turns are taken: %d %s", target, got.status, got.body)
		}
	}
	leave()
	if got := s.get("/libraries?search=jquery"); got.status != 200 {
		t.Errorf("where one is free: %d", got.status)
	}
	equal(t, "turns taken at the end", turns.Taken(), 0)
}
