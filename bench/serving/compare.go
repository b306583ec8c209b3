package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// known is what comparing found out of one server: each request as it is sent
// there, and how long its answer is.
type known struct {
	requests [][]byte
	lengths  []int
}

// A comparison asks every server for all of a scenario.
type comparison struct {
	*bench
	scenario
	servers []*server
	client  *http.Client // over HTTP/2
	known   []known      // by server
	blocks  *blocks      // of requests to the first server over HTTP/2

	mu sync.Mutex // guards the report
}

// compare asks every server for all of the scenario and ends the run where a peer's
// answer is not Larder's.
func (b *bench) compare(ctx context.Context, servers []*server, s scenario) ([]known, error) {
	c := &comparison{bench: b, scenario: s, servers: servers, client: newHTTP2Client(s.protocol.secure), known: make([]known, len(servers)), blocks: newBlocks(servers[0].address)}
	defer c.client.CloseIdleConnections()
	for i := range c.known {
		c.known[i] = known{make([][]byte, len(s.requests)), make([]int, len(s.requests))}
	}
	if s.mixed {
		progress("comparing %d answers of %d servers", len(s.requests), len(servers))
	}
	const workers = 4
	g, ctx := errgroup.WithContext(ctx)
	for worker := range min(workers, len(s.requests)) {
		g.Go(func() error {
			connections := make([]*connection, len(servers))
			defer func() {
				for _, c := range connections {
					if c != nil {
						c.close()
					}
				}
			}()
			for at := worker; at < len(s.requests); at += workers {
				if err := c.request(ctx, connections, at); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return c.known, g.Wait()
}

// request compares the answers to one request with that of the first server.
func (c *comparison) request(ctx context.Context, connections []*connection, at int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var first *answer
	for i, server := range c.servers {
		a, err := c.ask(ctx, &connections[i], i, at)
		if err != nil {
			return fmt.Errorf("%s: %w", server.name, err)
		}
		if first == nil {
			first = a
		}
		for _, d := range differences(first, a) {
			if !tolerated(server.name, d, a.status) {
				return fmt.Errorf("%s does not answer as %s does, so that comparing them would mean nothing: %s %s: %s: %s",
					server.name, c.servers[0].name, c.requests[at].Method, c.requests[at].Path, d.field, d.text)
			}
			c.mu.Lock()
			c.report.tolerate(server.name, a.status, d)
			c.mu.Unlock()
		}
	}
	return nil
}

// ask asks server i for request at, over a connection that it makes where there is none.
func (c *comparison) ask(ctx context.Context, connection **connection, i, at int) (*answer, error) {
	server := c.servers[i]
	if c.protocol.http2() {
		return c.askHTTP2(ctx, server, &c.known[i], at)
	}
	if *connection == nil || c.protocol.close {
		var err error
		if *connection, err = dial(ctx, server.address, server.secure); err != nil {
			return nil, err
		}
	}
	a, err := askTwice(*connection, c.requests[at], c.protocol.close, &c.known[i], at)
	if c.protocol.close {
		(*connection).close()
	}
	return a, err
}

// askHTTP2 asks, where the request has conditions, first for what they need.
func (c *comparison) askHTTP2(ctx context.Context, server *server, k *known, at int) (*answer, error) {
	q := c.requests[at]
	var v validators
	if q.Conditional {
		a, err := askHTTP2(ctx, c.client, server.url(), request{Method: http.MethodGet, Path: q.Path}, v)
		if err != nil {
			return nil, err
		}
		v = validatorsOf(a.header)
	}
	a, err := askHTTP2(ctx, c.client, server.url(), q, v)
	if err == nil {
		k.requests[at], k.lengths[at] = c.blocks.of(q, v), len(a.body)
	}
	return a, err
}

// askTwice asks, where the request has conditions, first for what they need. What
// is learned goes to k.
func askTwice(c *connection, q request, closing bool, k *known, at int) (*answer, error) {
	var v validators
	if q.Conditional {
		a, err := c.ask(request{Method: http.MethodGet, Path: q.Path}, v, false, chrome)
		if err != nil {
			return nil, err
		}
		v = validatorsOf(a.header)
	}
	a, err := c.ask(q, v, closing, chrome)
	if err != nil {
		return nil, err
	}
	if q.Conditional && a.status != http.StatusNotModified {
		return nil, fmt.Errorf("%s at %s: status %d to its own validators, not 304", q.Path, c.host, a.status)
	}
	k.requests[at], k.lengths[at] = q.wire(c.host, v, closing, chrome), a.length
	return a, nil
}

// A difference says in what two answers are not alike.
type difference struct {
	field string // a header field, "status" or "body"
	text  string
}

// differences compares a peer's answer with Larder's. Date, and the value of ETag,
// each server makes by itself; everything else is compared.
func differences(larder, peer *answer) []difference {
	var out []difference
	add := func(field, format string, args ...any) {
		out = append(out, difference{field, fmt.Sprintf(format, args...)})
	}
	if larder.status != peer.status {
		add("status", "%d, not %d", peer.status, larder.status)
	}
	if !bytes.Equal(larder.body, peer.body) {
		add("body", "%d other bytes than Larder's %d", len(peer.body), len(larder.body))
	}
	for name, want := range larder.header {
		got, ok := peer.header[name]
		switch {
		case !ok:
			add(name, "missing, Larder says %q", want)
		case name == "Date", name == "Etag" && len(got) == 1 && strings.HasPrefix(got[0], `"`):
		case strings.Join(got, ", ") != strings.Join(want, ", "):
			add(name, "%q, not %q", got, want)
		}
	}
	for name, got := range peer.header {
		if _, ok := larder.header[name]; !ok {
			add(name, "more than Larder: %q", got)
		}
	}
	return out
}

// tolerated is what a peer cannot be told to do as Larder does. It is told in the
// report. What a peer sends more costs it a few bytes; Caddy, which leaves
// Content-Length to chunks where a file is coded ahead of time, does no less.
func tolerated(server string, d difference, status int) bool {
	more := strings.HasPrefix(d.text, "more than Larder")
	switch d.field {
	case "Server", "Connection":
		return more
	case "Last-Modified", "Accept-Ranges":
		return more && status == http.StatusNotModified
	case "Content-Security-Policy": // nginx knows no type there, by which it would say it
		return !more && status == http.StatusNotModified
	case "Use-As-Dictionary": // each file has its own; Larder sends these bytes more
		return !more
	case "Content-Length":
		return server == "caddy" && strings.HasPrefix(d.text, "missing")
	}
	return false
}
