package review

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/packages"
)

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
