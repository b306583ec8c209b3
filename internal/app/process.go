package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/server"
)

// process is what every process that runs has: its settings, its log and metrics, and what outlives them.
type process struct {
	settings *settings.Settings
	logger   *slog.Logger
	metrics  *registry
	lasting  *lasting
	site     *server.Server // that answers on the public addresses; nil where none does, or not yet
	begun    atomic.Bool    // whether all parts have begun
	onReady  []func()       // done once the process has said that it is ready, when no older one goes on in its place any more
	brief    atomic.Bool    // whether a life of the process follows at once, so that clients must not wait for it
}

// answering makes a part of a server, which start makes together with its listeners. It answers until ctx ends, then
// finishes what it is sending. When the part has ended, no handler runs; or where another life of the process follows, none
// that needs more than is in memory.
func (p *process) answering(name string, start func(context.Context) (*server.Server, []net.Listener, error)) part {
	var s *server.Server
	var all []net.Listener
	var end func()
	return part{
		name: name,
		start: func(ctx context.Context) (err error) {
			s, all, err = start(ctx)
			end = sync.OnceFunc(func() { p.end(s) })
			return err
		},
		run: func(ctx context.Context) error {
			failed := make(chan error, len(all))
			for _, l := range all {
				go func() {
					if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
						failed <- fmt.Errorf("couldn't go on listening on %s: %w", l.Addr(), err)
					}
				}()
			}
			select {
			case <-ctx.Done():
			case err := <-failed:
				return err
			}
			end()
			return nil
		},
		stop: func() error {
			end()
			for _, l := range all {
				l.Close() // harmless where the server has closed it
			}
			return nil
		},
	}
}

// relinquishTimeout is how long clients are waited for where others wait for the next run of the role. Those that take
// longer are answered by that run.
const relinquishTimeout = 1200 * time.Millisecond

// end has s finish what it is sending.
func (p *process) end(s *server.Server) {
	if !p.brief.Load() {
		stop(s, p.settings.Drain, p.logger)
		p.lasting.sending.Wait() // s answers what comes late for earlier runs
		p.lasting.succession.remove(s.Handler)
		return
	}
	p.lasting.succession.remove(s.Handler)
	ctx, cancel := context.WithTimeout(context.Background(), relinquishTimeout)
	defer cancel()
	if s.Relinquish(ctx) != nil {
		p.lasting.sending.Go(func() { stop(s, p.settings.Drain, p.logger) })
	}
}

// stop lets s finish what it is sending, and cuts off the clients that have not taken it by then.
func stop(s *server.Server, patience time.Duration, logger *slog.Logger) {
	cutOff, err := s.Stop(patience)
	if cutOff > 0 {
		logger.Warn("cut off clients that were still being sent to", "clients", cutOff, "after", patience)
	}
	if err != nil {
		logger.Error("stopping goes on although requests are being handled", "err", err)
	}
}

// withTLS returns the options of the public server, with TLS where there is a certificate.
func (p *process) withTLS(o server.HTTPOptions) (_ server.HTTPOptions, err error) {
	if p.settings.TLSCert != "" {
		o.TLS, err = certificate(p.settings, o.Logger)
	}
	return o, err
}

// certificate reads the certificate of the settings.
func certificate(s *settings.Settings, logger *slog.Logger) (*tls.Config, error) {
	made, err := server.Certificate(s.TLSCert, s.TLSKey, logger)
	if err != nil {
		return nil, fmt.Errorf("%w; both files must be PEM and belong together", err)
	}
	return made, nil
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

// noReadyFile removes what a process has left that was killed.
func (p *process) noReadyFile() part {
	return part{name: "old ready file", start: func(context.Context) error {
		if err := os.Remove(p.settings.ReadyFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("couldn't remove the old --ready-file: %w", err)
		}
		return nil
	}}
}

// readyFile has the file of the settings say where the process serves. The file appears whole, and goes with the process.
func (p *process) readyFile() part {
	file := p.settings.ReadyFile
	return part{
		name: "ready file",
		start: func(context.Context) error {
			fresh := file + ".new"
			err := os.WriteFile(fresh, []byte(p.lasting.address(p.settings)+"\n"), 0o644)
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
