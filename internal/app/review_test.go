package app

import (
	"crypto/sha512"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"

	"github.com/larder-cdn/larder/bot/github"
	"github.com/larder-cdn/larder/bot/review"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
)

func TestPublishedIn(t *testing.T) {
	shelf := testkit.NewShelf(t)
	pkg := func(name string) {
		shelf.Enrol(name, `{"name":"`+name+`","description":"D.","keywords":["k"],"repository":{"type":"git","url":"https://git.example/r.git"}}`)
	}
	pkg("slider")
	pkg("empty")
	shelf.Publish("slider", "1.0.0", "a.js", map[string]string{"a.js": "old"})
	shelf.Publish("slider", "2.0.0", "a.js", map[string]string{"a.js": "new", "b/c.css": "c"})
	for name, want := range map[string]*review.Published{
		"slider": {Version: "2.0.0", Files: map[string]string{"a.js": logs.SumSRI([]byte("new")).String(), "b/c.css": logs.SumSRI([]byte("c")).String()}},
		"empty":  nil,
		"none":   nil,
	} {
		if got, err := publishedIn(shelf.Store, name); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	shelf.Withdraw("slider", "2.0.0", "a test")
	if got, err := publishedIn(shelf.Store, "slider"); err != nil || got == nil || got.Version != "1.0.0" {
		t.Errorf("after a withdrawal: %+v, %v", got, err)
	}
}

// What a submission names is not asked for with a token that may read what is private.
func TestReviewClients(t *testing.T) {
	var sent []string
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = append(sent, r.Header.Get("Authorization"))
		_, _ = w.Write([]byte("{}"))
	}))
	defer hub.Close()
	s := settings.New()
	s.GitHubURL, s.Token, s.ReviewRepository = hub.URL, "ghp_0123456789secret", "example/catalogue"
	pulls, upstreams, err := reviewClients(s, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, client := range []*github.Client{pulls, upstreams} {
		if _, _, err := client.Repositories.Get(t.Context(), "example", "private"); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"Bearer ghp_0123456789secret", ""}; !slices.Equal(sent, want) {
		t.Errorf("sent %q", sent)
	}
}

func TestTagToBe(t *testing.T) {
	sum := review.Integrity(sha512.Sum512([]byte("a")))
	for _, tt := range []struct {
		file      string
		integrity *review.Integrity
		want      string
	}{
		{"a b.js", &sum, `<script src="https://cdn.example/ajax/libs/x/1.0.0/a%20b.js" integrity="` + sum.String() + `" crossorigin="anonymous"></script>`},
		{"a.min.css", nil, `<link rel="stylesheet" href="https://cdn.example/ajax/libs/x/1.0.0/a.min.css" integrity="sha512-…" crossorigin="anonymous">`},
		{"a.woff2", &sum, ""},
	} {
		if got := tagToBe("https://cdn.example", "x", "1.0.0", tt.file, tt.integrity); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.file, got, tt.want)
		}
	}
}

func TestRepositoryURL(t *testing.T) {
	for api, want := range map[string]string{
		"":                                  "https://github.com/o/r.git",
		"https://api.github.com":            "https://github.com/o/r.git",
		"https://github.example.com/api/v3": "https://github.example.com/o/r.git",
		"http://127.0.0.1:3000":             "http://127.0.0.1:3000/o/r.git",
	} {
		if got, err := repositoryURL(api, "o/r"); err != nil || got != want {
			t.Errorf("%q: %s, %v", api, got, err)
		}
	}
}
