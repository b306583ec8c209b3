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
	nodeDial    = 5 * time.Second
	nodeIdle    = time.Minute // after which an unused connection to a node is closed
	shortAnswer = 8 << 10     // bytes of an answer that is a few words, such as why there is no other
)

// askingClient returns a client that asks other nodes. With keep, questions share connections. Without, each has one of its
// own, so that dialling finds out where a machine is gone: an operation may answer late, and has no other limit.
func (n *clusterNode) askingClient(keep bool) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: n.peers.asking, DialContext: (&net.Dialer{Timeout: nodeDial}).DialContext, TLSHandshakeTimeout: nodeDial,
		DisableKeepAlives: !keep, MaxIdleConnsPerHost: 8, IdleConnTimeout: nodeIdle,
	}}
}

// findWriter returns the URL at which the node that writes can be asked.
func (n *clusterNode) findWriter(ctx context.Context) (at string, err error) {
	if at, err = n.cluster.FindWriter(ctx); err == nil {
		err = n.cannotAsk(at)
	}
	return at, err
}

// cannotAsk returns why the node that writes, at a URL, cannot be asked from here.
func (n *clusterNode) cannotAsk(at string) error {
	switch {
	case at == "":
		return errors.New("the leader of the cluster has no --node-url for requests of other nodes: give it one, or run the command there (larder nodes shows which node it is)")
	case at == n.peers.url:
		return &cluster.NotWriterError{}
	case n.peers.asking == nil:
		return fmt.Errorf("this node cannot send requests to the leader at %s without the cluster's key: copy cluster.key from the leader's key folder into this one's, or run the command there", at)
	}
	return nil
}

// ask sends a question to another node, and returns the answer, of most bytes at most.
func ask(ctx context.Context, client *http.Client, url string, question io.Reader, most int64) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, question)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, max(most, shortAnswer)+1))
	switch {
	case err != nil:
		return nil, err
	case answer.StatusCode/100 != 2:
		return nil, fmt.Errorf("the leader responds %s: %s", answer.Status, strings.TrimSpace(string(said[:min(len(said), shortAnswer)])))
	case int64(len(said)) > most:
		return nil, fmt.Errorf("the leader's response has more than %d bytes", most)
	}
	return said, nil
}
