package app

import (
	"context"
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

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/server"
)

// A roleRun is one run of a role: what its parts share, and how it ends.
type roleRun struct {
	settings   *settings.Settings
	logger     *slog.Logger
	metrics    *prometheus.Registry
	supervisor *supervisor
	parts      *parts.Group
	self       Process
	console    console
	reopen     []func() error // called at a reload, to open logs again that were rotated
	onReady    []func()       // called once the process has said that it is ready, when no older one goes on in its place any more
	leaving    []func()       // called before the run ends for another one, while its parts work
	again      bool           // another run came before
	ready      atomic.Bool    // all parts work
	restarts   restarts
}

// A console is what commands can ask of the role.
type console struct {
	operations []func(operations)
	status     []func(*Status)
}

// addOperations adds operations of a part.
func (c *console) addOperations(add func(operations)) { c.operations = append(c.operations, add) }

// addStatus adds the status of a part.
func (c *console) addStatus(add func(*Status)) { c.status = append(c.status, add) }

// newRoleRun prepares a run of a role, by the settings that are in force in the process. again says that another one came before.
func newRoleRun(ctx context.Context, v *supervisor, again bool) *roleRun {
	r := &roleRun{
		settings: v.configuration.inForce.Get(), logger: v.logger, metrics: newRegistry(), supervisor: v, parts: parts.NewGroup(ctx, v.logger),
		self:     Process{PID: os.Getpid(), Version: Version(), Started: v.started, RunStarted: time.Now().UTC(), Private: v.private.address()},
		again:    again,
		restarts: restarts{begin: make(chan struct{})},
	}
	v.private.switchTo(r.metrics)
	v.readiness.removeChecks()
	v.readiness.registerMetrics(r.metrics)
	if again {
		v.readiness.set(errRecovering)
	}
	return r
}

func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	return r
}

// do runs a role until ctx, which the run was made with, ends or a part of the role does. It returns how the process goes on, nil if it
// is to end.
func (r *roleRun) do(what role) (*restart, error) {
	err := r.parts.Wait(what.start(r.parts.Context(), r))
	reading := &r.supervisor.configuration.reading
	reading.Lock()
	defer reading.Unlock()
	return r.restarts.end(), err
}

// serve adds a part that answers on listeners until the role ends, and then finishes what it is sending. When the part has ended, no
// handler runs; or where another run of the role follows, none that needs more than is in memory.
func (r *roleRun) serve(name string, s *server.Server, all []net.Listener) {
	end := sync.OnceFunc(func() { r.stopServing(s) })
	r.subscribe(func(_ context.Context, fresh *settings.Settings) error {
		s.SetMaxConnections(fresh.MaxConnections)
		return nil
	})
	r.parts.Add(parts.Part{
		Name: name,
		Run: func(ctx context.Context) error {
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
		Stop: func() error {
			end()
			for _, l := range all {
				l.Close() // harmless where the server has closed it
			}
			return nil
		},
	})
}

// relinquishTimeout is how long clients are waited for where others wait for the next run of the role. Those that take
// longer are answered by that run.
const relinquishTimeout = 1200 * time.Millisecond

// stopServing has s finish what it is sending.
func (r *roleRun) stopServing(s *server.Server) {
	late := &r.supervisor.late
	if !r.restarts.pending.Load() {
		stopServer(s, r.supervisor.configuration.inForce.Get().Drain, r.logger)
		late.sending.Wait() // s answers late requests of earlier runs
		late.succession.remove(s.Handler)
		return
	}
	late.succession.remove(s.Handler)
	ctx, cancel := context.WithTimeout(context.Background(), relinquishTimeout)
	defer cancel()
	if s.Relinquish(ctx) != nil {
		late.sending.Go(func() { stopServer(s, r.supervisor.configuration.inForce.Get().Drain, r.logger) })
	}
}

// stopServer lets s finish what it is sending, and cuts off the clients that have not taken it after timeout.
func stopServer(s *server.Server, timeout time.Duration, logger *slog.Logger) {
	cutOff, err := s.Stop(timeout)
	if cutOff > 0 {
		logger.Warn("cut off clients that were still being sent to", "clients", cutOff, "after", timeout)
	}
	if err != nil {
		logger.Error("stopping goes on although requests are being handled", "err", err)
	}
}

// withTLS returns the options of the public server, with TLS if there is a certificate. A reload changes the certificate.
func (r *roleRun) withTLS(o server.HTTPOptions) (server.HTTPOptions, error) {
	if r.settings.TLSCert == "" {
		return o, nil
	}
	c, err := server.OpenCertificate(r.settings.TLSCert, r.settings.TLSKey, o.Logger)
	if err != nil {
		return o, err
	}
	o.TLS = c.TLS()
	r.subscribe(func(_ context.Context, fresh *settings.Settings) error {
		if fresh.TLSCert != "" { // otherwise the next run is without TLS
			c.Reload(fresh.TLSCert, fresh.TLSKey)
		}
		return nil
	})
	return o, nil
}

// removeReadyFile removes what a process has left that was killed.
func (r *roleRun) removeReadyFile() error {
	if r.settings.ReadyFile == "" {
		return nil
	}
	if err := os.Remove(r.settings.ReadyFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("couldn't remove the old --ready-file: %w", err)
	}
	return nil
}

// addReadyFile has the file of the settings say where the process serves. The file appears complete, and goes with the role.
func (r *roleRun) addReadyFile() error {
	file := r.settings.ReadyFile
	if file == "" {
		return nil
	}
	fresh := file + ".new"
	err := os.WriteFile(fresh, []byte(r.supervisor.address(r.settings)+"\n"), 0o644)
	if err == nil {
		err = os.Rename(fresh, file)
	}
	if err != nil {
		return fmt.Errorf("couldn't write --ready-file: %w", err)
	}
	r.parts.Add(parts.Part{Name: "ready file", Stop: func() error {
		os.Remove(file) // where it cannot be, the next start says so
		return nil
	}})
	return nil
}

// finish has the process be ready, when all parts of the role work. From then on the role ends for a restart, and stopping is called
// when the process is asked to stop, rather than ending by itself.
func (r *roleRun) finish(stopping func()) error {
	r.supervisor.configuration.working.Store(r.settings)
	r.ready.Store(true)
	r.supervisor.readiness.set(nil)
	notifyManager(daemon.SdNotifyReady)
	err := r.supervisor.older.report(isReady)
	for _, f := range r.onReady {
		f()
	}
	if err != nil {
		return err
	}
	r.parts.Add(parts.Part{Name: "readiness"})
	r.parts.Add(parts.Part{Name: "restart", Run: r.awaitRestart})
	forget := context.AfterFunc(r.supervisor.ending, stopping)
	r.parts.Add(parts.Part{Name: "word that it ends", Stop: parts.Closing(func() { forget() })})
	return nil
}

// A restart says how the process goes on after a run of a role: after a reload, a repair or an upgrade that failed, and where a node of a
// cluster changes its role.
type restart struct {
	before  func() error // is called between the two runs; errTaken ends the process without an error
	role    role         // of the next run; nil for the one that the settings say
	abandon func()       // is called if the restart is not followed, since the run or the process ends for another reason; nil for nothing
}

// drop calls abandon: the restart is not followed. The restart may be nil.
func (r *restart) drop() {
	if r != nil && r.abandon != nil {
		r.abandon()
	}
}

// restarts are what has requested that another run follows.
type restarts struct {
	pending atomic.Bool   // another run follows at once, so that clients must not wait for this one
	begin   chan struct{} // closed when the run is to end for the restart

	mu        sync.Mutex
	requested *restart // the first one, which is followed; nil for none
	ended     bool     // the run has ended, so that no restart can follow it any more
}

// request records a restart, for which the run ends once begin is closed. It returns false if the run ends for another reason.
func (r *restarts) request(how restart) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.requested != nil {
		return false
	}
	r.requested = &how
	return true
}

// haveEnded reports whether the run has ended.
func (r *restarts) haveEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// end returns the restart that follows the run, nil for none. No other one can be requested from then on.
func (r *restarts) end() *restart {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	return r.requested
}

// restart has another run of a role follow this one at once, unless that is about to happen already.
func (r *roleRun) restart(how restart) {
	if !r.restarts.request(how) {
		how.drop()
		return
	}
	r.beginRestart()
}

// restartQuietly has another run of a role follow this one when clients have left. It returns false if the run ends
// for another reason.
func (r *roleRun) restartQuietly(how restart) bool {
	if !r.restarts.request(how) {
		return false
	}
	go func() {
		r.quiesce()
		r.beginRestart()
	}()
	return true
}

// beginRestart ends the run for the restart that was requested. A process that was asked to stop goes on with this run until it ends.
func (r *roleRun) beginRestart() {
	if r.supervisor.ending.Err() != nil {
		return
	}
	r.restarts.pending.Store(true)
	close(r.restarts.begin)
}

// awaitRestart ends the role for a restart.
func (r *roleRun) awaitRestart(ctx context.Context) error {
	select {
	case <-r.restarts.begin:
		return parts.ErrDone
	case <-ctx.Done():
		return nil
	}
}

// quiesce ends the parts that end early, and has clients leave.
func (r *roleRun) quiesce() {
	r.parts.EndEarly()
	for _, leave := range r.leaving {
		leave()
	}
}

// letClientsLeave returns when what the clients of a server have requested before has been answered, or these have had --drain for that,
// or the process ends.
func (r *roleRun) letClientsLeave(s *server.Server) {
	s.Leave()
	select {
	case <-s.Settled():
	case <-time.After(r.supervisor.configuration.inForce.Get().Drain):
	case <-r.supervisor.ending.Done():
	}
}
