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

// compare asks every server for all of the scenario and ends the run where a peer's
// answer is not Larder's.
func (b *bench) compare(ctx context.Context, servers []*server, s scenario) ([]known, error) {
	out := make([]known, len(servers))
	for i := range out {
		out[i] = known{make([][]byte, len(s.requests)), make([]int, len(s.requests))}
	}
	if s.mixed {
		progress("comparing %d answers of %d servers", len(s.requests), len(servers))
	}
	client := newHTTP2Client()
	defer client.CloseIdleConnections()
	var mu sync.Mutex
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
				if err := ctx.Err(); err != nil {
					return err
				}
				var first *answer
				for i, server := range servers {
					a, err := func() (*answer, error) {
						if s.protocol.http2 {
							return askHTTP2(ctx, client, server.address, s.requests[at])
						}
						var err error
						if connections[i] == nil || s.protocol.close {
							if connections[i], err = dial(ctx, server.address, server.secure); err != nil {
								return nil, err
							}
						}
						return askTwice(connections[i], s.requests[at], s.protocol.close, &out[i], at)
					}()
					if err != nil {
						return fmt.Errorf("%s: %w", server.name, err)
					}
					if s.protocol.close && connections[i] != nil {
						connections[i].close()
					}
					if first == nil {
						first = a
					}
					for _, d := range differences(first, a) {
						if !tolerated(server.name, d, a.status) {
							return fmt.Errorf("%s does not answer as %s does, so that comparing them would mean nothing: %s %s: %s: %s",
								server.name, servers[0].name, s.requests[at].Method, s.requests[at].Path, d.field, d.text)
						}
						mu.Lock()
						b.report.tolerate(server.name, a.status, d)
						mu.Unlock()
					}
				}
			}
			return nil
		})
	}
	return out, g.Wait()
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
	case "Content-Length":
		return server == "caddy" && strings.HasPrefix(d.text, "missing")
	}
	return false
}
