package waitingroom

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// BenchmarkNew is a request of a new user, who is let in, without the network.
func BenchmarkNew(b *testing.B) {
	rooms, err := config.Parse("rooms.yaml", []byte("- {name: a, total_active_users: 1000000000, new_users_per_minute: 1000000000, session_duration: 1}"))
	if err != nil {
		b.Fatal(err)
	}
	store, err := kvstore.Open(b.TempDir(), kvstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	runtime := durable.New(store, durable.Options{})
	defer runtime.Close(context.Background())
	keys := testKeys(b)
	globals, err := OpenGlobals(GlobalOptions{Rooms: rooms, Runtime: runtime, Salt: keys.Salt})
	if err != nil {
		b.Fatal(err)
	}
	opened, err := New(Options{Rooms: rooms, Keys: keys, Runtime: runtime, Transport: globals, Sole: true})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); opened.Run(ctx) }()
	defer func() { cancel(); <-done }()
	h := opened.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
}
