package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/larder-cdn/larder/logs/cluster"
)

const (
	nodeDial      = 5 * time.Second
	nodeIdle      = time.Minute // after which an unused connection to a node is closed
	shortResponse = 8 << 10     // bytes of a response that is a few words, such as an error
)

// newNodeClient returns an HTTP client for requests to other nodes. If keep is true, its requests share connections. Otherwise
// each opens its own, so that dialing detects a lost machine: a response has no timeout, because an operation may take long.
func (n *clusterNode) newNodeClient(keep bool) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: n.peers.clientTLS, DialContext: (&net.Dialer{Timeout: nodeDial}).DialContext, TLSHandshakeTimeout: nodeDial,
		DisableKeepAlives: !keep, MaxIdleConnsPerHost: 8, IdleConnTimeout: nodeIdle,
	}}
}

// findLeader returns the URL of the leader. The error says why this node cannot send requests there: the leader is unknown or has
// no URL, is this node itself, or the node lacks the cluster's key.
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
