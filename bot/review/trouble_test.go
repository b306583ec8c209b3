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

// What a process left, and what was never delivered, is found at the next start; what is done is not done again.
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

// A check that a user asks for again is another run, because GitHub adds annotations to those that are there.
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

// A client that is no app writes commit statuses.
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
