package site

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
)

// logbook returns a shelf with entries that name documents.
func logbook(t testing.TB) *testkit.Shelf {
	t.Helper()
	s := filled(t)
	keep := func(data []byte) kvstore.Hash {
		h := kvstore.Sum(data)
		if err := s.Store.PutContent(h, int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}); err != nil {
			t.Fatal(err)
		}
		return h
	}
	manifest, err := (&logs.Manifest{
		Package: "pickle", Version: "5.0.0", Source: logs.Source{Type: "npm", Name: "@jars/pickle", Integrity: "sha512-archive"},
		Files:   []logs.File{{Path: "pickle.js", Size: 1500, Origin: logs.Upstream}, {Path: "pickle.min.js", Size: 500, Origin: logs.Minified, From: "pickle.js"}},
		LeftOut: []logs.LeftOut{{Path: hostile, Reason: hostile}}, Notes: []string{hostile}, Alike: [][]string{{hostile, "caf\u00e9.js", "cafe\u0301.js"}},
	}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	err = s.Log.Update(func(tx *logs.Tx) error {
		for _, e := range []logs.Entry{
			{Kind: logs.PackageChanged, Package: "pickle", Diff: keep([]byte("--- before\n+++ after\n@@ -1 +1 @@\n-\"a\"\n+\"" + hostile + "\"\n \"c\"\n"))},
			{Kind: logs.Detected, Package: "pickle", Version: "5.0.0", Released: testkit.Released},
			{Kind: logs.Processed, Package: "pickle", Version: "5.0.0", Manifest: keep(manifest), Signature: logs.Signature{Outcome: logs.SignatureVerified, Key: "k"}},
			{Kind: logs.UpstreamChanged, Package: "pickle", Version: "5.0.0", Reason: "it is gone", Upstream: logs.UpstreamChange{Old: "sha512-old"}},
			{Kind: logs.Refused, Package: "pickle", Version: "6.0.0", Reason: "long…", Detail: keep([]byte(strings.Repeat("long "+hostile+"\n", 1000)))},
			{Kind: logs.KeyChanged, Key: "log+1+key", KeySignature: "signature"},
		} {
			e.Time, e.Actor = testkit.Released, "bot"
			if _, err := tx.Append(e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wordsOf returns what is in an element, a space between any two texts.
func wordsOf(n *html.Node) string {
	var words []string
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			words = append(words, strings.Fields(d.Data)...)
		}
	}
	return strings.Join(words, " ")
}

// entriesOf returns the words of each entry that a page shows.
func entriesOf(t testing.TB, w *httptest.ResponseRecorder) (words, ids []string) {
	t.Helper()
	for _, n := range find(t, w.Body.String(), func(n *html.Node) bool {
		return n.Data == "li" && attr(n.Parent, "class") == "events" || n.Data == "tr" && attr(n.Parent, "id") == "log"
	}) {
		words = append(words, wordsOf(n))
		ids = append(ids, attr(n, "id"))
	}
	return words, ids
}

func TestLog(t *testing.T) {
	shelf := logbook(t)
	site := newSite(t, shelf, nil)
	size := int(shelf.Log.Checkpoint().Size)
	for _, target := range []string{"/history", "/history?package=pickle", fmt.Sprintf("/history?entry=%d", size-6), fmt.Sprintf("/history?entry=%d", size-2), "/history/pickle/5.0.0", "/history/pickle/6.0.0"} {
		t.Run(target, func(t *testing.T) {
			w := get(t, site, target)
			if w.Code != 200 || w.Body.Len() > 200<<10 {
				t.Fatalf("status %d, %d bytes", w.Code, w.Body.Len())
			}
			checkPage(t, w)
		})
	}
	words, ids := entriesOf(t, get(t, site, "/history"))
	if len(ids) != min(size, entriesShown) || ids[0] != fmt.Sprintf("entry-%d", size-1) {
		t.Errorf("it shows %v", ids)
	}
	for i, want := range []string{
		"27 29 February 2024, 12:30 UTC key changed bot",
		"26 29 February 2024, 12:30 UTC refused pickle 6.0.0 long… the reason in full bot",
		"25 29 February 2024, 12:30 UTC upstream changed pickle 5.0.0 it is gone bot",
		"24 29 February 2024, 12:30 UTC processed pickle 5.0.0 bot",
		"23 29 February 2024, 12:30 UTC detected pickle 5.0.0 bot",
		"22 29 February 2024, 12:30 UTC package changed pickle what changed bot",
	} {
		want = strings.Replace(want, fmt.Sprint(27-i), fmt.Sprint(size-1-i), 1)
		if words[i] != want {
			t.Errorf("entry %d: %.300s\nwant %s", i, words[i], want)
		}
	}
	for index, want := range map[int]string{
		size - 1: "New key log+1+key", size - 2: "The reason in full long \">", size - 3: "Upstream’s integrity before sha512-old Upstream’s integrity after none: upstream does not have it",
		size - 4: "Upstream’s signature verified", size - 5: "Released upstream 29 February 2024", size - 6: "What changed in the package JSON @@ -1 +1 @@ -\"a\" +\"" + hostile + "\" \"c\"",
	} {
		if words, _ := entriesOf(t, get(t, site, fmt.Sprintf("/history?entry=%d", index))); len(words) != 1 || !strings.Contains(words[0], want) {
			t.Errorf("entry %d: %q, want %s", index, words, want)
		}
	}
	if _, ids := entriesOf(t, get(t, site, "/history?package=pickle&kind=refused,withdrawn")); len(ids) != 3 {
		t.Errorf("with filters it shows %v", ids)
	}
}

// A reader who goes on from page to page sees every entry once.
func TestLogPages(t *testing.T) {
	shelf := filled(t)
	for i := range 120 {
		shelf.Refuse("pickle", fmt.Sprintf("9.0.%d", i), "again")
	}
	site := newSite(t, shelf, nil)
	seen := map[string]bool{}
	target := "/history?package=pickle&kind=refused"
	for pages := 0; target != ""; pages++ {
		if pages > 5 {
			t.Fatal("it goes on and on")
		}
		w := get(t, site, target)
		body := w.Body.String()
		_, ids := entriesOf(t, w)
		for _, id := range ids {
			if seen[id] {
				t.Errorf("%s is there twice", id)
			}
			seen[id] = true
		}
		if live := strings.Contains(body, "data-stream"); live != (pages == 0) {
			t.Errorf("page %d can be followed: %v", pages, live)
		}
		target = ""
		for _, n := range find(t, body, func(n *html.Node) bool { return attr(n, "rel") == "next" }) {
			target = attr(n, "href")
		}
	}
	if len(seen) != 121 {
		t.Errorf("%d entries, want 121", len(seen))
	}
}

func TestReleaseHistory(t *testing.T) {
	site := newSite(t, logbook(t), nil)
	w := get(t, site, "/history/pickle/5.0.0")
	body := w.Body.String()
	if words, _ := entriesOf(t, w); len(words) != 3 || !strings.HasPrefix(words[2], "detected") {
		t.Errorf("it shows %v", words)
	}
	var rows []string
	for _, n := range find(t, body, func(n *html.Node) bool { return n.Data == "tr" }) {
		rows = append(rows, wordsOf(n))
	}
	if want := []string{"File Processing Size", "pickle.js unchanged 1.50 kB", "pickle.min.js minified here from pickle.js 500 B"}; strings.Join(rows, "\n") != strings.Join(want, "\n") {
		t.Errorf("rows %q", rows)
	}
	for _, want := range []string{"2.00 kB, 1 minified here, 1 left out", "npm @jars/pickle", "sha512-archive", "Alike but for case or Unicode form", `caf\u00e9.js`, `cafe\u0301.js`} {
		if !strings.Contains(body, want) {
			t.Errorf("no word of %q", want)
		}
	}
	if strings.Contains(body, `href="/library/pickle/5.0.0"`) {
		t.Error("it leads to files that are not served")
	}
	if !strings.Contains(get(t, site, "/history/pickle/2.0.0").Body.String(), `href="/library/pickle/2.0.0"`) {
		t.Error("it does not lead to files that are served")
	}
	if body := get(t, site, "/history/pickle/0.9.0").Body.String(); strings.Contains(body, `href="/library/pickle/0.9.0"`) || !strings.Contains(body, "stole") {
		t.Error("it leads to files that were withdrawn, or does not say why")
	}
	for target, want := range map[string]string{
		"/library/pickle/2.0.0": `href="/history/pickle/2.0.0"`, "/history/pickle": `href="/history/pickle/3.0.0"`, "/library/pickle/0.9.0": `href="/history?entry=`,
	} {
		if !strings.Contains(get(t, site, target).Body.String(), want) {
			t.Errorf("%s does not lead to %s", target, want)
		}
	}
}
