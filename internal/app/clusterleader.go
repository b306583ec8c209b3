package app

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"time"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
)

// A leaderRole is that of the node of a cluster that publishes.
type leaderRole struct {
	server   Server
	epoch    int64 // that the node replaces as the leader
	takeover takeoverBackoff
}

func (o leaderRole) start(ctx context.Context, r *roleRun) error {
	return startPublishing(ctx, r, o.server, func() (*Writer, publisher, error) {
		var l *clusterLeader
		how := o.server.writing(r)
		how.squeezed = func(h kvstore.Hash) { l.shareEncoding(h) } // the bot, which calls it, is opened later
		w, b, err := r.openNodeFolder(ctx, how)
		if err == nil {
			l, err = openClusterLeader(ctx, r, w, b, o.epoch)
		}
		return w, l, err
	})
}

// A takeoverBackoff is the backoff of a node that could not lead.
type takeoverBackoff struct {
	after    time.Time // the node does not try before
	failures int       // one after the other
}

// afterFailure returns the backoff after a takeover that failed with err.
func (b takeoverBackoff) afterFailure(err error, first time.Duration) takeoverBackoff {
	if !errors.As(err, new(*cluster.NotWriterError)) { // another was faster
		b.failures++
	}
	b.after = time.Now().Add(retry.Doubled(max(1, b.failures), first, maxTakeoverBackoff))
	return b
}

// takeoverOf returns the backoff after a run of a role that ended in order.
func takeoverOf(ended role) takeoverBackoff {
	switch ended := ended.(type) {
	case followerRole:
		return ended.takeover
	case leaderRole:
		return takeoverBackoff{after: ended.takeover.after}
	}
	return takeoverBackoff{}
}

// A clusterLeader is the node of a cluster that publishes.
type clusterLeader struct {
	node   *clusterNode
	run    *roleRun
	writer *Writer
	saved  outboxSaved
}

// openClusterLeader has a node lead in place of an epoch, before anything of it publishes: it completes what was committed, and raises the
// guard against forks to what the bucket shows.
func openClusterLeader(ctx context.Context, r *roleRun, w *Writer, b bucket.Bucket, epoch int64) (*clusterLeader, error) {
	n, view, err := openClusterNode(ctx, r, w, b)
	if err != nil {
		return nil, err
	}
	n.missing = func() (int64, string) { return 0, "" }
	l := &clusterLeader{node: n, run: r, writer: w}
	if err = n.cluster.Lead(ctx, epoch); err == nil {
		err = view.showing.Refresh(ctx)
	}
	if err == nil {
		err = n.cluster.RecordPublished(view.showing.Held().Size)
	}
	if err == nil {
		err = l.loadOutbox(ctx)
	}
	if err != nil {
		l.leave()
		n.peers.close()
		return nil, errors.Join(err, view.record.Close())
	}
	err = view.record.Close() // the signer has the key folder from now on
	if err != nil {
		l.leave()
		n.peers.close()
		return nil, err
	}
	r.parts.Add(parts.Part{Name: "lead", Stop: parts.Closing(func() {
		l.leave()
		n.peers.close()
	})})
	return l, nil
}

// shareEncoding has the other nodes take over a smaller encoding of a content.
func (l *clusterLeader) shareEncoding(h kvstore.Hash) {
	if err := l.node.cluster.QueueEncodings(h); err != nil {
		l.run.logger.Warn("couldn't share a smaller encoding with the other nodes", "content", h, "err", err)
	}
}

// leave lets another node write at once.
func (l *clusterLeader) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if l.node.cluster.Leads() {
		if err := l.saveOutbox(ctx); err != nil {
			l.run.logger.Warn("couldn't save the last changes of webhooks and schedules for the next leader", "err", err)
		}
	}
	l.node.cluster.Leave(ctx)
}

// publish has the bucket show what the leader signs, after its signer is open.
func (l *clusterLeader) publish(r *roleRun, site *siteOptions) error {
	n, signer := l.node, l.writer.signature.signer
	n.join(r, site)
	if _, refused := signer.Checkpoint(); refused != nil { // the leader trusts in what was signed
		return refused
	}
	site.putInFrontOfRooms((*siteOptions).delayForLogSize)
	served, err := tiles.New(tiles.Options{Store: l.writer.folder.store, Signer: signer, Logger: r.logger.With("part", "cluster")})
	if err != nil {
		return err
	}
	r.parts.Add(parts.Part{Name: "published view in the bucket", Run: parts.Until(func(ctx context.Context) { l.show(ctx, served) })})
	r.parts.Add(parts.Part{Name: "reconciling the published view", Run: parts.Until(func(ctx context.Context) { l.reconcile(ctx, served) })})
	r.parts.Add(parts.Part{Name: "writing", Run: parts.Until(func(ctx context.Context) {
		n.cluster.SendHeartbeats(ctx)
		if ctx.Err() == nil {
			r.logger.Warn("this node leads no longer; it follows")
			r.restart(restart{})
		}
	})})
	r.parts.Add(parts.Part{Name: "shared outbox", Run: parts.Until(l.saveOutboxRegularly)})
	n.addExchange(r)
	return nil
}

// show has the bucket show what is signed.
func (l *clusterLeader) show(ctx context.Context, served http.Handler) {
	signer := l.writer.signature.signer
	var shown signing.Signed
	bring := func(ctx context.Context) error {
		signed, _ := signer.Checkpoint()
		if signed.Note == nil || string(signed.Note) == string(shown.Note) {
			return nil
		}
		err := l.node.cluster.Show(ctx, served, signed)
		if err == nil {
			shown = signed
		}
		return err
	}
	for ctx.Err() == nil {
		rest := signedInterval
		if err := bring(ctx); err != nil && ctx.Err() == nil {
			rest = publishBackoff
			l.run.logger.Warn("couldn't update the published view in the bucket; trying again", "err", err)
		}
		retry.Sleep(ctx, rest) //nolint:errcheck // the loop sees that ctx has ended
	}
	if !l.node.cluster.Leads() {
		return
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	err := signer.Sign() // what was published last may not be signed yet
	if err == nil {
		err = bring(last)
	}
	if err != nil && !errors.Is(err, cluster.ErrShown) {
		l.run.logger.Warn("the published view in the bucket is missing the last releases; the next leader adds them", "err", err)
	}
}

// reconcile removes what earlier writers left in the bucket, and has the bucket show what the log says.
func (l *clusterLeader) reconcile(ctx context.Context, served http.Handler) {
	for wait, first := reconcileFirst, true; retry.Sleep(ctx, wait) == nil; wait, first = reconcileEvery, false {
		if first {
			switch packs, size, err := l.node.cluster.CollectPacks(ctx); {
			case err != nil && ctx.Err() == nil:
				l.run.logger.Warn("couldn't remove the packs of unfinished publications from the bucket; the next leader does", "err", err)
			case packs > 0:
				l.run.logger.Info("removed the packs of unfinished publications from the bucket", "packs", packs, "bytes", size)
			}
		}
		done, err := l.node.cluster.Reconcile(ctx, served)
		if done.Partial > 0 {
			l.run.logger.Info("removed old partial tiles from the published view in the bucket", "objects", done.Partial)
		}
		if done.Added+done.Removed > 0 {
			l.run.logger.Warn("the published view in the bucket differed from the log, as after a leader was paused; it was reconciled", "added", done.Added, "removed", done.Removed)
		}
		if err != nil && ctx.Err() == nil {
			l.run.logger.Warn("couldn't compare the published view in the bucket with the log; trying again later", "err", err, "later", reconcileEvery)
		}
	}
}

// rooms returns the node, whose cluster shares its waiting rooms.
func (l *clusterLeader) rooms() roomsCluster { return l.node }

// commands returns the operations and the schedule for commands on this machine. Changes are acknowledged when the bucket has them.
func (l *clusterLeader) commands(all operations, schedule http.Handler) (operations, http.Handler) {
	all = l.acknowledgeSaved(maps.Clone(all))
	reportLogSize(all)
	return all, l.acknowledgeSavedHTTP(schedule)
}

// serveOthers serves the other nodes some of the operations, and contents to recompress for f, nil for no bot.
func (l *clusterLeader) serveOthers(r *roleRun, all operations, f *filler) {
	forNodes, besides := operations{}, map[string]http.Handler{}
	all = l.acknowledgeSaved(maps.Clone(all))
	for _, name := range forwarded {
		forNodes[name] = all[name]
	}
	if f != nil {
		besides[squeezePath] = l.serveRecompression(f.bot)
	}
	l.node.serveNodes(r, forNodes, besides)
}
