package git_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/internal/testkit/githubtest"
)

const hubToken = "ghp_0123456789secret"

func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ url, token, want string }{
		{"http://github.example.com/api/v3", hubToken, "must begin with https"},
		{"http://10.0.0.1", "", "must begin with https"},
		{"http://localhost.example.com", hubToken, "must begin with https"},
		{"ftp://github.example.com", hubToken, "must be a URL"},
		{"https://user:secret@github.example.com", hubToken, "must be a URL"},
		{"https://", hubToken, "must be a URL"},
		{"https://github.example.com/?a", hubToken, "must be a URL"},
		{"", hubToken + "\n", "no token has"},
		{"", "two " + hubToken, "no token has"},
		{"https://api.github.com", hubToken, ""},
		{"http://127.0.0.1:3000", hubToken, ""},
		{"http://[::1]:3000/api/v3", hubToken, ""},
		{"http://localhost", hubToken, ""},
	} {
		_, err := git.NewGitHubClient(git.GitHubOptions{URL: tt.url, Token: tt.token})
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.url, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v", tt.url, err)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: it gives the secret away: %v", tt.url, err)
		}
	}
}

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int, body string, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}
}

// TestLimits holds how long a client waits before it sends a request again against what
// GitHub documents.
func TestLimits(t *testing.T) {
	const secondary = `{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}`
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of a bubble
	reset := func(after time.Duration) string { return fmt.Sprint(start.Add(after).Unix()) }
	for _, tt := range []struct {
		name    string
		answers []*http.Response // then 200
		want    time.Duration
		status  int
	}{
		{"none", nil, 0, 200},
		{"Retry-After", []*http.Response{answer(403, secondary, "Retry-After", "17")}, 17 * time.Second, 200},
		{"Retry-After and 429", []*http.Response{answer(429, "", "Retry-After", "17")}, 17 * time.Second, 200},
		{"too long a Retry-After", []*http.Response{answer(429, "", "Retry-After", "2000000000")}, time.Hour, 200},
		{"a broken Retry-After", []*http.Response{answer(429, "", "Retry-After", "-1")}, time.Minute, 200},
		{"secondary without a time", []*http.Response{answer(403, secondary), answer(403, secondary), answer(403, secondary)}, 7 * time.Minute, 200},
		{"by its documentation", []*http.Response{answer(403, `{"message":"no","documentation_url":"https://docs.github.com/rest#abuse-rate-limits"}`)}, time.Minute, 200},
		{"primary", []*http.Response{answer(403, "", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", reset(30*time.Minute))}, 30*time.Minute + time.Second, 200},
		{"primary and 429", []*http.Response{answer(429, "", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", reset(30*time.Minute))}, 30*time.Minute + time.Second, 200},
		{"primary, by a clock that is wrong", []*http.Response{answer(403, "", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", reset(40*24*time.Hour),
			"Date", start.Add(40*24*time.Hour-10*time.Minute).Format(http.TimeFormat))}, 10*time.Minute + time.Second, 200},
		{"primary, over already", []*http.Response{answer(403, "", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", reset(-30*time.Minute))}, time.Minute, 200},
		{"primary, far away", []*http.Response{answer(403, "", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", reset(9*time.Hour))}, time.Hour, 200},
		{"forbidden", []*http.Response{answer(403, `{"message":"Resource not accessible"}`, "X-RateLimit-Remaining", "7")}, 0, 403},
		{"unavailable", []*http.Response{answer(503, "", "Retry-After", "17")}, 0, 503},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				answers := tt.answers
				client, err := git.NewGitHubClient(git.GitHubOptions{Token: hubToken, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
					if body, err := io.ReadAll(r.Body); err != nil || string(body) != "{\"a\":1}\n" {
						t.Errorf("sent %q, %v", body, err)
					}
					if got := r.Header.Get("Authorization"); got != "Bearer "+hubToken {
						t.Errorf("sent with %q", got)
					}
					if len(answers) == 0 {
						return answer(200, "{}"), nil
					}
					next := answers[0]
					answers = answers[1:]
					return next, nil
				})})
				if err != nil {
					t.Fatal(err)
				}
				request, err := git.API(client).NewRequest("POST", "x", map[string]int{"a": 1})
				if err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				_, err = git.API(client).Do(t.Context(), request, nil)
				if took := time.Since(begun); took != tt.want {
					t.Errorf("it took %s, not %s", took, tt.want)
				}
				if status := git.GitHubStatus(err); status != tt.status && (err != nil || tt.status != 200) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// After the last request that the primary limit allows, the next one waits by itself.
func TestUsedUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		server := githubtest.New(hubToken)
		if err := server.Add("example/logs", t.TempDir(), "main"); err != nil {
			t.Fatal(err)
		}
		server.Limit(2, 20*time.Minute)
		var log bytes.Buffer
		client, err := git.NewGitHubClient(git.GitHubOptions{Token: hubToken, Transport: server, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, _, err := git.API(client).Repositories.Get(t.Context(), "example", "logs"); err != nil {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := git.API(client).Repositories.Get(ctx, "example", "logs"); err != nil {
			t.Fatal(err) // the second of the second window
		}
		if until := client.LimitedUntil(); until.Sub(begun) < 19*time.Minute {
			t.Errorf("the next request waits until %s", until)
		}
		if _, _, err := git.API(client).Repositories.Get(ctx, "example", "logs"); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("a wait after its context: %v after %s", err, time.Since(begun))
		}
		if n := strings.Count(log.String(), "limit=primary"); n != 2 {
			t.Errorf("told %d times:\n%s", n, &log)
		}
		for _, q := range server.Requests() {
			if q.Status != 200 {
				t.Errorf("%+v", q)
			}
		}
	})
}

func TestAnswers(t *testing.T) {
	hang := func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	for _, tt := range []struct {
		name string
		do   roundTrip
		want string
	}{
		{"nothing comes", hang, "no answer within 1m0s"},
		{"too much comes", func(*http.Request) (*http.Response, error) {
			r := answer(200, "")
			r.Body = io.NopCloser(io.LimitReader(endless{}, 1<<30))
			return r, nil
		}, "an answer of more than 64 MiB"},
		{"a redirect", func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != "api.github.com" {
				t.Errorf("asked %s", r.URL)
			}
			return answer(301, `{"message":"Moved\n\nPermanently"}`, "Location", "https://other.example/"), nil
		}, "GitHub answered 301 Moved Permanently: Moved Permanently"},
		{"no JSON", func(*http.Request) (*http.Response, error) { return answer(502, "<html>"), nil }, "GitHub answered 502 Bad Gateway"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				client, err := git.NewGitHubClient(git.GitHubOptions{Token: hubToken, Transport: tt.do})
				if err != nil {
					t.Fatal(err)
				}
				_, _, err = git.API(client).Repositories.Get(t.Context(), "example", "logs")
				if err == nil || !strings.Contains(git.DescribeGitHubError(err), tt.want) || strings.Contains(err.Error(), hubToken) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// A connection that is cut is described without the port that it had.
func TestCut(t *testing.T) {
	server := githubtest.New(hubToken)
	server.Break(githubtest.Fault{Lose: true})
	url, stop := server.Start()
	for _, closed := range []bool{false, true} {
		if closed {
			stop()
		}
		client, err := git.NewGitHubClient(git.GitHubOptions{URL: url, Token: hubToken})
		if err != nil {
			t.Fatal(err)
		}
		told := map[string]bool{}
		for range 3 {
			_, _, err := git.API(client).Repositories.Get(t.Context(), "example", "logs")
			if err == nil {
				t.Fatal("there was an answer")
			}
			told[git.DescribeGitHubError(err)] = true
		}
		if len(told) != 1 {
			t.Errorf("one failure has the descriptions %v", told)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestGitHubOtherHosts(t *testing.T) {
	client, err := git.NewGitHubClient(git.GitHubOptions{Token: hubToken, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		t.Errorf("the token went to %s", r.URL)
		return nil, errors.New("no")
	})})
	if err != nil {
		t.Fatal(err)
	}
	request, err := git.API(client).NewRequest("GET", "https://other.example/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := git.API(client).Do(t.Context(), request, nil); err == nil || !strings.Contains(err.Error(), "not the host") {
		t.Errorf("%v", err)
	}
}
