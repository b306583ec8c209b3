package queue

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// snapshot is what of the global object has to survive.
type snapshot struct {
	Version   int
	Now       time.Time
	First     Minute
	Reporters []savedReporter
	Holding   bool
	HoldUntil time.Time
	Closed    time.Time
	Expected  []string
	Barrier   time.Time
}

type savedReporter struct {
	ID    reporterID
	State reporter
}

const snapshotVersion = 1

// Snapshot is the state that [RestoreGlobal] continues from, as JSON. Its size goes
// with the number of data centres and of buckets that anybody waits in.
func (g *Global) Snapshot() ([]byte, error) {
	s := snapshot{snapshotVersion, g.now, g.first, nil, g.holding, g.holdUntil, g.closed, g.expected, g.barrier}
	for _, id := range g.order {
		s.Reporters = append(s.Reporters, savedReporter{id, *g.reporters[id]})
	}
	return json.Marshal(s)
}

// RestoreGlobal returns the global object that a snapshot was taken from. It has to be
// the last one before an answer was sent: where it may be an older one, or it cannot be
// read, [RecoverGlobal] is what is safe.
func RestoreGlobal(data []byte, s Settings, now time.Time) (*Global, error) {
	var saved snapshot
	if err := json.Unmarshal(data, &saved); err != nil {
		return nil, fmt.Errorf("state of the waiting room: %w", err)
	}
	if saved.Version != snapshotVersion {
		return nil, fmt.Errorf("state of the waiting room: version %d is not %d", saved.Version, snapshotVersion)
	}
	g := NewGlobal(s, later(now, saved.Now))
	g.first, g.holding, g.holdUntil = saved.First, saved.Holding, saved.HoldUntil
	g.closed, g.expected, g.barrier = saved.Closed, saved.Expected, saved.Barrier
	for _, r := range saved.Reporters {
		if r.State.Granted == nil || r.State.Counts == nil || g.reporters[r.ID] != nil {
			return nil, errors.New("state of the waiting room: a data centre is there twice or in part")
		}
		g.reporters[r.ID] = &r.State
		g.order = append(g.order, r.ID)
	}
	slices.SortFunc(g.order, reporterID.compare)
	g.advance(now)
	return g, nil
}
