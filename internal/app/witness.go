package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"syscall"

	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/witness"
	"github.com/larder-cdn/larder/server"
)

// A WitnessServer is a process that cosigns the checkpoints of logs. It has no data folder; what it has signed is with its
// keys.
type WitnessServer struct {
	Settings *settings.Settings
	Logger   *slog.Logger
	// Name is that of the witness's keys, and Logs are those that it witnesses; see [witness.Options].
	Name string
	Logs []string
	// Serving is called once the process serves.
	Serving func(address string, keys []string)
}

// Run witnesses until ctx ends.
func (s WitnessServer) Run(ctx context.Context) (err error) {
	c, p := s.Settings, process{settings: s.Settings, logger: s.Logger, metrics: newRegistry()}
	l, ctx, err := openLasting(ctx, c, true, s.Logger, func() error { return limitConnections(c, s.Logger) })
	if err != nil {
		return err
	}
	p.lasting = l
	defer func() { err = errors.Join(err, l.close(err)) }()
	l.begin(false, p.metrics, map[os.Signal]func(context.Context){syscall.SIGHUP: func(context.Context) { s.Logger.Info("a witness takes up changes by a restart") }})
	l.heed(ctx)
	var w *witness.Witness
	var parts list
	parts.add(c.ReadyFile != "", p.noReadyFile())
	parts.add(true,
		part{
			name: "witness",
			start: func(context.Context) (err error) {
				w, err = witness.Open(witness.Options{Folder: c.Keys, Name: s.Name, Logs: s.Logs, Logger: s.Logger.With("part", "witness")})
				return err
			},
			stop: func() error { return w.Close() },
		},
		p.answering("logs", func(context.Context) (*server.Server, []net.Listener, error) {
			o, err := p.withTLS(server.HTTPOptions{MaxConnections: c.MaxConnections, Logger: s.Logger.With("part", "server")})
			if err != nil {
				return nil, nil, err
			}
			at, err := l.listen(c.MaxConnections)
			return server.NewHTTPServer(w, o), at, err
		}),
		part{name: "announcement", start: func(context.Context) error {
			s.Serving(l.address(c), w.Keys())
			return nil
		}})
	parts.add(c.ReadyFile != "", p.readyFile())
	parts.add(true, p.readiness(), part{name: "following", run: until(func(ctx context.Context) { w.Run(ctx) })}, stopping(l.ending, func() { s.Logger.Info("stopping") }))
	return run(ctx, s.Logger, parts)
}
