package site

import (
	"strings"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

func TestBuilt(t *testing.T) {
	verified := &logs.Provenance{Outcome: logs.AttestationVerified, Repository: "https://github.com/jars/pickle", Commit: "c0ffee", Workflow: "https://github.com/jars/pickle/.github/workflows/release.yml@refs/heads/main"}
	tests := []struct {
		name       string
		entry      logs.Entry
		repository string
		want       built
	}{
		{"proven", logs.Entry{Kind: logs.Published, Provenance: verified}, "https://github.com/Jars/pickle", built{
			Repository: "github.com/jars/pickle", RepositoryLink: "https://github.com/jars/pickle", Commit: "c0ffee",
			Workflow: ".github/workflows/release.yml@refs/heads/main", WorkflowLink: "https://github.com/jars/pickle/blob/c0ffee/.github/workflows/release.yml",
		}},
		{"another repository", logs.Entry{Kind: logs.Published, Provenance: verified}, "https://github.com/jars/other", built{
			Repository: "github.com/jars/pickle", RepositoryLink: "https://github.com/jars/pickle", Commit: "c0ffee",
			Workflow: ".github/workflows/release.yml@refs/heads/main", WorkflowLink: "https://github.com/jars/pickle/blob/c0ffee/.github/workflows/release.yml",
			Mismatch: "https://github.com/jars/other",
		}},
		{"none", logs.Entry{Kind: logs.Published, Provenance: &logs.Provenance{Outcome: logs.AttestationMissing}}, "", built{Why: "on npm"}},
		{"not verified", logs.Entry{Kind: logs.Published, Provenance: &logs.Provenance{Outcome: logs.AttestationUnverified, Reason: "too large"}}, "", built{Why: "too large"}},
		{"an old entry", logs.Entry{Kind: logs.Published, Signature: logs.Signature{Outcome: logs.SignatureVerified}}, "", built{Why: "at publication"}},
		{"from git", logs.Entry{Kind: logs.Published}, "", built{Why: "not an npm release"}},
		{"mirrored", logs.Entry{Kind: logs.Mirrored}, "", built{Why: "mirrored from another origin"}},
	}
	for _, tt := range tests {
		if got := newBuilt(tt.entry, tt.repository); *got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, *got, tt.want)
		}
	}
}

// A library's page says where the release was built, what upstream has now, who wrote it, and where its feed is.
func TestOriginOnPage(t *testing.T) {
	s := testkit.NewShelf(t)
	s.Register("pickle", packageJSON(t, "pickle", map[string]any{"authors": []packages.Author{
		{Name: "A <b>", Email: "a@example.com", URL: "https://a.example/"}, {Name: "B", Email: "b@example.com", URL: "javascript:alert(1)"},
		{Name: "C"}, {Name: "D"}, {Name: "E"}, {Name: "F"},
	}}))
	s.Publish("pickle", "1.0.0", "a.js", map[string]string{"a.js": "1"})
	site := newSite(t, s, func(o *Options) {
		o.Library = s.Index(library.Options{Upstream: func(kvstore.Reader, string, string) (string, bool, error) {
			return "On 2 January 2026 it was <the same>.", false, nil
		}})
	})
	page := get(t, site, "/library/pickle").Body.String()
	for _, want := range []string{
		`<dt>Authors</dt><dd><a href="https://a.example/" rel="noopener">A &lt;b&gt;</a>, <a href="/search?q=B" title="Libraries of the same author">B</a>`, "and 1 more</dd>",
		`<dt>Provenance</dt><dd>not checked <span class="hint">not an npm release</span></dd>`, `<p class="notice">On 2 January 2026 it was &lt;the same&gt;.</p>`,
		`<link rel="alternate" type="application/atom+xml" title="pickle 1.0.0: releases, and what became of them" href="/logs.atom?package=pickle">`,
		`href="/logs.atom?package=pickle" type="application/atom+xml">Feed</a>`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if n := strings.Count(page, "not an npm release"); n != 1 || strings.Contains(page, "Built from") {
		t.Errorf("the page says %d times why it has no provenance", n)
	}
	if strings.Contains(page, "@example.com") || strings.Contains(page, "javascript:") {
		t.Error("the page has an address, or a link that runs something")
	}
	for target, feed := range map[string]string{"/history/pickle": "/logs.atom?package=pickle", "/history?package=pickle": "/logs.atom?package=pickle", "/history": "/logs.atom"} {
		if page := get(t, site, target).Body.String(); !strings.Contains(page, `<link rel="alternate" type="application/atom+xml" title="`) || !strings.Contains(page, `href="`+feed+`"`) {
			t.Errorf("%s does not name its feed %s", target, feed)
		}
	}
}
