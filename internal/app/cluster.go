package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/server/usage"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// A node of a cluster has one of two roles for a run: it follows, or it leads. To change its role it starts another run, while
// connections wait. So the run of a follower has nothing that writes.

// Times of a node that changes its role.
const (
	maxTakeoverBackoff = 5 * time.Minute
	publishBackoff     = time.Second            // after the bucket refused an update of the published view
	signedInterval     = 100 * time.Millisecond // between two checks for a newer checkpoint of the signer
	leaveTimeout       = 5 * time.Second        // of the last update of the bucket
	reconcileFirst     = time.Minute            // after the start as a leader: the last writes of the leader before it have ended by then
	reconcileEvery     = 6 * time.Hour
	encodingsInterval  = 10 * time.Second // between two exchanges of smaller encodings with other nodes
)

// ClusterIntervals are how long a node of a cluster waits between two attempts. 0 is for the default.
type ClusterIntervals struct {
	// Takeover is the backoff after the first failed takeover. Default: 10 s.
	Takeover time.Duration
	// Squeeze is the time until a follower requests another file to squeeze from a leader that had none. Default: 10 s.
	Squeeze time.Duration
}

// nodeMemory is the state of a node of a cluster that outlives a run of its roles.
type nodeMemory struct {
	// caughtUp is whether the node may serve: see [clusterNode.mayServe].
	caughtUp atomic.Bool
	leader   cluster.HeartbeatMonitor // of a candidate
	rooms    *waitingroom.SharingMemory
}

// A clusterNode is the common part of followers and leaders of a cluster.
type clusterNode struct {
	settings  *settings.Settings
	logger    *slog.Logger
	memory    *nodeMemory
	folder    *Reader
	bucket    bucket.Bucket
	cluster   *cluster.Node
	key       *cluster.Key // the cluster's; nil where the key folder has none
	peers     peers
	since     time.Time
	candidate bool                   // it has the log's key
	first     int64                  // number of the first commit that the store lacked when this run started; 0 for a new store
	refuses   atomic.Pointer[string] // why it may not lead; nil where it may, or has not tried
	rooms     *waitingroom.Sharing
	missing   func() (int64, string) // how many signed entries are not here, and the file with the evidence of a fork
}

// peers is how this node and the others send requests to each other.
type peers struct {
	url       string       // at which other nodes reach this one; "" for none
	listener  net.Listener // for that URL; nil for none
	serverTLS *tls.Config  // of the listener
	clientTLS *tls.Config  // of requests to other nodes; nil without the cluster's key
	client    *http.Client // for requests to other nodes over shared connections
}

// close closes the listener for other nodes, and idle connections to them.
func (p *peers) close() {
	if p.client != nil {
		p.client.CloseIdleConnections()
	}
	if p.listener != nil {
		p.listener.Close() // harmless where a server has closed it
	}
}

// A signedView has the published view of the cluster's log, by which a follower shows what the leader signs, and the record in the
// key folder.
type signedView struct {
	showing *cluster.PublishedView
	record  *signing.Record // in the key folder
}

// setAsideStore renames a store that is damaged or lacks signed entries, as short says, and removes its mark from the key
// folder, so that the node starts with a new store, which it fills from the bucket. It returns nil once the path of the store
// is free. If the bucket has no log, the store may be the only copy: then it stays, and setAsideStore returns short. Other
// errors say why it failed, such as a bucket that does not respond within a minute; then the store stays, too.
func (r *roleRun) setAsideStore(b bucket.Bucket, short *Shortfall) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	origin, err := cluster.Origin(ctx, b)
	if err != nil {
		return fmt.Errorf("%w; and what is lost cannot be followed again: %w", short, err)
	}
	if origin == "" {
		return short
	}
	if err := os.Remove(filepath.Join(r.settings.KeyFolder(), markFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	aside := fmt.Sprintf("%s.lost-%d", storeDir(r.settings.Data), time.Now().Unix())
	switch err := os.Rename(storeDir(r.settings.Data), aside); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	level := slog.LevelWarn
	if short.Here == 0 && short.Damage == nil {
		level = slog.LevelInfo // the node was started before, without the keys that name the log
	}
	r.logger.Log(ctx, level, "this node starts with a new store and follows the bucket from the first entry; the old store was renamed and can be removed", "why", short, "aside", aside)
	return nil
}

// openNodeFolder opens the data folder of a cluster node until the run ends, and its bucket, to which it sends no request
// unless the store is damaged or lacks signed entries. Such a store is set aside if the bucket has the log, and the new one is
// filled from there.
func (r *roleRun) openNodeFolder(ctx context.Context, config writerConfig) (*Writer, bucket.Bucket, error) {
	b, err := bucket.Open(r.settings.Bucket, r.settings.BucketEndpoint, r.settings.BucketRegion)
	if err != nil {
		return nil, nil, err
	}
	config.node = true
	w, err := r.openDataFolder(ctx, config, func(short *Shortfall) error { return r.setAsideStore(b, short) })
	return w, b, err
}

// openClusterNode opens the key folder of a node, finds the log of its cluster in the bucket b, and listens for other nodes if
// the settings say so. It returns the node, and its view of the signed log, whose record the caller closes. After an error it
// closes what it has opened, but not w.
func openClusterNode(ctx context.Context, r *roleRun, w *Writer, b bucket.Bucket) (_ *clusterNode, view signedView, err error) {
	n := &clusterNode{settings: r.settings, logger: r.logger, memory: &r.supervisor.node, folder: w.folder, bucket: b, since: time.Now().UTC()}
	folder := n.settings.KeyFolder()
	bootstraps, name, err := n.findLog(ctx, w)
	if err != nil {
		return nil, view, err
	}
	if view.record, err = signing.OpenCandidate(folder, n.folder.store); err != nil {
		return nil, view, fmt.Errorf("%w; --keys chooses another key folder", err)
	}
	defer func() {
		if err != nil {
			n.peers.close()
			err = errors.Join(err, view.record.Close())
		}
	}()
	n.candidate = view.record.OwnKey() != ""
	last, key, err := n.trustedKey(view.record)
	if err != nil {
		return nil, view, err
	}
	if has := originOf(key); has != "" {
		if name != "" && name != has {
			return nil, view, cluster.ForeignError(n.bucket.String(), name, has)
		}
		name = has
	}
	if name == "" {
		return nil, view, fmt.Errorf("%s does not respond, so the log that this node follows is unknown", n.bucket)
	}
	if err := n.openClusterKey(folder, bootstraps, view.record); err != nil {
		return nil, view, err
	}
	if err := n.listenForNodes(ctx); err != nil {
		return nil, view, err
	}
	n.cluster, err = cluster.Open(ctx, cluster.Options{
		Bucket: n.bucket, Store: n.folder.store, Log: n.folder.log, Origin: name, URL: n.peers.url, Bootstraps: n.candidate, Dictionaries: n.settings.Dictionaries,
		Logger: n.logger.With("part", "cluster"),
	})
	if err != nil {
		return nil, view, err
	}
	n.peers.client = n.newNodeClient(true)
	n.rooms = n.newRoomSharing()
	if n.first, err = n.cluster.NextCommit(); err != nil {
		return nil, view, err
	}
	known, err := verify.ReadKnown(filepath.Join(folder, replication.KnownFile))
	if err != nil {
		return nil, view, err
	}
	view.showing = cluster.NewPublishedView(n.cluster, key, last, view.record.Store, func(e *signing.Evidence) string {
		file, err := known.StoreEvidence(e)
		if err != nil {
			n.logger.Error("couldn't store the evidence of a fork", "err", err)
		}
		return file
	})
	return n, view, nil
}

// findLog returns the name of the log in the bucket; "" if the bucket has none, or does not respond to a node that has joined
// the cluster before. bootstraps reports that the bucket has no log, so that this node brings its own. If the node has not
// joined before and the bucket has no log, findLog opens the signer, which creates the log's key if it is missing, and closes
// it. It probes the bucket, by writing objects and deleting them, unless the node has joined and the bucket has a log. The
// error is that of the bucket, unless the node has joined and need not bring its log there, or says why the log cannot be
// signed.
func (n *clusterNode) findLog(ctx context.Context, w *Writer) (bootstraps bool, name string, err error) {
	joined, err := cluster.Joined(n.folder.store)
	if err != nil {
		return false, "", err
	}
	name, err = cluster.Origin(ctx, n.bucket)
	if joined && (err != nil || name != "") {
		return false, name, nil //nolint:nilerr // the bucket is requested again later
	}
	if err == nil {
		err = bucket.Probe(ctx, n.bucket)
	}
	if joined || err != nil || name != "" { // one that has joined another bucket brings its log into this one
		return joined, name, err
	}
	if err := w.openSigner(n.logger, nil); err != nil {
		return false, "", err
	}
	_, refused := w.signature.signer.Checkpoint()
	err = errors.Join(refused, w.signature.close())
	w.signature.signer = nil
	return true, "", err
}

// trustedKey returns the last signed checkpoint that the node has seen and its store contains, the zero value for none. key is
// the log's verifier key that the node trusts: its own, else the one that it saw first, else the one by which its store was
// signed; "" for none.
func (n *clusterNode) trustedKey(record *signing.Record) (last signing.Signed, key string, err error) {
	last, seen, err := record.Last(n.folder.log.Checkpoint())
	if err != nil {
		return last, "", err
	}
	switch {
	case record.OwnKey() != "":
		return last, record.OwnKey(), nil
	case seen != "":
		return last, seen, nil
	}
	key, err = signing.SignedBy(n.folder.store)
	return last, key, err
}

// openClusterKey sets n.key to the cluster's key from the key folder, by which nodes authenticate each other. A node that
// bootstraps the log and has the log's key, as record says, creates a missing key. Otherwise a missing key is an error if the
// node has the log's key or a node URL; other nodes only serve, and go without.
func (n *clusterNode) openClusterKey(folder string, bootstraps bool, record *signing.Record) (err error) {
	n.key, err = cluster.OpenKey(folder, bootstraps && record.OwnKey() != "")
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case missing && record.OwnKey() != "":
		return fmt.Errorf("%s has the log's key and not the cluster's: copy cluster.key from the key folder of the node that publishes, or take log.key away for a node that only serves", folder)
	case missing && n.settings.NodeURL != "":
		return settings.Mistakef("%s needs the cluster's key, by which nodes authenticate each other: copy cluster.key from the key folder of the node that publishes into %s", n.settings.Origin("node-url"), folder)
	case missing:
		return nil
	}
	return err
}

// addStatusOutputs adds the status of the node to the metrics, the readiness checks, the commands `larder status`, `doctor` and
// `nodes`, and the operator's page of the site.
func (n *clusterNode) addStatusOutputs(r *roleRun, site *siteOptions) {
	cluster.RegisterMetrics(r.metrics, n.ownStatus)
	r.supervisor.readiness.addCheck(n.checkReadiness)
	r.console.addStatus(n.addStatus)
	r.console.addExamination(n.examineNodes)
	r.console.addOperations(func(all operations) {
		addRequest(all, OpNodes, func(ctx context.Context, _ struct{}) ([]Node, error) {
			if err := n.cluster.PutMember(ctx, n.ownStatus()); err != nil {
				return nil, err
			}
			return n.cluster.Members(ctx)
		})
	})
	site.pages.Nodes = n.listNodes
}

// addExchangeParts adds to the run r the parts that exchange data with the other nodes over the bucket: status, smaller encodings
// and request counts.
func (n *clusterNode) addExchangeParts(r *roleRun) {
	r.parts.Add(parts.Part{Name: "status for other nodes", Run: parts.RunUntilDone(n.reportStatus)})
	r.parts.Add(parts.Part{Name: "smaller encodings", Run: parts.RunUntilDone(n.exchangeEncodings)})
	r.parts.Add(parts.Part{Name: "usage of all nodes", Run: parts.RunUntilDone(n.shareUsage)})
}

// mayServe reports whether the node may serve files: it has caught up with the bucket once; or its store is not new and the
// node cannot follow the bucket at the moment, such as one that does not respond. After it has returned true, it does so until
// a run starts with a new store.
func (n *clusterNode) mayServe() bool {
	if !n.memory.caughtUp.Load() && n.first > 0 && n.cluster.Status().Problem != "" {
		n.memory.caughtUp.Store(true)
	}
	return n.memory.caughtUp.Load()
}

// exchangeEncodings applies the smaller encodings and deltas that other nodes have put into the bucket, and puts the queued
// ones of this node there, at intervals until ctx ends. It logs errors, and tries again.
func (n *clusterNode) exchangeEncodings(ctx context.Context) {
	for retry.Sleep(ctx, encodingsInterval) == nil {
		shared, err := n.cluster.ShareEncodings(ctx)
		for shared > 0 && err == nil {
			shared, err = n.cluster.ShareEncodings(ctx)
		}
		if err != nil && ctx.Err() == nil {
			n.logger.Warn("couldn't exchange smaller encodings with the other nodes; trying again", "err", err)
		}
	}
}

// usageInterval is the interval at which nodes exchange request counts, and usageRetention the age at which the leader deletes
// them from the bucket.
const (
	usageInterval  = 2 * time.Minute
	usageRetention = (usage.MostDays + 31) * 24 * time.Hour
)

// shareUsage exchanges the counts of requests with the other nodes over the bucket, at once and then at intervals until ctx
// ends, so that each node has the counts of all. The leader also deletes old counts from the bucket, at most every
// reconcileEvery. shareUsage logs errors, and tries again.
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
