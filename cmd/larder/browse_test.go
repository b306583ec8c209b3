package main

import (
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs/views"
)

func TestSearchTable(t *testing.T) {
	answer := searchAnswer{Total: 2, Available: 1202, Results: []foundLibrary{
		{Name: "date-picker", Version: "1.0.0", Description: "Picks dates.\nAnd times, and everything that one may want to pick."},
		{Name: "new", Description: "Nothing is published."},
	}}
	for _, tt := range []struct {
		width int
		want  string
	}{
		{0, `
NAME         LATEST  DESCRIPTION
date-picker  1.0.0   Picks dates. And times, and everything that one may want to pick.
new          -       Nothing is published.

1,200 more; --limit shows them.
`},
		{50, `
NAME         LATEST  DESCRIPTION
date-picker  1.0.0   Picks dates. And times, and …
new          -       Nothing is published.

1,200 more; --limit shows them.
`},
	} {
		var b strings.Builder
		if err := answer.print(&b, "date", tt.width); err != nil {
			t.Fatal(err)
		}
		if got := "\n" + b.String(); got != tt.want {
			t.Errorf("%d columns:%s", tt.width, got)
		}
	}
}

func TestInfoText(t *testing.T) {
	now := time.Date(2024, 5, 17, 12, 0, 0, 0, time.UTC)
	l := libraryInfo{
		foundLibrary: foundLibrary{Name: "demo", Version: "2.0.0", Description: "A test."},
		License:      "MIT\x1b[2J",
		Versions:     []versionInfo{{Version: "2.0.0"}, {Version: "1.10.0"}, {Version: "1.9.0"}, {Version: "1.8.0"}},
		Problems: []views.State{
			{Version: "3.0.0", Kind: views.Failed, Reason: "no answer", Next: now.Add(time.Hour)},
			{Version: "2.1.0", Kind: views.Refused, Reason: "nothing selected"},
		},
	}
	var b strings.Builder
	if err := l.print(&b, 39, now); err != nil {
		t.Fatal(err)
	}
	if got, want := "\n"+b.String(), `
demo 2.0.0
A test.

license      MIT [2J
releases by  `+"`larder import`"+` only
versions     2.0.0, 1.10.0, 1.9.0,
             1.8.0

NOT PUBLISHED  STATE    REASON
3.0.0          failed   no answer (tried again 1 hour from now)
2.1.0          refused  nothing selected
`; got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}

func TestNearFiles(t *testing.T) {
	r := &library.Release{}
	for _, path := range []string{"css/bootstrap-grid.css", "css/bootstrap.css", "css/bootstrap.min.css", "js/bootstrap.bundle.js", "js/bootstrap.min.js"} {
		r.Files = append(r.Files, views.PublishedFile{Path: path})
	}
	for asked, want := range map[string]string{
		"bootstrap.min.css":     "css/bootstrap.min.css css/bootstrap.css",
		"dist/js/bootstrap.js":  "js/bootstrap.min.js",
		"bootstrp.bundel.js":    "js/bootstrap.bundle.js",
		"BOOTSTRAP.CSS":         "css/bootstrap.css css/bootstrap.min.css",
		"jquery.js":             "",
		"":                      "",
		strings.Repeat("/", 99): "",
	} {
		if got := strings.Join(nearFiles(r, asked), " "); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q: %s", asked, got)
		}
	}
}

func TestNearVersions(t *testing.T) {
	versions := []views.Version{{Version: "3.1.0"}, {Version: "3.0.1"}, {Version: "3.0.0"}, {Version: "2.10.0"}, {Version: "2.1.0"}}
	for asked, want := range map[string]string{"3": "3.1.0 3.0.1 3.0.0", "v2.1": "2.10.0 2.1.0", "4.0.0": "3.1.0"} {
		if got := strings.Join(nearVersions(versions, asked), " "); got != want {
			t.Errorf("%s: %s, want %s", asked, got, want)
		}
	}
	if got := nearVersions(nil, "1"); got != nil {
		t.Errorf("of none: %q", got)
	}
}
