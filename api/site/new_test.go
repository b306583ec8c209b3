package site

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library/librarytest"
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
			return nil, &DraftError{`npm has no "gone"`}
		case "slow":
			return nil, context.DeadlineExceeded
		case "broken":
			return nil, errors.New("secret detail")
		}
		return &Draft{
			Name: name, Version: "1.0.0", File: "packages/x/x.json", Text: "{\n  \"name\": \"" + hostile + "\"\n}\n", About: "3 files " + hostile,
			Files: []DraftFile{{Path: "x.min.js", Size: "1 kB", Main: true}, {Path: hostile, Size: "made"}}, More: 1234, Notes: []string{hostile}, Problems: []string{"1:1: " + hostile},
		}, nil
	}
	s := newSite(t, librarytest.New(t), func(o *Options) { o.Draft = draft })
	for target, want := range map[string]struct {
		status int
		says   string
	}{
		"/new":               {200, `name="npm" value=""`},
		"/new?npm=":          {200, `name="npm" value=""`},
		"/new?npm=%40a%2Fb":  {200, "packages/x/x.json"},
		"/new?npm=x":         {200, "And 1,234 more."},
		"/new?npm=gone":      {404, "npm has no &#34;gone&#34;"},
		"/new?npm=slow":      {503, "could not be fetched in time"},
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
	if asked != 6 {
		t.Errorf("%d drafts were made, want 6: an empty name asks for none", asked)
	}
	if !strings.Contains(get(t, s, "/about").Body.String(), `<a href="/new">`) {
		t.Error("nothing leads to the page")
	}
	if without := newSite(t, librarytest.New(t), nil); without.Owns("/new") || !s.Owns("/new") {
		t.Error("the page is there where nobody drafts, or not where somebody does")
	}
}

func TestNewIsBounded(t *testing.T) {
	release := make(chan struct{})
	started := make(chan struct{})
	s := newSite(t, librarytest.New(t), func(o *Options) {
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
			t.Errorf("who waited got %d", code)
		}
	}
	for i := draftsAtOnce; i < draftsPerClient; i++ {
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
	if leave, err := s.drafting.enter("somebody else"); err != nil {
		t.Errorf("another client: %v", err)
	} else {
		leave()
	}
	now = now.Add(draftsWindow)
	if w := get(t, s, "/new?npm=x"); w.Code != http.StatusOK {
		t.Errorf("later: %d", w.Code)
	}
	for i := range draftingClients {
		leave, err := s.drafting.enter(string(rune(i)) + "client")
		if err != nil {
			if i < draftingClients-1 {
				t.Fatalf("client %d: %v", i, err)
			}
			break
		}
		leave()
	}
	if _, err := s.drafting.enter("new here"); err == nil {
		t.Error("clients without number are counted")
	}
}

func TestClientOf(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.7:1234": "192.0.2.7", "[::ffff:192.0.2.7]:1": "192.0.2.7", "[2001:db8:1:2:3:4:5:6]:1": "2001:db8:1:2::/64", "[fe80::1%eth0]:1": "fe80::/64", "@": "@", "": "",
	} {
		if got := clientOf(remote); got != want {
			t.Errorf("%s: got %s, want %s", remote, got, want)
		}
	}
}
