package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// A Client sends operations to a Handler, wherever that is.
type Client struct {
	http *http.Client
}

// ErrCutOff is what a Call returns when the answer ended before the operation did.
var ErrCutOff = errors.New("the larder process ended before it was done")

// InProcess returns a client of a handler in this process. It speaks the same HTTP over a pipe, so that commands take
// one path whether or not another process owns the data folder. The function stop waits for the operations under way,
// which end with their calls, and releases the client.
func InProcess(handler http.Handler) (client *Client, stop func() error) {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: handler}
	go server.Serve(l) //nolint:errcheck // it ends with Shutdown
	return newClient(l.dial), func() error { return server.Shutdown(context.Background()) }
}

func newClient(dial func(ctx context.Context) (net.Conn, error)) *Client {
	return &Client{http: &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableKeepAlives: true, // a command asks once; a process that shuts down need not wait for idle connections
	}}}
}

// Call asks for an operation, hands its events to report (which may be nil) and returns its result. When ctx ends, so
// does the operation.
func Call[Result, Event any](ctx context.Context, c *Client, operation string, request any, report func(Event)) (Result, error) {
	var result Result
	raw, err := c.call(ctx, operation, request, func(raw json.RawMessage) error {
		if report == nil {
			return nil
		}
		var event Event
		if err := json.Unmarshal(raw, &event); err != nil {
			return err
		}
		report(event)
		return nil
	})
	if err != nil {
		return result, err
	}
	return result, json.Unmarshal(raw, &result)
}

func (c *Client) call(ctx context.Context, operation string, request any, event func(json.RawMessage) error) (json.RawMessage, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://larder/"+operation, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("couldn't reach the larder process: %w", err)
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("the running larder process does not know the operation %q; it is another release than this command, restart it", operation)
	case response.StatusCode != http.StatusOK:
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return nil, fmt.Errorf("the running larder process answered %s: %s", response.Status, bytes.TrimSpace(text))
	}
	for decoder := json.NewDecoder(response.Body); ; {
		var l line
		if err := decoder.Decode(&l); err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, ErrCutOff
		}
		switch {
		case l.Event != nil:
			if err := event(l.Event); err != nil {
				return nil, fmt.Errorf("the running larder process sent what this command cannot read (%w); it is another release, restart it", err)
			}
		case l.Error != "":
			return nil, errors.New(l.Error)
		default:
			return l.Result, nil
		}
	}
}

func decodeStrict(raw []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// pipeListener hands the server's ends of pipes to a server in the same process.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close is called once, by the server.
func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "in process" }
