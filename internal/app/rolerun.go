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
	announce   []func() error // called once all parts work, to print the site's address and write the ready file
	onReady    []func()       // called once the process has reported that it is ready, so that no older one can continue in its place
	leaving    []func()       // called before the run ends for another one, while its parts work
	again      bool           // another run came before
	ready      atomic.Bool    // all parts work
	restarts   restarts
}

// A console collects what the parts of a role add to the operations, the status and the examinations for commands.
type console struct {
	operations   []func(operations)
	status       []func(*Status)
	examinations []func(context.Context, *examination)
}

// addOperations registers add, which is called with the operations for commands and adds those of a part.
func (c *console) addOperations(add func(operations)) { c.operations = append(c.operations, add) }

// addStatus registers add, which is called for each status of the process and adds what a part knows. Later functions get the
// changes of earlier ones.
func (c *console) addStatus(add func(*Status)) { c.status = append(c.status, add) }

// addExamination registers examine, which `larder doctor` calls to add findings about a part of the role. It takes no lock: it is
// called while the role is built, before requests of commands are answered.
func (c *console) addExamination(examine func(context.Context, *examination)) {
	c.examinations = append(c.examinations, examine)
}

// newRoleRun prepares a run of a role with the settings in force. It removes the readiness checks of the run before, has the
// private address publish the new run's metrics, and no site until the new one is open. again says that a run of this process
// came before; then newRoleRun sets the state of the process to errRecovering, until this run is ready.
func newRoleRun(ctx context.Context, v *supervisor, again bool) *roleRun {
	r := &roleRun{
		settings: v.configuration.inForce.Get(), logger: v.logger, metrics: prometheus.NewRegistry(), supervisor: v, parts: parts.NewGroup(ctx, v.logger),
		self:     Process{PID: os.Getpid(), Version: Version(), Started: v.started, RunStarted: time.Now().UTC(), Private: v.private.address()},
		again:    again,
		restarts: restarts{begin: make(chan struct{})},
	}
	r.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	v.private.metrics.Store(r.metrics)
	v.private.site.Store(nil) // until that of the new run is open
	v.readiness.removeChecks()
	v.readiness.registerMetrics(r.metrics)
	if again {
		v.readiness.setState(errRecovering)
	}
	return r
}

// runRole starts the role what, waits until one of its parts ends the run or the context of the run ends, and stops all parts.
// It returns the restart that was requested, nil for none, and the errors of starting, of the parts and of stopping them, nil
// if the run ended as intended. It waits for a reload that is under way. After it no restart can be requested.
func (r *roleRun) runRole(what role) (*restart, error) {
	err := r.parts.Wait(what.start(r.parts.Context(), r))
	reading := &r.supervisor.configuration.reading
	reading.Lock()
	defer reading.Unlock()
	return r.restarts.endRun(), err
}

// addServer adds the part name, with which s serves on the listeners in all until the role ends. Then s completes its responses
// within --drain. If another run follows, the part waits for relinquishTimeout at most; s completes the rest in the background,
// and, if it has a successor (see [server.HTTPOptions]), passes later requests on its connections to that. A reload changes the
// number of connections that s accepts.
func (r *roleRun) addServer(name string, s *server.Server, all []net.Listener) {
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

// relinquishTimeout is how long a run waits for clients of its servers while other clients wait for the next run of the role.
// The servers of the run respond to the others in the background.
const relinquishTimeout = 1200 * time.Millisecond

// stopServing has s accept no more connections and complete its responses, and cuts off clients after --drain. Late requests on
// connections of earlier runs no longer go to s. If another run follows, stopServing waits for relinquishTimeout at most; s
// completes the rest in the background, and the next run handles the requests that come late on connections of s. Otherwise
// stopServing also waits for the servers of earlier runs.
func (r *roleRun) stopServing(s *server.Server) {
	late := &r.supervisor.late
	if !r.restarts.pending.Load() {
		stopServer(s, r.supervisor.configuration.inForce.Get().Drain, r.logger)
		late.sending.Wait() // s handles late requests of earlier runs
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

// stopServer has s accept no more requests and complete its responses, cuts off the clients that have not received theirs after
// timeout, and then waits up to 10 s for handlers that still run. They may go on running when it returns; it logs that, and how
// many clients it cut off.
func stopServer(s *server.Server, timeout time.Duration, logger *slog.Logger) {
	cutOff, err := s.Stop(timeout)
	if cutOff > 0 {
		logger.Warn("cut off clients that were still being sent to", "clients", cutOff, "after", timeout)
	}
	if err != nil {
		logger.Error("stopping goes on although requests are being handled", "err", err)
	}
}

// withTLS returns the options o of the public server with the TLS certificate of the settings, unchanged if they name none. A
// reload changes the certificate. withTLS adds the certificate's state to the metrics and the status of the process.
func (r *roleRun) withTLS(o server.HTTPOptions) (server.HTTPOptions, error) {
	if r.settings.TLSCert == "" {
		return o, nil
	}
	c, err := server.OpenCertificate(r.settings.TLSCert, r.settings.TLSKey, o.Logger)
	if err != nil {
		return o, err
	}
	o.TLS = c.TLS()
	r.addCertificates(func() []server.CertificateState {
		leaf, problem := c.State()
		return certificateState(r.settings.TLSCert, leaf, problem)
	})
	r.subscribe(func(_ context.Context, fresh *settings.Settings) error {
		if fresh.TLSCert != "" { // otherwise the next run is without TLS
			c.Reload(fresh.TLSCert, fresh.TLSKey)
		}
		return nil
	})
	return o, nil
}

// removeReadyFile removes the ready file, which tells other programs that the process serves, if a process that was killed has
// left it. It returns nil if there is no such file, or the settings name none.
func (r *roleRun) removeReadyFile() error {
	if r.settings.ReadyFile == "" {
		return nil
	}
	if err := os.Remove(r.settings.ReadyFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("couldn't remove the old --ready-file: %w", err)
	}
	return nil
}

// addReadyFile writes the URL of the site and a newline to the ready file, which tells other programs that the process serves,
// if the settings name one. The file appears complete, and is removed when the role ends.
func (r *roleRun) addReadyFile() error {
	file := r.settings.ReadyFile
	if file == "" {
		return nil
	}
	fresh := file + ".new"
	err := os.WriteFile(fresh, []byte(r.supervisor.publicURL(r.settings)+"\n"), 0o644) // the umask decides who may read it
	if err == nil {
		err = os.Rename(fresh, file) // without syncing: after a power cut, no process serves
	}
	if err != nil {
		return fmt.Errorf("couldn't write --ready-file: %w", err)
	}
	r.parts.Add(parts.Part{Name: "ready file", Stop: parts.StopBy(func() { os.Remove(file) })}) // if it cannot be, the next start says so
	return nil
}

// markReady announces the site and reports that the process is ready, after all parts of the role have started: to probes, the
// service manager and an older process. It records that the role starts with these settings, and calls the functions in
// r.onReady. From then on a requested restart ends the run, and stopping is called when the process is asked to stop. An error
// is that of announcing the site; then nothing is reported.
func (r *roleRun) markReady(stopping func()) error {
	r.ready.Store(true) // those who read the announcement may reload or upgrade the process at once
	for _, f := range r.announce {
		if err := f(); err != nil {
			r.ready.Store(false)
			return err
		}
	}
	r.supervisor.configuration.working.Store(r.settings)
	r.supervisor.readiness.setState(nil)
	notifyManager(daemon.SdNotifyReady)
	r.supervisor.older.report(message{Is: isReady})
	for _, f := range r.onReady {
		f()
	}
	r.parts.Add(parts.Part{Name: "restart", Run: r.awaitRestart})
	forget := context.AfterFunc(r.supervisor.ending, stopping)
	r.parts.Add(parts.Part{Name: "word that it ends", Stop: parts.StopBy(func() { forget() })})
	return nil
}

// A restart says how the process goes on after a run of a role: after a reload, a repair or an upgrade that failed, when a node
// of a cluster changes its role, and when the reason for read-only mode is gone.
type restart struct {
	before  func() error // is called between the two runs; errTaken ends the process without an error
	role    role         // of the next run; nil for the one that the settings say
	abandon func()       // is called if the run ends with an error, or requestRestart refuses the restart; nil for nothing
}

// cancel calls r.abandon, if that is set, because the restart will not happen. r may be nil.
func (r *restart) cancel() {
	if r != nil && r.abandon != nil {
		r.abandon()
	}
}

// restarts are the requests of the parts that another run follows this one. Only the first one counts.
type restarts struct {
	pending atomic.Bool   // another run follows at once, so that clients must not wait for this one
	begin   chan struct{} // closed when the run is to end for the restart

	mu        sync.Mutex
	requested *restart // the first one, which is followed; nil for none
	ended     bool     // the run has ended, so that no restart can follow it any more
}

// request records next as the restart by which the next run follows. Only the first one counts: it returns false, and records
// nothing, if there was one before or the run has ended. It does not end the run.
func (r *restarts) request(next restart) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.requested != nil {
		return false
	}
	r.requested = &next
	return true
}

// haveEnded reports whether the run has ended.
func (r *restarts) haveEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// endRun records that the run has ended, so that later requests are refused, and returns the requested restart, nil for none.
func (r *restarts) endRun() *restart {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	return r.requested
}

// requestRestart ends this run at once, so that another follows as next says, and does not wait for that. Only the first
// request counts: if there was one before, or the run has ended, requestRestart calls next.abandon instead.
func (r *roleRun) requestRestart(next restart) {
	if !r.restarts.request(next) {
		next.cancel()
		return
	}
	r.beginRestart()
}

// requestQuietRestart ends this run once the parts that end early have ended, and then clients have left or --drain has passed,
// so that another follows as next says. It returns true at once. Only the first request counts: if there was one before, or the
// run has ended, it returns false and does nothing; it does not call next.abandon.
func (r *roleRun) requestQuietRestart(next restart) bool {
	if !r.restarts.request(next) {
		return false
	}
	go func() {
		r.parts.EndEarly() // such as the bot
		for _, leave := range r.leaving {
			leave()
		}
		r.beginRestart()
	}()
	return true
}

// beginRestart has the run end for the restart that was requested. It is called once. If the process was asked to stop, it does
// nothing: the run ends for that.
func (r *roleRun) beginRestart() {
	if r.supervisor.ending.Err() != nil {
		return
	}
	r.restarts.pending.Store(true)
	close(r.restarts.begin)
}

// awaitRestart waits for a restart to begin, and then returns [parts.ErrDone], which ends the role. If ctx ends first, it returns
// nil.
func (r *roleRun) awaitRestart(ctx context.Context) error {
	select {
	case <-r.restarts.begin:
		return parts.ErrDone
	case <-ctx.Done():
		return nil
	}
}

// drainServer has s end event streams and close each connection after its next response; s still accepts connections. It waits
// until s has completed the requests under way, --drain has passed, or the process is asked to stop.
func (r *roleRun) drainServer(s *server.Server) {
	s.Leave()
	select {
	case <-s.Settled():
	case <-time.After(r.supervisor.configuration.inForce.Get().Drain):
	case <-r.supervisor.ending.Done():
	}
}
