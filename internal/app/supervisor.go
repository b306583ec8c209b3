package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// A supervisor has the parts that outlive each run of a role: the sockets, the readiness state, the handling of signals.
type supervisor struct {
	logger        *slog.Logger
	started       time.Time
	ending        context.Context // ends when the process is asked to stop, before its parts do
	sockets       sockets
	older         *olderProcess // the process that this one replaces; nil for none
	readiness     readiness
	private       privateListener
	late          lateRequests
	signals       signalHandlers
	changing      changes
	node          nodeMemory
	configuration configuration
}

// newSupervisor opens the sockets of the settings if check returns no error, waits for the older process that this one
// replaces, if any, to close the store, and then responds to probes. serve says whether the sockets include the public ones.
// The context that it returns is that of the roles: with serve it ends later than ctx by the lame-duck time. After an error the
// sockets that it opened are closed, and the older process has received the error.
func newSupervisor(ctx context.Context, s *settings.Settings, serve bool, logger *slog.Logger, check func() error) (_ *supervisor, _ context.Context, err error) {
	handed, olderSocket, err := receiveHandover()
	v := &supervisor{logger: logger, started: time.Now().UTC(), ending: ctx, late: lateRequests{succession: newSuccessor()}}
	v.node.rooms = waitingroom.NewSharingMemory(time.Now())
	v.readiness.setState(errOpening)
	v.node.caughtUp.Store(handed.CaughtUp)
	if olderSocket != nil {
		if conn, err := net.FileConn(olderSocket); err == nil { // a duplicate
			v.older = &olderProcess{conn}
		}
		olderSocket.Close()
	}
	if err == nil {
		err = check()
	}
	v.configuration.inForce.Set(s) // s does not change from now on
	if err == nil {
		v.sockets, err = openSockets(ctx, s, serve, handed.Sockets, func(err error) {
			logger.Warn("couldn't open the private listener: this process has no metrics and probes", "err", err)
		})
	}
	if err == nil {
		err = v.older.awaitStore(ctx)
	}
	v.private.socket, v.private.logger, v.private.ready = v.sockets.find(forPrivate), logger, v.readiness.report
	v.private.hosts = func() []string { return v.configuration.inForce.Get().PrivateHosts }
	if err == nil {
		err = v.private.open()
	}
	if err != nil {
		v.older.reportFailure(err)
		return nil, nil, errors.Join(err, v.sockets.close())
	}
	work, end := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		notifyManager(daemon.SdNotifyStopping)
		v.readiness.setState(errStopping)
		if lame := v.configuration.inForce.Get().LameDuck; serve && lame > 0 {
			logger.Info("serving until the lame-duck time is over; /readyz says that the process stops", "for", lame)
			time.Sleep(lame)
		}
		end(context.Cause(ctx))
	})
	return v, work, nil
}

// close waits for late responses, and closes the private listener and all sockets; it returns the error of closing these. err
// is that of the last run, nil for none; if it is not nil, an older process that still waits for this one receives it.
func (v *supervisor) close(err error) error {
	v.older.reportFailure(err)
	v.late.succession.end() // late requests get a 503 if no run serves them
	v.late.sending.Wait()
	v.private.close()
	return v.sockets.close()
}

// publicURL returns the URL at which a program on this machine reaches the first public TCP address, with http or https as the
// settings say; without one, unix: and the path of the first Unix socket. There must be a public socket.
func (v *supervisor) publicURL(s *settings.Settings) string {
	if at := v.publicTCPAddr(); at != nil {
		return s.URLAt(at.IP.String(), fmt.Sprint(at.Port))
	}
	return server.Unix + v.sockets.public()[0].at.Addr().String()
}

// publicTCPAddr returns the first public address that is a TCP address, nil for none.
func (v *supervisor) publicTCPAddr() *net.TCPAddr {
	for _, on := range v.sockets.public() {
		if at, ok := on.at.Addr().(*net.TCPAddr); ok {
			return at
		}
	}
	return nil
}

// listenPublic returns listeners on duplicates of the public sockets, for one run of a role, which together have up to
// maxConnections open; 0 is for no limit.
func (v *supervisor) listenPublic(maxConnections int) (all []net.Listener, err error) {
	for _, s := range v.sockets.public() {
		made, err := s.newListener()
		if err != nil {
			for _, l := range all {
				l.Close()
			}
			return nil, fmt.Errorf("couldn't listen on %s: %w", s.at.Addr(), err)
		}
		all = append(all, made)
	}
	return server.LimitConnections(maxConnections, all...), nil
}

// lateRequests are requests on connections of runs that have ended.
type lateRequests struct {
	succession *successor
	sending    sync.WaitGroup // servers of earlier runs that still respond
}

// changes are the upgrades and the reloads that restart the role, of which one runs at a time, and the outcome of the last
// upgrade or reload.
type changes struct {
	making sync.Mutex   // held while one runs
	failed atomic.Value // a string: why the last one failed; "" if it did not
}

// setFailure records why the last upgrade or reload failed, nil if it succeeded.
func (c *changes) setFailure(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	c.failed.Store(text)
}

// failure returns why the last upgrade or reload failed, "" if it succeeded. It has only failures that setFailure was called
// with.
func (c *changes) failure() string {
	text, _ := c.failed.Load().(string)
	return text
}

// signalHandlers are what signals do during the run of a role.
type signalHandlers struct {
	by atomic.Pointer[map[os.Signal]func(context.Context)]
}

// set replaces the functions that are called for SIGHUP, SIGUSR1 and SIGUSR2, by the signal. A signal without a function has no
// effect. It is called before [signalHandlers.handleSignals].
func (h *signalHandlers) set(by map[os.Signal]func(context.Context)) { h.by.Store(&by) }

// handleSignals starts a goroutine that calls the present function for each SIGHUP, SIGUSR1 and SIGUSR2, one after the other,
// until ctx ends. A signal that arrives while another one waits for its function is lost. These signals and SIGPIPE no longer
// end the process.
func (h *signalHandlers) handleSignals(ctx context.Context) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE)
	go func() {
		for {
			select {
			case s := <-signals:
				if do := (*h.by.Load())[s]; do != nil {
					do(ctx)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
}
