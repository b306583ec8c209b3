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

// wideOpen returns a room that never fills, without the network.
func wideOpen(b *testing.B) *Rooms {
	b.Helper()
	rooms, err := config.Parse("rooms.yaml", []byte("- {name: a, total_active_users: 1000000000, new_users_per_minute: 1000000000, session_duration: 1}"))
	if err != nil {
		b.Fatal(err)
	}
	store, err := kvstore.Open(b.TempDir(), kvstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	runtime := durable.New(store, durable.Options{})
	opened, err := New(Options{Rooms: rooms, Keys: testKeys(b), Runtime: runtime})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := runtime.Close(context.Background()); err != nil {
			b.Error(err)
		}
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	})
	return opened
}

// BenchmarkNew is the request of a new user that the room admits.
func BenchmarkNew(b *testing.B) {
	opened := wideOpen(b)
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

// BenchmarkReport is what a visitor waits for who draws: a report to the global object on
// the same node, whose grants are on the disk when it ends.
func BenchmarkReport(b *testing.B) {
	room := wideOpen(b).currentRooms().rooms[0]
	b.ReportAllocs()
	for b.Loop() {
		if _, err := room.report(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
