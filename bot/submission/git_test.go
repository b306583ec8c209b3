package submission

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
	"github.com/larder-cdn/larder/packages"
)

func TestGit(t *testing.T) {
	server := gittest.New(t)
	repository := server.Repository(t, "slider.git")
	repository.Release("v1.9.0", released, gittest.Files{"dist/slider.js": "old"})
	repository.Release("v2.0.0", released, gittest.Files{"dist/slider.js": "window.a", "dist/slider.css": "a{}", "README.md": "r"})
	f, err := fetch.New(fetch.Options{Tries: 1, Allow: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	source := (&sources.Sources{Git: git.New(git.Options{Fetch: f})}).ForKind(sources.KindGit)
	look := func(address string) (*packages.Package, *Preview, error) {
		p := pkg(t, "slider.min.js", "dist", "*.@(js|css)")
		a := *p.Autoupdate
		a.Source, a.Target, p.Autoupdate = "git", address, &a
		preview, err := NewPreview(context.Background(), source, p, 10)
		return p, preview, err
	}
	_, preview, err := look(server.URL + "/slider.git")
	if err != nil {
		t.Fatal(err)
	}
	if r := preview.Latest; r.Name != "2.0.0" || len(r.Files) != 4 || countMinified(&r) != 2 || r.Bytes() != 11 || r.Default != "slider.min.js" {
		t.Errorf("latest: %+v", r)
	}
	if len(preview.Older) != 1 || preview.Older[0].Name != "1.9.0" || len(preview.Older[0].Files) != 2 {
		t.Errorf("older: %+v", preview.Older)
	}
	p, _, err := look(server.URL + "/gone.git")
	if problem := ProblemOf(p, err); !errors.Is(err, fetch.ErrNotFound) || !strings.Contains(problem.Message, "the git server has no") {
		t.Errorf("gone: %v, %v", err, problem)
	}
	for _, address := range []string{"https://10.0.0.1/o/r.git", "https://u:secret@example.com/o/r", "file:///etc/passwd", "--upload-pack=x"} {
		p, _, err := look(address)
		if err == nil {
			t.Errorf("%s: no error", address)
			continue
		}
		if m := ProblemOf(p, err).Message; !strings.HasPrefix(m, "the upstream cannot be used: ") || strings.Contains(m, "try again") || strings.Contains(m, "secret") {
			t.Errorf("%s: %s", address, m)
		}
	}
}
