package server_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/larder-cdn/larder/server"
)

func TestCacheTags(t *testing.T) {
	store := fixture(t)
	const path = "/ajax/libs/demo/1.0.0/demo.js"
	for tags, want := range map[server.CacheTags][2]string{
		false: {"", ""},
		true:  {"larder,pkg~demo,ver~demo~1.0.0", "larder pkg~demo ver~demo~1.0.0"},
	} {
		a := newAssets(t, server.Options{Store: store, CacheTags: tags})
		whole := get(a, "GET", path)
		for name, r := range map[string]*http.Response{
			"GET":   whole,
			"HEAD":  get(a, "HEAD", path),
			"gzip":  get(a, "GET", path, "Accept-Encoding", "gzip"),
			"range": get(a, "GET", path, "Range", "bytes=0-1"),
			"304":   get(a, "GET", path, "If-None-Match", whole.Header.Get("Etag")),
		} {
			if got := [2]string{r.Header.Get("Cache-Tag"), r.Header.Get("Surrogate-Key")}; got != want {
				t.Errorf("%v, %s (%d): %q, want %q", tags, name, r.StatusCode, got, want)
			}
		}
		// What is not to be cached for long needs no purging.
		for _, target := range []string{"/ajax/libs/demo/1.0.0/nothing", "/ajax/libs/demo/0.9.0/demo.js"} {
			if r := get(a, "GET", target); r.Header.Get("Cache-Tag")+r.Header.Get("Surrogate-Key") != "" {
				t.Errorf("%v: %s has tags: %v", tags, target, r.Header)
			}
		}
	}
}

func TestCacheTagsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("with the race detector pools forget at random")
	}
	store := fixture(t)
	r := httptest.NewRequest("GET", "/ajax/libs/demo/1.0.0/demo.js", nil)
	allocations := func(tags server.CacheTags) float64 {
		a := newAssets(t, server.Options{Store: store, CacheTags: tags})
		w := &discard{make(http.Header)}
		return testing.AllocsPerRun(100, func() { a.ServeHTTP(w, r) })
	}
	if with, without := allocations(true), allocations(false); with > without {
		t.Errorf("%v allocations with tags, %v without", with, without)
	}
}
