package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/logs/signing"
)

// A clusterFollower is a node of a cluster while another one publishes.
type clusterFollower struct {
	node    *clusterNode
	run     *roleRun
	view    signedView
	role    followerRole
	dropped bool // the outbox of an earlier time as the leader has been deleted in this run
}

// A followerRole is that of a node of a cluster while another one publishes: nothing in it publishes, signs or sends.
type followerRole struct {
	server   Server
	takeover takeoverBackoff
}

// start implements [role] for a follower: it opens the parts that follow the bucket, serve the site and forward changes to the
// leader, and adds them to the run.
func (o followerRole) start(ctx context.Context, r *roleRun) error {
	s := o.server
	if err := errors.Join(r.removeReadyFile(), makeKeyFolder(r.settings)); err != nil {
		return err
	}
	w, b, err := r.openNodeFolder(ctx, s.writerConfig(r))
	if err != nil {
		return err
	}
	socket, err := s.openBase(r, w.folder)
	if err != nil {
		return err
	}
	site := newSiteOptions()
	site.fills = s.Fill
	f, err := openClusterFollower(ctx, r, o, w, b, site)
	if err != nil {
		return err
	}
	n := f.node
	n.serveNodes(r, operations{}, nil)
	site.waits, site.mayServe = true, n.mayServe
	what, err := s.openSiteWithRooms(ctx, r, w.folder, site, roomsOptions{cluster: n})
	if err != nil {
		return err
	}
	s.announceSite(r, w.folder)
	r.serveAdmin(socket, w.folder, f.operations(what), refuseRequests(n.notLeaderError), s.checkSettings)
	r.parts.Add(parts.Part{Name: "following", Run: parts.RunUntilDone(f.follow)})
	r.parts.Add(parts.Part{Name: "remote recompression", Run: parts.RunUntilDone(func(ctx context.Context) { n.recompressForLeader(ctx, s.Intervals.Squeeze) })})
	n.addExchangeParts(r)
	return r.markReady(s.Stopping)
}

// openClusterFollower opens the node as a follower, adds its status to the outputs of the process and the site, sets the signer
// in site, and adds the part that closes the node. It does not run it. It returns a [*readOnlyError] if the bucket does not
// respond and the node has entries to serve.
func openClusterFollower(ctx context.Context, r *roleRun, o followerRole, w *Writer, b bucket.Bucket, site *siteOptions) (*clusterFollower, error) {
	n, view, err := openClusterNode(ctx, r, w, b)
	if err != nil {
		return nil, r.asReadOnlyWithoutBucket(err, w, b)
	}
	n.missing = view.showing.MissingEntries
	site.signer = view.showing
	if n.first == 0 { // a new store
		n.memory.caughtUp.Store(false)
	}
	n.addStatusOutputs(r, site)
	r.parts.Add(parts.Part{Name: "node", Stop: func() error {
		n.peers.close()
		return view.record.Close()
	}})
	return &clusterFollower{node: n, run: r, view: view, role: o}, nil
}

// follow copies new entries from the log in the bucket until ctx ends. Whenever it has caught up, it lets the node serve,
// deletes the outbox of an earlier time as the leader (once), and updates the served checkpoint. If the node is a candidate, no
// node leads and this one may, follow requests a restart of the run as the leader, and waits for the end of ctx. If this one
// must not lead, it logs why, adds that to the node's status, and tries to lead again after a backoff, while it goes on
// following.
func (f *clusterFollower) follow(ctx context.Context) {
	each := func(ctx context.Context) error {
		f.node.memory.caughtUp.Store(true)
		if f.node.cluster.Bootstrapping() { // a node that writes has to bring the log there
			return nil
		}
		if !f.dropped { // not before it is known that the bucket has them
			if err := deleteOutbox(f.node.folder.store); err != nil {
				return err
			}
			f.dropped = true
		}
		if f.view.showing.UpToDate(time.Now()) {
			return nil
		}
		return f.view.showing.Refresh(ctx)
	}
	for ctx.Err() == nil {
		leader := (*cluster.HeartbeatMonitor)(nil)
		limited, cancel := ctx, context.CancelFunc(func() {})
		if wait := time.Until(f.role.takeover.after); f.node.candidate && wait > 0 {
			limited, cancel = context.WithTimeout(ctx, wait)
		} else if f.node.candidate {
			leader = &f.node.memory.leader
		}
		after, vacant := f.node.cluster.Follow(limited, leader, each)
		cancel()
		if !vacant {
			continue
		}
		if err := f.checkMayLead(ctx); err != nil {
			text := err.Error()
			f.node.refuses.Store(&text)
			f.run.logger.Error("no node leads, and this one cannot take over", "err", err)
			f.role.takeover.after = time.Now().Add(f.role.server.Intervals.Takeover)
			continue
		}
		f.run.logger.Info("no node leads; this one takes over")
		f.run.requestRestart(restart{role: leaderRole{f.role.server, after, f.role.takeover}})
		<-ctx.Done()
	}
}

// checkMayLead returns why the node must not lead now, nil if it may. Another node has replaced the log's key; or the bot
// cannot start, which is checked only after a failed takeover; or the bucket's log lacks entries that this node signed or saw
// signed; or the bucket's checkpoint is of another log; or an error prevents a check. Unless the bucket, a new one, lacks
// entries that the store has, it takes over the checkpoint in the bucket if the store has all of it and the first two checks passed: the
// site serves it, and the key folder and the store record it.
func (f *clusterFollower) checkMayLead(ctx context.Context) error {
	changes, err := f.view.showing.KeyChanges()
	if err != nil {
		return err
	}
	if len(changes) > 0 && changes[len(changes)-1].Key != f.view.record.OwnKey() {
		return errors.New("the log's key was changed at another node; copy log.key, log.pub and old-*.key from its key folder")
	}
	if f.role.takeover.failures > 0 && f.role.server.Fill { // perhaps these failed the last takeover; each takeover leaves a commit in the bucket for good
		n, err := openDependencies(f.node.settings, true, f.run.logger.With("part", "bot"))
		if err != nil {
			return fmt.Errorf("it could not fill: %w", err)
		}
		n.clients.Close()
	}
	if !f.node.cluster.Bootstrapping() {
		if err := f.view.showing.Refresh(ctx); err != nil {
			return err
		}
	}
	signed, _, err := signing.ReadFolder(f.node.settings.KeyFolder())
	if err != nil {
		return err
	}
	here := f.node.folder.log.Checkpoint()
	contained, err := signing.Contains(f.node.folder.store, here, signed.Checkpoint)
	if err == nil && !contained {
		err = fmt.Errorf("%s has a log of %d entries, and a log of %d entries was signed according to the key folder: the bucket is behind, as after restoring an old copy of it. Start the node that has those entries, which brings them there if the bucket is empty, or name the right --bucket; with another key folder (--keys) and an empty bucket, a new log begins, whose key every client needs", f.node.bucket, here.Size, signed.Size)
	}
	return err
}
