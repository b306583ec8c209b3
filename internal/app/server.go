package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/logs/gitlog"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/server"
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
	// Serving is called once the process serves. example looks up the path of a file in the store, and returns
	// kvstore.ErrNotFound if the store serves none; example is nil in read-only mode.
	Serving func(address string, example func() (path string, err error))
	// Filled is called when the single pass has been made.
	Filled func(bot.Summary)
	// Stopping is called when the process is told to end.
	Stopping func()
	// Intervals are those of a node of a cluster.
	Intervals ClusterIntervals

	// leads is there where a node of a cluster is to write in this life, in the place of that of an epoch. Where it could not,
	// it is not to try before leadAfter; leadFailures is how often that was so, one after the other.
	leads        *int64
	leadAfter    time.Time
	leadFailures int
}

// running is a Server with its folder open. Its parts fill it in.
type running struct {
	Server
	process
	folder  *Reader
	self    Process
	socket  net.Listener       // for commands
	answers []func(operations) // add what parts can be asked
	tell    []func(*Status)    // add what parts know of how things stand
	// repaired says that the process begins anew, and what is to be done before; then afterwards is that.
	repairing  sync.Mutex // held by the one repair that runs
	repaired   chan func() error
	afterwards func() error
	// rest ends the parts that rest before the others do; resting counts those that do not yet.
	rested context.Context
	// Of a reload: one at a time, what files held, what has the catalogue be looked at, and what comes next.
	reloading sync.Mutex
	files     map[string]string
	refresh   func()
	reopen    func() error // the access log's; nil where there is none
	next      *settings.Settings
	rest      func()
	resting   sync.WaitGroup
	takesOver atomic.Pointer[int64] // what the next life of a node of a cluster has leads be
	// reloadRooms takes up the rooms file of other settings; nil where the process has no waiting rooms.
	reloadRooms func(context.Context, *settings.Settings) error
}

// working is a running Server that works on its folder.
type working struct {
	*running
	writer *Writer
	bucket bucket.Bucket // of a node of a cluster
	// squeezed hears, on a node that writes, which contents have got smaller codings.
	squeezed func(kvstore.Hash)
	anew     bool // whether the process has had a life before this one
	// beforeEnd is what is left to do after a single pass.
	beforeEnd []func(context.Context) error
}

// Run does the server's work until ctx ends, or another process has taken over. Where nothing may write to the data folder,
// it serves what is left there. After a repair it begins anew.
func (s Server) Run(ctx context.Context) (err error) {
	s.Intervals = s.Intervals.withDefaults()
	l, ctx, err := openLasting(ctx, s.Settings, s.Serve, s.Logger, s.check)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close(err)) }()
	l.heed(ctx)
	var previous *settings.Settings
	for again := false; ; again = true {
		r, err := s.life(ctx, l, again)
		if err != nil && !errors.Is(err, errAgain) && s.leads != nil && ctx.Err() == nil {
			s.Logger.Error("this node could not publish; it follows", "err", err)
			if !errors.As(err, new(*cluster.NotWriterError)) { // another was faster
				s.leadFailures++
			}
			s.leads, s.leadAfter, again = nil, time.Now().Add(retry.Doubled(max(1, s.leadFailures), s.Intervals.Takeover, leadRest)), true
			continue
		}
		if err != nil && !errors.Is(err, errAgain) && again {
			if s.Settings, err = l.goBack(r, previous, err); err == nil {
				previous = nil
				continue
			}
		}
		if !errors.Is(err, errAgain) {
			if ctx.Err() != nil && (again || !s.Once) {
				err = withoutCancellation(ctx, err)
			}
			return err
		}
		if s.leads != nil { // it wrote, and its end was in order
			s.leadFailures = 0
		}
		if s.leads = r.takesOver.Load(); s.isNode() {
			s.Serving = func(string, func() (string, error)) {} // the first run of the role has announced the address
		}
		switch err := r.afterwards(); {
		case err == errTaken:
			return nil
		case err != nil || ctx.Err() != nil:
			return err
		}
		if previous = nil; r.next != nil {
			previous, s.Settings = s.Settings, r.next
			l.use(s.Settings)
		}
	}
}

// withoutCancellation returns err without the errors that it joins and whose only cause is that ctx ended while parts of the
// process started or ran. A stop on request is a failure only of a process that was started for a single pass.
func withoutCancellation(ctx context.Context, err error) error {
	if err == nil || causedBy(err, context.Canceled, context.Cause(ctx)) {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || errors.Join(joined.Unwrap()...).Error() != err.Error() { // its text says more than its causes
		return err
	}
	var failures []error
	for _, err := range joined.Unwrap() {
		failures = append(failures, withoutCancellation(ctx, err))
	}
	return errors.Join(failures...)
}

// causedBy reports whether each error at the end of a chain that err wraps is one of causes.
func causedBy(err error, causes ...error) bool {
	if slices.Contains(causes, err) {
		return true
	}
	switch err := err.(type) {
	case interface{ Unwrap() error }:
		return err.Unwrap() != nil && causedBy(err.Unwrap(), causes...)
	case interface{ Unwrap() []error }:
		return len(err.Unwrap()) > 0 && !slices.ContainsFunc(err.Unwrap(), func(err error) bool { return !causedBy(err, causes...) })
	}
	return false
}

// life does the server's work until ctx ends, or until it is to begin anew.
func (s Server) life(ctx context.Context, l *lasting, again bool) (*running, error) {
	w := &working{running: s.running(l, again), anew: again}
	parts, err := w.parts()
	if err == nil {
		err = run(ctx, s.Logger, parts)
	}
	var short *Shortfall
	if !s.Serve || !errors.As(err, &short) {
		return w.running, err
	}
	r := s.running(l, again)
	if parts, err = r.remains(short); err != nil {
		return r, err
	}
	return r, run(ctx, s.Logger, parts)
}

func (s Server) running(l *lasting, again bool) *running {
	r := &running{
		Server:   s,
		process:  process{settings: s.Settings, logger: s.Logger, metrics: newRegistry(), lasting: l},
		self:     Process{PID: os.Getpid(), Version: Version(), Started: l.started, Began: time.Now().UTC()},
		files:    s.Settings.Files(),
		repaired: make(chan func() error, 1),
	}
	r.rested, r.rest = context.WithCancel(context.Background())
	if p := l.sockets.only(forPrivate); p != nil {
		r.self.Private = p.at.Addr().String()
	}
	if s.Serve {
		r.self.Address = l.address(s.Settings)
	}
	l.begin(again, r.metrics, map[os.Signal]func(context.Context){
		syscall.SIGHUP:  func(ctx context.Context) { _, _ = r.reload(ctx) },       // the log tells
		syscall.SIGUSR2: func(ctx context.Context) { _, _ = r.startUpgrade(ctx) }, // the log tells
	})
	return r
}

// early has a part end before the others do, where another process takes over.
func (s *running) early(p part) part {
	start, work := p.start, p.run
	p.start = func(ctx context.Context) (err error) {
		if start != nil {
			err = start(ctx)
		}
		if err == nil {
			s.resting.Add(1) // run follows
		}
		return err
	}
	p.run = func(ctx context.Context) error {
		done := sync.OnceFunc(s.resting.Done)
		defer done()
		its, end := context.WithCancel(ctx)
		defer end()
		defer context.AfterFunc(s.rested, end)()
		if err := work(its); ctx.Err() != nil || s.rested.Err() == nil {
			return err
		}
		done()
		<-ctx.Done()
		return nil
	}
	return p
}

// A list of parts grows by those that are wanted.
type list []part

func (l *list) add(wanted bool, more ...part) {
	if wanted {
		*l = append(*l, more...)
	}
}

// parts are what the process is made of, in the order in which they start. What makes a key comes when nothing is left that
// the settings could have wrong.
func (s *working) parts() (parts list, err error) {
	if s.Mirror != nil {
		return s.mirrorParts()
	}
	if s.isNode() && s.leads == nil {
		return s.followerParts()
	}
	add := parts.add
	site := newServing(s.running)
	site.tells = true
	fill := &filling{working: s, serving: site}
	push := &pusher{working: s}
	pushes := s.Fill && s.settings.LogRepository != gitlog.Remote{}
	reviews := s.Serve && s.Fill && s.settings.ReviewRepository != ""
	if s.Serve && s.Fill {
		if fill.secret, err = s.settings.HookSecret(); err != nil {
			return nil, err
		}
	}

	add(pushes, part{name: "GitHub", start: push.open})
	add(s.Serve && s.settings.ReadyFile != "", s.noReadyFile())
	node := &clustered{working: s, site: site}
	if s.isNode() {
		site.node = node
	}
	add(s.isNode(), node.openBucket())
	add(true, s.dataFolder())
	add(s.isNode(), node.lead())
	add(s.Fill, part{name: "bot", start: fill.openBot})
	add(true, s.adminSocket(), s.signing(site))
	if s.isNode() {
		add(true, node.publicly()...)
	}
	add(pushes, part{name: "log push", start: push.start})
	add(true, part{name: "limit of memory", run: until(s.limitMemory)}, s.watchDisk())
	if s.Serve {
		s.answers = append(s.answers, func(all operations) { withdrawals{s.writer, site.inForce, s.settings.PurgeHook != ""}.operations(all) })
		add(s.hasRooms(), site.rooms())
		add(s.Fill, part{name: "catalogue on the site", start: fill.showOnSite})
		add(reviews, fill.reviewer())
		add(s.Fill && len(s.settings.Fallback) > 0, fill.fallback())
		add(s.settings.AccessLog != "", site.logging())
		add(len(s.settings.ACMEDomains) > 0, site.openCertificates())
		add(true, site.server(), site.usage(), site.following())
		add(true, site.keepCertificates()...)
		add(s.settings.PurgeHook != "", s.early(s.purging()))
		add(true, part{name: "announcement", start: site.announce})
		add(s.settings.ReadyFile != "", s.readyFile())
	}
	add(true, s.early(s.sending()), s.adminServer(func() (operations, http.Handler, error) {
		e, err := s.folder.errands.get()
		if err != nil {
			return nil, nil, err
		}
		all, schedule := s.operations(), e.schedule.Handler(schedulePath)
		if s.isNode() {
			all, schedule = node.saving(all), node.savingHTTP(schedule)
			reportLogSize(all)
		}
		return all, schedule, nil
	}))
	add(s.isNode(), node.answeringNodes(fill))
	switch {
	case s.Once:
		add(true, part{name: "single pass", run: fill.once})
	case s.Fill:
		add(true, s.early(part{name: "filling", run: fill.keepFilling}), s.early(part{name: "catalogue", run: until(fill.keep)}))
		add(pushes, s.early(part{name: "pushing", run: push.run}))
	}
	add(true, s.readiness(), s.beginAgain(), stopping(s.lasting.ending, s.Stopping))
	return parts, nil
}

// remains are the parts of a process that serves what is left of a folder to which nothing may write: no bot, no schedule,
// no webhooks, no purge hook, and nothing that signs or pushes the log.
func (s *running) remains(short *Shortfall) (parts list, err error) {
	site := newServing(s)
	site.lacking = short
	add := parts.add
	add(s.settings.ReadyFile != "", s.noReadyFile())
	s.lasting.doubt(func() (string, error) { return "", fmt.Errorf("read-only: %w", short) })
	add(true, site.remains(), s.adminSocket(), site.frozen())
	add(true, part{name: "limit of memory", run: until(s.limitMemory)})
	add(s.hasRooms(), site.rooms())
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
	add(true, s.readiness(), s.beginAgain(), stopping(s.lasting.ending, s.Stopping))
	return parts, nil
}

// check finds the mistakes in the settings before anything else has happened.
func (s Server) check() error {
	c := s.Settings
	if _, err := witnessPolicy(c); err != nil {
		return err
	}
	if s.Mirror != nil && len(c.Fallback) > 0 {
		return settings.Mistakef("%s: a mirror has what its source has and asks no other origin: leave that out here, and give it to `larder up` at the source", c.Origin("fallback"))
	}
	heedMemory(c, s.Serve, os.DirFS("/"), s.Logger)
	if !s.Serve {
		return nil
	}
	err := checkRooms(c)
	err = errors.Join(checkPurging(c), checkFallback(c), limitConnections(c, s.Logger), err)
	if c.TLSCert != "" {
		_, wrong := certificate(c, s.Logger)
		err = errors.Join(err, wrong)
	}
	if !s.Fill {
		return err
	}
	secret, wrong := c.HookSecret()
	if wrong == nil {
		wrong = checkReview(c, secret)
	}
	return errors.Join(err, wrong)
}

// hasRooms reports whether the process has waiting rooms.
func (s *running) hasRooms() bool { return s.Serve && s.settings.Rooms != settings.Off }

// dataFolder opens the data folder.
func (s *working) dataFolder() part {
	var unwatch func()
	return part{
		name: "data folder",
		start: func(ctx context.Context) (err error) {
			o := writing{openOptions: openOptions{working: true, follows: s.isNode() && s.leads == nil}, follow: s.Fill, events: s.metrics.counting(s.Events), node: s.isNode()}
			if s.Serve {
				o.address = s.self.Address
			}
			if s.leads != nil {
				o.squeezed = func(h kvstore.Hash) { s.squeezed(h) }
			}
			s.writer, err = s.openPatiently(ctx, o)
			if short := (*Shortfall)(nil); o.node && errors.As(err, &short) {
				if err = s.setAside(short); err == nil {
					o.afresh = true
					s.writer, err = openWriter(s.settings, o, s.logger)
				}
			}
			if err != nil {
				return err
			}
			s.folder = s.writer.Reader
			s.metrics.degraded(false)
			unwatch = s.metrics.watch(s.folder.store)
			s.onReady = append(s.onReady, func() {
				if err := s.folder.store.UseNewestFormat(); err != nil {
					s.logger.Warn("the store keeps the format that it has; the next start tries again", "err", err)
				}
			})
			return nil
		},
		stop: func() error {
			unwatch()
			err := s.writer.Close()
			if failed := s.folder.store.Failed(); failed != nil && s.brief.Load() {
				s.logger.Warn("the store was left as it is on the disk", "err", err)
				err = nil // the process is about to begin again
			}
			return err
		},
	}
}

// commandFor is how long a process that starts waits for a command.
const commandFor = 10 * time.Second

// openPatiently opens the data folder. It waits for a command, such as `larder status`, that has it open for a moment, because no process
// answered: before this one began, or between two of its lives. Then it waits as long as that takes, because clients wait, too.
func (s *working) openPatiently(ctx context.Context, o writing) (*Writer, error) {
	deadline := time.Now().Add(commandFor)
	for told := false; ; told = true {
		w, err := openWriter(s.settings, o, s.logger)
		if !errors.Is(err, kvstore.ErrLocked) {
			return w, err
		}
		if !s.anew {
			client, noAnswer := Dial(ctx, s.settings.Data)
			if noAnswer == nil {
				return nil, errors.Join(err, client.Close()) // another server, or a command that takes long
			}
			if time.Now().After(deadline) {
				return nil, err
			}
		}
		if !told {
			s.logger.Info("a command has the data folder open; this process goes on when it is done", "data", s.settings.Data)
		}
		if retry.Sleep(ctx, reachAgain) != nil {
			return nil, err
		}
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
			s.socket, err = admin.Listen(s.settings.Data)
			return err
		},
		stop: func() error {
			s.socket.Close() // harmless where the server has closed it
			return nil
		},
	}
}

// adminServer answers commands, and programs that have something to schedule. Its operations end with ctx.
func (s *running) adminServer(made func() (operations, http.Handler, error)) part {
	return s.answering("admin server", func(ctx context.Context) (*server.Server, []net.Listener, error) {
		all, schedule, err := made()
		if err != nil {
			return nil, nil, err
		}
		counted := s.folder.counted(all)
		s.reloadOperation(counted)
		s.upgradeOperation(counted) // not counted: the folder is closed while it is under way
		return newAdminServer(ctx, counted, schedule, acceptForwarded(s.lasting.succession), s.logger), []net.Listener{s.socket}, nil
	})
}

func newAdminServer(ctx context.Context, operations map[string]admin.Operation, schedule, late http.Handler, logger *slog.Logger) *server.Server {
	logger = logger.With("part", "admin")
	mux := http.NewServeMux()
	mux.Handle("/", admin.Handler(operations, logger))
	mux.Handle(schedulePath, schedule)
	mux.Handle(schedulePath+"/", schedule)
	mux.Handle(forwardPath, late)
	s := server.NewHTTPServer(mux, server.HTTPOptions{WriteTimeout: noTimeout, IdleAtEnd: noTimeout, Logger: logger})
	s.BaseContext = func(net.Listener) context.Context { return ctx }
	return s
}
