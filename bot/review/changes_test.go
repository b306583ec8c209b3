package review

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/larder-cdn/larder/packages"
)

// What is in a pull request besides package JSON files that are there as files.
func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		renamed := packageJSON(t, "renamed", `"target": "renamed"`, `"target": "old"`)
		big := strings.Repeat(" ", packages.MaxFileSize+1)
		head := r.commit("packages/o/old.json", "", "packages/r/renamed.json", renamed, "link:packages/l/link.json", "../k/known.json", "link:packages/l/nowhere.json", "/etc/passwd",
			"packages/b/big.json", big, "packages/n/nested/deep.json", packageJSON(t, "deep"), "packages/.hidden/x.json", "{", "packages/u/unused/MORE.txt", "x", "elsewhere.json", "{",
			"packages/s/odd name?ref=main#x.json", "{}", "packages/a/a..b.json", packageJSON(t, "a..b"))
		number := r.open()
		r.run()
		r.deliver("pull_request", pullEvent("opened", number, head))
		settle()
		check := r.only(head)
		want := `packages/b/big.json:1:1 failure unreadable
packages/l/link.json:1:1 failure unreadable
packages/l/nowhere.json:1:1 failure unreadable
packages/n/nested/deep.json:2:11 failure path
packages/s/odd name?ref=main#x.json`
		got := lines(check.Annotations)
		for line := range strings.SplitSeq(want, "\n") {
			if !strings.Contains(got, line) {
				t.Errorf("the annotations lack %s:\n%s", line, got)
			}
		}
		for _, bad := range []string{"renamed.json", "a..b", "hidden", "elsewhere"} {
			if strings.Contains(got, bad) {
				t.Errorf("%s has an annotation:\n%s", bad, got)
			}
		}
		for _, want := range []string{"`elsewhere.json`, `packages/.hidden/x.json`, `packages/u/unused/MORE.txt`", "stays: `packages/o/old.json`"} {
			if !strings.Contains(check.Summary, want) {
				t.Errorf("the summary lacks %s:\n%s", want, check.Summary)
			}
		}
		for _, q := range r.hub.Requests() {
			if strings.Contains(q.Path, "elsewhere") || strings.Contains(q.Path, "README") {
				t.Errorf("asked for %s", q.Path)
			}
		}
	})
}

// Duplicates are looked for in the catalogue as it is going to be.
func TestCatalogue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for _, name := range []string{"old", "known"} {
			at := filepath.Join(dir, filepath.FromSlash(packages.Path(name)))
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(packageJSON(t, name)), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		now, err := packages.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		away := false
		r := newRig(t, func(o *Options) {
			o.Catalogue = func(context.Context) (*packages.Catalogue, error) {
				if away {
					return nil, errors.New("the host is away")
				}
				return now, nil
			}
		})
		r.run()
		head := r.commit("packages/o/old.json", "", "packages/r/renamed.json", packageJSON(t, "renamed", `"target": "renamed"`, `"target": "old"`),
			"packages/s/second.json", packageJSON(t, "second", `"target": "second"`, `"target": "known"`))
		number := r.open()
		r.deliver("pull_request", pullEvent("opened", number, head))
		settle()
		if got := lines(r.only(head).Annotations); got != "packages/s/second.json:16:15 failure duplicate" {
			t.Errorf("annotations:\n%s", got)
		}
		away = true
		head = r.commit("packages/s/second.json", packageJSON(t, "second", `"target": "second"`, `"target": "known"`))
		r.deliver("pull_request", pullEvent("synchronize", number, head))
		settle()
		if check := r.only(head); check.Conclusion != "success" || !strings.Contains(check.Summary, "Not checked: `duplicates in the catalogue, which cannot be read: the host is away`") {
			t.Errorf("%+v", check)
		}
	})
}

// A pull request with more than is looked at does not pass. Many pages of files are read to the end.
func TestTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		var pairs []string
		for i := range mostFiles + 50 {
			name := fmt.Sprintf("p%d", i)
			pairs = append(pairs, "packages/p/"+name+".json", packageJSON(t, name))
		}
		head := r.commit(append(pairs, "zz.txt", "on the last page")...)
		number := r.open()
		r.run()
		r.deliver("pull_request", pullEvent("opened", number, head))
		settle()
		check := r.only(head)
		if check.Conclusion != "failure" || !strings.Contains(check.Summary, "**50 package JSON files were not looked at**") || !strings.Contains(check.Summary, "`zz.txt`") {
			t.Errorf("%s: %s", check.Conclusion, check.Summary)
		}
		if len(check.Summary) > 65535 || !strings.Contains(check.Summary, "There is no room for") {
			t.Errorf("%d bytes", len(check.Summary))
		}
	})
}

// A queue that is full says so, and takes the delivery when it comes again.
func TestFull(t *testing.T) {
	r := newRig(t, nil)
	for i := range mostWaiting {
		if err := r.reviewer.queue.add(1000+i, "", false); err != nil {
			t.Fatal(err)
		}
	}
	event := payload(t, pullEvent("opened", 1, strings.Repeat("a", 40)))
	for range 2 {
		if status := r.deliverAs("1", secret, "pull_request", event); status != http.StatusServiceUnavailable {
			t.Errorf("answered %d", status)
		}
	}
	pull := <-r.reviewer.queue.ready
	r.reviewer.queue.take(t.Context(), pull)
	r.reviewer.queue.done(pull, false, false)
	if status := r.deliverAs("1", secret, "pull_request", event); status != http.StatusAccepted {
		t.Errorf("answered %d", status)
	}
}

// A goroutine that asks for a commit while GitHub is being asked which one is the newest neither disturbs the look nor is
// forgotten.
func TestQueue(t *testing.T) {
	q := newQueue(3)
	begin := func() context.Context {
		t.Helper()
		select {
		case pull := <-q.ready:
			ctx, _ := q.take(t.Context(), pull)
			return ctx
		default:
			t.Fatal("nothing is due")
			return nil
		}
	}
	add := func(head string, again bool) {
		t.Helper()
		if err := q.add(1, head, again); err != nil {
			t.Fatal(err)
		}
	}
	add("a", false)
	add("a", false)
	ctx := begin()
	add("a", false)
	q.at(1, "a")
	if q.done(1, false, false); ctx.Err() == nil || q.waiting() != 0 || len(q.ready) != 0 {
		t.Error("the same commit is looked at twice")
	}
	add("a", false)
	ctx = begin()
	add("b", false)
	if q.at(1, "a"); ctx.Err() != nil {
		t.Error("disturbed")
	}
	q.done(1, false, false)
	ctx = begin()
	q.at(1, "b")
	add("c", false)
	if context.Cause(ctx) != errSuperseded {
		t.Error("not disturbed")
	}
	q.done(1, false, false)
	ctx = begin()
	q.at(1, "c")
	if add("c", true); context.Cause(ctx) != errSuperseded {
		t.Error("not disturbed")
	}
	q.done(1, false, false)
	if _, again := q.take(t.Context(), <-q.ready); !again {
		t.Error("not looked at again")
	}
	q.done(1, false, false)
	if q.waiting() != 0 || len(q.ready) != 0 {
		t.Errorf("%d wait", q.waiting())
	}
}

func TestClip(t *testing.T) {
	for _, tt := range []struct {
		text string
		most int
		want string
	}{
		{"abc", 3, "abc"}, {"abcd", 4, "abcd"}, {"abcde", 4, "a…"}, {"äöüß", 6, "ä…"}, {"\xff", 9, "\uFFFD"}, {"日本語日本語", 10, "日本…"},
	} {
		if got := clip(tt.text, tt.most); got != tt.want || len(got) > tt.most {
			t.Errorf("%q, %d: %q", tt.text, tt.most, got)
		}
	}
}
