package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore/bucket"
)

// A writer is alive while its beat changes. That decides when another takes its place, and nothing else:
// what two writers do at once, the commits settle.
const (
	missedBeats = 3
	maxBeat     = 64
)

func beatKey(epoch int64) string { return fmt.Sprintf("beat/%020d", epoch) }

// Run follows the commits until ctx ends. A candidate writes where no node does: there never was one,
// or the one that did has not been heard of for a while.
func (n *Node) Run(ctx context.Context, candidate bool) {
	w := watch{heard: time.Now(), patience: missedBeats * n.Beat}
	var beat int64
	var looked time.Time
	for ctx.Err() == nil {
		var err error
		switch {
		case n.Leads() && time.Since(looked) >= n.Beat:
			looked = time.Now()
			beat++
			err = n.beat(ctx, beat)
		case n.Leads():
		case candidate && time.Since(looked) >= n.Beat:
			looked = time.Now()
			err = n.watch(ctx, &w)
		default:
			_, err = n.CatchUp(ctx)
		}
		if err != nil && !errors.As(err, new(*NotWriterError)) && ctx.Err() == nil {
			n.Logger.Warn("couldn't follow the bucket; trying again", "err", err)
		}
		retry.Sleep(ctx, n.Rest) //nolint:errcheck // the loop sees that ctx has ended
	}
}

// beat says that this node lives, and finds out whether another has taken its place.
func (n *Node) beat(ctx context.Context, count int64) error {
	epoch, leads := n.epoch()
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
	return err
}

// watch looks whether the node that writes is alive, and takes its place where it is not.
func (n *Node) watch(ctx context.Context, w *watch) error {
	sign, err := n.sign(ctx)
	if !w.dead(time.Now(), sign, err) {
		return err
	}
	err = n.Lead(ctx)
	w.heard = time.Now() // another candidate may have been faster, or the bucket is away
	return err
}

// sign returns what changes while the writer lives, "" where there never was one.
func (n *Node) sign(ctx context.Context) (string, error) {
	latest, err := n.latestEpoch(ctx)
	if err != nil || latest == 0 {
		return "", err
	}
	beat, _, err := n.Bucket.Get(ctx, beatKey(latest), maxBeat)
	if errors.Is(err, bucket.ErrNotFound) {
		err = nil
	}
	return fmt.Sprintf("%d/%s", latest, beat), err
}

// A watch is what a candidate knows of the life of the writer.
type watch struct {
	last  string
	heard time.Time // by the candidate's own monotonic clock

	patience time.Duration
}

// dead reports whether the writer has not been heard of for a while. A bucket that does not answer
// says nothing about it.
func (w *watch) dead(now time.Time, sign string, err error) bool {
	switch {
	case err != nil:
		w.heard = now
	case sign == "":
		return true
	case sign != w.last:
		w.last, w.heard = sign, now
	}
	return now.Sub(w.heard) >= w.patience
}
