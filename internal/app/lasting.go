package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/waitingroom/nodes"
)

// lasting is what stays of a process while it begins anew, after a repair or where no other process could take its place:
// its sockets, what probes are told, and what signals do.
type lasting struct {
	logger  *slog.Logger
	started time.Time
	sockets sockets
	older   *older // the process whose place this one takes, until it has; or nil
	metrics atomic.Pointer[registry]
	private *server.Server
	site    atomic.Pointer[http.Handler] // as the operator sees it
	// caughtUp is whether a node of a cluster has had all once that the bucket had, or serves what it has without.
	caughtUp atomic.Bool
	// clock is that of the waiting rooms of a cluster, and elapsed the monotonic time of the process.
	clock   *nodes.Clock
	elapsed func() time.Duration
	// hadRooms are the rooms of which the node had state when the process began; nil before that is known.
	hadRooms []string
	ending   context.Context // ends when the process is told to end, before it does
	// sending finish what was being sent when a life ended that another one follows.
	sending sync.WaitGroup
	// succession answers requests on the connections of runs that have ended.
	succession *succession

	upgrading sync.Mutex // held while an upgrade or a reload is made
	mu        sync.Mutex
	settings  *settings.Settings
	onSignal  map[os.Signal]func(context.Context)
	failed    error                             // how the last one went wrong
	phase     error                             // why the process is not ready as a whole; nil once it is
	doubts    []func() (note string, err error) // what parts have to say about that
}

// What a process is at that is not ready.
var (
	errOpening    = errors.New("opening: the store is being opened")
	errRecovering = errors.New("recovering: the store is being opened again")
	errStopping   = errors.New("stopping: the process was told to end")
	errHandedOver = errors.New("stopping: another process takes over")
)

// openLasting opens the sockets of the settings, once check has found nothing wrong with them, and answers probes. Contexts
// of what the process does come from the one that it returns: that ends later than ctx, by the time of the lame duck.
func openLasting(ctx context.Context, s *settings.Settings, serve bool, logger *slog.Logger, check func() error) (_ *lasting, _ context.Context, err error) {
	handed, asking, err := received()
	l := &lasting{settings: s, logger: logger, started: time.Now().UTC(), phase: errOpening, ending: ctx, succession: newSuccession()}
	l.caughtUp.Store(handed.CaughtUp)
	began := time.Now()
	l.elapsed = func() time.Duration { return time.Since(began) }
	l.clock = nodes.NewClock(l.elapsed, began)
	if asking != nil {
		l.older = newOlder(asking)
	}
	if err == nil {
		err = check()
	}
	if err == nil {
		l.sockets, err = openSockets(ctx, s, serve, handed.Sockets, func(err error) {
			logger.Warn("no private listener; choose an address with --private-listen", "err", err)
		})
	}
	if err == nil {
		err = l.older.leave(ctx)
	}
	if err == nil {
		err = l.openPrivate()
	}
	if err != nil {
		l.older.fail(err)
		return nil, nil, errors.Join(err, l.sockets.close())
	}
	work, end := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		notify(daemon.SdNotifyStopping)
		l.is(errStopping)
		l.mu.Lock()
		lame := l.settings.LameDuck
		l.mu.Unlock()
		if serve && lame > 0 {
			logger.Info("serving goes on while /readyz says that it ends", "for", lame)
			time.Sleep(lame)
		}
		end(context.Cause(ctx))
	})
	return l, work, nil
}

// close ends what is left, when no part of the process runs any more, because of err.
func (l *lasting) close(err error) error {
	l.older.fail(err)
	l.succession.end()
	l.sending.Wait()
	l.closePrivate()
	return l.sockets.close()
}

// address is the URL at which a program on this machine reaches the public address, or unix: and a path.
func (l *lasting) address(s *settings.Settings) string {
	if at := l.tcp(); at != nil {
		return s.URLAt(at.IP.String(), fmt.Sprint(at.Port))
	}
	return server.Unix + l.sockets.public()[0].at.Addr().String()
}

// tcp is the first public address that is TCP's, or nil.
func (l *lasting) tcp() *net.TCPAddr {
	for _, on := range l.sockets.public() {
		if at, ok := on.at.Addr().(*net.TCPAddr); ok {
			return at
		}
	}
	return nil
}

// listen returns listeners on the public sockets, for one life of the process.
func (l *lasting) listen(maxConnections int) (all []net.Listener, err error) {
	for _, s := range l.sockets.public() {
		made, err := s.listener()
		if err != nil {
			for _, l := range all {
				l.Close()
			}
			return nil, fmt.Errorf("couldn't listen on %s: %w", s.at.Addr(), err)
		}
		all = append(all, made)
	}
	return server.Limit(maxConnections, all...), nil
}

// noTimeout is for responses that take as long as they take: an operation's events, a CPU profile. As IdleAtEnd it has idle
// connections end at once: programs on this machine ask again.
const noTimeout = -1

// openPrivate answers the operator on the private address, from the first moment to the last.
func (l *lasting) openPrivate() error {
	on := l.sockets.only(forPrivate)
	if on == nil {
		return nil
	}
	at, err := on.listener()
	if err != nil {
		return err
	}
	logger := l.logger.With("part", "private")
	metrics := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		if r := l.metrics.Load(); r != nil {
			return r.Gather()
		}
		return nil, nil
	})
	handler := api.Private(api.PrivateOptions{Metrics: metrics, Ready: l.ready, Site: l.siteForOperator, Logger: logger})
	l.private = server.NewHTTPServer(handler, server.HTTPOptions{WriteTimeout: noTimeout, IdleAtEnd: noTimeout, Logger: logger})
	go l.private.Serve(at) //nolint:errcheck // it ends with Close
	return nil
}

func (l *lasting) closePrivate() {
	if l.private != nil {
		stop(l.private, time.Second, l.logger) // a scrape ends by then; a profile need not
		l.private = nil
	}
}

// siteForOperator is the site as the operator sees it, or nil while there is none.
func (l *lasting) siteForOperator() http.Handler {
	if h := l.site.Load(); h != nil {
		return *h
	}
	return nil
}

// use has the process end by these settings.
func (l *lasting) use(s *settings.Settings) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settings = s
}

// is says why the process is not ready, or with nil that it is. What was told to end is never ready again.
func (l *lasting) is(phase error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase != errStopping {
		l.phase = phase
	}
}

// doubt adds what a part has to say about whether the process is ready, until the process begins anew: an error where it is
// not, or else a note for the operator, "" for none.
func (l *lasting) doubt(ask func() (note string, err error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubts = append(l.doubts, ask)
}

// ready is what /readyz tells.
func (l *lasting) ready() (notes []string, err error) {
	l.mu.Lock()
	phase, doubts := l.phase, slices.Clone(l.doubts)
	l.mu.Unlock()
	if phase != nil {
		return nil, phase
	}
	for _, ask := range doubts {
		note, doubt := ask()
		if note != "" {
			notes = append(notes, note)
		}
		err = errors.Join(err, doubt)
	}
	return notes, err
}

// begin is called before each life of the process.
func (l *lasting) begin(again bool, metrics *registry, onSignal map[os.Signal]func(context.Context)) {
	l.metrics.Store(metrics)
	l.site.Store(nil)
	l.mu.Lock()
	l.doubts, l.onSignal = nil, onSignal
	l.mu.Unlock()
	if again {
		l.is(errRecovering)
	}
}

// readiness has the process be ready, when all parts before it in the list have begun.
func (p *process) readiness() part {
	return part{name: "readiness", start: func(context.Context) error {
		p.begun.Store(true)
		p.lasting.is(nil)
		notify(daemon.SdNotifyReady)
		err := p.lasting.older.tell(isReady)
		for _, f := range p.onReady {
			f()
		}
		return err
	}}
}

// notify tells the service manager how things stand, where there is one that wants to know.
func notify(states ...string) {
	for _, state := range states {
		_, _ = daemon.SdNotify(false, state) // it has gone, or never was
	}
}

// heed has signals reload the settings and upgrade the process until ctx ends. None of them ends the process.
func (l *lasting) heed(ctx context.Context) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE)
	go func() {
		for {
			select {
			case s := <-signals:
				l.mu.Lock()
				do := l.onSignal[s]
				l.mu.Unlock()
				if do != nil {
					do(ctx)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
}
