package review

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/internal/testkit/githubtest"
	"github.com/larder-cdn/larder/packages"
)

// A fork's pull request with mistakes is told each beside its line; what is mended passes, on a check of
// its own.
func TestReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) {
			o.Published = func(_ context.Context, name string) (*Published, error) {
				if name != "known" {
					return nil, nil
				}
				return &Published{Version: "1.9.0", Files: map[string]string{"slider.js": "sha512-other", "gone.js": ""}}, nil
			}
		})
		r.run()
		wrong := packageJSON(t, "fresh", `"basePath"`, `"basepath"`, `"MIT"`, `"mit"`)
		first := r.commit("packages/f/fresh.json", wrong, "packages/k/known.json", packageJSON(t, "known", "Slides.", "It slides."),
			"packages/o/old.json", "", "README.md", "# Another\n", ".github/workflows/x.yml", "on: push")
		number := r.open()
		if status := r.deliver("pull_request", pullEvent("opened", number, first)); status != http.StatusAccepted {
			t.Errorf("answered %d", status)
		}
		settle()
		check := r.only(first)
		want := `packages/f/fresh.json:18:7 failure required
packages/f/fresh.json:19:9 failure unknown-property
packages/f/fresh.json:9:14 failure license`
		if got := lines(check.Annotations); !sameLines(got, want) {
			t.Errorf("annotations:\n%s", got)
		}
		if check.Status != "completed" || check.Conclusion != "failure" || check.Name != Name || check.Title != "3 errors and 0 warnings in 2 package JSON files" {
			t.Errorf("%+v", check)
		}
		for _, want := range []string{
			"### `known` `2.0.0`", "1 file of the release's 2 would be published", "<tag known/2.0.0/slider.js sha512-", "<tag known/2.0.0/slider.min.js <nil>>",
			"Compared with `1.9.0`, which is published: 1 file more, 1 file fewer, 1 file with other content.", "+ slider.min.js\n- gone.js\n! slider.js\n",
			"what is published of their packages stays: `packages/o/old.json`", "Not looked at, as only `packages/**.json` is: `.github/workflows/x.yml`, `README.md`.",
		} {
			if !strings.Contains(check.Summary, want) {
				t.Errorf("the summary lacks %q:\n%s", want, check.Summary)
			}
		}

		second := r.commit("packages/f/fresh.json", packageJSON(t, "fresh"))
		r.deliver("pull_request", pullEvent("synchronize", number, second))
		settle()
		if check := r.only(second); check.Conclusion != "success" || len(check.Annotations) != 0 || check.Title != "1 package JSON file without a problem" {
			t.Errorf("%+v", check)
		}
		if check := r.only(first); check.Conclusion != "failure" {
			t.Errorf("the older check became %+v", check)
		}

		// Nothing to look at.
		third := r.commit("README.md", "# Yet another\n")
		r.deliver("pull_request", pullEvent("synchronize", number, third))
		settle()
		if check := r.only(third); check.Conclusion != "neutral" || !strings.Contains(check.Summary, "`README.md`") {
			t.Errorf("%+v", check)
		}
	})
}

// settle lets everything happen that is going to within a minute.
func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

func sameLines(a, b string) bool {
	seen := map[string]int{}
	for line := range strings.SplitSeq(a, "\n") {
		seen[line]++
	}
	for line := range strings.SplitSeq(b, "\n") {
		seen[line]--
	}
	for _, n := range seen {
		if n != 0 {
			return false
		}
	}
	return true
}

// What is not signed with the secret has no effect at all, nor has what was delivered before.
func TestDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		head := r.commit("packages/f/fresh.json", packageJSON(t, "fresh"))
		r.run()
		settle()
		number := r.open()
		asked := func() int { return len(r.hub.Requests()) }
		before := asked()
		event := payload(t, pullEvent("opened", number, head))
		bare, err := githubtest.Delivery("http://hook.example/", secret, "pull_request", "x", event)
		if err != nil {
			t.Fatal(err)
		}
		bare.Header.Del("X-Hub-Signature-256")
		for name, status := range map[string]int{
			"forged":        r.deliverAs("1", "another secret of many bytes", "pull_request", event),
			"unsigned":      r.send(bare),
			"huge":          r.deliverAs("2", secret, "pull_request", append(event, strings.Repeat(" ", 1<<20)...)),
			"not ours":      r.deliverAs("3", secret, "pull_request", []byte(strings.ReplaceAll(string(event), catalogue, "other/catalogue"))),
			"no JSON":       r.deliverAs("4", secret, "pull_request", []byte("{")),
			"no commit":     r.deliverAs("5", secret, "pull_request", payload(t, pullEvent("opened", number, "main"))),
			"another event": r.deliverAs("6", secret, "push", []byte("{}")),
			"another word":  r.deliverAs("7", secret, "pull_request", payload(t, pullEvent("labeled", number, head))),
			"ping":          r.deliverAs("8", secret, "ping", []byte("{}")),
		} {
			want := map[string]int{"forged": 401, "unsigned": 401, "huge": 413, "not ours": 400, "no JSON": 400, "no commit": 400}[name]
			if want == 0 {
				want = 200
			}
			if status != want {
				t.Errorf("%s: answered %d, not %d", name, status, want)
			}
		}
		settle()
		if n := asked() - before; n != 0 || r.reviewer.queue.waiting() != 0 {
			t.Fatalf("GitHub was asked %d times: %+v", n, r.hub.Requests())
		}
		if status := r.deliverAs("9", secret, "pull_request", event); status != http.StatusAccepted {
			t.Fatalf("answered %d", status)
		}
		settle()
		r.only(head)
		before = asked()
		for name, status := range map[string]int{
			"the same":                        r.deliverAs("9", secret, "pull_request", event),
			"the same payload, by another id": r.deliverAs("10", secret, "pull_request", event),
		} {
			if status != http.StatusOK {
				t.Errorf("%s: answered %d", name, status)
			}
		}
		settle()
		if n := asked() - before; n != 0 {
			t.Errorf("a replay asked %d times", n)
		}
	})
}

// A commit that comes while an older one is looked at is looked at instead.
func TestNewerCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		r := newRig(t, func(o *Options) {
			o.Look = func(ctx context.Context, p *packages.Package, older int) (*submission.Preview, error) {
				if looks++; looks == 1 {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return lookAt(ctx, p, older)
			}
		})
		r.run()
		first := r.commit("packages/f/fresh.json", packageJSON(t, "fresh"))
		number := r.open()
		r.deliver("pull_request", pullEvent("opened", number, first))
		settle()
		if check := r.only(first); check.Status != "in_progress" {
			t.Errorf("%+v", check)
		}
		r.deliver("pull_request", pullEvent("reopened", number, first)) // which is being looked at
		settle()
		if looks != 1 {
			t.Errorf("looked at %d times", looks)
		}
		second := r.commit("packages/f/fresh.json", packageJSON(t, "fresh", "Slides.", "It slides."))
		r.deliver("pull_request", pullEvent("synchronize", number, second))
		time.Sleep(time.Second)
		if check := r.only(first); check.Status != "completed" || check.Conclusion != "cancelled" {
			t.Errorf("the older: %+v", check)
		}
		if check := r.only(second); check.Conclusion != "success" {
			t.Errorf("the newer: %+v", check)
		}
	})
}

// A report that is being written when a newer commit comes is written to its end, for its own commit.
func TestNewerCommitWhileWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		number, first, second := 0, "", ""
		r.before = func(q *http.Request) {
			if q.Method == http.MethodPatch && second == "" {
				second = r.commit("packages/f/fresh.json", packageJSON(t, "fresh"))
				r.deliver("pull_request", pullEvent("synchronize", number, second))
			}
		}
		first = r.commit(withMistakes(t, 120)...)
		number = r.open()
		r.run()
		r.deliver("pull_request", pullEvent("opened", number, first))
		settle()
		if check := r.only(first); check.Conclusion != "failure" || len(check.Annotations) != 120 {
			t.Errorf("the older: %s with %d annotations", check.Conclusion, len(check.Annotations))
		}
		if check := r.only(second); check.Conclusion != "success" {
			t.Errorf("the newer: %+v", check)
		}
	})
}

// Upstreams that never answer hold no look up for long.
func TestSlowUpstreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) {
			o.Look = func(ctx context.Context, _ *packages.Package, _ int) (*submission.Preview, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		var pairs []string
		for i := range 60 {
			name := fmt.Sprint("slow", i)
			pairs = append(pairs, "packages/s/"+name+".json", packageJSON(t, name))
		}
		head := r.commit(pairs...)
		number := r.open()
		r.run()
		r.deliver("pull_request", pullEvent("opened", number, head))
		time.Sleep(allPatience + time.Minute)
		check := r.only(head)
		if check.Conclusion != "failure" || len(check.Annotations) != 60 || !strings.Contains(check.Annotations[0].Message, "could not be looked at in time") {
			t.Errorf("%s with %d annotations", check.Conclusion, len(check.Annotations))
		}
	})
}

// A commit that comes between two questions to GitHub does not mix with the one before.
func TestMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		first := r.commit("packages/f/fresh.json", "{")
		number := r.open()
		var second string
		r.before = func(q *http.Request) {
			if strings.HasSuffix(q.URL.Path, "/files") && second == "" {
				second = r.commit("packages/f/fresh.json", packageJSON(t, "fresh"))
			}
		}
		r.run()
		r.deliver("pull_request", pullEvent("opened", number, first))
		settle()
		if check := r.only(first); check.Conclusion != "cancelled" {
			t.Errorf("the older: %+v", check)
		}
		if check := r.only(second); check.Conclusion != "success" {
			t.Errorf("the newer: %+v", check)
		}
	})
}

// A pull request that is closed is not looked at any further, unless it is opened again.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		r := newRig(t, func(o *Options) {
			o.Look = func(ctx context.Context, p *packages.Package, older int) (*submission.Preview, error) {
				if looks++; looks > 1 {
					return lookAt(ctx, p, older)
				}
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		r.run()
		head := r.commit("packages/f/fresh.json", packageJSON(t, "fresh"))
		number := r.open()
		r.deliver("pull_request", pullEvent("opened", number, head))
		settle()
		r.hub.ClosePull(catalogue, number)
		r.deliver("pull_request", pullEvent("closed", number, head))
		time.Sleep(time.Second)
		if check := r.only(head); check.Conclusion != "cancelled" || !strings.Contains(check.Summary, "closed") {
			t.Errorf("%+v", check)
		}
		if n := r.reviewer.queue.waiting(); n != 0 {
			t.Errorf("%d wait", n)
		}
		r.hub.ReopenPull(catalogue, number)
		r.deliver("pull_request", pullEvent("reopened", number, head))
		settle()
		if all := r.hub.Checks(catalogue); len(all) != 2 || all[1].Conclusion != "success" {
			t.Errorf("%+v", all)
		}
	})
}
