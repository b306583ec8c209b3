package api

import (
	"net/http"
	"strings"
	"testing"
)

// What is cached for good says which release it is about, so that a CDN can be told to forget it.
func TestCacheTags(t *testing.T) {
	const want = "larder,pkg~jquery,ver~jquery~3.7.1"
	s := newService(t, func(o *PublicOptions) { o.CacheTags = true })
	for target, tags := range map[string]string{
		"/libraries/jquery/3.7.1": want, "/libraries/jquery/3.7.1?fields=name": want,
		"/packages/jquery/versions/3.7.1": want, "/packages/jquery/sris/3.7.1": want,
		"/packages/jquery/modules/3.7.1": want, // though it has none
		"/libraries/jquery":              "", "/libraries/jquery/9.9.9": "", "/packages/jquery/sris/9.9.9": "", "/whitelist": "",
	} {
		got := s.get(target)
		if got.get("Cache-Tag") != tags || strings.ReplaceAll(got.get("Surrogate-Key"), " ", ",") != tags {
			t.Errorf("%s: Cache-Tag %q, Surrogate-Key %q", target, got.get("Cache-Tag"), got.get("Surrogate-Key"))
		}
	}
	if got := newService(t).get("/libraries/jquery/3.7.1"); got.status != http.StatusOK || got.get("Cache-Tag") != "" {
		t.Errorf("by default: %d, Cache-Tag %q", got.status, got.get("Cache-Tag"))
	}
}
