package site

import (
	"net/url"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
)

func TestHostileMetadata(t *testing.T) {
	site := newSite(t, filled(t), nil)
	for _, target := range []string{"/", "/search", "/search?q=evil", "/library/evil", "/history/evil", "/compare/evil", "/statistics", "/search?q=" + url.QueryEscape(hostile), "/library/evil?filter=" + url.QueryEscape(hostile)} {
		body := get(t, site, target).Body.String()
		for _, never := range []string{"<script>alert", "<img", `href="javascript:`, "onerror=alert(1)>'<"} {
			if strings.Contains(body, never) {
				t.Errorf("%s has %s", target, never)
			}
		}
	}
	if body := get(t, site, "/library/evil").Body.String(); !strings.Contains(body, "<dd>javascript:alert(1)</dd>") {
		t.Error("a homepage that is no link is not shown as a text")
	}
}

// TestTurnedText holds that no name can look like another by the direction that it is read in.
func TestTurnedText(t *testing.T) {
	site := newSite(t, filled(t), nil)
	for _, target := range []string{"/library/evil", "/library/evil?filter=%E2%80%AE", "/search?q=%E2%81%A6", "/library/%E2%80%AE"} {
		if body := get(t, site, target).Body.String(); strings.ContainsFunc(body, isBidiControl) || !strings.ContainsRune(body, '\ufffd') {
			t.Errorf("%s has characters that turn text", target)
		}
	}
}

// TestLongMetadata holds that what strangers write does not decide how long a page is.
func TestLongMetadata(t *testing.T) {
	shelf := testkit.NewShelf(t)
	long := strings.Repeat("words upon words ", 6000)
	shelf.Register("long", packageJSON(t, "long", map[string]any{
		"description": long, "license": long, "homepage": "https://long.example/" + long, "authors": []map[string]string{{"name": long}},
		"repository": map[string]string{"type": "git", "url": "https://long.example/" + long},
	}))
	shelf.Publish("long", "1.0.0", "long.js", map[string]string{"long.js": "1"})
	shelf.Publish("long", "0.9.0", "long.js", map[string]string{"long.js": "0"})
	shelf.Withdraw("long", "0.9.0", long)
	shelf.Refuse("long", "2.0.0", long)
	site := newSite(t, shelf, nil)
	for _, target := range []string{"/", "/search", "/library/long", "/library/lonk", "/library/long/0.9.0", "/library/long/2.0.0", "/history/long", "/statistics"} {
		if n := get(t, site, target).Body.Len(); n > 20_000 {
			t.Errorf("%s has %d bytes", target, n)
		}
	}
}

// TestNothingToShow holds what pages say in the place of a release that is not there.
func TestNothingToShow(t *testing.T) {
	site := newSite(t, filled(t), nil)
	for target, want := range map[string]string{
		"/library/empty":            "no version of it has been found yet",
		"/library/refused":          "was refused: it selects none of the files",
		"/library/spoilt":           "has been withdrawn, 1.0.0 last: it had gone &lt;b&gt;off&lt;/b&gt;",
		"/library/pickle/3.0.0":     "3.0.0 was refused: package/pickle.js is too large",
		"/library/pickle/2.1.0":     "2.1.0 could not be published yet: the registry is away; next attempt <time datetime=\"2024-02-29T13:30:45Z\" data-to=\"minute\">29 February 2024, 13:30 UTC</time>",
		"/compare/pickle?from=7":    "pickle 7 is not published here.",
		"/compare/empty?from=1.0.0": "Nothing of empty is published yet",
		"/library/zzzzzzzz":         "<code>larder add zzzzzzzz</code>",
	} {
		if body := get(t, site, target).Body.String(); !strings.Contains(body, want) {
			t.Errorf("%s lacks %q", target, want)
		}
	}
	// No user should be led to copy a command that a stranger made up.
	for _, name := range []string{"zzz;reboot", "$(zzz)", "zzz%20--data%20x", "--zzz", "zzz%0a"} {
		if body := get(t, site, "/library/"+name).Body.String(); strings.Contains(body, "larder add") {
			t.Errorf("for %s there is a command", name)
		}
	}
}
