package shopping

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// A user counts for the minute in which a room may have let the user in: between the sending of the request and its arrival.
func TestMostInMinute(t *testing.T) {
	const second = time.Second
	for name, test := range map[string]struct {
		arrivals map[[2]time.Duration]int // by when requests were sent and when they arrive, after a full minute
		want     int
	}{
		"none":                      {nil, 0},
		"within minutes":            {map[[2]time.Duration]int{{10 * second, 11 * second}: 12, {70 * second, 71 * second}: 11}, 12},
		"on the way at a boundary":  {map[[2]time.Duration]int{{59 * second, 61 * second}: 12, {70 * second, 71 * second}: 12}, 12},
		"too many on the way":       {map[[2]time.Duration]int{{10 * second, 11 * second}: 6, {59 * second, 61 * second}: 12, {70 * second, 71 * second}: 10}, 14},
		"too many after a boundary": {map[[2]time.Duration]int{{59 * second, 61 * second}: 1, {70 * second, 71 * second}: 13}, 13},
		"boundaries in a row":       {map[[2]time.Duration]int{{59 * second, 61 * second}: 12, {119 * second, 121 * second}: 12, {130 * second, 131 * second}: 12}, 12},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var site Site
				begin := time.Now().Truncate(time.Minute).Add(time.Minute)
				n := 0
				for second := range 180 {
					now := time.Duration(second) * time.Second
					time.Sleep(time.Until(begin.Add(now)))
					for at, users := range test.arrivals {
						if at[1] != now {
							continue
						}
						for range users {
							n++
							r := httptest.NewRequest("GET", "/shop", nil)
							r.Header.Set("X-User", fmt.Sprint(n))
							r.Header.Set("X-Sent", strconv.FormatInt(begin.Add(at[0]).UnixNano(), 10))
							site.ServeHTTP(httptest.NewRecorder(), r)
						}
					}
				}
				if all, _, inMinute := site.Most(); all != n || inMinute != test.want {
					t.Errorf("%d came, at most %d in a minute, want %d and %d", all, inMinute, n, test.want)
				}
			})
		})
	}
}

// A user whose first request got no response may have been admitted then, and counts for any minute since.
func TestVisitAfterALostResponse(t *testing.T) {
	var mu sync.Mutex // the client may go on before the handler of a lost response has ended
	var sent []string
	var answers atomic.Bool
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		sent = append(sent, r.Header.Get("X-Sent"))
		mu.Unlock()
		if !answers.Load() {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("X-Shop", "open")
	}))
	defer node.Close()
	c := NewCrowd(t.Context(), t, 1)
	c.Find(0, node.URL)
	client := c.Client()
	c.Visit(0, client, "a", "/shop")
	c.Visit(0, client, "a", "/shop")
	answers.Store(true)
	if in, _ := c.Visit(0, client, "a", "/shop"); !in {
		t.Error("a visitor whose requests were lost does not come in")
	}
	c.Visit(0, client, "b", "/shop")
	c.Visit(0, client, "b", "/shop")
	mu.Lock()
	defer mu.Unlock()
	if len(sent) != 5 || sent[0] != sent[1] || sent[0] != sent[2] || sent[3] == sent[4] {
		t.Errorf("requests were sent at %q, want the time of the first for those up to its response", sent)
	}
}
