package site

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
)

func TestNew(t *testing.T) {
	asked := 0
	draft := func(ctx context.Context, name string) (*Draft, error) {
		asked++
		if _, ok := ctx.Deadline(); !ok {
			t.Error("a draft may take for ever")
		}
		switch name {
		case "gone":
			return nil, &DraftError{Message: `npm has no "gone"`}
		case "away":
			return nil, &DraftError{Message: "npm is away", Later: true}
		case "slow":
			return nil, context.DeadlineExceeded
		case "broken":
			return nil, errors.New("secret detail")
		}
		return &Draft{
			Name: name, Version: "1.0.0", File: "packages/x/x.json", Text: "{\n  \"name\": \"" + hostile + "\"\n}\n", About: "3 files " + hostile,
			Files: []DraftFile{{Path: "x.min.js", Size: "1 kB", Main: true}, {Path: hostile, Size: "minified"}}, More: 1234, Notes: []string{hostile}, Problems: []string{"1:1: " + hostile},
		}, nil
	}
	s := newSite(t, testkit.NewShelf(t), func(o *Options) { o.Draft = draft })
	for target, want := range map[string]struct {
		status int
		says   string
	}{
		"/new":               {200, `name="npm" value=""`},
		"/new?npm=":          {200, `name="npm" value=""`},
		"/new?npm=%40a%2Fb":  {200, "packages/x/x.json"},
		"/new?npm=x":         {200, "And 1,234 more."},
		"/new?npm=gone":      {404, "npm has no &#34;gone&#34;"},
		"/new?npm=away":      {503, "npm is away"},
		"/new?npm=slow":      {503, "could not be downloaded in time"},
		"/new?npm=broken":    {500, "Something went wrong"},
		"/new?npm=%3Cscript": {200, `value="&lt;script"`},
	} {
		w := get(t, s, target)
		body := w.Body.String()
		if w.Code != want.status || !strings.Contains(body, want.says) || strings.Contains(body, "secret detail") {
			t.Errorf("%s: %d\n%s", target, w.Code, body)
		}
		checkPage(t, w)
	}
	if asked != 7 {
		t.Errorf("%d drafts were made, want 7: an empty name asks for none", asked)
	}
	if !strings.Contains(get(t, s, "/about").Body.String(), `<a href="/new">`) {
		t.Error("nothing leads to the page")
	}
	if without := newSite(t, testkit.NewShelf(t), nil); without.Owns("/new") || !s.Owns("/new") {
		t.Error("the page is there without drafts, or missing with them")
	}
}

func TestNewIsBounded(t *testing.T) {
	release := make(chan struct{})
	started := make(chan struct{})
	s := newSite(t, testkit.NewShelf(t), func(o *Options) {
		o.Draft = func(_ context.Context, name string) (*Draft, error) {
			if name == "wait" {
				started <- struct{}{}
				<-release
			}
			return &Draft{Name: name}, nil
		}
	})
	now := time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC)
	s.drafting.now = func() time.Time { return now }
	s.drafting.timeout = 0
	ended := make(chan int)
	for range draftsAtOnce {
		go func() { ended <- get(t, s, "/new?npm=wait").Code }()
		<-started
	}
	if w := get(t, s, "/new?npm=x"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("one too many at once: %d", w.Code)
	}
	close(release)
	for range draftsAtOnce {
		if code := <-ended; code != http.StatusOK {
			t.Errorf("the user who waited got %d", code)
		}
	}
	for i := draftsAtOnce + 1; i < draftsAtEase; i++ { // no other asks
		if w := get(t, s, "/new?npm=x"); w.Code != http.StatusOK {
			t.Errorf("draft %d: %d", i, w.Code)
		}
	}
	if w := get(t, s, "/new?npm=x"); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "600" {
		t.Errorf("one too many of a client: %d", w.Code)
	}
	if w := get(t, s, "/new"); w.Code != http.StatusOK {
		t.Errorf("the empty page: %d", w.Code)
	}
	if leave, err := s.drafting.acquire(t.Context(), "203.0.113.7:1"); err != nil {
		t.Errorf("another client: %v", err)
	} else {
		leave()
	}
	for range draftsPerClient - 1 {
		if leave, err := s.drafting.acquire(t.Context(), "203.0.113.7:2"); err != nil {
			t.Errorf("its own share: %v", err)
		} else {
			leave()
		}
	}
	if _, err := s.drafting.acquire(t.Context(), "203.0.113.7:3"); err == nil {
		t.Error("another client has no bound")
	}
	now = now.Add(draftsWindow)
	if w := get(t, s, "/new?npm=x"); w.Code != http.StatusOK {
		t.Errorf("later: %d", w.Code)
	}
	for i := range draftingClients {
		leave, err := s.drafting.acquire(t.Context(), fmt.Sprintf("10.1.%d.%d:1", i/256, i%256))
		if err != nil {
			if i < draftingClients-1 {
				t.Fatalf("client %d: %v", i, err)
			}
			break
		}
		leave()
	}
	if _, err := s.drafting.acquire(t.Context(), "203.0.113.8:1"); err == nil {
		t.Error("clients without number are counted")
	}
}
