package verify

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// changeAll gives all tags of a page another address.
func changeAll(t testing.TB, data []byte) (changes []TagChange, changed []byte, err error) {
	tags, err := ReadPageTags(data)
	if err != nil {
		return nil, nil, err
	}
	for _, tag := range tags {
		changes = append(changes, TagChange{tag, `https://cdn.example.com/ajax/libs/a/1.0.0/b&c'd.js`, "sha512-AAA="})
	}
	changed, err = ReplaceTags(data, changes)
	return changes, changed, err
}

// checkChange tests that a changed page has the same bytes outside of the changed tags, and loads the new files with the same integrity.
func checkChange(t testing.TB, name string, data []byte) {
	t.Helper()
	changes, changed, err := changeAll(t, data)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	after, err := ReadPageTags(changed)
	if err != nil || len(after) != len(changes) {
		t.Fatalf("%s: %d tags after %d, %v", name, len(after), len(changes), err)
	}
	before, rest := data, changed
	shift, from := 0, 0
	for i, c := range changes {
		start, end := after[i].Start()-shift, after[i].End()-shift
		if !bytes.Equal(before[from:c.Tag.Start()], rest[:start]) {
			t.Fatalf("%s: line %d: other bytes than those of the tag have changed", name, c.Tag.Line)
		}
		if after[i].URL != c.URL && after[i].URL != strings.ReplaceAll(c.URL, "'", "%27") || after[i].Integrity != c.Integrity || !strings.Contains(strings.ToLower(after[i].Text), "crossorigin") {
			t.Errorf("%s: line %d: %s became %s", name, c.Tag.Line, c.Tag.Text, after[i].Text)
		}
		from, rest, shift = c.Tag.End(), rest[end:], shift+end
	}
	if !bytes.Equal(before[from:], rest) {
		t.Fatalf("%s: the end has changed", name)
	}
}

// TestReplaceTagsInRealPages changes every tag of pages that people wrote.
func TestReplaceTagsInRealPages(t *testing.T) {
	paths, err := filepath.Glob("testdata/realpages/*.html")
	if err != nil || len(paths) < 30 {
		t.Fatalf("%d pages, %v", len(paths), err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		checkChange(t, path, data)
	}
}

// TestReplaceTags changes tags that are written in unusual ways.
func TestReplaceTags(t *testing.T) {
	const url, hash = "https://cdn.example.com/ajax/libs/a/1.0.0/a.js", "sha512-AAA="
	const added = ` integrity="` + hash + `" crossorigin="anonymous"`
	for page, want := range map[string]string{
		`<script src=//a/b.js>`:                                               `<script src="` + url + `"` + added + `>`,
		`<script src=a.js/></script>`:                                         `<script src="` + url + `"` + added + `></script>`,
		"<SCRIPT\n  defer\n\tSRC = 'a.js' async>":                             "<SCRIPT\n  defer\n\tSRC='" + url + "'" + strings.ReplaceAll(added, `"`, `'`) + " async>",
		`<script src="a.js"integrity="x"crossorigin="use-credentials">`:       `<script src="` + url + `"integrity="` + hash + `"crossorigin="anonymous">`,
		`<script crossorigin integrity src="a.js" src="b.js" integrity="y">`:  `<script crossorigin integrity="` + hash + `" src="` + url + `" src="b.js" integrity="y">`,
		`<script data-src="x" src="a&amp;b.js" title="src='>'">`:              `<script data-src="x" src="` + url + `"` + added + ` title="src='>'">`,
		`<link href=a.css rel="preload StyleSheet"/>`:                         `<link href="` + url + `"` + added + ` rel="preload StyleSheet"/>`,
		`<link href=a rel=preload as=font><link rel=preload href=a as=image>`: `<link href=a rel=preload as=font><link rel=preload href=a as=image>`,
		`<link href=a rel=preload as=script>`:                                 `<link href="` + url + `"` + added + ` rel=preload as=script>`,
		`<link rel=icon href=a.ico><link rel=stylesheet><script>x</script>`:   `<link rel=icon href=a.ico><link rel=stylesheet><script>x</script>`,
		`<!-- <script src="a.js"> --><textarea><script src=a.js></textarea>`:  `<!-- <script src="a.js"> --><textarea><script src=a.js></textarea>`,
		`<script src=a.js`: `<script src=a.js`,
	} {
		tags, err := ReadPageTags([]byte(page))
		if err != nil {
			t.Fatal(err)
		}
		var changes []TagChange
		for _, tag := range tags {
			changes = append(changes, TagChange{tag, url, hash})
		}
		if got, err := ReplaceTags([]byte(page), changes); err != nil || string(got) != want {
			t.Errorf("%s became\n%s, %v, want\n%s", page, got, err, want)
		}
	}
	tags, err := ReadPageTags([]byte("<base href=https://unpkg.com/>\r\n\r\n<script src=d3@7.0.0/d3.js></script>"))
	if err != nil || len(tags) != 1 || tags[0].URL != "https://unpkg.com/d3@7.0.0/d3.js" || tags[0].Line != 3 {
		t.Errorf("a relative address: %+v, %v", tags, err)
	}
	for name, page := range map[string]string{
		"over 8388608 bytes": strings.Repeat("a", MaxPage+1),
		"in UTF-16":          "\xff\xfe<\x00",
		"null bytes":         "<script src=a.js>\x00",
		"over 5000 tags":     strings.Repeat("<script src=a></script>", maxEditable+1),
		"iso-2022-jp":        "<meta charset=iso-2022-jp><script src=a.js>",
	} {
		if _, err := ReadPageTags([]byte(page)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want an error that says %q, got %v", name, err)
		}
	}
}

// FuzzReplaceTags changes all tags of any page, and nothing else of it.
func FuzzReplaceTags(f *testing.F) {
	for _, seed := range []string{
		`<script src="a.js" integrity=x crossorigin></script>`, "<link\rrel=stylesheet href='a&#10;b'>", `<script src=a/ =b c="<">`, `<svg><script src=a></svg><math><!--`,
		`<script src=a><!--<script>--></script><script src=b>`, `<plaintext><script src=a>`, `<base href=//x/><script/src=a//>`, `<p "<script src='a' ">`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, _, err := changeAll(t, data); err != nil {
			return
		}
		checkChange(t, "the page", data)
	})
}
