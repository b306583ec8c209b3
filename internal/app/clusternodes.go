package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/server"
)

// Times of what nodes say to one another.
const (
	wordEvery = 30 * time.Second // of what `larder nodes` tells
	wordLook  = 3 * time.Second  // and sooner, if there is news
	// nodesPatience is how long a page waits for what the bucket knows of the nodes.
	nodesPatience = 3 * time.Second
)

// A Node is what a node of the cluster tells of itself, and its JSON form.
type Node = cluster.Member

// OpNodes lists the nodes.
const OpNodes Operation[struct{}, any, []Node] = "nodes"

func noNodes(context.Context, struct{}, func(any)) ([]Node, error) {
	return nil, errors.New("the process on this data folder is not a node of a cluster; `larder up --bucket` makes it one")
}

// forwarded are the operations that any node takes, and the one that writes does.
var forwarded = []string{string(OpAdd), string(opMissingContents), string(opImport), string(OpWithdraw), string(OpRestore), string(OpSqueeze), string(OpScheduleAdd), string(OpScheduleList), string(OpScheduleShow),
	string(OpScheduleRemove), string(OpWebhookAdd), string(OpWebhookList), string(OpWebhookRemove),
	string(OpSetRoom), string(OpApplyRooms), string(OpUndoRooms)}

// listen opens the socket on which other nodes reach this one.
func (c *clustered) listen(ctx context.Context) (err error) {
	if c.side == nil {
		return nil
	}
	if c.taking, c.asking, err = nodeTLS(c.side); err != nil || c.settings.NodeURL == "" {
		return err
	}
	u, err := url.Parse(c.settings.NodeURL)
	if err != nil {
		return err
	}
	host := u.Hostname()
	if net.ParseIP(host) == nil { // a name may be that of what is in front
		host = ""
	}
	if c.at, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, u.Port())); err != nil {
		return fmt.Errorf("%s: couldn't listen for the other nodes: %w", c.settings.Origin("node-url"), err)
	}
	_, port, err := net.SplitHostPort(c.at.Addr().String())
	c.url = "https://" + net.JoinHostPort(u.Hostname(), port)
	return err
}

// answeringNodes answers the other nodes. On a node that follows, fill is nil, and every question is refused.
func (c *clustered) answeringNodes(fill *filling) part {
	return c.answering("server for nodes", func(ctx context.Context) (*server.Server, []net.Listener, error) {
		if c.at == nil {
			return server.NewHTTPServer(http.NotFoundHandler(), server.HTTPOptions{Logger: c.logger}), nil, nil
		}
		logger := c.logger.With("part", "nodes")
		mux := http.NewServeMux()
		mux.Handle(roomsPath, c.handleRoomRequests())
		all := operations{}
		if fill != nil {
			all = c.forNodes()
		}
		mux.Handle("/", admin.Handler(c.folder.counted(all), logger))
		if fill != nil && c.Fill {
			mux.Handle(squeezePath, c.lending(fill))
		}
		s := server.NewHTTPServer(mux, server.HTTPOptions{TLS: c.taking, ReadTimeout: noTimeout, WriteTimeout: noTimeout, Logger: logger})
		s.BaseContext = func(net.Listener) context.Context { return ctx }
		return s, []net.Listener{c.at}, nil
	})
}

// forNodes are the operations that a node which writes does for the others.
func (c *clustered) forNodes() operations {
	all, mine := operations{}, c.saving(c.operations())
	for _, name := range forwarded {
		all[name] = mine[name]
	}
	return all
}

// elsewhere says that another node publishes.
func (c *clustered) elsewhere() error { return &cluster.NotWriterError{Writer: c.node.Status().Writer} }

// forwarding are the operations of a node that follows: what would publish is passed on to the one that writes.
func (c *clustered) forwarding() operations {
	all := refusing(c.folder.operations(), errors.New("another node of the cluster publishes: run the command there"))
	for _, name := range forwarded {
		all[name] = func(ctx context.Context, request admin.Request, report func(any)) (any, error) {
			return c.forward(ctx, name, request, report)
		}
	}
	all[string(OpImportTree)] = c.refuseExceptOnLeader("a tree is read where it lies: copy it to the node that publishes%s, and run larder import --tree there; one release can be imported through any node, by larder import NAME VERSION SOURCE")
	all[string(OpRotateKey)] = c.refuseExceptOnLeader("the log's key is changed where it signs: run larder log rotate-key on the node that publishes%s, then copy log.key, log.pub and old-*.key from its key folder into that of each other node with a log.key, and start that again")
	reportLogSize(all)
	c.repairOperation(all)
	return c.telling(all)
}

// refuseExceptOnLeader refuses an operation that has to be run on the leader's machine, and names the leader.
func (c *clustered) refuseExceptOnLeader(why string) admin.Operation {
	return func(ctx context.Context, _ admin.Request, _ func(any)) (any, error) {
		where := ""
		if at, err := c.node.FindWriter(ctx); err == nil && at != "" {
			where = ", the one at " + at
		}
		return nil, fmt.Errorf(why, where)
	}
}

// forward has the node that writes do an operation, and waits for a while until this one has what came of it.
func (c *clustered) forward(ctx context.Context, name string, request admin.Request, report func(any)) (any, error) {
	at, err := c.findWriter(ctx)
	if err != nil {
		return nil, err
	}
	writer := admin.Over(c.askingClient(false), at+"/")
	result, err := admin.Forward(ctx, writer, name, request, func(e json.RawMessage) { report(e) })
	if err != nil {
		return nil, unreached(at, fmt.Errorf("%w (by the node at %s)", err, at))
	}
	size := sizeIn(result)
	if size == 0 {
		return result, nil
	}
	ctx, cancel := context.WithTimeout(ctx, arrival)
	defer cancel()
	if _, err = c.folder.log.Wait(ctx, size-1); err == nil {
		err = c.site.inForce(ctx)
	}
	if err != nil {
		c.logger.Warn("what was changed through this node has yet to arrive here", "operation", name, "err", err)
	}
	return result, nil
}

// unreached says of an error, where the node that writes could not be reached, what comes next.
func unreached(at string, err error) error {
	var dial *net.OpError
	if !errors.As(err, &dial) || dial.Op != "dial" {
		return err
	}
	return fmt.Errorf("the node that publishes does not answer at %s; if it is lost, another node that has the log's key takes its place within ten seconds: try again, and see larder nodes: %w", at, err)
}

// status adds how the node stands to the process's status.
func (c *clustered) status(s *Status) {
	s.Degraded = "" // what is missing comes from the bucket
	m := c.member()
	s.Node = &m
}

// folderName names the node by its machine and data folder.
func (c *clustered) folderName() string {
	host, _ := os.Hostname()
	data, err := filepath.Abs(c.settings.Data)
	if err != nil {
		data = c.settings.Data
	}
	return host + ":" + data
}

// member is what the node tells of itself.
func (c *clustered) member() Node {
	s := c.node.Status()
	checkpoint := c.folder.log.Checkpoint()
	m := Node{Name: cmp.Or(c.url, c.folderName()), URL: c.url, Role: cluster.Follower, Version: Version(), Entries: checkpoint.Size, Since: c.since, Heard: time.Now().UTC(), Problem: s.Problem, Behind: -1}
	if e, err := logs.ReadEntry(c.folder.store, checkpoint.Size-1); err == nil {
		m.Newest = e.Time
	}
	switch {
	case s.Leads:
		m.Role, m.Behind = cluster.Writer, 0
	case c.candidate:
		m.Role = cluster.Candidate
	}
	if !s.Leads && !s.Current.IsZero() {
		m.Behind = time.Since(s.Current).Seconds()
	}
	if c.showing != nil {
		m.Lacks, m.Evidence = c.showing.Lacks()
	}
	if why := c.refuses.Load(); why != nil && m.Problem == "" {
		m.Problem = *why
	}
	return m
}

// tellOthers leaves word of the node in the bucket, for `larder nodes`, and takes it away at the end.
func (c *clustered) tellOthers(ctx context.Context) {
	var told Node
	for look := time.Duration(0); retry.Sleep(ctx, look) == nil; look = wordLook {
		m := c.member()
		if m.Heard.Sub(told.Heard) < wordEvery && m.Entries == told.Entries && m.Problem == told.Problem && m.Evidence == told.Evidence && (m.Behind < 0) == (told.Behind < 0) {
			continue
		}
		if c.node.Tell(ctx, m) == nil { // else later; nobody waits for it
			told = m
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), partTime)
	defer cancel()
	if err := c.node.Forget(ctx, c.member().Name); err != nil {
		c.logger.Debug("couldn't take away the word of this node", "err", err)
	}
}

// doubt is what /readyz tells of the node.
func (c *clustered) doubt() (note string, err error) {
	if c.node == nil {
		return "", errors.New("starting")
	}
	m := c.member()
	note = fmt.Sprintf("cluster: %s, %d log entries, %.1f s and %d signed entries behind", m.Role, m.Entries, max(0, m.Behind), m.Lacks)
	if m.Problem != "" {
		note += "; " + m.Problem
	}
	if m.Role != cluster.Writer && !c.mayServe() {
		return "", fmt.Errorf("behind: this node has yet to catch up for the first time (%s)", note)
	}
	return note, nil
}

// nodes lists all nodes for the operator's page; where the bucket does not answer, this one.
func (c *clustered) nodes(ctx context.Context) ([]Node, error) {
	own := c.member()
	ctx, cancel := context.WithTimeout(ctx, nodesPatience)
	defer cancel()
	all, err := c.node.Members(ctx)
	if err != nil {
		return []Node{own}, err
	}
	for i := range all {
		if all[i].Name == own.Name {
			all[i] = own
		}
	}
	return all, nil
}

// nodesOperation lists all nodes; of this one it tells how it stands now.
func (c *clustered) nodesOperation(all operations) {
	answer(all, OpNodes, func(ctx context.Context, _ struct{}, _ func(any)) ([]Node, error) {
		if err := c.node.Tell(ctx, c.member()); err != nil {
			return nil, err
		}
		return c.node.Members(ctx)
	})
}

// clustered shows how a node stands.
func (r *registry) clustered(c *clustered) {
	gauge := func(name, help string, value func(Node) float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "larder", Subsystem: "cluster", Name: name, Help: help}, func() float64 { return value(c.member()) }))
	}
	flag := func(is bool) float64 {
		if is {
			return 1
		}
		return 0
	}
	gauge("writer", "1 on the node that publishes.", func(n Node) float64 { return flag(n.Role == cluster.Writer) })
	gauge("role_timestamp_seconds", "When the node took up its role, by its own clock.", func(n Node) float64 { return float64(n.Since.Unix()) })
	gauge("entries", "Log entries that are here.", func(n Node) float64 { return float64(n.Entries) })
	gauge("behind_entries", "Signed log entries that the bucket was seen to have and are not here.", func(n Node) float64 { return float64(n.Lacks) })
	gauge("behind_seconds", "Time since all was here that the bucket had; -1 where it never was.", func(n Node) float64 { return n.Behind })
	gauge("forked", "1 while the bucket shows a signed checkpoint that is not one of the log here.", func(n Node) float64 { return flag(n.Evidence != "") })
	gauge("problem", "1 while the bucket cannot be followed, or told that this node lives.", func(n Node) float64 { return flag(n.Problem != "") })
}
