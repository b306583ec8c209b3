package download_test

import (
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/server/download"
)

func TestCacheTags(t *testing.T) {
	store := openStore(t, testkit.Release{Package: "lib", Version: "1.0.0", Files: map[string][]byte{"lib.js": []byte("lib")}})
	h := newHandler(t, download.Options{Store: store, CacheTags: true})
	whole := get(h, "GET", "/download/lib/1.0.0.zip")
	unchanged := get(h, "GET", "/download/lib/1.0.0.zip", "If-None-Match", whole.Header.Get("Etag"))
	wantStatus(t, whole, 200)
	wantStatus(t, unchanged, 304)
	for name, want := range map[string]string{"Cache-Tag": "larder,pkg~lib,ver~lib~1.0.0", "Surrogate-Key": "larder pkg~lib ver~lib~1.0.0"} {
		if got := [2]string{whole.Header.Get(name), unchanged.Header.Get(name)}; got != [2]string{want, want} {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if r := get(newHandler(t, download.Options{Store: store}), "GET", "/download/lib/1.0.0.zip"); r.Header.Get("Cache-Tag") != "" {
		t.Errorf("tags although none were configured: %v", r.Header)
	}
}
