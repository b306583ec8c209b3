package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/waitingroom"
)

const (
	reportInterval      = 30 * time.Second // between two reports of the node's status
	reportCheckInterval = 3 * time.Second  // between two checks whether the status has changed
	// nodesTimeout is how long the operator's page waits until the bucket returns the status of the nodes.
	nodesTimeout = 3 * time.Second
)

// A Node is the status of a node of the cluster, and its JSON form.
type Node = cluster.Member

// OpNodes returns the status of each node of the cluster, as the bucket has it, after the process has written its own there.
const OpNodes Operation[struct{}, any, []Node] = "nodes"

// forwarded are the operations that followers forward to the leader.
var forwarded = []string{string(OpAdd), string(opMissingContents), string(opImport), string(OpWithdraw), string(OpRestore), string(OpSqueeze), string(OpScheduleAdd), string(OpScheduleList), string(OpScheduleShow),
	string(OpScheduleRemove), string(OpWebhookAdd), string(OpWebhookList), string(OpWebhookRemove),
	string(OpSetRoom), string(OpApplyRooms), string(OpUndoRooms)}

// listenForNodes opens the socket on which other nodes reach this one, and sets the listener, the TLS configurations by the
// cluster's key, and the URL in n.peers. It accepts nothing yet. Without --node-url it sets only the TLS configurations, and
// without the cluster's key it does nothing; neither is an error.
func (n *clusterNode) listenForNodes(ctx context.Context) (err error) {
	if n.key == nil {
		return nil
	}
	if n.peers.serverTLS, n.peers.clientTLS, err = n.key.TLS(); err != nil || n.settings.NodeURL == "" {
		return err
	}
	u, err := url.Parse(n.settings.NodeURL)
	if err != nil {
		return err
	}
	host := u.Hostname()
	if net.ParseIP(host) == nil { // a host name may be that of a load balancer
		host = ""
	}
	if n.peers.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, u.Port())); err != nil {
		return fmt.Errorf("%s: couldn't listen for the other nodes: %w", n.settings.Origin("node-url"), err)
	}
	_, port, err := net.SplitHostPort(n.peers.listener.Addr().String())
	n.peers.url = "https://" + net.JoinHostPort(u.Hostname(), port)
	return err
}

// serveNodes serves the other nodes until the run ends: the operations in all, the exchange of waiting rooms, and the handlers in
// besides by their paths. It does nothing if the node does not listen for others.
func (n *clusterNode) serveNodes(r *roleRun, all operations, besides map[string]http.Handler) {
	if n.peers.listener == nil {
		return
	}
	logger := r.logger.With("part", "nodes")
	mux := http.NewServeMux()
	mux.Handle(waitingroom.SharingPath, n.rooms)
	mux.Handle("/", api.AdminHandler(n.folder.trackOperations(all), logger))
	for path, handler := range besides {
		mux.Handle(path, handler)
	}
	s := server.NewHTTPServer(mux, server.HTTPOptions{TLS: n.peers.serverTLS, ReadTimeout: noTimeout, WriteTimeout: noTimeout, Logger: logger})
	ctx := r.parts.Context()
	s.BaseContext = func(net.Listener) context.Context { return ctx }
	r.addServer("server for nodes", s, []net.Listener{n.peers.listener})
}

// notLeaderError returns a [*cluster.NotWriterError], never nil, for what only the leader can do. It names the leader if this
// node knows it.
func (n *clusterNode) notLeaderError() error {
	return &cluster.NotWriterError{Writer: n.cluster.Status().Writer}
}

// operations returns the operations that commands can request from a follower. It forwards those that change the log, the
// outbox or the waiting rooms to the leader, and then waits up to arrivalTimeout until the site in served has the new entries.
// Repairs repair this node. Other operations that write return an error that says to run them on the leader.
func (f *clusterFollower) operations(served *published) operations {
	n := f.node
	all := refuseWrites(n.folder.operations(), errors.New("another node of the cluster publishes: run the command there"))
	for _, name := range forwarded {
		all[name] = func(ctx context.Context, request api.OperationRequest, report func(any)) (any, error) {
			result, err := n.forwardToLeader(ctx, name, request, report)
			if err == nil {
				f.awaitArrival(ctx, name, logSizeOf(result), served)
			}
			return result, err
		}
	}
	all[string(OpImportTree)] = n.refuseExceptOnLeader("a tree is read where it lies: copy it to the node that publishes%s, and run larder import --tree there; one release can be imported through any node, by larder import NAME VERSION SOURCE")
	all[string(OpRotateKey)] = n.refuseExceptOnLeader("the log's key is changed where it signs: run larder log rotate-key on the node that publishes%s, then copy log.key, log.pub and old-*.key from its key folder into that of each other node with a log.key, and start that again")
	reportLogSize(all)
	f.run.addRepairInPlace(all, n.folder)
	return f.run.addConsole(all, n.folder)
}

// awaitArrival waits up to arrivalTimeout until the site in served has the first size entries of the log; the leader has
// reported that size after the operation, whose name is for the log. It does nothing if size is 0. If they do not arrive in
// time, it logs that and returns.
func (f *clusterFollower) awaitArrival(ctx context.Context, operation string, size int64, served *published) {
	if size == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, arrivalTimeout)
	defer cancel()
	_, err := f.node.folder.log.Wait(ctx, size-1)
	if err == nil {
		err = served.awaitLog(ctx)
	}
	if err != nil {
		f.run.logger.Warn("what was changed through this node has yet to arrive here", "operation", operation, "err", err)
	}
}

// refuseExceptOnLeader returns an operation that fails with message, since it has to run on the leader's machine. The operation reads the
// leader's URL from the bucket each time. message is a format with one %s, for ", the one at " and the leader's URL, or for "" if that is unknown.
func (n *clusterNode) refuseExceptOnLeader(message string) api.Operation {
	return func(ctx context.Context, _ api.OperationRequest, _ func(any)) (any, error) {
		where := ""
		if _, at, err := n.cluster.Leader(ctx); err == nil && at != "" {
			where = ", the one at " + at
		}
		return nil, fmt.Errorf(message, where)
	}
}

// forwardToLeader requests the operation name from the leader, and returns its result. The events that report receives are JSON
// (json.RawMessage), too. The error is the operation's, with the leader's URL, or says why the leader cannot be
// reached, such as that this node is the leader.
func (n *clusterNode) forwardToLeader(ctx context.Context, name string, request api.OperationRequest, report func(any)) (json.RawMessage, error) {
	at, err := n.findLeader(ctx)
	if err != nil {
		return nil, err
	}
	writer := api.NewAdminClient(n.newNodeClient(false), at+"/")
	result, err := api.ForwardOperation(ctx, writer, name, request, func(e json.RawMessage) { report(e) })
	if err != nil {
		return nil, explainUnreachable(at, fmt.Errorf("%w (by the node at %s)", err, at))
	}
	return result, nil
}

// explainUnreachable adds to the error of a connection that could not be opened what the operator can do. leader is the leader's
// URL. It returns other errors, and nil, unchanged.
func explainUnreachable(leader string, err error) error {
	var dial *net.OpError
	if !errors.As(err, &dial) || dial.Op != "dial" {
		return err
	}
	return fmt.Errorf("the leader does not respond at %s; if it is lost, another node that has the log's key takes its place within ten seconds: try again, and see larder nodes: %w", leader, err)
}

// addStatus sets the status of the node in that of the process. It clears Degraded, because a node fetches missing entries from
// the bucket.
func (n *clusterNode) addStatus(s *Status) {
	s.Degraded = "" // a node fetches missing entries from the bucket
	m := n.ownStatus()
	s.Node = &m
}

// defaultName returns the name of a node that has no URL: MACHINE:FOLDER, with its data folder.
func (n *clusterNode) defaultName() string {
	host, _ := os.Hostname()
	return host + ":" + settings.Absolute(n.settings.Data)
}

// ownStatus returns the present status of this node, in the form in which the bucket lists the nodes. Behind is in seconds: 0
// for a leader, -1 if a follower has not caught up in this run. Problem is that of following or leading, else why the node may
// not lead.
func (n *clusterNode) ownStatus() Node {
	s := n.cluster.Status()
	checkpoint := n.folder.log.Checkpoint()
	m := Node{Name: cmp.Or(n.peers.url, n.defaultName()), URL: n.peers.url, Role: cluster.Follower, Version: Version(), Entries: checkpoint.Size, Since: n.since, Heard: time.Now().UTC(), Problem: s.Problem, Behind: -1, Settings: n.settings.Digests()}
	if e, err := logs.ReadEntry(n.folder.store, checkpoint.Size-1); err == nil {
		m.Newest = e.Time
	}
	switch {
	case s.Leads:
		m.Role, m.Behind = cluster.Leader, 0
	case n.candidate:
		m.Role = cluster.Candidate
	}
	if !s.Leads && !s.Current.IsZero() {
		m.Behind = time.Since(s.Current).Seconds()
	}
	m.Lacks, m.Evidence = n.missing()
	if why := n.refuses.Load(); why != nil && m.Problem == "" {
		m.Problem = *why
	}
	return m
}

// reportStatus writes the status of this node to the bucket, for the other nodes and `larder nodes`, until ctx ends: within 3
// seconds of a change of its entries, problem or evidence, once it has caught up, and every 30 seconds. Then it removes the status from the bucket. It
// does not log errors of writing, and tries again.
func (n *clusterNode) reportStatus(ctx context.Context) {
	var reported Node
	for wait := time.Duration(0); retry.Sleep(ctx, wait) == nil; wait = reportCheckInterval {
		m := n.ownStatus()
		if m.Heard.Sub(reported.Heard) < reportInterval && m.Entries == reported.Entries && m.Problem == reported.Problem && m.Evidence == reported.Evidence && (m.Behind < 0) == (reported.Behind < 0) {
			continue
		}
		if n.cluster.PutMember(ctx, m) == nil { // otherwise later
			reported = m
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := n.cluster.DeleteMember(ctx, n.ownStatus().Name); err != nil {
		n.logger.Debug("couldn't remove the status of this node from the bucket", "err", err)
	}
}

// checkReadiness is the node's readiness check: it reports that the node cannot serve if it has yet to catch up, that it cannot
// publish if its status has a problem, and otherwise a note with its status.
func (n *clusterNode) checkReadiness(report *readinessReport) {
	m := n.ownStatus()
	note := fmt.Sprintf("cluster: %s, %d log entries, %.1f s and %d signed entries behind", m.Role, m.Entries, max(0, m.Behind), m.Lacks)
	if m.Problem != "" {
		note += "; " + m.Problem
	}
	switch {
	case m.Role != cluster.Leader && !n.mayServe():
		report.cannotServe(fmt.Errorf("behind: this node has yet to catch up for the first time (%s)", note))
	case m.Problem != "":
		report.cannotPublish(errors.New(note))
	default:
		report.addNote(note)
	}
}

// listNodes returns the status of all nodes that the bucket lists, for the operator's page, with the present status of this
// node in place of the listed one. If the bucket does not respond within nodesTimeout, it returns only this node, and the
// error.
func (n *clusterNode) listNodes(ctx context.Context) ([]Node, error) {
	own := n.ownStatus()
	ctx, cancel := context.WithTimeout(ctx, nodesTimeout)
	defer cancel()
	all, err := n.cluster.Members(ctx)
	if err != nil {
		all = []Node{own}
	}
	for i, m := range all {
		if m.Name == own.Name {
			all[i] = own
		}
	}
	return all, err
}

const (
	nodeDial      = 5 * time.Second
	nodeIdle      = time.Minute // after which an unused connection to a node is closed
	shortResponse = 8 << 10     // bytes of a response that is a few words, such as an error
)

// newNodeClient returns an HTTP client for requests to other nodes. If keep is true, its requests share connections. Otherwise
// each opens its own, so that dialing detects a lost machine. A response has no timeout, because an operation may take long.
func (n *clusterNode) newNodeClient(keep bool) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: n.peers.clientTLS, DialContext: (&net.Dialer{Timeout: nodeDial}).DialContext, TLSHandshakeTimeout: nodeDial,
		DisableKeepAlives: !keep, MaxIdleConnsPerHost: 8, IdleConnTimeout: nodeIdle,
	}}
}

// findLeader returns the URL of the leader, which it reads from the bucket. The error says why this node cannot send requests
// there: the bucket does not respond, no node has ever led, the last one that led has no URL or is this node itself, or the
// node lacks the cluster's key. The URL counts only without an error.
func (n *clusterNode) findLeader(ctx context.Context) (url string, err error) {
	epoch, url, err := n.cluster.Leader(ctx)
	switch {
	case err != nil:
		return url, err
	case epoch == 0:
		return url, &cluster.NotWriterError{}
	}
	return url, n.checkLeaderURL(url)
}

// checkLeaderURL returns why this node cannot send requests to the leader at a URL, nil if it can: the URL is "", is that of this
// node, or the node lacks the cluster's key.
func (n *clusterNode) checkLeaderURL(url string) error {
	switch {
	case url == "":
		return errors.New("the leader of the cluster has no --node-url for requests of other nodes: give it one, or run the command there (larder nodes shows which node it is)")
	case url == n.peers.url:
		return &cluster.NotWriterError{}
	case n.peers.clientTLS == nil:
		return fmt.Errorf("this node cannot send requests to the leader at %s without the cluster's key: copy cluster.key from the leader's key folder into this one's, or run the command there", url)
	}
	return nil
}

// postToLeader sends a POST request with a body to a URL of the leader, and returns the body of the response. A status other than
// 2xx, or a response's body of more than most bytes, is an error.
func postToLeader(ctx context.Context, client *http.Client, url string, body io.Reader, most int64) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, max(most, shortResponse)+1))
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode/100 != 2:
		return nil, fmt.Errorf("the leader responds %s: %s", response.Status, strings.TrimSpace(string(text[:min(len(text), shortResponse)])))
	case int64(len(text)) > most:
		return nil, fmt.Errorf("the leader's response has more than %d bytes", most)
	}
	return text, nil
}
