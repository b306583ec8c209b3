package browsertest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/server"
)

// A recorded is what a server sent for a path.
type recorded struct{ path, available, encoding string }

// TestUpgradeByDictionary tests that Chromium loads a version of a script as a delta against the one that it has, from another origin and with integrity, and
// that it gets Brotli if the server has no delta against what it has, or the delta is damaged.
func TestUpgradeByDictionary(t *testing.T) {
	t.Parallel()
	chromium, err := findChromium()
	if err != nil {
		without(t, err)
	}
	script := func(version string) []byte { return []byte(testkit.VersionedScript(version)) }
	store, err := kvstore.Open(t.TempDir(), kvstore.Options{FS: unsynced.FS})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	var releases []testkit.Release
	for _, version := range []string{"1.0.0", "1.0.1", "1.0.2", "1.0.3"} {
		releases = append(releases, testkit.Release{Package: "lib", Version: version, Files: map[string][]byte{"lib.js": script(version)}})
	}
	if err := testkit.Publish(store, releases); err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]string{{"1.0.1", "1.0.0"}, {"1.0.3", "1.0.2"}} { // none of 1.0.2
		delta, err := coding.EncodeDelta(script(pair[1]), script(pair[0]))
		if err != nil {
			t.Fatal(err)
		}
		if stored, err := store.PutDelta(kvstore.Sum(script(pair[0])), delta); err != nil || !stored {
			t.Fatal(stored, err)
		}
	}
	assets, err := server.New(server.Options{Store: store, Dictionaries: true})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var sent []recorded
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assets.ServeHTTP(w, r)
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, recorded{r.URL.Path, r.Header.Get("Available-Dictionary"), w.Header().Get("Content-Encoding")})
	}))
	defer files.Close()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		version := strings.TrimPrefix(r.URL.Path, "/")
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, `<!doctype html><title>A user's page</title><link rel="icon" href="data:,"><script src="%s/ajax/libs/lib/%s/lib.js" integrity="%s" crossorigin></script>`,
			files.URL, version, logs.SumSRI(script(version)))
	}))
	defer site.Close()

	ctx, cancel := launch(chromium)
	defer cancel()
	last := func() recorded {
		mu.Lock()
		defer mu.Unlock()
		return append([]recorded{{}}, sent...)[len(sent)]
	}
	// visit opens a page with a version, and returns how that was sent.
	visit := func(version string) recorded {
		if err := chromedp.Do(ctx, chromedp.Navigate(site.URL+"/"+version)); err != nil {
			t.Fatal(err)
		}
		loaded, err := chromedp.Run(ctx, chromedp.Evaluate[string]("String(window.version)"))
		if err != nil || loaded != version {
			t.Fatalf("the page has version %s, want %s; %v", loaded, version, err)
		}
		return last()
	}
	available := func(version string) string {
		sum := kvstore.Sum(script(version))
		return ":" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
	}
	// await waits until the browser has stored a version as a dictionary, which it does in the background.
	await := func(version string) {
		for deadline := time.Now().Add(timeout); last().available != available(version); {
			if time.Now().After(deadline) {
				t.Fatalf("the browser does not use %s as a dictionary", version)
			}
			_, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`fetch("`+files.URL+`/ajax/libs/lib/none/lib.js", {cache: "no-store"}).then(() => true)`, chromedp.EvalAwaitPromise))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct{ version, before, encoding string }{
		{"1.0.0", "", "br"},
		{"1.0.1", "1.0.0", "dcz"},
		{"1.0.2", "1.0.1", "br"}, // no delta is stored
	} {
		want := ""
		if tt.before != "" {
			await(tt.before)
			want = available(tt.before)
		}
		got := visit(tt.version)
		if got.encoding != tt.encoding || got.available != want {
			t.Errorf("%s was sent as %s to a client with the dictionary %q, want %s and %q", tt.version, got.encoding, got.available, tt.encoding, want)
		}
	}
	h, dictionary := kvstore.Sum(script("1.0.3")), kvstore.Sum(script("1.0.2"))
	b := store.NewBatch()
	b.Set(kvstore.Blobs, fmt.Appendf(nil, "%s%c%s", h[:], rune(coding.DCZ), dictionary[:]), []byte("damaged"))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	await("1.0.2")
	if got := visit("1.0.3"); got.encoding != "br" || got.available != available("1.0.2") {
		t.Errorf("with a damaged delta: %+v", got)
	}
	// The browser evicts its dictionaries together with its cache: then it gets Brotli, although the server has a delta of this version.
	await("1.0.3")
	if _, err := chromedp.Call(ctx, network.ClearBrowserCache, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	if got := visit("1.0.1"); got.encoding != "br" || got.available != "" {
		t.Errorf("after the dictionaries are evicted: %+v", got)
	}
}
