package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/logs/follow"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/waitingroom/nodes"
)

// A node of a cluster is in one of two roles for a whole life of its process: it follows, or it writes. Where that changes,
// the process begins anew, while connections wait. So nothing that writes is there in a life that follows.

// Times of a node that changes its role.
const (
	leadRest   = 5 * time.Minute        // longest backoff of a takeover that fails again and again
	showPause  = time.Second            // after the bucket did not take what is to be shown
	signedLook = 100 * time.Millisecond // between two looks at what the signer has signed
	partTime   = 5 * time.Second        // that the bucket has at the end, to be told of it
	mendFirst  = time.Minute            // after it has begun to write: what the writer before it had under way has landed by then
	mendEvery  = 6 * time.Hour
	formsEvery = 10 * time.Second // between two looks for smaller codings that other nodes have found
)

// ClusterIntervals are how long a node of a cluster waits between two attempts. A field that is 0 has its default.
type ClusterIntervals struct {
	// Takeover is the backoff after the first failed takeover. Default: 10 s.
	Takeover time.Duration
	// Squeeze is the time until a follower requests another file to squeeze from a leader that had none. Default: 10 s.
	Squeeze time.Duration
}

func (i ClusterIntervals) withDefaults() ClusterIntervals {
	return ClusterIntervals{
		Takeover: cmp.Or(i.Takeover, 10*time.Second),
		Squeeze:  cmp.Or(i.Squeeze, 10*time.Second),
	}
}

// isNode reports whether the process is a node of a cluster.
func (s Server) isNode() bool { return s.Serve && s.Mirror == nil && s.Settings.Bucket != "" }

// clustered is a running node.
type clustered struct {
	*working
	site      *serving
	node      *cluster.Node
	side      *cluster.SideKey // nil where the key folder has none
	showing   *cluster.Showing // of what another node signs; nil in a life that writes
	record    *signing.Record
	url       string       // where other nodes reach this one; "" for nowhere
	at        net.Listener // there; nil for none
	taking    *tls.Config  // how others reach it there
	asking    *tls.Config  // how it reaches them; nil without the cluster's key
	since     time.Time
	candidate bool                   // it has the log's key
	begun     int64                  // number of the next commit when this life began
	refuses   atomic.Pointer[string] // why it may not write; nil where it may, or has not tried
	saved     errandsSaved
	dropped   bool                        // it has no errands, in a life that follows
	served    http.Handler                // what the bucket is to show, of a node that writes
	owner     atomic.Pointer[nodes.Owner] // of the cluster's waiting rooms, on a node that writes
}

// openBucket finds the bucket. Of what is wrong with it, a node hears when it asks.
func (c *clustered) openBucket() part {
	return part{name: "bucket", start: func(context.Context) (err error) {
		s := c.settings
		c.since = time.Now().UTC()
		c.bucket, err = bucket.Open(s.Bucket, s.BucketEndpoint, s.BucketRegion)
		return err
	}}
}

// setAside puts a store out of the way that lacks what was signed, or is damaged: the bucket has it all. Where the bucket has
// no log, it may be the only one.
func (s *working) setAside(short *Shortfall) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	origin, err := cluster.Origin(ctx, s.bucket)
	if err != nil {
		return fmt.Errorf("%w; and what is lost cannot be followed again: %w", short, err)
	}
	if origin == "" {
		return short
	}
	keys, err := s.settings.KeyFolder()
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(keys, markFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	aside := fmt.Sprintf("%s.lost-%d", storeDir(s.settings.Data), time.Now().Unix())
	err = os.Rename(storeDir(s.settings.Data), aside)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s.logger.Warn("this node begins with a new store, and follows the bucket again from the first entry; the old one is put aside, and can be removed", "why", short, "aside", aside)
	return err
}

// open opens the key folder of a node, and the node.
func (c *clustered) open(ctx context.Context) (err error) {
	folder, err := c.settings.KeyFolder()
	if err != nil {
		return err
	}
	founds, name, err := c.meet(ctx)
	if err != nil {
		return err
	}
	if c.record, err = signing.OpenCandidate(folder, c.folder.store); err != nil {
		return fmt.Errorf("%w; --keys chooses another key folder", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	c.candidate = c.record.Own() != ""
	last, key, err := c.trusted()
	if err != nil {
		return err
	}
	if has := origin(key); has != "" {
		if name != "" && name != has {
			return &cluster.ForeignError{Bucket: c.bucket.String(), Has: name, Want: has}
		}
		name = has
	}
	if name == "" {
		return fmt.Errorf("it cannot be found out whose log this node follows while %s does not answer", c.bucket)
	}
	if err := c.openSide(folder, founds); err != nil {
		return err
	}
	if err := c.listen(ctx); err != nil {
		return err
	}
	c.node, err = cluster.Open(ctx, cluster.Options{
		Bucket: c.bucket, Store: c.folder.store, Log: c.folder.log, Origin: name, URL: c.url, Founds: c.candidate,
		Logger: c.logger.With("part", "cluster"),
	})
	if err != nil {
		return err
	}
	if c.begun, err = c.node.Number(); err != nil {
		return err
	}
	known, err := verify.ReadKnown(filepath.Join(folder, follow.KnownFile))
	if err != nil {
		return err
	}
	c.showing = cluster.NewShowing(c.node, key, last, c.record.Keep, func(e *signing.Evidence) string {
		file, err := known.KeepEvidence(e)
		if err != nil {
			c.logger.Error("couldn't keep the evidence of a fork", "err", err)
		}
		return file
	})
	return nil
}

// meet finds out whose log the bucket has. A node that has yet to join it needs an answer, and probes it. In a bucket
// without a log it founds one: the key is made where there is none.
func (c *clustered) meet(ctx context.Context) (founds bool, name string, err error) {
	joined, err := cluster.Joined(c.folder.store)
	if err != nil {
		return false, "", err
	}
	name, err = cluster.Origin(ctx, c.bucket)
	if joined && (err != nil || name != "") {
		return false, name, nil //nolint:nilerr // it is asked again and again
	}
	if err == nil {
		err = bucket.Probe(ctx, c.bucket)
	}
	if joined || err != nil || name != "" { // one that has joined another bucket brings its log into this one
		return joined, name, err
	}
	if err := c.writer.openSigner(c.logger, nil); err != nil {
		return false, "", err
	}
	_, refused := c.writer.signature.signer.Checkpoint()
	err = errors.Join(refused, c.writer.signature.close())
	c.writer.signature.signer = nil
	return true, "", err
}

// trusted returns what was shown of the log before, and the key that counts: the node's own, or the one it has seen.
func (c *clustered) trusted() (last signing.Signed, key string, err error) {
	last, seen, err := c.record.Last(c.folder.log.Checkpoint())
	if err != nil {
		return last, "", err
	}
	switch {
	case c.record.Own() != "":
		return last, c.record.Own(), nil
	case seen != "":
		return last, seen, nil
	}
	key, err = signing.SignedBy(c.folder.store)
	return last, key, err
}

// openSide opens the cluster's key.
func (c *clustered) openSide(folder string, founds bool) (err error) {
	c.side, err = cluster.OpenSideKey(folder, founds && c.record.Own() != "")
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case missing && c.record.Own() != "":
		return fmt.Errorf("%s has the log's key and not the cluster's: copy cluster.key from the key folder of the node that publishes, or take log.key away for a node that only serves", folder)
	case missing && c.settings.NodeURL != "":
		return settings.Mistakef("%s needs the cluster's key, by which nodes know each other: copy cluster.key from the key folder of the node that publishes into %s", c.settings.Origin("node-url"), folder)
	case missing:
		return nil
	}
	return err
}

// close ends what open has opened.
func (c *clustered) close() (err error) {
	if c.at != nil {
		c.at.Close() // harmless where a server has closed it
	}
	if c.record != nil {
		err = c.record.Close()
	}
	return err
}

// followerParts are what a node is made of while another one writes: nothing in it publishes, signs or sends.
func (s *working) followerParts() (parts list, err error) {
	add := parts.add
	site := newServing(s.running)
	c := &clustered{working: s, site: site}
	site.node = c
	s.lasting.doubt(c.doubt)
	add(s.settings.ReadyFile != "", s.noReadyFile())
	add(true, part{name: "key folder", start: s.keyFolder}, c.openBucket(), s.dataFolder(), s.adminSocket())
	add(true, part{name: "node", start: c.openFollower, stop: c.close}, c.answeringNodes(nil))
	add(true, part{name: "limit of memory", run: until(s.limitMemory)}, s.watchDisk())
	add(s.hasRooms(), site.rooms())
	add(true, site.fresh(), part{name: "gate", start: c.gate})
	add(s.settings.AccessLog != "", site.logging())
	add(len(s.settings.ACMEDomains) > 0, site.openCertificates())
	add(true, site.server(), site.usage(), site.following())
	add(true, site.keepCertificates()...)
	add(true, part{name: "announcement", start: site.announce})
	add(s.settings.ReadyFile != "", s.readyFile())
	add(true, s.adminServer(func() (operations, http.Handler, error) { return c.forwarding(), c.noSchedule(), nil }))
	add(true, part{name: "following", run: until(c.follow)}, part{name: "word of the node", run: until(c.tellOthers)}, part{name: "smaller codings", run: until(c.forms)}, part{name: "squeezing for another node", run: until(c.helpSqueeze)}, part{name: "usage of all nodes", run: until(c.shareUsage)})
	add(true, s.readiness(), s.beginAgain(), stopping(s.lasting.ending, s.Stopping))
	return parts, nil
}

func (c *clustered) openFollower(ctx context.Context) error {
	if err := c.open(ctx); err != nil {
		return err
	}
	c.site.signed = c.showing
	if c.begun == 0 { // a new store
		c.lasting.caughtUp.Store(false)
	}
	c.join()
	return nil
}

// join has the process show how its node stands.
func (c *clustered) join() {
	c.metrics.clustered(c)
	c.tell = append(c.tell, c.status)
	c.answers = append(c.answers, c.nodesOperation)
	c.site.pages.Nodes = c.nodes
}

// mayServe reports whether the node has caught up once. One that has something, and cannot, serves what it has.
func (c *clustered) mayServe() bool {
	if c.lasting.caughtUp.Load() {
		return true
	}
	if c.node != nil && c.begun > 0 && c.node.Status().Problem != "" {
		c.lasting.caughtUp.Store(true)
	}
	return c.lasting.caughtUp.Load()
}

// behind is what clients get until then.
var behind = &answers.Failure{Status: http.StatusServiceUnavailable, Message: "This node is behind: it has yet to catch up with the others; ask another one", Retry: 2}

// gate answers for the site until the node has caught up.
func (c *clustered) gate(context.Context) error {
	c.site.inFront = append(c.site.inFront, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.mayServe() {
				next.ServeHTTP(w, r)
				return
			}
			behind.Send(w, r.Method == http.MethodHead, r.Header["Accept"])
		})
	})
	c.site.inFrontOfLane = append(c.site.inFrontOfLane, func(next lane.Handler) lane.Handler { return gated{next, c} })
	return nil
}

type gated struct {
	lane.Handler
	node *clustered
}

// Answer leaves all to net/http until the node has caught up.
func (g gated) Answer(x *lane.Exchange) bool { return g.node.mayServe() && g.Handler.Answer(x) }

// follow follows the bucket until ctx ends, or the node is to write.
func (c *clustered) follow(ctx context.Context) {
	each := func(ctx context.Context) error {
		if c.node.Founding() { // a node that writes has to bring the log there
			c.lasting.caughtUp.Store(true)
			return nil
		}
		c.lasting.caughtUp.Store(true)
		if !c.dropped { // not before it is known that the bucket has them
			if err := c.dropErrands(); err != nil {
				return err
			}
			c.dropped = true
		}
		if c.showing.Held() == c.folder.log.Checkpoint() {
			return nil
		}
		return c.showing.Look(ctx)
	}
	for ctx.Err() == nil {
		candidate := c.candidate
		limited, cancel := ctx, context.CancelFunc(func() {})
		if wait := time.Until(c.leadAfter); candidate && wait > 0 {
			candidate = false
			limited, cancel = context.WithTimeout(ctx, wait)
		}
		after, vacant := c.node.Follow(limited, candidate, each)
		cancel()
		if !vacant {
			continue
		}
		if err := c.mayLead(ctx); err != nil {
			text := err.Error()
			c.refuses.Store(&text)
			c.logger.Error("no node publishes, and this one may not", "err", err)
			c.leadAfter = time.Now().Add(c.Intervals.Takeover)
			continue
		}
		c.logger.Info("no other node publishes; this one takes over")
		c.takesOver.Store(&after)
		c.again(func() error { return nil })
		<-ctx.Done()
	}
}

// mayLead returns why the node must not write: what it has signed before, or seen signed, is not all in the log.
func (c *clustered) mayLead(ctx context.Context) error {
	changes, err := c.showing.KeyChanges()
	if err != nil {
		return err
	}
	if len(changes) > 0 && changes[len(changes)-1].Key != c.record.Own() {
		return errors.New("the log's key was changed at another node; copy log.key, log.pub and old-*.key from its key folder")
	}
	if c.leadFailures > 0 && c.Fill { // perhaps these failed the last takeover; each takeover leaves a commit in the bucket for good
		n, err := newSupplies(c.settings, true, c.logger.With("part", "bot"))
		if err != nil {
			return fmt.Errorf("it could not fill: %w", err)
		}
		n.getter.Close()
	}
	if !c.node.Founding() {
		if err := c.showing.Look(ctx); err != nil {
			return err
		}
	}
	folder, err := c.settings.KeyFolder()
	if err != nil {
		return err
	}
	signed, _, err := signing.ReadFolder(folder)
	if err != nil {
		return err
	}
	here := c.folder.log.Checkpoint()
	contained, err := signing.Contains(c.folder.store, here, signed.Checkpoint)
	if err == nil && !contained {
		err = fmt.Errorf("%s has a log of %d entries, and the key folder knows that one of %d was signed: the bucket is behind, as after restoring an old copy of it. Start the node that has those entries, which brings them there if the bucket is empty, or name the right --bucket; with another key folder (--keys) and an empty bucket, a new log begins that every client has to be told", c.bucket, here.Size, signed.Size)
	}
	return err
}

// lead has the node write, before anything of it does: it completes what was committed, and raises the guard against forks
// to what the bucket shows.
func (c *clustered) lead() part {
	return part{
		name: "lead",
		start: func(ctx context.Context) (err error) {
			if err := c.open(ctx); err != nil {
				return err
			}
			if err = c.node.Lead(ctx, *c.leads); err == nil {
				err = c.showing.Look(ctx)
			}
			if err == nil {
				err = c.node.NoteShown(c.showing.Held().Size)
			}
			if err == nil {
				err = c.loadErrands(ctx)
			}
			if err != nil {
				c.leave()
				return errors.Join(err, c.close())
			}
			err = c.record.Close() // the signer has the key folder from now on
			c.record, c.showing = nil, nil
			c.squeezed = func(h kvstore.Hash) {
				if err := c.node.NoteForms(h); err != nil {
					c.logger.Warn("the other nodes keep the larger form of a content", "content", h, "err", err)
				}
			}
			c.join()
			return err
		},
		stop: func() error {
			c.leave()
			return c.close()
		},
	}
}

// leave lets another node write at once.
func (c *clustered) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), partTime)
	defer cancel()
	if c.node.Leads() {
		if err := c.saveErrands(ctx); err != nil {
			c.logger.Warn("the last changes of webhooks and schedules may be lost to the node that publishes next", "err", err)
		}
	}
	c.node.Leave(ctx)
}

// publicly are the parts of a node that writes which come when its signer is there.
func (c *clustered) publicly() list {
	c.lasting.doubt(c.doubt)
	return list{
		part{name: "trust in what was signed", start: func(context.Context) error {
			_, refused := c.writer.signature.signer.Checkpoint()
			return refused
		}},
		c.site.fresh(),
		part{name: "what the bucket shows", start: c.openShown, run: until(c.show)}, part{name: "comparing what the bucket shows", run: until(c.mend)},
		part{name: "writing", run: until(func(ctx context.Context) {
			c.node.Hold(ctx)
			if ctx.Err() == nil {
				c.logger.Warn("this node does not publish any more; it follows")
				c.again(func() error { return nil })
			}
		})},
		part{name: "word of the node", run: until(c.tellOthers)},
		part{name: "side state", run: until(c.keepErrands)}, part{name: "smaller codings", run: until(c.forms)}, part{name: "usage of all nodes", run: until(c.shareUsage)},
	}
}

func (c *clustered) openShown(context.Context) (err error) {
	c.served, err = tiles.New(tiles.Options{Store: c.folder.store, Signer: c.writer.signature.signer, Logger: c.logger.With("part", "cluster")})
	return err
}

// show has the bucket show what is signed.
func (c *clustered) show(ctx context.Context) {
	signer := c.writer.signature.signer
	var shown signing.Signed
	bring := func(ctx context.Context) error {
		signed, _ := signer.Checkpoint()
		if signed.Note == nil || string(signed.Note) == string(shown.Note) {
			return nil
		}
		err := c.node.Show(ctx, c.served, signed)
		if err == nil {
			shown = signed
		}
		return err
	}
	for ctx.Err() == nil {
		rest := signedLook
		if err := bring(ctx); err != nil && ctx.Err() == nil {
			rest = showPause
			c.logger.Warn("couldn't bring up to date what the bucket shows; trying again", "err", err)
		}
		retry.Sleep(ctx, rest) //nolint:errcheck // the loop sees that ctx has ended
	}
	if !c.node.Leads() {
		return
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), partTime)
	defer cancel()
	err := signer.Sign() // what was published last may not be signed yet
	if err == nil {
		err = bring(last)
	}
	if err != nil && !errors.Is(err, cluster.ErrShown) {
		c.logger.Warn("the bucket does not show the last releases; the node that publishes next brings it up to date", "err", err)
	}
}

// mend removes what earlier writers left in the bucket, and has the bucket show what the log says.
func (c *clustered) mend(ctx context.Context) {
	for wait, first := mendFirst, true; retry.Sleep(ctx, wait) == nil; wait, first = mendEvery, false {
		if first {
			switch packs, size, err := c.node.CollectPacks(ctx); {
			case err != nil && ctx.Err() == nil:
				c.logger.Warn("couldn't remove what unfinished publications left in the bucket; the next node that publishes does", "err", err)
			case packs > 0:
				c.logger.Info("removed what unfinished publications left in the bucket", "packs", packs, "bytes", size)
			}
		}
		done, err := c.node.Mend(ctx, c.served)
		if done.Partial > 0 {
			c.logger.Info("removed old partial tiles from what the bucket shows", "objects", done.Partial)
		}
		if done.Added+done.Removed > 0 {
			c.logger.Warn("what the bucket shows differed from the log, as after a node that published was paused; it is put right", "added", done.Added, "removed", done.Removed)
		}
		if err != nil && ctx.Err() == nil {
			c.logger.Warn("couldn't compare what the bucket shows with the log; trying again later", "err", err, "later", mendEvery)
		}
	}
}

// forms gives the other nodes the smaller codings that are found here, and takes over theirs.
func (c *clustered) forms(ctx context.Context) {
	for retry.Sleep(ctx, formsEvery) == nil {
		_, err := c.node.TakeForms(ctx)
		for shared := 1; shared > 0 && err == nil; {
			shared, err = c.node.ShareForms(ctx)
		}
		if err != nil && ctx.Err() == nil {
			c.logger.Warn("couldn't exchange smaller codings with the other nodes; trying again", "err", err)
		}
	}
}
