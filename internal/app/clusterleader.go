package app

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/recompression"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/logs/signing"
)

// A leaderRole is that of the node of a cluster that publishes.
type leaderRole struct {
	server   Server
	epoch    int64 // of the leader that this node replaces; see [cluster.Node.Lead]
	takeover takeoverBackoff
}

// start implements [role] for the leader: it opens the parts that publish, sign and share the log with the cluster, and adds them
// to the run.
func (o leaderRole) start(ctx context.Context, r *roleRun) error {
	return startPublishing(ctx, r, o.server, func() (*Writer, publisher, error) {
		var l *clusterLeader
		config := o.server.writerConfig(r)
		// The bot, which calls them, is opened later.
		config.squeezed = func(h kvstore.Hash) { l.logUnshared(h, l.node.cluster.QueueEncodings(h)) }
		config.deltaStored = func(h, dictionary kvstore.Hash) { l.logUnshared(h, l.node.cluster.QueueDelta(h, dictionary)) }
		w, b, err := r.openNodeFolder(ctx, config)
		if err == nil {
			l, err = openClusterLeader(ctx, r, w, b, o.epoch)
		}
		return w, l, err
	})
}

// A takeoverBackoff is the backoff of a node that could not lead.
type takeoverBackoff struct {
	after    time.Time // the node does not try before
	failures int       // in a row; a takeover in which another node was faster does not count
}

// afterFailure returns the backoff after one more takeover, which failed with err, and leaves b unchanged. The wait is first, and
// doubles with each failure up to maxTakeoverBackoff. If another node was faster, the node waits again, but the wait does not
// grow.
func (b takeoverBackoff) afterFailure(err error, first time.Duration) takeoverBackoff {
	if !errors.As(err, new(*cluster.NotWriterError)) { // another was faster
		b.failures++
	}
	b.after = time.Now().Add(retry.Doubled(max(1, b.failures), first, maxTakeoverBackoff))
	return b
}

// takeoverAfter returns the takeover backoff for the run that follows one of the role ended. A follower's backoff is kept. A
// leader here has not failed: its time is kept, and failures are counted from zero again. Other roles have none.
func takeoverAfter(ended role) takeoverBackoff {
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

// openClusterLeader opens the node, and makes it the leader in place of the leader of epoch, before it publishes anything: it
// applies what is committed in the bucket, records the newest checkpoint there as signed, which protects against forks, and
// loads the outbox of the previous leader. It adds the part that ends the leadership. After an error the node does not lead,
// and only w stays open.
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
		err = n.cluster.RecordPublished(view.showing.SignedInStore().Size)
	}
	if err == nil {
		err = l.loadOutbox(ctx)
	}
	end := func() {
		l.stepDown()
		n.peers.close()
	}
	if err = errors.Join(err, view.record.Close()); err != nil { // the signer has the key folder from now on
		end()
		return nil, err
	}
	r.parts.Add(parts.Part{Name: "lead", Stop: parts.StopBy(end)})
	return l, nil
}

// logUnshared logs err, because of which an encoding of the content h was not queued for the other nodes. It does nothing for nil.
func (l *clusterLeader) logUnshared(h kvstore.Hash, err error) {
	if err != nil {
		l.run.logger.Warn("couldn't queue an encoding for the other nodes", "content", h, "err", err)
	}
}

// stepDown saves the outbox in the bucket if the node leads, and ends its leadership, so that another node can lead at once. It
// takes at most leaveTimeout, and only logs errors.
func (l *clusterLeader) stepDown() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if l.node.cluster.Leads() {
		if err := l.saveOutbox(ctx); err != nil {
			l.run.logger.Warn("couldn't save the last changes of webhooks and schedules for the next leader", "err", err)
		}
	}
	l.node.cluster.Leave(ctx)
}

// addClusterParts implements [publisher]: it adds the node's status to metrics, probes, commands and the site, and the parts that publish the
// signed log in the bucket, reconcile it there, send heartbeats, save the outbox, have the bot of f make the deltas that earlier leaders have
// not made, and exchange data with other nodes. It has the site delay requests that name a log size. When the node no longer leads, a part
// requests a restart as a follower. The signer must be open; the error says why it does not sign.
func (l *clusterLeader) addClusterParts(r *roleRun, site *siteOptions, f *filler) error {
	n, signer := l.node, l.writer.signature.signer
	n.addStatusOutputs(r, site)
	if _, refused := signer.Checkpoint(); refused != nil { // the leader trusts in what was signed
		return refused
	}
	site.waits = true
	r.parts.Add(parts.Part{Name: "published view in the bucket", Run: parts.RunUntilDone(l.updatePublishedView)})
	r.parts.Add(parts.Part{Name: "reconciling the published view", Run: parts.RunUntilDone(l.reconcilePublishedView)})
	r.parts.Add(parts.Part{Name: "writing", Run: parts.RunUntilDone(func(ctx context.Context) {
		n.cluster.SendHeartbeats(ctx)
		if ctx.Err() == nil {
			r.logger.Warn("this node leads no longer; it follows")
			r.requestRestart(restart{})
		}
	})})
	r.parts.Add(parts.Part{Name: "shared outbox", Run: parts.RunUntilDone(l.saveOutboxRegularly)})
	if r.settings.Dictionaries && f != nil {
		r.parts.Add(parts.Part{Name: "record of made deltas", Run: parts.RunUntilDone(func(ctx context.Context) { l.recordMadeDeltas(ctx, f.bot) })})
	}
	n.addExchangeParts(r)
	return nil
}

// maxRequeued is how many entries at the end of the log a new leader looks at for releases without deltas. Hardly any browser still has a file of the
// releases before these, and a bucket without a record would have the whole log queued, which would delay the deltas of the newest releases.
const maxRequeued = 5000

// queueMissingDeltas has b make the deltas of the releases that the leaders before this one have published, but have not made deltas of.
func (l *clusterLeader) queueMissingDeltas(ctx context.Context, b *bot.Bot) error {
	made, err := l.node.cluster.MadeDeltas(ctx)
	if err != nil {
		return err
	}
	return b.QueueReleases(max(made, l.node.folder.log.Checkpoint().Size-maxRequeued))
}

// recordMadeDeltas first has b make the deltas that earlier leaders have not made. Then it records in the bucket, at intervals until ctx ends, up to
// which size of the log the deltas of all releases are made, so that the next leader makes those of the releases after it. It logs errors, and tries
// again: nothing needs deltas.
func (l *clusterLeader) recordMadeDeltas(ctx context.Context, b *bot.Bot) {
	for ctx.Err() == nil {
		err := l.queueMissingDeltas(ctx, b)
		if err == nil {
			break // only then: a record covers all earlier releases
		}
		if ctx.Err() == nil {
			l.run.logger.Warn("couldn't queue deltas for the releases of earlier leaders; trying again", "err", err)
		}
		retry.Sleep(ctx, encodingsInterval) //nolint:errcheck // the loop sees that ctx has ended
	}
	recorded := int64(-1)
	for retry.Sleep(ctx, encodingsInterval) == nil {
		size := l.node.folder.log.Checkpoint().Size // before the queue is read: a release is queued in the batch that publishes it
		if size == recorded {
			continue
		}
		queued, err := recompression.DeltasQueued(l.node.folder.store)
		done := false
		if err == nil && !queued {
			done, err = l.node.cluster.RecordMadeDeltas(ctx, size)
		}
		if done {
			recorded = size
		}
		if err != nil && ctx.Err() == nil {
			l.run.logger.Warn("couldn't record in the bucket which deltas between versions are made; trying again", "err", err)
		}
	}
}

// updatePublishedView copies the newest checkpoint that the leader has signed, and the tiles and contents for it, to the
// published view in the bucket, whenever there is a new one until ctx ends. At the end, if the node still leads, it signs and
// copies the last entries. It logs errors, and tries again; at the end it tries once.
func (l *clusterLeader) updatePublishedView(ctx context.Context) {
	signer := l.writer.signature.signer
	var shown signing.Signed
	bring := func(ctx context.Context) error {
		signed, err := signer.Checkpoint()
		if err != nil {
			return err // the store may have entries that do not belong to the log
		}
		if signed.Note == nil || string(signed.Note) == string(shown.Note) {
			return nil
		}
		if err = l.node.cluster.UpdatePublic(ctx, signed); err == nil {
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
	if err != nil && !errors.Is(err, cluster.ErrNewerPublished) {
		l.run.logger.Warn("the published view in the bucket is missing the last releases; the next leader adds them", "err", err)
	}
}

// reconcilePublishedView compares the published view in the bucket with the log at intervals, and repairs differences, until ctx
// ends. The first time only, it also removes from the bucket what unfinished publications of earlier leaders left; if that fails,
// the next leader does it. It logs all errors, and compares again at the next interval.
func (l *clusterLeader) reconcilePublishedView(ctx context.Context) {
	for wait, first := reconcileFirst, true; retry.Sleep(ctx, wait) == nil; wait, first = reconcileEvery, false {
		if first {
			switch packs, size, err := l.node.cluster.CollectPacks(ctx); {
			case err != nil && ctx.Err() == nil:
				l.run.logger.Warn("couldn't remove the packs of unfinished publications from the bucket; the next leader does", "err", err)
			case packs > 0:
				l.run.logger.Info("removed the packs of unfinished publications from the bucket", "packs", packs, "bytes", size)
			}
		}
		done, err := l.node.cluster.Reconcile(ctx)
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

// rooms implements [publisher]: it returns the node, because the nodes of the cluster share the state of waiting rooms.
func (l *clusterLeader) rooms() roomsCluster { return l.node }

// localCommands implements [publisher]: it returns operations and the schedule's handler for commands on this machine, and
// leaves all and schedule unchanged. Changes of schedules and webhooks return once the bucket has them, and operations that
// publish report the size of the log as an event.
func (l *clusterLeader) localCommands(all operations, schedule http.Handler) (operations, http.Handler) {
	all = l.saveBeforeReturn(maps.Clone(all))
	reportLogSize(all)
	return all, l.saveBeforeResponse(schedule)
}

// serveOtherNodes implements [publisher]: it serves the other nodes those operations in all that followers forward, and the
// contents that the bot of f wants recompressed; f is nil without a bot. Changes of schedules and webhooks return once the
// bucket has them. It leaves all unchanged.
func (l *clusterLeader) serveOtherNodes(r *roleRun, all operations, f *filler) {
	forNodes, besides := operations{}, map[string]http.Handler{}
	all = l.saveBeforeReturn(maps.Clone(all))
	for _, name := range forwarded {
		forNodes[name] = all[name]
	}
	if f != nil {
		besides[squeezePath] = l.serveRecompression(f.bot)
	}
	l.node.serveNodes(r, forNodes, besides)
}
