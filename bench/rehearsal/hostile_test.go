package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bench/internal/stage"
)

const pagePolicy = "default-src 'none'; style-src 'self'; script-src 'self'"

// pageAround returns the page of a release around a README's markup.
func pageAround(readme string) string {
	return `<!DOCTYPE html><html><head><title>p</title><script src="/scheme.js"></script></head><body><main id="content"><h1>p</h1><section class="readme">` +
		`<div class="readme-text">` + readme + `</div></section></main><footer class="footer"><a href="/about">About</a></footer></body></html>`
}

// TestJudgePage tests that a client notices what a README must not add to a page.
func TestJudgePage(t *testing.T) {
	r := &release{pkg: "p", version: "1.0.0"}
	marker := "<p>" + readmeMarker(r.pkg, r.version) + "</p>"
	for _, tt := range []struct{ readme, fault string }{
		{`<h3 id="readme-p">p</h3><a href="https://a.example" rel="nofollow noopener">x</a> <a href="#readme-p" rel="nofollow">y</a><pre tabindex="0">z</pre>`, ""},
		{`<pre>&lt;script&gt;alert(1)&lt;/script&gt; javascript:alert(1)</pre>`, ""},
		{`<script>alert(1)</script>`, "script"},
		{`<script src="https://evil.example/x.js"></script>`, "script"},
		{`<script src="//evil.example/x.js"></script>`, "script"},
		{`<script src="/x.js"></script>`, "<script>"},
		{`<b onclick="alert(1)">x</b>`, "onclick"},
		{`<b style="top:0">x</b>`, "style"},
		{`<b id="content">x</b>`, "id"},
		{`<b class="masthead">x</b>`, "class"},
		{`<img src="x">`, "<img>"},
		{`<svg></svg>`, "<svg>"},
		{`<iframe srcdoc="x"></iframe>`, "iframe"},
		{`<a href="javascript:alert(1)" rel="nofollow">x</a>`, "leads to"},
		{"<a href=\"java\tscript:alert(1)\" rel=\"nofollow\">x</a>", "leads to"},
		{"<a href=\" \x01JavaScript:alert(1)\" rel=\"nofollow\">x</a>", "leads to"},
		{`<a href="javascript:%zz" rel="nofollow">x</a>`, "leads to"},
		{`<a href="data:text/html,x" rel="nofollow">x</a>`, "leads to"},
		{`<a href="https://a.example">x</a>`, "search engines"},
		{`<meta http-equiv="refresh" content="0">`, "<meta>"},
		{`<link rel="stylesheet" href="/x">`, "<link>"},
		{`<style>body{}</style>`, "<style>"},
		{`<base href="/x">`, "<base>"},
		{`<form action="https://evil.example"></form>`, "<form>"},
		{`<!-- x -->`, "comment"},
		{`<h1>x</h1>`, "2 times h1"},
		{`</div></section></main><main>x`, "2 times main"},
		{`<footer class="footer">x</footer>`, "footer"},
		{`<h2>x</h2>`, "<h2>"},
		{strings.Repeat("x", mostPage), "bytes"},
	} {
		l := &libraryPage{release: r, header: http.Header{"Content-Security-Policy": {pagePolicy}}, body: []byte(pageAround(marker + tt.readme))}
		err := l.judge()
		if tt.fault == "" && err != nil || tt.fault != "" && (err == nil || causeOf(err) != wrongBytes || !strings.Contains(err.Error(), tt.fault)) {
			t.Errorf("%.100s: %v", tt.readme, err)
		}
	}
	for policy, body := range map[string]string{
		pagePolicy: pageAround("<p>nothing</p>"), "": pageAround(marker), pagePolicy + " 'unsafe-inline'": pageAround(marker), pagePolicy + ";": "<p>" + marker,
	} {
		l := &libraryPage{release: r, header: http.Header{"Content-Security-Policy": {policy}}, body: []byte(body)}
		if err := l.judge(); err == nil {
			t.Errorf("%s is right with %s", body, policy)
		}
	}
}

// TestHostileReadmes tests that each kind of README would be noticed on a page that displayed it as it is, except for those
// that only take long, and that Larder stores the marker of each.
func TestHostileReadmes(t *testing.T) {
	for i, kind := range hostileReadmes {
		r := &release{pkg: "p", version: fmt.Sprintf("1.%d.0", i)}
		if readmeOf(r.version) != &hostileReadmes[i] {
			t.Fatalf("%s has another README", r.version)
		}
		text := string(content(r.pkg, r.version, readmeFile))
		if at := strings.Index(text, readmeMarker(r.pkg, r.version)); at < 0 || at > 100 {
			t.Errorf("%s: the marker is at %d", kind.name, at)
		}
		l := &libraryPage{release: r, header: http.Header{"Content-Security-Policy": {pagePolicy}}, body: []byte(pageAround(text))}
		if err := l.judge(); err == nil {
			t.Errorf("%s: nothing is wrong with the page", kind.name)
		}
	}
	if readmeOf(fmt.Sprintf("1.%d.0", len(hostileReadmes))) != nil || readmeOf("2.3.0") != nil || readmeOf("1.10.0") != nil {
		t.Error("no README is harmless")
	}
}

// TestJudgePages tests that the check fails if an entrance displays another README than the first one, or a hostile one.
func TestJudgePages(t *testing.T) {
	r := &release{pkg: "p", version: "1.0.0"}
	marker := "<p>" + readmeMarker(r.pkg, r.version) + "</p>"
	serve := func(readme string) *entrance {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Security-Policy", pagePolicy)
			_, _ = fmt.Fprint(w, pageAround(readme))
		}))
		t.Cleanup(s.Close)
		return &entrance{name: s.URL, url: s.URL}
	}
	for name, tt := range map[string]struct{ first, second, fault string }{
		"right":   {marker, marker, ""},
		"another": {marker, marker + "<p>x</p>", "another README"},
		"hostile": {marker, marker + "<b onclick=x>x</b>", "onclick"},
	} {
		p := &play{library: newLibrary(), entrances: []*entrance{serve(tt.first), serve(tt.second)}}
		p.library.add(r)
		p.library.confirm(r, "one")
		p.pages.Add(1)
		if c := p.judgePages(t.Context()); c.OK != (tt.fault == "") || !strings.Contains(c.Said, tt.fault) {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if c := (&play{library: newLibrary()}).judgePages(t.Context()); c.OK {
		t.Error("the check holds without a page")
	}
}

// TestMemory tests that the check fails if a process once had too much memory, or none was measured.
func TestMemory(t *testing.T) {
	n := newNotes()
	if c := n.judgeMemory(); c.OK {
		t.Error("nothing was measured")
	}
	for _, memory := range []int64{100 << 20, mostMemory, 200 << 20} {
		n.sample("one", sample{Usage: stage.Usage{Memory: memory}})
	}
	if c := n.judgeMemory(); !c.OK {
		t.Errorf("%+v", c)
	}
	n.sample("two", sample{Usage: stage.Usage{Memory: mostMemory + 1<<20}})
	if c := n.judgeMemory(); c.OK || !strings.Contains(c.Said, "two had 585 MiB") || strings.Contains(c.Said, "one had") {
		t.Errorf("%+v", c)
	}
}
