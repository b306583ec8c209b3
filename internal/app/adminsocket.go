package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/server"
)

// openAdminSocket opens the admin socket in the data folder, to which commands send their requests. It is served by
// [roleRun.serveAdmin] and closed when the run ends.
func (r *roleRun) openAdminSocket() (net.Listener, error) {
	socket, err := api.ListenAdmin(r.settings.Data)
	if err != nil {
		return nil, err
	}
	r.parts.Add(parts.Part{Name: "admin socket", Stop: parts.StopBy(func() { socket.Close() })}) // harmless where the server has closed it
	return socket, nil
}

// serveAdmin serves the admin socket until the run ends: the operations in all, reload, upgrade and the state of the process;
// below schedulePath the handler schedule, which lists and changes scheduled requests; and requests to the site that an older
// process forwards after an upgrade. The folder is not closed while an operation in all runs. check returns an error for
// settings that a reload must refuse.
func (r *roleRun) serveAdmin(socket net.Listener, folder *Reader, all operations, schedule http.Handler, check func(*settings.Settings) error) {
	counted := folder.trackOperations(all)
	r.addProcessOperations(counted, check) // not counted: the folder is closed while an upgrade is under way
	s := newAdminServer(r.parts.Context(), counted, schedule, acceptForwarded(r.supervisor.late.succession), r.logger)
	r.addServer("admin server", s, []net.Listener{socket})
}

// newAdminServer returns the server of the admin socket, which it does not start. It passes requests with paths from
// schedulePath on to the handler schedule, those that an older process forwards after an upgrade to late, and all others to the
// operations. The contexts of all requests end when ctx does.
func newAdminServer(ctx context.Context, operations map[string]api.Operation, schedule, late http.Handler, logger *slog.Logger) *server.Server {
	logger = logger.With("part", "admin")
	mux := http.NewServeMux()
	mux.Handle("/", api.AdminHandler(operations, logger))
	mux.Handle(schedulePath, schedule)
	mux.Handle(schedulePath+"/", schedule)
	mux.Handle(forwardPath, late)
	s := server.NewHTTPServer(mux, server.HTTPOptions{WriteTimeout: noTimeout, IdleAtEnd: noTimeout, Logger: logger})
	s.BaseContext = func(net.Listener) context.Context { return ctx }
	return s
}

// serveReaders opens the admin socket, and serves the read-only operations to other commands until the folder is closed: this
// command has it open, so they cannot open it. addStatus adds to a status what this command knows. If the socket cannot be
// opened, serveReaders only logs that, and other commands get the error that the folder is in use.
func (r *Reader) serveReaders(addStatus func(*Status)) {
	l, err := api.ListenAdmin(r.settings.Data)
	if err != nil {
		r.logger.Debug("couldn't open the socket for other commands that only read", "err", err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := server.NewHTTPServer(api.AdminHandler(r.trackOperations(r.readersOperations(ctx, addStatus)), r.logger), server.HTTPOptions{WriteTimeout: noTimeout, IdleAtEnd: noTimeout, Logger: r.logger})
	s.BaseContext = func(net.Listener) context.Context { return ctx }
	go s.Serve(l) //nolint:errcheck // it ends with Stop
	r.stopReaders = func() error {
		err := l.Close() // first: once the folder is closed, the socket may be another process's
		cancel()
		_, stopErr := s.Stop(time.Second)
		return errors.Join(err, stopErr)
	}
}

// readersOperations returns the operations for other commands while this command, which may write, has the folder open; those that write
// return the error that another command works on the folder. addStatus completes a status. Operations that fail after ctx has ended return
// the error that this command has ended.
func (r *Reader) readersOperations(ctx context.Context, addStatus func(*Status)) operations {
	self := Process{PID: os.Getpid(), Version: Version(), Started: time.Now().UTC()}
	all := refuseWrites(r.operations(), fmt.Errorf("another larder command, process %d, works on %s; wait until it is done", self.PID, r.settings.Data))
	addRequest(all, OpStatus, func(_ context.Context, q StatusRequest) (*Status, error) {
		status, err := r.readStatus(q.Package)
		if err != nil {
			return nil, err
		}
		status.Process = &self
		addStatus(status)
		return status, nil
	})
	for name, do := range all {
		all[name] = func(its context.Context, request api.OperationRequest, report func(any)) (any, error) {
			result, err := do(its, request, report)
			if err != nil && ctx.Err() != nil {
				err = fmt.Errorf("the larder command that was answering, process %d, has ended; try again", self.PID)
			}
			return result, err
		}
	}
	return all
}

// lockedError says that another process has the folder open.
type lockedError struct {
	data string
	by   *Process // that process, nil if it is not known
}

// Error names the process that has the folder open if it is known and serves a site, and says what the operator can do.
func (e *lockedError) Error() string {
	if e.by != nil && e.by.Address != "" {
		return fmt.Sprintf("another larder, process %d, serves %s from %s; use that, stop it, or choose another folder with --data", e.by.PID, e.by.Address, e.data)
	}
	return fmt.Sprintf("another larder process has %s open; wait until it is done, stop it, or choose another folder with --data", e.data)
}

// Unwrap returns [kvstore.ErrLocked], by which callers see that another process has the data folder open.
func (e *lockedError) Unwrap() error { return kvstore.ErrLocked }

// A process has the folder open and no admin socket for a moment when it starts and when it ends. Commands try again at the interval
// reachInterval for up to reachTimeout then.
const (
	reachTimeout  = 2 * time.Second
	reachInterval = 20 * time.Millisecond
)

// noProcessTimeout is how long dialRunning waits for a process to lock the folder. A process that changes its role has it unlocked for less.
const noProcessTimeout = 500 * time.Millisecond

// dialRunning returns a client of the process that has the folder data open. While that starts, ends or changes its role, it
// has no admin socket: dialRunning retries for up to reachTimeout, and then returns the error of errNoSocket. The error is
// [ErrNoProcess] if no process has the folder open.
func dialRunning(ctx context.Context, data string) (*Client, error) {
	seen := time.Now()
	for deadline := seen.Add(reachTimeout); ; {
		client, err := Dial(ctx, data)
		if !errors.Is(err, ErrNoProcess) {
			return client, err
		}
		now, locked := time.Now(), kvstore.IsLocked(storeDir(data))
		if locked {
			seen = now
		}
		switch {
		case !locked && now.Sub(seen) >= noProcessTimeout:
			return nil, err
		case locked && now.After(deadline):
			return nil, fmt.Errorf("a larder process has %s open, but takes no commands now: it starts, ends, changes its role or is another command; try again when it serves", data)
		}
		if err := retry.Sleep(ctx, reachInterval); err != nil {
			return nil, err
		}
	}
}

// Reach returns a client of the process that has the folder data open; own is false then. Without such a process, it opens the
// folder by open, and returns a client of that; own is true, and closing the client closes the folder. It retries for up to
// reachTimeout while a process that starts or ends has the folder locked. Errors are those of open, or of a process that runs
// and cannot be reached.
func Reach(ctx context.Context, data string, open func() (interface{ Client() *Client }, error)) (client *Client, own bool, err error) {
	var folder interface{ Client() *Client }
	client, err = dialOr(ctx, data, func() (err error) {
		folder, err = open()
		return err
	})
	if own = client == nil && err == nil; own {
		client = folder.Client()
	}
	return client, own, err
}
