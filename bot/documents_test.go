package bot_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// entries returns the entries of a kind, oldest first.
func (r *rig) entries(kind logs.Kind) []logs.Indexed {
	r.Helper()
	var all []logs.Indexed
	for e, err := range logs.Entries(r.store, 0) {
		if err != nil {
			r.Fatal(err)
		}
		if e.Kind == kind {
			all = append(all, e)
		}
	}
	return all
}

// one returns the one entry of a kind.
func (r *rig) one(kind logs.Kind) logs.Indexed {
	r.Helper()
	all := r.entries(kind)
	if len(all) != 1 {
		r.Fatalf("%d entries are %s, want 1; the log is\n%s", len(all), kind, r.kinds())
	}
	return all[0]
}

// content returns what an entry names.
func (r *rig) content(h kvstore.Hash) string {
	r.Helper()
	data, err := r.store.Identity(h)
	if err != nil {
		r.Fatal(err)
	}
	return string(data)
}

func TestProcessingIsLogged(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": library, "broken.js": "var ="})
	r.open()
	r.once()
	processed, published := r.one(logs.Processed), r.one(logs.Published)
	if published.Index != processed.Index+1 || processed.Manifest != published.Manifest || processed.Actor != published.Actor || !processed.Released.Equal(hour(1)) {
		t.Errorf("processed %+v\npublished %+v", processed.Entry, published.Entry)
	}
	m := r.content(processed.Manifest)
	for _, want := range []string{`"origin":"minified","from":"a.js"`, `"origin":"upstream"`, `broken.js was not minified`} {
		if !strings.Contains(m, want) {
			t.Errorf("the manifest does not say %s: %s", want, m)
		}
	}
	r.sound()
}

func TestChangeOfPackageJSONIsLoggedWithItsDiff(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"})
	r.open()
	r.once()
	r.register("a", fromNpm("a", "*.js", "*.css"))
	r.open()
	r.once()
	const want = `--- a/packages/a/a.json
+++ b/packages/a/a.json
@@ -1,4 +1,4 @@
 {
 		"name": "a", "description": "A test.", "keywords": ["test"], "filename": "a.js",
-		"repository": {"type": "git", "url": "https://example.com/a.git"}, "autoupdate": {"source": "npm", "target": "a", "fileMap": [{"basePath": "", "files": ["*.js"]}]}
+		"repository": {"type": "git", "url": "https://example.com/a.git"}, "autoupdate": {"source": "npm", "target": "a", "fileMap": [{"basePath": "", "files": ["*.js", "*.css"]}]}
 	}
\ No newline at end of file
`
	if got := r.content(r.one(logs.PackageChanged).Diff); got != want {
		t.Errorf("the diff is\n%s\nwant\n%s", got, want)
	}
	r.register("a", fromNpm("a", "*.css"))
	r.open()
	r.once()
	if all := r.entries(logs.PackageChanged); len(all) != 2 || !strings.Contains(r.content(all[1].Diff), `-		"repository": {"type": "git", "url": "https://example.com/a.git"}, "autoupdate": {"source": "npm", "target": "a", "fileMap": [{"basePath": "", "files": ["*.js", "*.css"]}]}`) {
		t.Errorf("the second change: %+v", all)
	}
	if e := r.one(logs.PackageAdded); e.Diff != (kvstore.Hash{}) {
		t.Errorf("a new package has a diff: %+v", e)
	}
	r.sound()
}

func TestLongReasonIsKeptWhole(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	var hashes []string
	for i := range 40 {
		hashes = append(hashes, logs.SumSRI([]byte{byte(i)}).String())
	}
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"}, npmtest.Dist("integrity", strings.Join(hashes, " ")))
	r.registry.Add("a", "1.0.1", hour(2), map[string]string{"a.js": "a"}, npmtest.Dist("integrity", hashes[0]))
	r.open()
	r.once()
	r.setNow(r.now.Add(7 * time.Hour)) // the same wrong bytes are refused then
	r.once()
	all := r.entries(logs.Refused)
	slices.SortFunc(all, func(a, b logs.Indexed) int { return strings.Compare(a.Version, b.Version) })
	if len(all) != 2 {
		t.Fatalf("the log is\n%s", r.kinds())
	}
	long, short := all[0], all[1]
	detail := r.content(long.Detail)
	if len(long.Reason) > logs.MaxReason || !strings.HasPrefix(detail, strings.TrimSuffix(long.Reason, "…")) || !strings.Contains(detail, hashes[39]) {
		t.Errorf("the reason is %q, in detail %q", long.Reason, detail)
	}
	if short.Detail != (kvstore.Hash{}) || !strings.Contains(short.Reason, hashes[0]) {
		t.Errorf("a short reason: %+v", short.Entry)
	}
	if s := r.state("a", "1.0.0"); s.Kind != views.Refused || s.Reason != long.Reason {
		t.Errorf("the state is %+v", s)
	}
	r.sound()
}
