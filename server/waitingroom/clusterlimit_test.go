package waitingroom

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// TestAutoLimitOfCluster has an automatic limit follow what the nodes measure of the origin, although the leader serves no visitors, and
// all nodes have the same limit.
func TestAutoLimitOfCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{yaml: "- {name: shop, upstream: 'http://127.0.0.1:1', total_active_users: auto, total_active_users_min: 2, total_active_users_max: 10, latency_objective_p99: 500, new_users_per_minute: 10}", centres: 3})
	limits := func() (all []int) {
		for _, h := range w.centres {
			s, _ := h.rooms.Status("shop")
			all = append(all, s.TotalActiveUsers)
		}
		return all
	}
	measure := func(node int, took time.Duration) {
		for range limitMinimum {
			w.centres[node].rooms.currentRooms().byName["shop"].kept.limit.countResponse(took, http.StatusOK, "203.0.113.1:1")
		}
	}
	w.pass(4 * time.Second)
	for i := range 2 { // users, past the origin that the test does not have
		room := w.centres[1+i].rooms.currentRooms().byName["shop"]
		if err := room.do(t.Context(), func(ctx context.Context, s *durable.State, c *centre) error {
			d, err := c.decideVisit(ctx, s, newTicket())
			if d.Outcome != queue.Pass {
				t.Errorf("user %d: %v", i, d.Outcome)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		measure(1, 50*time.Millisecond)
		w.pass(6 * time.Second)
	}
	if got := limits(); got[0] != 3 || got[1] != 3 || got[2] != 3 { // the room is full with two, not with three
		t.Errorf("the limits are %v", got)
	}
	measure(2, 2*time.Second)
	w.nets[2].down.Store(true) // a report is lost
	w.pass(2 * time.Second)
	w.nets[2].down.Store(false)
	w.pass(16 * time.Second)
	measure(2, 2*time.Second)
	w.pass(16 * time.Second)
	if got := limits(); got[0] != 2 || got[1] != 2 || got[2] != 2 {
		t.Errorf("with a slow origin as one node sees it, the limits are %v", got)
	}
}

// TestAutoLimitAfterEvent has an event set a limit of its own in a cluster: afterwards the automatic limit is what it was before.
func TestAutoLimitAfterEvent(t *testing.T) {
	t.Parallel()
	start := newClock().Now().Add(time.Minute).Truncate(time.Second)
	end := start.Add(2 * time.Minute)
	w := newWorld(t, worldOptions{centres: 2, yaml: fmt.Sprintf("- {name: shop, upstream: 'http://127.0.0.1:1', total_active_users: auto, total_active_users_min: 2, total_active_users_max: 10, latency_objective_p99: 500, new_users_per_minute: 10, events: [{name: sale, event_start_time: %s, event_end_time: %s, total_active_users: 9, new_users_per_minute: 9}]}",
		start.Format(time.RFC3339), end.Format(time.RFC3339))})
	for _, at := range []struct {
		time  time.Time
		limit int
	}{{start.Add(-10 * time.Second), 2}, {start.Add(10 * time.Second), 9}, {end.Add(10 * time.Second), 2}} {
		w.pass(at.time.Sub(w.Now()))
		for i, h := range w.centres {
			if s, _ := h.rooms.Status("shop"); s.TotalActiveUsers != at.limit {
				t.Errorf("%v: the limit of node %d is %d, not %d", at.time, i, s.TotalActiveUsers, at.limit)
			}
		}
	}
}

// TestAutoLimitOfLeader has the leader send an automatic limit to the other nodes, and not to itself.
func TestAutoLimitOfLeader(t *testing.T) {
	t.Parallel()
	c := newClock()
	o := NewLeader(1, NewClock(func() time.Duration { return 0 }, c.Now()), func(string, *OriginResponses) (SharedRoom, bool) {
		return SharedRoom{AutomaticLimit: 7}, true
	})
	o.ConfirmEpoch(0, 1)
	o.SetMembers(map[string][]string{"leader": {"shop"}})
	s := &Sharing{}
	s.listed.Store(true)
	s.leading.Store(o)
	q := LeaderRequest{Node: "leader", Epoch: 1, Room: "shop", Report: &queue.Report{DataCentre: "leader"}}
	if a := o.Respond(q); a.Refused != "" || a.Limit != 7 {
		t.Errorf("another node gets %+v", a)
	}
	if a, err := s.send(t.Context(), q); err != nil || a.Refused != "" || a.Limit != 0 {
		t.Errorf("the leader gets %+v, %v", a, err)
	}
}
