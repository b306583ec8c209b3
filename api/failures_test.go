package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// TestFail tries everything that can go wrong below.
func TestFail(t *testing.T) {
	withdrawnError := &library.WithdrawnError{Package: "x", Version: "1", Withdrawal: views.Withdrawal{Reason: "why"}}
	for _, tt := range []struct {
		err     error
		status  int
		message string
		cache   string
		retry   string
		logged  bool
	}{
		{library.ErrNoLibrary, 404, "Library not found", hour, "", false},
		{fmt.Errorf("x: %w", library.ErrNoVersion), 404, "Version not found", hour, "", false},
		{fmt.Errorf("x: %w", withdrawnError), 410, "Version withdrawn: why", never, "", false},
		{badLimit, 400, "limit must be a whole number", never, "", false},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), 503, "The libraries are still being read", never, "5", false},
		{context.Canceled, 503, "The libraries are still being read", never, "5", false},
		{changing, 503, "The library is changing", never, "1", false},
		{fmt.Errorf("secret: %w", kvstore.ErrCorrupt), 503, "This cannot be read at the moment", never, "5", true},
		{errors.New("secret"), 500, "An unexpected error occurred", never, "", true},
	} {
		s := &service{t: t}
		var log strings.Builder
		e := newEngine(jsonLogger(&log))
		e.Use(allowCORS)
		e.GET("/x", func(c *gin.Context) { respondError(c, jsonLogger(&log), tt.err) })
		s.handler = e
		got := s.get("/x")
		body := decode[struct{ Message, Ref string }](t, got)
		if got.status != tt.status || body.Message != tt.message || got.get("Cache-Control") != tt.cache || got.get("Retry-After") != tt.retry || strings.Contains(got.body, "secret") {
			t.Errorf("%v: %d %s %v", tt.err, got.status, got.body, got.header)
		}
		if (body.Ref != "") != tt.logged || (log.Len() > 0) != tt.logged || tt.logged && !(strings.Contains(log.String(), body.Ref) && strings.Contains(log.String(), "secret")) {
			t.Errorf("%v: the log has %s", tt.err, log.String())
		}
	}
}

// Before the libraries have been read, what needs them says when to try again, and the rest answers.
func TestNotReady(t *testing.T) {
	shelf := testkit.NewShelf(t)
	index := library.New(library.Options{Store: shelf.Store, Log: shelf.Log}) // which does not run
	h := Public(PublicOptions{Library: index, AssetBase: assetBase, Logger: quiet})
	for target, want := range map[string]int{
		"/libraries": 503, "/libraries?search=x": 503, "/libraries/x": 503, "/libraries/x/1": 503, "/packages": 503, "/packages/x/all": 503, "/stats": 503,
		"/health": 200, "/whitelist": 200, "/openapi.json": 200, "/libraries?limit=x": 503, "/nowhere": 404,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // or it takes as long as the patience
		r := newRequest("GET", target).WithContext(ctx)
		got := serve(h, r)
		for _, problem := range problems(r, got) {
			t.Errorf("%s: %s", target, problem)
		}
		if got.status != want || want == 503 && got.get("Retry-After") == "" {
			t.Errorf("%s: %d %s", target, got.status, got.body)
		}
	}
}

// A store that cannot be read is our failure; what is in memory goes on.
func TestUnreadableStore(t *testing.T) {
	s := newService(t)
	s.get("/libraries")
	if err := s.shelf.Store.Close(); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]int{
		"/libraries/jquery": 500, "/libraries/jquery/3.7.1": 500, "/libraries/jquery/3.7.1?fields=name": 500, "/packages/jquery": 500, "/packages/jquery/all": 500,
		"/packages/jquery/states": 500, "/packages/jquery/versions": 500, "/packages/jquery/sris/3.7.1": 500,
		"/libraries": 200, "/libraries?search=jquery&fields=*": 200, "/stats": 200, "/packages": 200,
		"/libraries/jquery?fields=name,latest,sri,filename,description,version,keywords,homepage,license,repository,author,autoupdate": 200, // nothing is read for these
	} {
		if got := s.get(target); got.status != want {
			t.Errorf("%s: %d %s", target, got.status, got.body)
		}
	}
}

// A version that was withdrawn a moment ago, which the index does not know of yet, is not shown, nor is anything cached.
func TestWithdrawnMeanwhile(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("x", plainJSON("x", "X."))
	shelf.Publish("x", "1.0.0", "x.js", map[string]string{"x.js": "x"})
	index := library.New(library.Options{Store: shelf.Store, Log: shelf.Log})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := index.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	testkit.Await(t, index, shelf.Log)
	cancel()
	<-done // it follows the log no more
	shelf.Withdraw("x", "1.0.0", "a mistake")
	h := Public(PublicOptions{Library: index, AssetBase: assetBase, Logger: quiet})
	if got := serve(h, newRequest("GET", "/libraries/x")); got.status != http.StatusServiceUnavailable || got.get("Cache-Control") != never {
		t.Errorf("the library: %d %s", got.status, got.body)
	}
	if got := serve(h, newRequest("GET", "/libraries/x/1.0.0")); got.status != http.StatusGone {
		t.Errorf("the version: %d %s", got.status, got.body)
	}
}
