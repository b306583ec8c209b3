package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
)

// TestCodings asks for an answer that is worth a coding, and for one that is not.
func TestCodings(t *testing.T) {
	s := newService(t)
	const large, small = "/libraries?fields=*", "/stats"
	plain := s.get(large)
	tags := map[string]string{}
	for _, tt := range []struct {
		target string
		accept []string
		coding string
	}{
		{large, nil, ""},
		{large, []string{"Accept-Encoding: gzip, deflate, br, zstd"}, "br"},
		{large, []string{"Accept-Encoding: gzip"}, "gzip"},
		{large, []string{"Accept-Encoding: gzip", "Accept-Encoding: br;q=0.5"}, "gzip"},
		{large, []string{"Accept-Encoding: *"}, "br"},
		{large, []string{"Accept-Encoding: identity, br;q=0.1"}, ""},
		{large, []string{"Accept-Encoding: *;q=0"}, ""},
		{large, []string{"Accept-Encoding: identity;q=0, gzip"}, "gzip"},
		{large, []string{"Accept-Encoding: zstd"}, ""},
		{small, []string{"Accept-Encoding: br"}, ""},
	} {
		got := s.get(tt.target, tt.accept...)
		if got.status != 200 || got.get("Content-Encoding") != tt.coding {
			t.Errorf("%s %q: %d in %q", tt.target, tt.accept, got.status, got.get("Content-Encoding"))
		}
		vary := ""
		if tt.target == large {
			vary = "Accept-Encoding"
			equal(t, "the body", got.body, plain.body)
			tag := got.get("Etag")
			if before, ok := tags[tt.coding]; ok && before != tag {
				t.Errorf("the tag of %q was %s, is %s", tt.coding, before, tag)
			}
			tags[tt.coding] = tag
		}
		equal(t, "Vary", got.get("Vary"), vary)
	}
	if len(tags) != 3 || tags["br"] == tags["gzip"] || tags["br"] == tags[""] || tags["gzip"] == tags[""] {
		t.Errorf("tags %v are not different", tags)
	}
}

func TestConditions(t *testing.T) {
	s := newService(t)
	for _, target := range []string{"/libraries", "/libraries?search=jquery&fields=*", "/libraries/jquery", "/libraries/jquery/3.7.1", "/packages/gone/states", "/stats", "/favicon.png", "/openapi.json", "/packages/jquery/all"} {
		for _, accept := range []string{"br", "identity"} {
			accept := "Accept-Encoding: " + accept
			first := s.get(target, accept)
			tag := first.get("Etag")
			if !strings.HasPrefix(tag, `"`) || !strings.HasSuffix(tag, `"`) || len(tag) < 10 {
				t.Errorf("%s: the tag is %s", target, tag)
			}
			for _, condition := range []string{tag, "W/" + tag, `"x", ` + tag, "*"} {
				for _, method := range []string{"GET", "HEAD"} {
					got := s.ask(method, target, accept, "If-None-Match: "+condition)
					if got.status != http.StatusNotModified || got.get("Content-Type") != "" || got.get("Content-Length") != "" || got.get("Content-Encoding") != "" {
						t.Errorf("%s %s, If-None-Match: %s: %d %v", method, target, condition, got.status, got.header)
					}
					for _, name := range []string{"Etag", "Cache-Control", "Vary", "Access-Control-Allow-Origin"} {
						equal(t, name, got.get(name), first.get(name))
					}
				}
			}
			if got := s.get(target, accept, `If-None-Match: "x"`); got.status != 200 || got.body != first.body {
				t.Errorf("%s with another tag: %d", target, got.status)
			}
		}
	}
	if got := s.get("/libraries/nothing", "If-None-Match: *"); got.status != 404 || got.get("Etag") != "" {
		t.Errorf("what is not there: %d %s", got.status, got.get("Etag"))
	}
}

func TestPublicationShows(t *testing.T) {
	s := newService(t)
	before := s.get("/libraries?fields=version")
	equal(t, "again", s.get("/libraries?fields=version").get("Etag"), before.get("Etag"))
	s.shelf.Publish("bare", "1.0.0", "bare.js", map[string]string{"bare.js": "at last"})
	testkit.Await(t, s.index, s.shelf.Log)
	after := s.get("/libraries?fields=version")
	if want := fmt.Sprintf(`{"name":"bare","latest":"%s/ajax/libs/bare/1.0.0/bare.js","version":"1.0.0"}`, assetBase); !strings.Contains(after.body, want) {
		t.Errorf("after a publication: %s", after.body)
	}
	if after.get("Etag") == before.get("Etag") {
		t.Error("the tag is the old one")
	}
	if n := s.public.lists.Len(); n != 1 {
		t.Errorf("%d lists are kept", n)
	}
}
