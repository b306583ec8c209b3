package shopping

import (
	"fmt"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
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
			synctest.Test(t, func(t *testing.T) {
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
