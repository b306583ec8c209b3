package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/priority"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/server"
)

// A Server is a process that has the data folder open and runs until it is asked to stop.
type Server struct {
	Settings *settings.Settings
	Logger   *slog.Logger
	// With Serve the process serves on the public address, with Fill it runs the bot. With Once the bot makes a single pass, or
	// a mirror catches up once, and that ends the process. Without a Mirror, Serve or Fill is set, and Once needs Fill.
	Serve, Fill, Once bool
	// Mirror has the process follow the log of another Larder, and with Serve serve that. It is set with Serve or with Once,
	// and not with Fill.
	Mirror *Mirror
	// Events is called with what the bot does. It must not be nil.
	Events func(sources.Event)
	// Serving is called whenever a run of the role has begun to serve; for a node of a cluster only if that is the first run.
	// address is the URL of the site. example looks up the path of a file in the store, and returns kvstore.ErrNotFound if the
	// store serves none; example is nil if a read-only store may lack files.
	Serving func(address string, example func() (path string, err error))
	// Filled is called when the bot has ended its single pass, also with an error.
	Filled func(sources.Summary)
	// Stopping is called when the process is asked to stop while it is ready. It must not be nil.
	Stopping func()
	// Intervals are those of a node of a cluster.
	Intervals ClusterIntervals
}

// A role is the work of a process during a run.
type role interface {
	// start opens the parts of the role one from another, and adds them to the run. They work until the run ends. After an error
	// the caller stops the parts that were added.
	start(ctx context.Context, r *roleRun) error
}

// chooseRole returns the role of the next run: that of a mirror if s has one, that of a follower if the settings c make the
// process a node of a cluster, else the standalone role. takeover says when a follower may try to lead; other roles ignore it.
func (s Server) chooseRole(c *settings.Settings, takeover takeoverBackoff) role {
	switch {
	case s.Mirror != nil:
		return mirrorRole{s}
	case s.isClusterNode(c):
		return followerRole{s, takeover}
	}
	return standaloneRole{s}
}

// isClusterNode reports whether a process with the settings c is a node of a cluster: it serves, is no mirror, and c has a
// bucket.
func (s Server) isClusterNode(c *settings.Settings) bool {
	return s.Serve && s.Mirror == nil && c.Bucket != ""
}

// Run runs one role after the other until ctx ends, the work is done or another process has taken over, and returns nil then.
// But a single pass (Once) that ctx interrupts returns its error, as does what fails while the process stops. Run also returns
// an error before the first run, such as that of a socket that cannot be opened, and that of a run that no other run can
// follow. Another run follows after a reload that needs it, a repair, a failed upgrade, and a change between leader and
// follower or to or from read-only mode.
func (s Server) Run(ctx context.Context) (err error) {
	s.Intervals.Takeover = cmp.Or(s.Intervals.Takeover, 10*time.Second)
	s.Intervals.Squeeze = cmp.Or(s.Intervals.Squeeze, 10*time.Second)
	v, ctx, err := newSupervisor(ctx, s.Settings, s.Serve, s.Logger, func() error { return s.checkSettings(s.Settings) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.close(err)) }()
	if s.Serve {
		if err := priority.RaiseForRequests(); err != nil {
			s.Logger.Debug("requests wait for other processes", "err", err)
		}
	}
	v.signals.set(nil)
	v.signals.handleSignals(ctx)
	next := s.chooseRole(s.Settings, takeoverBackoff{})
	for again := false; next != nil; again = true {
		r, now := s.newRun(ctx, v, again), next
		requested, failure := r.runRole(now)
		next, err = s.transition(ctx, r, now, requested, failure)
	}
	return err
}

// newRun prepares a run, and sets what signals do during it: SIGHUP reloads the configuration, SIGUSR2 upgrades the process. again
// says that another run came before.
func (s Server) newRun(ctx context.Context, v *supervisor, again bool) *roleRun {
	r := newRoleRun(ctx, v, again)
	if s.Serve {
		r.self.Address = v.publicURL(r.settings)
	}
	v.signals.set(map[os.Signal]func(context.Context){
		syscall.SIGHUP:  func(ctx context.Context) { _, _ = r.reload(ctx, s.checkSettings) }, // the log reports errors
		syscall.SIGUSR2: func(ctx context.Context) { _, _ = r.startUpgrade(ctx) },            // the log reports errors
	})
	return r
}

// transition decides what follows the run r, whose role was ended. It returns the role of the next run, or nil if the process
// ends; the error says why it ends, nil if it was asked to, or its work is done. requested is the restart that a part has
// requested, or nil; err is why the run failed, or nil. A store that cannot be written leads to read-only mode, a leader that
// failed follows, and a new configuration that does not start is replaced by the last one that worked.
func (s Server) transition(ctx context.Context, r *roleRun, ended role, requested *restart, err error) (role, error) {
	short, unwritable := (*Shortfall)(nil), (*readOnlyError)(nil)
	stopgap, readOnly := ended.(readOnlyRole)
	wanted := ended
	if readOnly {
		wanted = stopgap.instead
	}
	led, leads := wanted.(leaderRole)
	c := &r.supervisor.configuration
	if err != nil {
		requested.cancel()
	}
	switch {
	case err == nil && requested != nil:
		return s.followRestart(ctx, r, takeoverAfter(wanted), requested)
	case !readOnly && s.Serve && errors.As(err, &short):
		return readOnlyRole{s, short, ended}, nil
	case err != nil && leads && ctx.Err() == nil:
		s.Logger.Error("this node couldn't lead; it follows", "err", err)
		return s.chooseRole(c.inForce.Get(), led.takeover.afterFailure(err, s.Intervals.Takeover)), nil
	case err != nil && !r.ready.Load() && r.supervisor.ending.Err() == nil && !errors.As(err, &short) && c.restoreWorking(r.settings):
		r.supervisor.changing.setFailure(fmt.Errorf("couldn't start with the new configuration, so the one before is in force again: %w", err))
		s.Logger.Error("couldn't start with the new configuration, so the one before is in force again", "err", err)
		return s.chooseRole(c.inForce.Get(), takeoverAfter(wanted)), nil
	case !readOnly && s.Serve && !r.ready.Load() && (r.again || r.supervisor.older == nil) && errors.As(err, &unwritable):
		// The first run of a process that replaces an older one fails instead: the older one continues.
		return readOnlyRole{s, unwritable, ended}, nil
	case ctx.Err() != nil && (r.again || !s.Once):
		return nil, parts.WithoutCancellation(ctx, err)
	}
	return nil, err
}

// followRestart calls the restart's function between runs, and returns the role of the run that follows r for the requested
// restart. The role is nil if the process ends: with the error of that function, or without one because another process has
// taken over or this one was asked to stop.
func (s Server) followRestart(ctx context.Context, r *roleRun, takeover takeoverBackoff, requested *restart) (role, error) {
	if requested.before != nil {
		switch err := requested.before(); {
		case err == errTaken:
			return nil, nil
		case err != nil:
			return nil, err
		}
	}
	if ctx.Err() != nil || r.supervisor.ending.Err() != nil {
		return nil, nil
	}
	if requested.role != nil {
		return requested.role, nil
	}
	return s.chooseRole(r.supervisor.configuration.inForce.Get(), takeover), nil
}

// checkSettings completes settings before they come into force: it reads the files that they name, and changes c so that
// default sizes fit into the memory and the open files that the system allows. It returns mistakes in c, not always all of
// them, and nil for none. It sends no request.
func (s Server) checkSettings(c *settings.Settings) error {
	c.ReadFiles()
	if _, err := witnessPolicy(c); err != nil {
		return err
	}
	if s.Mirror != nil && len(c.Fallback) > 0 {
		return settings.Mistakef("%s: a mirror has what its source has and asks no other origin: leave that out here, and give it to `larder up` at the source", c.Origin("fallback"))
	}
	c.FitMemory(s.Serve, os.DirFS("/"), s.Logger)
	if !s.Serve {
		return nil
	}
	err := errors.Join(checkPurgeHook(c), checkFallback(c), c.FitConnections(s.Logger), checkRooms(c))
	if c.TLSCert != "" {
		_, wrong := server.OpenCertificate(c.TLSCert, c.TLSKey, s.Logger)
		err = errors.Join(err, wrong)
	}
	if !s.Fill {
		return err
	}
	_, wrong := c.HookSecret()
	err = errors.Join(err, wrong)
	if c.SigstoreRoot != "" {
		_, wrong = newAttestationVerifier(c)
		err = errors.Join(err, wrong)
	}
	return err
}
