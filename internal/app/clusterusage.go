package app

import (
	"context"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/server/usage"
)

// usageEvery is the interval at which nodes exchange download counts, and usageKept how long the bucket has them.
const (
	usageEvery = 2 * time.Minute
	usageKept  = (usage.MostDays + 31) * 24 * time.Hour
)

// shareUsage has the counts of requests be those of all nodes, on each of them, until ctx ends.
func (n *clusterNode) shareUsage(ctx context.Context) {
	counts := n.folder.usage()
	var hearing cluster.Hearing
	var dropped time.Time
	each := func(now time.Time) error {
		name, err := counts.Name()
		if err != nil {
			return err
		}
		err = counts.Tell(func(day time.Time, told []byte) error { return n.cluster.TellCounts(ctx, name, day, told) })
		if err != nil {
			return err
		}
		since, err := counts.Since()
		if err != nil {
			return err
		}
		hearing.Node, hearing.Name = n.cluster, name
		if err := hearing.Hear(ctx, since, now.UTC(), counts.Take); err != nil {
			return err
		}
		if err := counts.Heard(); err != nil || !n.cluster.Leads() || now.Sub(dropped) < reconcileEvery {
			return err
		}
		dropped = now
		return n.cluster.DropCounts(ctx, now.Add(-usageKept).UTC())
	}
	for wait := time.Duration(0); retry.Sleep(ctx, wait) == nil; wait = usageEvery {
		if err := each(time.Now()); err != nil && ctx.Err() == nil {
			n.logger.Warn("couldn't exchange counts of requests with the other nodes; trying again", "err", err)
		}
	}
}
