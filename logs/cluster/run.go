package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore/bucket"
)

// A writer is alive while its beat changes. That decides when another takes its place, and nothing else:
// what two writers do at once, the commits settle.
const (
	missedBeats = 3
	maxBeat     = 64
	goodbye     = "gone" // the last heartbeat of a leader that stops
	wholeBeats  = 15     // after so many, the writer looks whether the bucket still has what it has published
)

// beatKey returns the key of the object in the bucket that has the last heartbeat of an epoch's leader.
func beatKey(epoch int64) string { return fmt.Sprintf("beat/%020d", epoch) }

// Follow applies new commits, every n.Rest, until ctx ends, and calls each, if it is set, whenever the store has all of them. For a candidate, leader
// is not nil: then Follow records the leader's heartbeats there, and also returns, with vacant true, when there is no leader: there was none yet, or
// that of the latest epoch has sent no heartbeat for missedBeats times n.Beat or has left. after is that epoch, 0 if there was none, for [Node.Lead].
// Errors, also those of each, are logged and in the status.
func (n *Node) Follow(ctx context.Context, leader *HeartbeatMonitor, each func(context.Context) error) (after int64, vacant bool) {
	var readAt time.Time
	for ctx.Err() == nil {
		var err error
		silent := false
		if leader != nil && time.Since(readAt) >= n.Beat/2 { // first, for a run that ends soon
			readAt = time.Now()
			var sign string
			after, sign, err = n.readHeartbeat(ctx)
			silent = ctx.Err() == nil && leader.isVacant(time.Now(), n.Beat, sign, err)
		}
		if err == nil {
			_, err = n.CatchUp(ctx)
		}
		if err == nil && each != nil {
			err = each(ctx)
		}
		if err == nil && silent {
			return after, true
		}
		n.recordResult(err)
		if err != nil && ctx.Err() == nil {
			n.Logger.Warn("couldn't follow the bucket; trying again", "err", err)
		}
		retry.Sleep(ctx, n.Rest) //nolint:errcheck // the loop sees that ctx has ended
	}
	return 0, false
}

// SendHeartbeats sends a heartbeat to the bucket every n.Beat until this node does not lead any more, or ctx ends. This node steps down if a
// heartbeat finds that another node leads, or that the bucket has lost the last commit. Other errors are logged and in the status, and do not end it.
func (n *Node) SendHeartbeats(ctx context.Context) {
	for beat := int64(1); ctx.Err() == nil && n.Leads(); beat++ {
		err := n.sendHeartbeat(ctx, beat)
		n.recordResult(err)
		if err != nil && ctx.Err() == nil {
			n.Logger.Warn("couldn't tell the bucket that this node lives; trying again", "err", err)
		}
		for next := time.Now().Add(n.Beat); ctx.Err() == nil && n.Leads() && time.Now().Before(next); {
			retry.Sleep(ctx, n.Rest) //nolint:errcheck // the loop sees that ctx has ended
		}
	}
}

// sendHeartbeat puts the heartbeat with this number, which counts from 1, into the bucket. It steps down if another node leads by now or, which it
// checks at every 15th, the bucket has lost the last commit.
func (n *Node) sendHeartbeat(ctx context.Context, count int64) error {
	epoch, leads := n.leadingEpoch()
	if !leads {
		return nil
	}
	if err := n.Bucket.Put(ctx, beatKey(epoch), strconv.AppendInt(nil, count, 10)); err != nil {
		return err
	}
	now, err := n.latestEpoch(ctx)
	if err == nil && now != epoch {
		n.Logger.Warn("another node publishes by now", "epoch", now)
		n.StepDown()
	}
	if err != nil || count%wholeBeats != 0 {
		return err
	}
	next, err := n.NextCommit()
	if err == nil {
		err = n.requireCommit(ctx, next-1)
	}
	if errors.As(err, new(*BehindError)) {
		n.Logger.Error("this node does not publish any more", "err", err)
		n.StepDown()
	}
	return err
}

// Leave steps down, and records that in the bucket, so that another node may lead at once. It does nothing if this node does not lead.
func (n *Node) Leave(ctx context.Context) {
	epoch, leads := n.leadingEpoch()
	n.StepDown()
	if !leads {
		return
	}
	if err := n.Bucket.Put(ctx, beatKey(epoch), []byte(goodbye)); err != nil {
		n.Logger.Debug("couldn't tell that this node has ended; others will notice", "err", err)
	}
}

// Leader reads from the bucket the latest epoch, 0 before the first, and returns it with the URL of the node that leads in it, "" if that has none.
func (n *Node) Leader(ctx context.Context) (epoch int64, url string, err error) {
	if _, err := n.latestEpoch(ctx); err != nil {
		return 0, "", err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.latest, n.writer, nil
}

// readHeartbeat reads from the bucket the latest epoch and its leader's last heartbeat; sign is a text that changes with each heartbeat, "" if there
// never was a leader.
func (n *Node) readHeartbeat(ctx context.Context) (latest int64, sign string, err error) {
	latest, err = n.latestEpoch(ctx)
	if err != nil || latest == 0 {
		return latest, "", err
	}
	beat, _, err := n.Bucket.Get(ctx, beatKey(latest), maxBeat)
	if errors.Is(err, bucket.ErrNotFound) {
		err = nil
	}
	return latest, fmt.Sprintf("%d/%s", latest, beat), err
}

// A HeartbeatMonitor records the leader's heartbeats for a candidate. One outlives all nodes that a process opens, one after the other: a candidate
// that opens its node again and again still finds that the leader has stopped. It is for one goroutine at a time.
type HeartbeatMonitor struct {
	last  string
	heard time.Time // when last changed, by the candidate's own monotonic clock; later by the time that nothing was read in
	read  time.Time // when it was read last, or could not be
}

// isVacant reports whether there is no leader: it has left, there never was one, or sign, the text of its last heartbeat, has not changed for
// missedBeats times beat. It records a new sign and when it came. If err is set, the heartbeat could not be read, which says nothing about the leader:
// then it returns false, and the time starts again. Time between two calls counts as one beat at most.
func (w *HeartbeatMonitor) isVacant(now time.Time, beat time.Duration, sign string, err error) bool {
	if unread := now.Sub(w.read) - beat; !w.read.IsZero() && unread > 0 {
		w.heard = w.heard.Add(unread)
	}
	w.read = now
	switch {
	case err != nil:
		w.heard = now
	case sign == "" || strings.HasSuffix(sign, "/"+goodbye):
		return true
	case sign != w.last:
		w.last, w.heard = sign, now
	}
	return now.Sub(w.heard) >= missedBeats*beat
}
