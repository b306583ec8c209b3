package bot_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// run has the bot work until the function that it returns is called.
func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.bot.Run(ctx) }()
	return func() {
		r.Helper()
		cancel()
		if err := <-done; err != nil {
			r.Error(err)
		}
	}
}

// published waits until so many releases are.
func (r *rig) published(n int) {
	r.Helper()
	r.wait(func() (int, bool) {
		got := strings.Count(r.states(""), "published")
		return got, got >= n
	})
}

// A feed tells of releases at once, also of those that came while the process was away. The clock stands still, so no
// package is due by itself.
func TestFeed(t *testing.T) {
	r := newRig(t)
	r.feed = r.registry.URL
	for _, name := range []string{"a", "b"} {
		r.register(name, fromNpm("@scope/"+name, "*.js"))
		r.registry.Add("@scope/"+name, "1.0.0", hour(1), map[string]string{"a.js": name})
	}
	r.open()
	stop := r.run()
	r.published(2)
	r.wait(func() (int, bool) { f, _ := r.bot.Feed(); return 0, f.Sequence != "" })
	for i := range 3000 {
		r.registry.Change(fmt.Sprintf("stranger-%d", i))
	}
	r.registry.Add("@scope/a", "2.0.0", hour(2), map[string]string{"a.js": "a2"})
	r.published(3)
	stop()
	r.registry.Change("stranger")
	r.registry.Add("@scope/b", "2.0.0", hour(2), map[string]string{"a.js": "b2"})
	r.open()
	stop = r.run()
	defer stop()
	r.published(4)
	r.wait(func() (int, bool) {
		f, _ := r.bot.Feed()
		return int(f.Named), strings.HasPrefix(f.Sequence, "3005-") && f.Named == 1 && f.Problem == ""
	})
	whole := 0
	for _, request := range r.registry.Requests() {
		if request.Path == "/_changes" && strings.Contains(request.Query, "since=now") {
			whole++
		}
		if strings.Contains(request.Path, "stranger") {
			t.Errorf("it asked for %s", request.Path)
		}
	}
	if whole != 1 {
		t.Errorf("it began anew %d times", whole)
	}
	if f, _ := r.bot.Feed(); !strings.Contains(f.Describe(), "has reported 1 change of packages that are here") {
		t.Errorf("status says %s", f.Describe())
	}
}

// What a broken or hostile feed sends delays it, and nothing else.
func TestFeedThatMisbehaves(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"})
	var asked atomic.Int64
	good := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		switch n := asked.Add(1); {
		case n == 1:
			fmt.Fprint(w, `{"results":[],"last_seq":"100-x"}`)
		case n == 2:
			fmt.Fprint(w, `{"results":[{"seq":"101-x","id":"`, strings.Repeat("x", 1<<20), `"}],"last_seq":"101-x"}`)
		case n == 3: // it goes back
			fmt.Fprint(w, `{"results":[{"seq":"5-x","id":"stranger"}],"last_seq":"5-x"}`)
		default:
			if got := request.URL.Query().Get("since"); n == 4 && got != "5-x" {
				t.Errorf("after it went back, it is asked for what follows %q", got)
			}
			<-good
			fmt.Fprint(w, `{"results":[{"seq":"6-x","id":"a"}],"last_seq":"6-x"}`)
		}
	}))
	defer server.Close()
	r.feed = server.URL
	r.open()
	stop := r.run()
	r.published(1)
	r.wait(func() (int, bool) { n := int(asked.Load()); return n, n >= 4 })
	if f, _ := r.bot.Feed(); !strings.Contains(f.Problem, "its sequence goes back") || !strings.Contains(f.Describe(), "cannot be followed since") {
		t.Errorf("status says %s", f.Describe())
	}
	r.registry.Add("a", "2.0.0", hour(2), map[string]string{"a.js": "a2"})
	close(good)
	r.published(2)
	stop()
	r.sound()
}

// Packages that are named are looked at, although the clock stands still.
func TestAnnounce(t *testing.T) {
	r := newRig(t)
	for i := range 20 {
		name := fmt.Sprintf("p%d", i)
		r.register(name, fromNpm(name, "*.js"))
		r.registry.Add(name, "1.0.0", hour(1), map[string]string{"a.js": name})
	}
	r.open()
	stop := r.run()
	defer stop()
	r.published(20)
	before := r.registry.Count("/p7")
	if err := r.bot.Announce(t.Context(), "p7", "p8", "unknown"); err != nil {
		t.Fatal(err)
	}
	r.wait(func() (int, bool) { n := r.registry.Count("/p7"); return n, n > before })
	r.registry.Add("p7", "2.0.0", hour(2), map[string]string{"a.js": "p7 2"})
	if err := r.bot.Announce(t.Context(), "p7"); err != nil {
		t.Fatal(err)
	}
	r.published(21)
	if got := r.bot.PackagesFromNpm("p7"); len(got) != 1 || got[0] != "p7" {
		t.Errorf("p7 is followed by %q", got)
	}
	if got := r.bot.PackagesFromRepository("git@example.com:p7.git"); len(got) != 1 || got[0] != "p7" {
		t.Errorf("%q are developed there", got)
	}
}
