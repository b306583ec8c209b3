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
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/gitlog"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// A Server is a process that has the data folder open and works until it is told to end.
type Server struct {
	Settings *settings.Settings
	Logger   *slog.Logger
	// Serve has it answer on the public address, Fill run the bot; with Once the bot makes a single pass, and that ends
	// the process. At least one of the first two.
	Serve, Fill, Once bool
	// Mirror has it follow the log of another Larder, and serve that. It goes with Serve, or with Once.
	Mirror *Mirror
	// Events hears what the bot does.
	Events func(bot.Event)
	// Serving is called once the process serves. example finds the path of a file that is served, if there is one; it is
	// nil where nothing may write to the data folder, and only what is left is served.
	Serving func(address string, example func() (path string, ok bool))
	// Filled is called when the single pass has been made.
	Filled func(bot.Summary)
	// Stopping is called when the process is told to end.
	Stopping func()
}

// running is a Server with its folder open. Its parts fill it in.
type running struct {
	Server
	process
	folder  *Reader
	self    Process
	socket  listener           // for commands
	answers []func(operations) // add what parts can be asked
	tell    []func(*Status)    // add what parts know of how things stand
	// repaired says that the process begins anew, and what is to be done before; then afterwards is that.
	repairing  sync.Mutex // held by the one repair that runs
	repaired   chan func() error
	afterwards func() error
}

// working is a running Server that works on its folder.
type working struct {
	*running
	writer *Writer
	// beforeEnd is what is left to do after a single pass.
	beforeEnd []func(context.Context) error
}

// Run does the server's work until ctx ends. Where nothing may write to the data folder, it serves what is left there.
// After a repair it begins anew.
func (s Server) Run(ctx context.Context) error {
	for again := false; ; again = true {
		r, err := s.life(ctx)
		if again && ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
			return nil // it was told to end while it began anew
		}
		if !errors.Is(err, errAgain) {
			return err
		}
		if err := r.afterwards(); err != nil || ctx.Err() != nil {
			return err
		}
		if s.Serve { // on the same port, also where it was free to choose
			again := *s.Settings
			again.Listen = r.public.at.Addr().String()
			s.Settings = &again
		}
	}
}

// life does the server's work until ctx ends, or until it is to begin anew.
func (s Server) life(ctx context.Context) (*running, error) {
	w := &working{running: s.running()}
	parts, err := w.parts(ctx)
	if err == nil {
		err = run(ctx, s.Logger, parts)
	}
	var short *Shortfall
	if !s.Serve || !errors.As(err, &short) {
		return w.running, err
	}
	r := s.running()
	if parts, err = r.remains(ctx, short); err != nil {
		return r, err
	}
	return r, run(ctx, s.Logger, parts)
}

func (s Server) running() *running {
	return &running{
		Server:   s,
		process:  process{settings: s.Settings, logger: s.Logger, metrics: newRegistry()},
		self:     Process{PID: os.Getpid(), Version: Version(), Started: time.Now().UTC()},
		repaired: make(chan func() error, 1),
	}
}

// A list of parts grows by those that are wanted.
type list []part

func (l *list) add(wanted bool, more ...part) {
	if wanted {
		*l = append(*l, more...)
	}
}

// parts are what the process is made of, in the order in which they start. The settings are checked and addresses opened
// before the data folder is; what makes a key comes when nothing is left that the settings could have wrong.
func (s *working) parts(ctx context.Context) (parts list, err error) {
	if s.Mirror != nil {
		return s.mirrorParts(ctx)
	}
	rooms, err := s.check()
	if err != nil {
		return nil, err
	}
	add := parts.add
	site := newServing(s.running)
	fill := &filling{working: s, serving: site}
	push := &pusher{working: s}
	pushes := s.Fill && s.settings.LogRepository != gitlog.Remote{}
	reviews := s.Serve && s.Fill && s.settings.ReviewRepository != ""
	if s.Serve && s.Fill {
		if fill.secret, err = s.settings.HookSecret(); err != nil {
			return nil, err
		}
		if err := checkReview(s.settings, fill.secret); err != nil {
			return nil, err
		}
	}

	add(pushes, part{name: "GitHub", start: push.open})
	add(s.Serve, s.listenPublicly())
	add(s.Serve && s.settings.HTTPListen != "", s.listenPlainly())
	add(s.settings.PrivateListen != settings.Off, s.listenPrivately())
	add(true, s.dataFolder())
	add(s.Fill, part{name: "bot", start: fill.openBot})
	add(true, s.adminSocket(), s.signing(site))
	add(pushes, part{name: "log push", start: push.start})
	add(true, s.servePrivately(nil))
	add(true, part{name: "limit of memory", run: until(s.limitMemory)})
	if s.Serve {
		s.answers = append(s.answers, func(all operations) { withdrawals{s.writer, site.inForce, s.settings.PurgeHook != ""}.operations(all) })
		add(len(rooms) > 0, site.rooms(rooms))
		add(s.Fill, part{name: "catalogue on the site", start: fill.showOnSite})
		add(reviews, fill.reviewer())
		add(len(s.settings.Fallback) > 0, fill.fallback())
		add(s.settings.AccessLog != "", site.logging())
		add(len(s.settings.ACMEDomains) > 0, site.openCertificates())
		add(true, site.server(), site.usage(), site.following())
		add(true, site.keepCertificates()...)
		add(s.settings.PurgeHook != "", s.purging())
		add(true, part{name: "announcement", start: site.announce})
		add(s.settings.ReadyFile != "", s.readyFile())
	}
	add(true, s.sending(), s.adminServer(func() (operations, http.Handler, error) {
		e, err := s.folder.errands.get()
		if err != nil {
			return nil, nil, err
		}
		return s.operations(), e.schedule.Handler(schedulePath), nil
	}))
	switch {
	case s.Once:
		add(true, part{name: "single pass", run: fill.once})
	case s.Fill:
		add(true, part{name: "filling", run: fill.keepFilling}, part{name: "catalogue", run: until(fill.keep)})
		add(pushes, part{name: "pushing", run: push.run})
	}
	add(true, s.beginAgain(), stopping(ctx, s.Stopping))
	return parts, nil
}

// remains are the parts of a process that serves what is left of a folder to which nothing may write: no bot, no schedule,
// no webhooks, no purge hook, and nothing that signs or pushes the log.
func (s *running) remains(ctx context.Context, short *Shortfall) (parts list, err error) {
	rooms, err := s.check()
	if err != nil {
		return nil, err
	}
	site := newServing(s)
	site.lacking = short
	add := parts.add
	add(true, s.listenPublicly())
	add(s.settings.HTTPListen != "", s.listenPlainly())
	add(s.settings.PrivateListen != settings.Off, s.listenPrivately())
	add(true, site.remains(), s.adminSocket(), site.frozen(), s.servePrivately(short))
	add(true, part{name: "limit of memory", run: until(s.limitMemory)})
	add(len(rooms) > 0, site.rooms(rooms))
	add(s.settings.AccessLog != "", site.logging())
	add(len(s.settings.ACMEDomains) > 0, site.openCertificates())
	add(true, site.server())
	add(true, site.keepCertificates()...)
	add(true, part{name: "announcement", start: site.announce})
	add(s.settings.ReadyFile != "", s.readyFile())
	add(true, s.adminServer(func() (operations, http.Handler, error) {
		schedule := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			(&answers.Failure{Status: http.StatusServiceUnavailable, Message: short.Error()}).SendJSON(w, r)
		})
		all := refusing(s.telling(s.folder.operations()), short)
		site.repairOperation(all)
		return all, schedule, nil
	}))
	add(true, s.beginAgain(), stopping(ctx, s.Stopping))
	return parts, nil
}

// check finds the mistakes in the settings before anything else has happened, and reads the waiting rooms.
func (s *running) check() ([]config.Room, error) {
	if _, err := witnessPolicy(s.settings); err != nil {
		return nil, err
	}
	if !s.Serve {
		return nil, nil
	}
	if err := checkFallback(s.settings); err != nil {
		return nil, err
	}
	if file := s.settings.ReadyFile; file != "" {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a process that was killed
			return nil, fmt.Errorf("couldn't remove the old --ready-file: %w", err)
		}
	}
	rooms, err := s.settings.WaitingRooms()
	return rooms, errors.Join(checkPurging(s.settings), limitConnections(s.settings, s.logger), err)
}

// dataFolder opens the data folder.
func (s *working) dataFolder() part {
	var unwatch func()
	return part{
		name: "data folder",
		start: func(context.Context) (err error) {
			o := writing{openOptions: openOptions{working: true}, follow: s.Fill, events: s.metrics.counting(s.Events)}
			if s.Serve {
				s.self.Address = s.address()
				o.address = s.self.Address
			}
			if s.writer, err = openWriter(s.settings, o, s.logger); err != nil {
				return err
			}
			s.folder = s.writer.Reader
			s.metrics.degraded(false)
			unwatch = s.metrics.watch(s.folder.store)
			return nil
		},
		stop: func() error {
			unwatch()
			return s.writer.Close()
		},
	}
}

// remains opens what is left of the data folder, to be read. Where that cannot be opened at all, it is an empty one.
func (s *serving) remains() part {
	var unwatch func()
	return part{
		name: "what is left of the data folder",
		start: func(context.Context) (err error) {
			if err := os.MkdirAll(s.settings.Data, 0o700); err != nil { // for the admin socket
				return err
			}
			s.self.Address = s.address()
			o := openOptions{store: kvstore.Options{ReadOnly: true}, address: s.self.Address}
			if s.folder, err = open(s.settings, o, s.logger); errors.Is(err, kvstore.ErrLocked) {
				return err
			} else if err != nil {
				s.unreadable, o.store = true, kvstore.Options{FS: vfs.NewMem()}
				if s.folder, err = open(s.settings, o, s.logger); err != nil {
					return err
				}
			}
			s.metrics.degraded(true)
			unwatch = s.metrics.watch(s.folder.store)
			s.tell = append(s.tell, func(status *Status) { status.Degraded = s.lacking.Error() })
			return nil
		},
		stop: func() error {
			unwatch()
			return s.folder.Close()
		},
	}
}

// lostPublicly is the reason that clients of the log get.
const lostPublicly = "the service has lost some of its data and is to be repaired"

// frozen shows what was signed, and signs nothing.
func (s *serving) frozen() part {
	var signer *signing.Signer
	return part{
		name: "frozen signer",
		start: func(context.Context) error {
			keys, err := s.settings.KeyFolder()
			if err == nil {
				signer, err = signing.Frozen(signing.Options{Dir: keys, Store: s.folder.store, Logger: s.logger.With("part", "signing")}, lostPublicly)
				s.signed = signer
			}
			if err != nil {
				return fmt.Errorf("%w; --keys chooses another key folder", err)
			}
			s.logger.Error("nothing is written, and only what is left is served, until this is repaired", "err", s.lacking)
			return nil
		},
		stop: func() error { return signer.Close() },
	}
}

// signing signs the log, as the site shows. The key is made where there is none.
func (s *working) signing(site *serving) part {
	return part{
		name: "signer",
		start: func(context.Context) error {
			err := s.writer.openSigner(s.logger, s.metrics)
			site.signed = s.writer.signature.signer
			return err
		},
		run: func(ctx context.Context) error {
			s.writer.signature.signer.Run(ctx)
			return nil
		},
	}
}

// adminSocket opens the socket on which commands speak to the process.
func (s *running) adminSocket() part {
	return part{
		name: "admin socket",
		start: func(context.Context) (err error) {
			s.socket.at, err = admin.Listen(s.settings.Data)
			return err
		},
		stop: s.socket.close,
	}
}

// adminServer answers commands, and programs that have something to schedule. Its operations end with ctx.
func (s *running) adminServer(made func() (operations, http.Handler, error)) part {
	return s.answering("admin server", func(ctx context.Context) (*server.Server, net.Listener, error) {
		all, schedule, err := made()
		if err != nil {
			return nil, nil, err
		}
		if s.private.at != nil {
			s.self.Private = s.private.at.Addr().String()
		}
		return newAdminServer(ctx, s.folder.counted(all), schedule, s.logger), s.socket.at, nil
	})
}

func newAdminServer(ctx context.Context, operations map[string]admin.Operation, schedule http.Handler, logger *slog.Logger) *server.Server {
	logger = logger.With("part", "admin")
	mux := http.NewServeMux()
	mux.Handle("/", admin.Handler(operations, logger))
	mux.Handle(schedulePath, schedule)
	mux.Handle(schedulePath+"/", schedule)
	s := server.NewHTTPServer(mux, server.HTTPOptions{WriteTimeout: noTimeout, Logger: logger})
	s.BaseContext = func(net.Listener) context.Context { return ctx }
	return s
}
