package main

import (
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs/views"
)

func TestSearchTable(t *testing.T) {
	answer := library.Found{Total: 2, Available: 1202, Results: []library.Brief{
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
		if err := printFound(&b, answer, "date", tt.width); err != nil {
			t.Fatal(err)
		}
		if got := "\n" + b.String(); got != tt.want {
			t.Errorf("%d columns:%s", tt.width, got)
		}
	}
}

func TestInfoText(t *testing.T) {
	now := time.Date(2024, 5, 17, 12, 0, 0, 0, time.UTC)
	l := library.About{
		Brief:    library.Brief{Name: "demo", Version: "2.0.0", Description: "A test.", License: "MIT\x1b[2J"},
		Versions: []library.AboutVersion{{Version: "2.0.0"}, {Version: "1.10.0"}, {Version: "1.9.0"}, {Version: "1.8.0"}},
		Problems: []views.State{
			{Version: "3.0.0", Kind: views.Failed, Reason: "no answer", Next: now.Add(time.Hour)},
			{Version: "2.1.0", Kind: views.Refused, Reason: "nothing selected"},
		},
	}
	var b strings.Builder
	if err := printAbout(&b, &l, 39, now); err != nil {
		t.Fatal(err)
	}
	if got, want := "\n"+b.String(), `
demo 2.0.0
A test.

license      MIT [2J
source       `+"`larder import`"+` only
versions     2.0.0, 1.10.0, 1.9.0,
             1.8.0

NOT PUBLISHED  STATE    REASON
3.0.0          failed   no answer (tried again 1 hour from now)
2.1.0          refused  nothing selected
`; got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}
