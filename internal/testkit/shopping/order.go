package shopping

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// OrderRooms is a file of two rooms that admit so many users a minute: one over /order, which the nodes of a cluster share, and one over
// /alone, which each node has for itself.
func OrderRooms(site string, rate int) string {
	return fmt.Sprintf(`
- {name: order, path: /order, total_active_users: 90000, new_users_per_minute: %d, session_duration: 1, upstream: %q, cookie_suffix: order}
- {name: alone, path: /alone, total_active_users: 90000, new_users_per_minute: %d, session_duration: 1, upstream: %q, cookie_suffix: alone, each_node: true}
`, rate, site, rate, site)
}

const (
	// apart is the time between two visitors of Order.
	apart = 40 * time.Millisecond
	// orderTries is how often Order measures at most. On a machine that does much else, calls come late.
	orderTries = 5
)

// Order has as many visitors as one of the [OrderRooms] admits in a minute come one after the other to nodes in turn, when the room is full
// for the minute, and hold event streams until they are called. It returns the rank correlation of their arrival with their calls: the
// first that is at least enough, or the best one.
func (c *Crowd) Order(path string, rate int, enough float64, nodes ...int) float64 {
	best := -1.0
	for try := 0; try < orderTries && best < enough && c.ctx.Err() == nil; try++ {
		arrived, called, ok := c.arrive(path, rate, nodes)
		if !ok {
			continue
		}
		correlation := RankCorrelation(arrived, called)
		c.tb.Logf("%s at %d nodes: rank correlation of arrival with being called %.4f, of %d visitors", path, len(nodes), correlation, len(called))
		best = max(best, correlation)
	}
	return best
}

// arrive has the visitors of Order come once, and returns when each came and was called. ok is false if the minute ended too early.
func (c *Crowd) arrive(path string, rate int, nodes []int) (arrived, called []time.Duration, ok bool) {
	need := time.Duration(rate)*apart + 5*time.Second
	for left := untilMinute(); left < need; left = untilMinute() {
		time.Sleep(left)
	}
	start := time.Now()
	end := start.Add(untilMinute())
	for waits := 0; waits < 3; { // the slots of this minute
		if in, _ := c.Visit(nodes[0], c.Client(), "", path); !in {
			waits++
		}
	}
	arrived, called = make([]time.Duration, rate), make([]time.Duration, rate)
	var all sync.WaitGroup
	for i := range rate {
		time.Sleep(apart)
		all.Go(func() {
			client, node := c.Client(), nodes[i%len(nodes)]
			arrived[i] = time.Since(start)
			in, _ := c.Visit(node, client, "", path)
			for n := 0; n < 5 && !in; n++ { // a stream ends after two minutes
				if c.AwaitCall(node, client, path) {
					called[i] = time.Since(start)
					in, _ = c.Visit(node, client, "", path) // else the slot would be free again in this minute
				}
			}
		})
	}
	late := time.Now().After(end)
	all.Wait()
	return arrived, called, !late && !slices.Contains(called, 0)
}

// untilMinute returns how long the minute of the clock lasts.
func untilMinute() time.Duration {
	now := time.Now()
	return now.Truncate(time.Minute).Add(time.Minute).Sub(now)
}

// RankCorrelation returns Spearman's rank correlation of two lists.
func RankCorrelation(a, b []time.Duration) float64 {
	x, y := ranks(a), ranks(b)
	mean := float64(len(x)-1) / 2
	var xy, xx, yy float64
	for i := range x {
		xy += (x[i] - mean) * (y[i] - mean)
		xx += (x[i] - mean) * (x[i] - mean)
		yy += (y[i] - mean) * (y[i] - mean)
	}
	return xy / math.Sqrt(xx*yy)
}

// ranks returns the rank of each value; equal values share the mean of theirs.
func ranks(values []time.Duration) []float64 {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(values[a], values[b]) })
	ranks := make([]float64, len(values))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && values[order[j]] == values[order[i]] {
			j++
		}
		for _, k := range order[i:j] {
			ranks[k] = float64(i+j-1) / 2
		}
		i = j
	}
	return ranks
}
