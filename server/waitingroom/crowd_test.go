package waitingroom

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// Queuers are users who wait before one room, with a clock of their own.
type queuers struct {
	*clock
	handler http.Handler
	room    *room
	cookies []string
}

// newQueuers has n users come to a room for ten, some time apart.
func newQueuers(b testing.TB, n int, apart time.Duration) *queuers {
	b.Helper()
	rooms, err := config.Parse("rooms.yaml", []byte("- {name: shop, total_active_users: 10, new_users_per_minute: 10, session_duration: 30}"))
	if err != nil {
		b.Fatal(err)
	}
	store, err := kvstore.Open(b.TempDir(), kvstore.Options{MinFreeBytes: -1})
	if err != nil {
		b.Fatal(err)
	}
	c := &queuers{clock: newClock(), cookies: make([]string, n)}
	objects := durable.New(store, durable.Options{Now: c.Now})
	opened, err := New(Options{Rooms: rooms, Keys: testKeys(b), Runtime: objects, Now: c.Now})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := objects.Close(context.Background()); err != nil {
			b.Log(err)
		}
		store.Close()
	})
	c.room = opened.currentRooms().rooms[0]
	c.handler = opened.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "origin") }))
	for i := range c.cookies { // all within a moment: who does not come again soon would count no longer
		c.add(apart)
		c.checkIn(b, i)
	}
	c.report(b)
	return c
}

func (c *queuers) report(b testing.TB) {
	if _, err := c.room.report(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// checkIn has a user's browser load the page.
func (c *queuers) checkIn(b testing.TB, i int) {
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	req.Header.Set("Accept", browserAccept)
	if c.cookies[i] != "" {
		req.Header.Set("Cookie", c.cookies[i])
	}
	w := httptest.NewRecorder()
	c.handler.ServeHTTP(w, req)
	if w.Code != http.StatusOK {
		b.Fatalf("%d %s", w.Code, w.Body)
	}
	if set := w.Header().Get("Set-Cookie"); set != "" {
		c.cookies[i], _, _ = strings.Cut(set, ";")
	}
}

// inUse is the memory of the heap that is in use.
func inUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkCrowd is a check-in of one of 100,000 users of one room, each of whom comes every 20 seconds: reading the ticket, the
// decision, the page in HTML, the new ticket. It tells the memory of a user, and the slowest of a hundred.
func BenchmarkCrowd(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			before := inUse()
			c := newQueuers(b, n, 0)
			cookies := uint64(0)
			for i := range c.cookies { // the browsers have these, not the room
				c.cookies[i] = strings.Clone(c.cookies[i])
				cookies += uint64(len(c.cookies[i]))
			}
			perUser := float64(inUse()-before-cookies) / float64(n)
			if got := c.room.status().Queued; got != n-10 {
				b.Fatalf("%d wait, not %d", got, n-10)
			}
			var took []time.Duration
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if i%n == 0 {
					b.StopTimer()
					c.add(24 * time.Second)
					c.report(b)
					b.StartTimer()
				}
				begun := time.Now()
				c.checkIn(b, i%n)
				took = append(took, time.Since(begun))
				i++
			}
			slices.Sort(took)
			b.ReportMetric(perUser, "B/user")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
		})
	}
}
