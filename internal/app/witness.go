package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"syscall"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/witness"
	"github.com/larder-cdn/larder/server"
)

// A WitnessServer is a process that cosigns the checkpoints of logs. It has no data folder; the key folder has the record of what it
// has signed.
type WitnessServer struct {
	Settings *settings.Settings
	Logger   *slog.Logger
	// Name is that of the witness's keys, and Logs are those that it witnesses; see [witness.Options].
	Name string
	Logs []string
	// Serving is called once the process serves, with its URL and the verifier keys of the witness.
	Serving func(address string, keys []string)
}

// Run opens the sockets and serves the witness until ctx ends. It returns an error if a part cannot be opened or closed, or
// fails. On SIGHUP it reloads nothing, and logs that.
func (s WitnessServer) Run(ctx context.Context) (err error) {
	c := s.Settings
	v, ctx, err := newSupervisor(ctx, c, true, s.Logger, func() error { return c.FitConnections(s.Logger) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.close(err)) }()
	v.signals.set(map[os.Signal]func(context.Context){syscall.SIGHUP: func(context.Context) { s.Logger.Info("a witness takes up changes by a restart") }})
	v.signals.handleSignals(ctx)
	r := newRoleRun(ctx, v, false)
	_, err = r.runRole(witnessRole{s})
	return err
}

// A witnessRole cosigns checkpoints.
type witnessRole struct{ server WitnessServer }

// start implements [role]: it opens the witness's keys and state, serves requests for cosignatures on the public address, and
// adds the parts to the run.
func (w witnessRole) start(_ context.Context, r *roleRun) error {
	s := w.server
	if err := r.removeReadyFile(); err != nil {
		return err
	}
	opened, err := witness.Open(witness.Options{Folder: r.settings.Keys, Name: s.Name, Logs: s.Logs, Logger: s.Logger.With("part", "witness")})
	if err != nil {
		return err
	}
	r.parts.Add(parts.Part{Name: "witness", Stop: opened.Close})
	o, err := r.withTLS(server.HTTPOptions{Logger: s.Logger.With("part", "server")})
	if err != nil {
		return err
	}
	at, err := r.supervisor.listenPublic(r.settings.MaxConnections)
	if err != nil {
		return err
	}
	r.addServer("logs", server.NewHTTPServer(opened, o), at)
	r.announce = append(r.announce, func() error {
		s.Serving(r.supervisor.publicURL(r.settings), opened.Keys())
		return r.addReadyFile()
	})
	if err := r.markReady(func() { s.Logger.Info("stopping") }); err != nil {
		return err
	}
	r.parts.Add(parts.Part{Name: "following", Run: parts.RunUntilDone(func(ctx context.Context) { opened.Run(ctx) })})
	return nil
}
