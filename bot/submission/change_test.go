package submission

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/packages"
)

func TestNewChange(t *testing.T) {
	release := func(version string, files ...string) *Preview {
		p := &Preview{Package: &packages.Package{}, Latest: Release{Candidate: sources.Candidate{Name: version}}}
		for _, f := range files {
			p.Latest.Files = append(p.Latest.Files, packages.PlannedFile{Path: f})
		}
		return p
	}
	after := release("2.0.0", "a.css", "b.js")
	after.Package.JSON = []byte(`{"name": "demo", "license": "MIT\n::error::", "keywords": ["a", "<b>"], "autoupdate": {"fileMap": [{"files": ["*.js"]}, {"files": []}]}}`)
	published := &packages.Package{JSON: []byte(`{"name": "demo", "keywords": ["a"], "autoupdate": {"fileMap": [{"basePath": "dist", "files": ["*.js"]}]}, "filename": "c.js"}`)}
	c := NewChange(after, published, release("2.0.0", "b.js", "c.js"), nil)
	want := []string{
		`- autoupdate.fileMap[0].basePath: "dist"`,
		`+ autoupdate.fileMap[1].files: []`,
		`- filename: "c.js"`,
		`- keywords: ["a"]`, `+ keywords: ["a","<b>"]`,
		`+ license: "MIT\n::error::"`,
	}
	if !slices.Equal(c.Fields, want) {
		t.Errorf("fields:\n%s", strings.Join(c.Fields, "\n"))
	}
	if !slices.Equal(c.Added, []string{"a.css"}) || !slices.Equal(c.Removed, []string{"c.js"}) || c.describe("2.0.0") != "Files of 2.0.0: 1 added, 1 removed. Published releases stay as they are; the change applies to later ones." {
		t.Errorf("%+v, %s", c, c.describe("2.0.0"))
	}
	if got := NewChange(after, after.Package, release("1.0.0"), nil); got.Fields != nil || !strings.Contains(got.describe("2.0.0"), "those of 1.0.0, ") {
		t.Errorf("%+v", got)
	}
	if got := NewChange(after, published, nil, errors.New("gone")); got.describe("2.0.0") != "The files that the published version selects are unknown: gone" || got.fileLines() != nil {
		t.Errorf("%+v", got)
	}
}

// A stranger's names stay inside code, and no line begins with one.
func TestPreviewOfHostileNames(t *testing.T) {
	const name = "::error::`</summary>\n```\n##[error].js"
	p := &Preview{Package: &packages.Package{Name: "demo"}, Latest: Release{Candidate: sources.Candidate{Name: "1.0.0"}, Files: []packages.PlannedFile{{Path: name}}}}
	p.Tags = []string{"<script>"}
	p.Change = &Change{Fields: []string{"+ " + shortLine(name)}, Release: "1.0.0", Added: []string{name}, Removed: slices.Repeat([]string{name}, 100), Problem: name}
	var log, summary strings.Builder
	if err := errors.Join(p.WriteText(&log), p.WriteMarkdown(&summary)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(log.String()) {
		if strings.HasPrefix(strings.TrimSpace(line), "::") || strings.Contains(line, "##[") {
			t.Errorf("the line %q", line)
		}
	}
	for line := range strings.Lines(summary.String()) {
		// The fence of a block is longer than any run of backticks in it, so what the name has is within a line.
		if strings.HasPrefix(line, "</summary>") || strings.HasPrefix(line, "::") || strings.HasPrefix(line, "##[") {
			t.Errorf("the line %q in:\n%s", line, summary.String())
		}
	}
	if !strings.Contains(summary.String(), "- … and 40 more") {
		t.Errorf("%s", summary.String())
	}
}
