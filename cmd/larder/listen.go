package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/server"
)

// listen opens the addresses that the process answers on; those that it does not need are nil.
func (p *daemon) listen() (public, private net.Listener, err error) {
	s := p.settings
	if p.duties.serve {
		if public, err = listenOn("listen", s.listen, s.maxConnections); err != nil {
			return nil, nil, err
		}
	}
	if s.privateListen == off {
		return public, nil, nil
	}
	private, err = listenOn("private-listen", s.privateListen, 0)
	if err != nil && !s.given("private-listen") {
		// Nobody asked for this address, so that it is taken is no reason not to start.
		p.logger.Warn("no private listener; choose an address with --private-listen", "err", err)
		return public, nil, nil
	}
	if err != nil {
		closeAll(public)
		return nil, nil, err
	}
	return public, private, nil
}

func listenOn(setting, address string, maxConnections int) (net.Listener, error) {
	listener, err := server.Listen(context.Background(), address, maxConnections)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another program; stop it, or choose another address with --%s (port 0 picks a free one)", address, setting)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("this user may not listen on %s; choose a port above 1023 with --%s", address, setting)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is not an address of this machine; choose another with --%s", address, setting)
	case err != nil:
		return nil, fmt.Errorf("couldn't listen on %s: %w; choose another address with --%s", address, err, setting)
	}
	return listener, nil
}

func closeAll(listeners ...net.Listener) {
	for _, l := range listeners {
		if l != nil {
			l.Close()
		}
	}
}

// serve runs s until ctx ends, then lets it finish what it is sending. When the group has ended, no handler runs.
func (p *daemon) serve(ctx context.Context, group *errgroup.Group, s *server.Server, l net.Listener) {
	group.Go(func() error {
		err := s.Serve(l)
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("couldn't go on listening on %s: %w", l.Addr(), err)
	})
	group.Go(func() error {
		<-ctx.Done()
		p.stop(s, p.settings.drain)
		return nil
	})
}

// stop lets s finish what it is sending, and cuts off who has not taken it by then.
func (p *daemon) stop(s *server.Server, patience time.Duration) {
	cutOff, err := s.Stop(patience)
	if cutOff > 0 {
		p.logger.Warn("cut off clients that were still being sent to", "clients", cutOff, "after", patience)
	}
	if err != nil {
		p.logger.Error("stopping goes on although requests are being handled", "err", err)
	}
}

// noTimeout is for answers that take as long as they take: an operation's events, a CPU profile.
const noTimeout = -1

// newAdminServer answers the commands that speak to this process, and whoever has something to schedule. Its operations
// end with ctx.
func newAdminServer(ctx context.Context, operations map[string]admin.Operation, schedule http.Handler, logger *slog.Logger) *server.Server {
	logger = logger.With("part", "admin")
	mux := http.NewServeMux()
	mux.Handle("/", admin.Handler(operations, logger))
	mux.Handle(schedulePath, schedule)
	mux.Handle(schedulePath+"/", schedule)
	s := server.NewHTTPServer(mux, server.HTTPOptions{WriteTimeout: noTimeout, Logger: logger})
	s.BaseContext = func(net.Listener) context.Context { return ctx }
	return s
}

// newPrivateServer is for whoever operates the process. It is ready until ctx ends.
func newPrivateServer(ctx context.Context, metrics *registry, logger *slog.Logger) *server.Server {
	logger = logger.With("part", "private")
	ready := func() error {
		if ctx.Err() != nil {
			return errors.New("stopping")
		}
		return nil
	}
	handler := api.Private(api.PrivateOptions{Metrics: metrics, Ready: ready, Logger: logger})
	return server.NewHTTPServer(handler, server.HTTPOptions{WriteTimeout: noTimeout, Logger: logger})
}

// writeReadyFile writes the address for whoever waits for it. The file appears whole.
func writeReadyFile(file, address string) error {
	fresh := file + ".new"
	if err := os.WriteFile(fresh, []byte(address+"\n"), 0o644); err != nil {
		return fmt.Errorf("couldn't write --ready-file: %w", err)
	}
	if err := os.Rename(fresh, file); err != nil {
		return fmt.Errorf("couldn't write --ready-file: %w", err)
	}
	return nil
}
