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
	"github.com/larder-cdn/larder/github/githubtest"
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

// Names and contents that strangers choose stay text.
func TestHostile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) {
			o.Look = func(ctx context.Context, p *packages.Package, older int) (*submission.Preview, error) {
				preview, err := lookAt(ctx, p, older)
				preview.Latest.Files[1].Path = "```\n</details>\n# x @everyone.js"
				preview.Latest.Refused = "`nothing` ![x](https://evil.example/x)\n# x"
				preview.Package.Filename = ""
				return preview, err
			}
			o.Published = func(context.Context, string) (*Published, error) {
				return &Published{Version: "`1`\n# x", Files: map[string]string{"```\n# x <b>": ""}}, nil
			}
		})
		name := "packages/f/`](https:\n# x @everyone <img src=x>\u202e.json"
		head := r.commit("packages/f/fresh.json", packageJSON(t, "fresh", `"keywords"`, `"`+"`\\n# x <img src=x onerror=alert(1)> ::error::x\\u202e"+`": 1, "keywords"`),
			"packages/k/known.json", packageJSON(t, "known", "Slides.", "`\\n# x @everyone"), name, "{", "@everyone\n# x`.md", "x", "packages/l/link.json", "")
		number := r.open()
		r.run()
		r.deliver("pull_request", pullEvent("opened", number, head))
		settle()
		check := r.only(head)
		if check.Conclusion != "failure" {
			t.Errorf("%+v", check)
		}
		outside := textOf(check.Summary)
		for _, bad := range []string{"# x", "<img", "@everyone", "evil.example", "\u202e", "<b>"} {
			if strings.Contains(outside, bad) {
				t.Errorf("%q is Markdown in\n%s", bad, check.Summary)
			}
		}
		found := false
		for _, a := range check.Annotations {
			if strings.ContainsAny(a.Message+a.Title, "\n\u202e\x1b") {
				t.Errorf("%+v", a)
			}
			found = found || a.Path == name
		}
		if !found {
			t.Errorf("nothing is said of %q:\n%s", name, lines(check.Annotations))
		}
	})
}

// textOf is Markdown without its code spans and blocks, read as CommonMark does.
func textOf(markdown string) string {
	var out strings.Builder
	for markdown != "" {
		at := strings.IndexByte(markdown, '`')
		if at < 0 {
			break
		}
		out.WriteString(markdown[:at])
		markdown = markdown[at:]
		run := len(markdown) - len(strings.TrimLeft(markdown, "`"))
		end := closing(markdown[run:], run)
		if end < 0 {
			out.WriteString(markdown[:run])
			markdown = markdown[run:]
			continue
		}
		markdown = markdown[run+end+run:]
	}
	out.WriteString(markdown)
	return out.String()
}

// closing finds a run of exactly n backticks.
func closing(s string, n int) int {
	for i := 0; i < len(s); {
		if s[i] != '`' {
			i++
			continue
		}
		run := len(s[i:]) - len(strings.TrimLeft(s[i:], "`"))
		if run == n {
			return i
		}
		i += run
	}
	return -1
}

// withMistakes is files with n mistakes, each on a line of its own.
func withMistakes(t testing.TB, n int) (pairs []string) {
	for file := 0; n > 0; file++ {
		var properties strings.Builder
		for i := range min(n, 30) {
			fmt.Fprintf(&properties, "  \"x%d\": 1,\n", i)
		}
		n -= 30
		name := fmt.Sprint("many", file)
		pairs = append(pairs, "packages/m/"+name+".json", packageJSON(t, name, "  \"keywords\"", properties.String()+"  \"keywords\""))
	}
	return pairs
}

// More problems than GitHub takes at once come in batches, and the check is done with the last of them.
func TestManyAnnotations(t *testing.T) {
	for _, n := range []int{50, 51, 130, 600} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				head := r.commit(withMistakes(t, n)...)
				number := r.open()
				r.run()
				r.deliver("pull_request", pullEvent("opened", number, head))
				time.Sleep(time.Minute)
				check := r.only(head)
				if want := min(n, mostAnnotations); len(check.Annotations) != want || check.Status != "completed" || check.Conclusion != "failure" {
					t.Errorf("%d annotations, %s", len(check.Annotations), check.Conclusion)
				}
				lines := map[string]bool{}
				for _, a := range check.Annotations {
					lines[fmt.Sprint(a.Path, a.StartLine)] = true
				}
				if len(lines) != len(check.Annotations) {
					t.Errorf("%d annotations on %d lines", len(check.Annotations), len(lines))
				}
				if more := strings.Contains(check.Summary, "problems more than are shown"); more != (n > mostAnnotations) {
					t.Errorf("says that there are more: %t", more)
				}
			})
		})
	}
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

// Upstreams that never answer hold nobody up for long.
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

// What a process left, and what nobody delivered, is found at the next start; what is done is not done again.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks int
		hang := true
		r := newRig(t, func(o *Options) {
			o.Look = func(ctx context.Context, p *packages.Package, older int) (*submission.Preview, error) {
				if hang {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				looks++
				return lookAt(ctx, p, older)
			}
		})
		stop := r.run()
		head := r.commit("packages/f/fresh.json", packageJSON(t, "fresh"))
		number := r.open()
		r.deliver("pull_request", pullEvent("opened", number, head))
		settle()
		stop()
		if check := r.only(head); check.Status != "in_progress" {
			t.Fatalf("%+v", check)
		}
		hang = false
		r.restart()
		stop = r.run()
		time.Sleep(time.Second)
		if check := r.only(head); check.Conclusion != "success" || looks != 1 {
			t.Errorf("%d looks, %+v", looks, check)
		}
		stop()
		r.restart()
		r.run()
		time.Sleep(3 * time.Hour)
		if r.only(head); looks != 1 {
			t.Errorf("looked at %d times", looks)
		}

		// The hourly survey finds what no delivery told of.
		next := r.commit("packages/f/fresh.json", packageJSON(t, "fresh", "Slides.", "It slides."))
		time.Sleep(2 * time.Hour)
		if check := r.only(next); check.Conclusion != "success" || looks != 2 {
			t.Errorf("%d looks, %+v", looks, check)
		}
	})
}

// A check that somebody asks for again is another run, because GitHub adds annotations to those that are there.
func TestRerequested(t *testing.T) {
	for name, event := range map[string]func(head string, number int) (string, any){
		"check_run": func(head string, number int) (string, any) {
			return "check_run", map[string]any{"check_run": map[string]any{"name": Name, "head_sha": head, "external_id": externalID(number)}}
		},
		"check_suite": func(head string, _ int) (string, any) {
			return "check_suite", map[string]any{"check_suite": map[string]any{"head_sha": head, "pull_requests": []any{}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad := true
				r := newRig(t, func(o *Options) {
					o.Look = func(ctx context.Context, p *packages.Package, older int) (*submission.Preview, error) {
						if bad {
							return nil, fmt.Errorf("the registry is away")
						}
						return lookAt(ctx, p, older)
					}
				})
				r.run()
				head := r.commit("packages/f/fresh.json", packageJSON(t, "fresh"))
				number := r.open()
				r.deliver("pull_request", pullEvent("opened", number, head))
				settle()
				if check := r.only(head); check.Conclusion != "failure" || len(check.Annotations) != 1 {
					t.Fatalf("%+v", check)
				}
				bad = false
				kind, v := event(head, number)
				v.(map[string]any)["action"] = "rerequested"
				v.(map[string]any)["repository"] = map[string]any{"full_name": catalogue}
				if status := r.deliver(kind, v); status != http.StatusAccepted {
					t.Errorf("answered %d", status)
				}
				time.Sleep(time.Second)
				all := r.hub.Checks(catalogue)
				if len(all) != 2 || all[1].Conclusion != "success" || len(all[1].Annotations) != 0 {
					t.Errorf("%+v", all)
				}
			})
		})
	}
}

// Who is no app writes commit statuses.
func TestStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.hub.RefuseChecks("You must authenticate via a GitHub App.")
		r.run()
		head := r.commit("packages/f/fresh.json", packageJSON(t, "fresh", `"MIT"`, `"mit"`))
		number := r.open()
		r.deliver("pull_request", pullEvent("opened", number, head))
		settle()
		next := r.commit("packages/f/fresh.json", packageJSON(t, "fresh"))
		r.deliver("pull_request", pullEvent("synchronize", number, next))
		settle()
		var got []string
		for _, s := range r.hub.Statuses(catalogue) {
			got = append(got, s.State+" "+s.Context)
		}
		if want := "pending larder review, failure larder review, pending larder review, success larder review"; strings.Join(got, ", ") != want {
			t.Errorf("%q", got)
		}
		if failed := r.hub.Statuses(catalogue)[1]; failed.SHA != head || !strings.Contains(failed.Description, "packages/f/fresh.json:9: ") {
			t.Errorf("%+v", failed)
		}
		refused := 0
		for _, q := range r.hub.Requests() {
			if q.Status == http.StatusForbidden {
				refused++
			}
		}
		if refused != 1 {
			t.Errorf("asked %d times for what is refused", refused)
		}
		r.restart()
		r.run()
		time.Sleep(2 * time.Hour)
		if n := len(r.hub.Statuses(catalogue)); n != 4 {
			t.Errorf("a finished one was looked at again: %d statuses", n)
		}
	})
}

// Limits are waited for, and bad days of GitHub's are survived.
func TestTrouble(t *testing.T) {
	for name, trouble := range map[string]func(*githubtest.Server){
		"primary limit": func(s *githubtest.Server) { s.Limit(3, 20*time.Minute) },
		"secondary limit": func(s *githubtest.Server) {
			s.Break(githubtest.Fault{Method: "POST", Times: 2, Status: 403, Header: map[string]string{"Retry-After": "30"}, Message: "You have exceeded a secondary rate limit."})
		},
		"unavailable": func(s *githubtest.Server) {
			s.Break(githubtest.Fault{Times: 3, Status: 503, Message: "No server is available"})
		},
		"lost creation": func(s *githubtest.Server) {
			s.Break(githubtest.Fault{Method: "POST", Path: "/check-runs", Times: 1, Lose: true})
		},
		"lost last request": func(s *githubtest.Server) {
			s.Break(githubtest.Fault{Method: "PATCH", Path: "/check-runs", Times: 1, Lose: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				trouble(r.hub)
				r.run()
				head := r.commit("packages/f/fresh.json", packageJSON(t, "fresh"))
				number := r.open()
				r.deliver("pull_request", pullEvent("opened", number, head))
				time.Sleep(4 * time.Hour)
				if check := r.only(head); check.Conclusion != "success" || len(check.Annotations) != 0 {
					t.Errorf("%+v", check)
				}
			})
		})
	}
}

// Between two batches of annotations a process may end. Another run takes the place of what it left.
func TestInterruptedBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		head := r.commit(withMistakes(t, 120)...)
		number := r.open()
		r.hub.Break(githubtest.Fault{Method: "PATCH", Path: "/check-runs", Skip: 1, Times: 1, Status: 500, Message: "oops"})
		r.run()
		r.deliver("pull_request", pullEvent("opened", number, head))
		time.Sleep(time.Hour)
		all := r.hub.Checks(catalogue)
		if len(all) != 2 || all[0].Conclusion != "cancelled" || all[1].Conclusion != "failure" || len(all[1].Annotations) != 120 {
			for _, c := range all {
				t.Errorf("%s with %d annotations", c.Conclusion, len(c.Annotations))
			}
		}
	})
}
