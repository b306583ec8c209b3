package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
)

// HTTPOptions says how connections are treated. The zero value is right for a
// public listener.
type HTTPOptions struct {
	// ReadHeaderTimeout is how long a client may take for the headers of a
	// request. Default 10 s.
	ReadHeaderTimeout time.Duration
	// IdleTimeout is how long a connection may wait for its next request.
	// Default 2 min.
	IdleTimeout time.Duration
	// ReadTimeout is how long a client may take for a request with its body, unless
	// the handler moves the deadline. Default 30 s. It matters for requests that are
	// refused too: net/http reads what a handler leaves of a body before it answers.
	ReadTimeout time.Duration
	// WriteTimeout is how long an answer may take that does not move its own
	// deadline, as Assets does for large bodies. Default 30 s.
	WriteTimeout time.Duration
	// MaxHeaderBytes bounds request line and headers together, beyond which the
	// answer is 431 and the connection ends. Default 32 KiB; net/http allows 4 KiB
	// more.
	MaxHeaderBytes int
	// H2C accepts HTTP/2 without TLS, from clients that know beforehand (RFC 9113
	// §3.3). Default: without TLS there is HTTP/1.1 only.
	H2C bool
	// TLS is the configuration for ServeTLS, see [Certificate]. Default: none.
	TLS *tls.Config
	// Logger gets what net/http complains about, a line a second at most.
	// Default: nothing is logged.
	Logger *slog.Logger
}

// NewHTTPServer returns a server that protects itself against slow and greedy
// clients. Its Serve or ServeTLS takes a listener from [Listen].
func NewHTTPServer(h http.Handler, o HTTPOptions) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(o.H2C)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: cmp.Or(o.ReadHeaderTimeout, 10*time.Second),
		ReadTimeout:       cmp.Or(o.ReadTimeout, 30*time.Second),
		IdleTimeout:       cmp.Or(o.IdleTimeout, 2*time.Minute),
		WriteTimeout:      cmp.Or(o.WriteTimeout, 30*time.Second),
		MaxHeaderBytes:    cmp.Or(o.MaxHeaderBytes, 32<<10),
		TLSConfig:         o.TLS,
		Protocols:         protocols,
		ErrorLog:          log.New(&errorLog{logger: o.Logger}, "", 0),
	}
}

// Listen opens a TCP listener for [NewHTTPServer]. It has no more than
// maxConnections open at a time, where that is not 0; the others wait in the
// kernel's queue.
//
// What the kernel queues before it sends is kept short, so that deadlines
// measure the client and not a buffer of megabytes, and memory is not spent on it.
func Listen(ctx context.Context, address string, maxConnections int) (net.Listener, error) {
	config := net.ListenConfig{Control: shortSendQueue}
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if maxConnections > 0 {
		l = netutil.LimitListener(l, maxConnections)
	}
	return l, nil
}

// errorLog passes what net/http logs on, bounded: a scanner that fails one TLS
// handshake after the other must not fill the disk.
type errorLog struct {
	logger *slog.Logger
	logged throttle
}

func (e *errorLog) Write(line []byte) (int, error) {
	if n, ok := e.logged.next(); ok {
		e.logger.Warn("server: "+string(bytes.TrimSpace(line)), "alike", n)
	}
	return len(line), nil
}
