package server_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/server"
)

// When Wait returns for the entry of a withdrawal, the release is no longer served from memory.
func TestFollower(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Publish("demo", "1.0.0", "demo.js", map[string]string{"demo.js": "one"})
	assets, err := server.New(server.Options{Store: shelf.Store})
	if err != nil {
		t.Fatal(err)
	}
	follower := assets.Follow(shelf.Log)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		follower.Run(ctx)
	}()
	status := func() int {
		w := httptest.NewRecorder()
		assets.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/ajax/libs/demo/1.0.0/demo.js", nil))
		return w.Code
	}
	if got := status(); got != http.StatusOK {
		t.Errorf("before: %d", got)
	}
	shelf.Withdraw("demo", "1.0.0", "a test")
	if err := follower.Wait(ctx, shelf.Log.Checkpoint().Size); err != nil {
		t.Fatal(err)
	}
	if got := status(); got != http.StatusGone {
		t.Errorf("after: %d", got)
	}
	end()
	<-done
	if err := follower.Wait(ctx, shelf.Log.Checkpoint().Size+1); err == nil {
		t.Error("it waits for what never comes")
	}
}
