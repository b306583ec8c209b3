package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/server"
)

// attend has a command answer other commands while it works, as far as they only look. Where the socket cannot be made,
// they get the error that the folder is in use. tell adds to the status.
func (r *Reader) attend(tell func(*Status)) {
	l, err := admin.Listen(r.settings.Data)
	if err != nil {
		r.logger.Debug("couldn't open the socket for other commands that only read", "err", err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := server.NewHTTPServer(admin.Handler(r.counted(r.lookedAt(ctx, tell)), r.logger), server.HTTPOptions{WriteTimeout: noTimeout, IdleAtEnd: noTimeout, Logger: r.logger})
	s.BaseContext = func(net.Listener) context.Context { return ctx }
	go s.Serve(l) //nolint:errcheck // it ends with Stop
	r.unattend = func() error {
		err := l.Close() // first: once the folder is closed, the socket may be another process's
		cancel()
		_, stopErr := s.Stop(time.Second)
		return errors.Join(err, stopErr)
	}
}

// lookedAt are the operations for other commands. Those that are under way when ctx ends say that this command has ended.
func (r *Reader) lookedAt(ctx context.Context, tell func(*Status)) operations {
	self := Process{PID: os.Getpid(), Version: Version(), Started: time.Now().UTC()}
	all := refusing(r.operations(), fmt.Errorf("another larder command, process %d, works on %s; wait until it is done", self.PID, r.settings.Data))
	answer(all, OpStatus, func(_ context.Context, q StatusRequest, _ func(any)) (*Status, error) {
		status, err := r.status(q.Package)
		if err != nil {
			return nil, err
		}
		status.Process = &self
		tell(status)
		return status, nil
	})
	for name, do := range all {
		all[name] = func(its context.Context, request admin.Request, report func(any)) (any, error) {
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
type lockedError struct{ data string }

func (e *lockedError) Error() string {
	return fmt.Sprintf("another larder process has %s open; wait until it is done, stop it, or choose another folder with --data", e.data)
}

func (e *lockedError) Unwrap() error { return kvstore.ErrLocked }

// The time that a process has the folder open and does not answer, at its beginning and its end, in an empty folder.
const (
	reachFor   = 2 * time.Second
	reachAgain = 20 * time.Millisecond
)

// Reach returns a client of the process that has a data folder open, or else, which it calls its own, of what open opens
// meanwhile.
func Reach(ctx context.Context, data string, open func() (interface{ Client() *Client }, error)) (client *Client, own bool, err error) {
	for deadline := time.Now().Add(reachFor); ; {
		if client, err = Dial(ctx, data); !errors.Is(err, ErrNoProcess) {
			return client, false, err
		}
		folder, err := open()
		if err == nil {
			return folder.Client(), true, nil
		}
		if !errors.Is(err, kvstore.ErrLocked) || time.Now().After(deadline) || retry.Sleep(ctx, reachAgain) != nil {
			return nil, false, err
		}
	}
}
