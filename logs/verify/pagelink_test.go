package verify

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseLinks(t *testing.T) {
	for value, want := range map[string]string{
		`</a.js>; rel=preload; as=script`:                                                    "href=/a.js rel=preload as=script",
		` <//h/a.js> ;REL="modulepreload" ; integrity="sha256-a sha256-b"; crossorigin`:      "href=//h/a.js rel=modulepreload integrity=sha256-a sha256-b crossorigin=",
		`<a.css>;rel=stylesheet,<b.js>;rel="preload";title="a, <c>; \"d\"";as = script , , `: `href=a.css rel=stylesheet | href=b.js rel=preload title=a, <c>; "d" as=script`,
		`<a>;href=b;rel=preload`: "href=a rel=preload",
		`<a>;;rel=preload;`:      "href=a rel=preload",
		``:                       "",
		`/a.js; rel=preload`:     "| unreadable",
		`<a>; rel="preload`:      "| unreadable",
		`<a`:                     "| unreadable",
		`<a>; rel=preload <b>`:   "href=a rel=preload | unreadable",
	} {
		links, complete := parseLinkHeader(value)
		var parts []string
		for _, link := range links {
			var attributes []string
			for _, a := range link {
				attributes = append(attributes, a.Key+"="+a.Val)
			}
			parts = append(parts, strings.Join(attributes, " "))
		}
		got := strings.Join(parts, " | ")
		if !complete {
			got = strings.TrimPrefix(got+" | unreadable", " ")
		}
		if got != want {
			t.Errorf("%s: %s, want %s", value, got, want)
		}
	}
}

// TestHeaderLinks: addresses in the header are relative to the document, and an import map's integrity counts for them.
func TestHeaderLinks(t *testing.T) {
	address, err := parseWebURL("https://page.example/dir/page", nil)
	if err != nil {
		t.Fatal(err)
	}
	html := `<base href="https://evil.example/"><script type="importmap">{"integrity": {"https://page.example/dir/m.js": "sha256-x"}}</script>`
	p, err := parsePage(t.Context(), []byte(html), "text/html", address)
	if err != nil {
		t.Fatal(err)
	}
	p.addHeaderLinks([]string{`<a.js>; rel=preload; as=script; integrity=sha256-y, <m.js>; rel=modulepreload`, `<f.woff>; rel=preload; as=font`, `<s.css>; rel=stylesheet`, `<é.css>; rel=stylesheet`, `<<`})
	got := ""
	for _, r := range p.references {
		if r.Kind != Inline {
			got += fmt.Sprintf("%s %s %s%s\n", r.Kind, r.URL, r.Integrity, r.problem)
		}
	}
	want := "preload https://page.example/dir/a.js sha256-y\nmodulepreload https://page.example/dir/m.js sha256-x\nstyle https://page.example/dir/s.css \nstyle https://page.example/dir/%C3%83%C2%A9.css \npage  its Link header cannot be read\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
