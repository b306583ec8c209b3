package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/server"
)

// process is what every process that runs has: its settings, its log and metrics, and its addresses.
type process struct {
	settings *settings.Settings
	logger   *slog.Logger
	metrics  *registry
	public   listener     // of a process that serves
	plain    listener     // beside it without TLS, which leads there
	private  listener     // of metrics and profiles
	behind   func() error // why a process that follows another is not ready yet; nil where it follows none
}

// A listener is an address that is listened on between the start and the stop of a part. It is not a net.Listener itself:
// a server has to get the one inside, because the lane has event loops for the types that it knows only.
type listener struct{ at net.Listener }

func (l *listener) close() error {
	if l.at != nil {
		l.at.Close() // harmless where a server has closed it
	}
	return nil
}

// listenPublicly opens the public address. It comes early: where the address is taken, nothing else has happened yet.
func (p *process) listenPublicly() part {
	return part{
		name: "public address",
		start: func(ctx context.Context) (err error) {
			p.public.at, err = listenOn(ctx, "listen", p.settings.Listen, p.settings.MaxConnections)
			return err
		},
		stop: p.public.close,
	}
}

// listenPrivately opens the private address.
func (p *process) listenPrivately() part {
	return part{
		name: "private address",
		start: func(ctx context.Context) error {
			l, err := listenOn(ctx, "private-listen", p.settings.PrivateListen, 0)
			if err != nil && !p.settings.Given("private-listen") {
				// This address is the default, so that it is taken is no reason not to start.
				p.logger.Warn("no private listener; choose an address with --private-listen", "err", err)
				return nil
			}
			p.private.at = l
			return err
		},
		stop: p.private.close,
	}
}

func listenOn(ctx context.Context, setting, address string, maxConnections int) (net.Listener, error) {
	l, err := server.Listen(ctx, address, maxConnections)
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
	return l, nil
}

// noTimeout is for answers that take as long as they take: an operation's events, a CPU profile.
const noTimeout = -1

// servePrivately answers the operator on the private address. The process is ready until ctx ends, unless it is not for
// a reason of its own; the answers end when nearly everything else has, because they tell that.
func (p *process) servePrivately(unready error) part {
	var s *server.Server
	return part{
		name: "private server",
		start: func(ctx context.Context) error {
			if p.private.at == nil {
				return nil
			}
			logger := p.logger.With("part", "private")
			ready := func() error {
				if ctx.Err() != nil {
					return errors.New("stopping")
				}
				if unready == nil && p.behind != nil {
					return p.behind()
				}
				return unready
			}
			handler := api.Private(api.PrivateOptions{Metrics: p.metrics, Ready: ready, Logger: logger})
			s = server.NewHTTPServer(handler, server.HTTPOptions{WriteTimeout: noTimeout, Logger: logger})
			go s.Serve(p.private.at) //nolint:errcheck // it ends with Close
			return nil
		},
		stop: func() error {
			if s != nil {
				p.stop(s, time.Second) // a scrape ends by then; a profile need not
			}
			return nil
		},
	}
}

// answering makes a part of a server, which start makes together with its listener. It answers until ctx ends, then finishes
// what it is sending. When the part has ended, no handler runs.
func (p *process) answering(name string, start func(context.Context) (*server.Server, net.Listener, error)) part {
	var s *server.Server
	var l net.Listener
	var stop func()
	return part{
		name: name,
		start: func(ctx context.Context) (err error) {
			s, l, err = start(ctx)
			stop = sync.OnceFunc(func() { p.stop(s, p.settings.Drain) })
			return err
		},
		run: func(ctx context.Context) error {
			failed := make(chan error, 1)
			go func() { failed <- s.Serve(l) }()
			select {
			case <-ctx.Done():
			case err := <-failed:
				if !errors.Is(err, http.ErrServerClosed) {
					return fmt.Errorf("couldn't go on listening on %s: %w", l.Addr(), err)
				}
			}
			stop()
			return nil
		},
		stop: func() error {
			stop()
			return nil
		},
	}
}

// stop lets s finish what it is sending, and cuts off the clients that have not taken it by then.
func (p *process) stop(s *server.Server, patience time.Duration) {
	cutOff, err := s.Stop(patience)
	if cutOff > 0 {
		p.logger.Warn("cut off clients that were still being sent to", "clients", cutOff, "after", patience)
	}
	if err != nil {
		p.logger.Error("stopping goes on although requests are being handled", "err", err)
	}
}

// withTLS returns the options of the public server, with TLS where there is a certificate.
func (p *process) withTLS(o server.HTTPOptions) (server.HTTPOptions, error) {
	if p.settings.TLSCert == "" {
		return o, nil
	}
	var err error
	if o.TLS, err = server.Certificate(p.settings.TLSCert, p.settings.TLSKey, o.Logger); err != nil {
		return o, fmt.Errorf("%w; both files must be PEM and belong together", err)
	}
	return o, nil
}

// address is the URL at which a program on this machine reaches the public address.
func (p *process) address() string {
	at := p.public.at.Addr().(*net.TCPAddr)
	return p.settings.URLAt(at.IP.String(), fmt.Sprint(at.Port))
}

// stopping calls told when the process is told to end by parent, rather than ending by itself.
func stopping(parent context.Context, told func()) part {
	var forget func() bool
	return part{
		name: "word that it ends",
		start: func(context.Context) error {
			forget = context.AfterFunc(parent, told)
			return nil
		},
		stop: func() error {
			forget()
			return nil
		},
	}
}

// readyFile has the file of the settings say where the process serves. The file appears whole, and goes with the process.
func (p *process) readyFile() part {
	file := p.settings.ReadyFile
	return part{
		name: "ready file",
		start: func(context.Context) error {
			fresh := file + ".new"
			err := os.WriteFile(fresh, []byte(p.address()+"\n"), 0o644)
			if err == nil {
				err = os.Rename(fresh, file)
			}
			if err != nil {
				return fmt.Errorf("couldn't write --ready-file: %w", err)
			}
			return nil
		},
		stop: func() error {
			os.Remove(file) // where it cannot be, the next start says so
			return nil
		},
	}
}

// Child reports whether these are the arguments of a process that a bot has started, for heavy work on strangers' bytes,
// after it has done that work. A program with a bot calls it first.
func Child(args []string) bool {
	if len(args) < 2 || args[1] != worker.Argument {
		return false
	}
	worker.Main()
	return true
}
