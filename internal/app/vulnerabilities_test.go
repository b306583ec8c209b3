package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// Each npm package is requested once a day. A network that does not allow that gives one line in the log, and pages know which
// packages were checked.
func TestVulnerabilityPoll(t *testing.T) {
	ranking := &library.Ranking{}
	for _, name := range []string{"jar", "lid", "other"} {
		ranking.Libraries = append(ranking.Libraries, &library.Library{Name: name, Autoupdate: &library.Autoupdate{Source: "npm", Target: name}})
	}
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var mu sync.Mutex // the clock of the bubble orders nothing for the race detector
		var requested []string
		allowed := map[string]bool{}
		allow := func(names ...string) {
			mu.Lock()
			defer mu.Unlock()
			for _, name := range names {
				allowed[name] = true
			}
		}
		logger := slog.New(slog.NewTextHandler(&log, nil))
		p := &vulnerabilityPoll{
			source: "https://osv.example", file: filepath.Join(t.TempDir(), "vulnerabilities.json"), now: time.Now, logger: logger,
			ranking:    func(context.Context) (*library.Ranking, error) { return ranking, nil },
			mayRequest: func(*library.Library) bool { return true }, failed: map[string]int{},
			request: func(_ context.Context, name string) ([]json.RawMessage, error) {
				mu.Lock()
				defer mu.Unlock()
				if !allowed[name] {
					return nil, &fetch.Error{Err: errors.New("the network is closed")}
				}
				requested = append(requested, name)
				return []json.RawMessage{[]byte(`{"id":"GHSA-1","details":"` + strings.Repeat("d", 900) + `","affected":[{"package":{"ecosystem":"npm","name":"` + name + `"},"versions":["1.0.0"]}]}`)}, nil
			},
		}
		p.advisories = library.FollowAdvisories(p.file, logger)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.run(ctx) }()
		check := func(after time.Duration, wantRequested string, wantChecked ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(requested, " "); got != wantRequested {
				t.Errorf("requested are %q, want %q", got, wantRequested)
			}
			for _, l := range ranking.Libraries {
				want := strings.Contains(strings.Join(wantChecked, " "), l.NPM())
				if p.advisories.HasChecked(l.NPM()) != want || (len(p.advisories.Of(l.NPM(), "1.0.0")) == 1) != want {
					t.Errorf("%s is checked, want %t, and %v is known", l.NPM(), want, p.advisories.Of(l.NPM(), "1.0.0"))
				}
			}
			requested = nil
		}
		check(time.Second, "")
		check(10*time.Hour, "")
		allow("jar")
		check(time.Hour, "jar", "jar")
		allow("lid", "other")
		check(time.Hour, "lid other", "jar", "lid", "other")
		check(22*time.Hour, "", "jar", "lid", "other")
		check(time.Hour, "jar", "jar", "lid", "other")
		check(time.Hour, "lid other", "jar", "lid", "other")
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "the network is closed") {
			t.Errorf("the log has %d lines: %s", n, log.String())
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The error of one package does not stop the requests for others, but one of the network and five in a row do. Packages that
// the source may not learn of are not requested.
func TestVulnerabilityPollFailures(t *testing.T) {
	ranking := &library.Ranking{}
	for _, name := range strings.Fields("a private b c d e f g h") {
		ranking.Libraries = append(ranking.Libraries, &library.Library{Name: name, Hidden: name == "private", Autoupdate: &library.Autoupdate{Source: "npm", Target: name}})
	}
	for _, test := range []struct {
		failing string
		err     error
		want    string // the requests of the first poll | of the next
	}{
		{"a c e", &fetch.Error{Status: 500}, "a b c d e f g h | a c e"},
		{"b", fmt.Errorf("package: %w", &fetch.Error{Status: 429}), "a b | b"},
		{"b", fmt.Errorf("package: %w", &fetch.Error{Err: errors.New("no route")}), "a b | b"},
		{"b", &fetch.Error{Err: fetch.ErrTooLarge}, "a b c d e f g h | b"},
		{"b c d e f g h", errors.New("malformed"), "a b c d e f | g h b c d"},
	} {
		var requested []string
		p := &vulnerabilityPoll{
			file: filepath.Join(t.TempDir(), "vulnerabilities.json"), now: time.Now, logger: slog.New(slog.DiscardHandler),
			ranking:    func(context.Context) (*library.Ranking, error) { return ranking, nil },
			mayRequest: func(l *library.Library) bool { return !l.Hidden }, failed: map[string]int{},
			request: func(_ context.Context, name string) ([]json.RawMessage, error) {
				requested = append(requested, name)
				if strings.Contains(test.failing, name) {
					return nil, test.err
				}
				return nil, nil
			},
		}
		for range 2 {
			if err := p.pollDue(t.Context()); !errors.Is(err, test.err) {
				t.Errorf("the error is %v, want %v", err, test.err)
			}
			requested = append(requested, "|")
		}
		if got := strings.TrimSuffix(strings.Join(requested, " "), " |"); got != test.want {
			t.Errorf("%v for %s: requested are %q, want %q", test.err, test.failing, got, test.want)
		}
	}
}
