package testkit

import (
	"context"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/kvstore"
)

// Renderer returns a renderer that renders in this process.
func Renderer(tb testing.TB, store *kvstore.Store) *library.Renderer {
	tb.Helper()
	x := library.NewRenderer(library.RendererOptions{Store: store, Render: func(_ context.Context, _ string, r document.Request) (document.Result, error) {
		result, err := worker.RenderDocument(r)
		if err != nil {
			return result, &document.RefusedError{Reason: err.Error()}
		}
		data, err := result.Encode()
		if err != nil {
			return result, &document.RefusedError{Reason: err.Error()}
		}
		return document.Decode(r.Kind, data)
	}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.Run(ctx)
	}()
	tb.Cleanup(func() {
		cancel()
		<-done
	})
	return x
}

// AwaitTrue returns when something is true.
func AwaitTrue(tb testing.TB, is func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatal("it has not become true in a minute")
		}
	}
}
