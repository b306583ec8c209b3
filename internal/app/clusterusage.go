package app

import (
	"context"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/server/usage"
)

// usageInterval is the interval at which nodes exchange request counts, and usageRetention how long the bucket has them.
const (
	usageInterval  = 2 * time.Minute
	usageRetention = (usage.MostDays + 31) * 24 * time.Hour
)

// shareUsage exchanges the counts of requests with the other nodes over the bucket until ctx ends, so that each node has the
// counts of all. The leader also deletes old counts from the bucket. shareUsage logs errors, and tries again.
func (n *clusterNode) shareUsage(ctx context.Context) {
	counts := n.folder.usage()
	var reader cluster.CountsReader
	var dropped time.Time
	each := func(now time.Time) error {
		name, err := counts.Name()
		if err != nil {
			return err
		}
		err = counts.Report(func(day time.Time, counts []byte) error { return n.cluster.PutCounts(ctx, name, day, counts) })
		if err != nil {
			return err
		}
		since, err := counts.Since()
		if err != nil {
			return err
		}
		reader.Node, reader.Name = n.cluster, name
		if err := reader.ReadNew(ctx, since, now.UTC(), counts.Receive); err != nil {
			return err
		}
		if err := counts.SetReceived(); err != nil || !n.cluster.Leads() || now.Sub(dropped) < reconcileEvery {
			return err
		}
		dropped = now
		return n.cluster.DeleteCounts(ctx, now.Add(-usageRetention).UTC())
	}
	for wait := time.Duration(0); retry.Sleep(ctx, wait) == nil; wait = usageInterval {
		if err := each(time.Now()); err != nil && ctx.Err() == nil {
			n.logger.Warn("couldn't exchange counts of requests with the other nodes; trying again", "err", err)
		}
	}
}
