package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/larder-cdn/larder/internal/configstore"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/settings"
)

// OpReload has the process read its configuration again.
const OpReload Operation[struct{}, any, Reloaded] = "reload"

// Reloaded is what a reload has changed.
type Reloaded struct {
	Changed []string `json:"changed"` // settings, and settings that name a file with other content
	Restart []string `json:"restart"` // those of Changed that come into force only when the process is started again
	// Restarted says that the role restarts, which applies the others: connections wait for a moment.
	Restarted bool `json:"restarted"`
}

// errNotReady is the error of a reload or upgrade while no run of a role is ready.
var errNotReady = errors.New("the process is still opening the store; try again when it serves")

// configuration is the settings of the process. A version never changes: a reload puts a new one into force. Each run of a role
// is built from the version that is in force when it starts.
type configuration struct {
	inForce configstore.Value[*settings.Settings]
	working atomic.Pointer[settings.Settings] // the last version with which all parts of a role have started; nil before that
	reading sync.Mutex                        // held by a reload, which ends before its run of the role does
}

// restoreWorking replaces failed, the settings in force, by the last version with which all parts of a role have started, and
// applies the log level of that. If there is no such version, or it is failed itself, it changes nothing and returns false.
func (c *configuration) restoreWorking(failed *settings.Settings) bool {
	working := c.working.Load()
	if working == nil || working == failed {
		return false
	}
	c.inForce.Set(working)
	working.ApplyLogLevel()
	return true
}

// subscribe has apply called with each new version of the settings before that comes into force, until the run ends. If apply
// returns an error, the version does not come into force; other subscribers may have applied it already.
func (r *roleRun) subscribe(apply func(context.Context, *settings.Settings) error) {
	unsubscribe := r.supervisor.configuration.inForce.Subscribe(apply)
	r.parts.Add(parts.Part{Name: "subscription to the configuration", Stop: parts.StopBy(unsubscribe)})
}

// reload reopens log files, reads the configuration again, and puts it into force. If check or a subscriber returns an error,
// the old configuration stays in force. If only a log file cannot be reopened, the new configuration is in force, and the error
// says so, unless the role restarts. reload does not wait for such a restart. It logs a failure, and adds it to the status of
// the process unless a restart or an upgrade is under way. Between two runs it changes nothing and returns errNotReady.
func (r *roleRun) reload(ctx context.Context, check func(*settings.Settings) error) (done Reloaded, err error) {
	c := &r.supervisor.configuration
	c.reading.Lock()
	defer c.reading.Unlock()
	if !r.ready.Load() || r.restarts.haveEnded() {
		r.logger.Warn("nothing was reloaded", "err", errNotReady)
		return done, errNotReady
	}
	notifyManager(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
	defer notifyManager(daemon.SdNotifyReady)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.parts.Context(), cancel)()
	var unopened error
	for _, reopen := range r.reopen { // also if the configuration is invalid: log rotation does not depend on it
		unopened = errors.Join(unopened, reopen())
	}
	done, err = r.replaceConfiguration(ctx, check)
	switch {
	case err != nil:
		err = errors.Join(err, unopened)
		r.logger.Error("couldn't reload the configuration; the one before stays in force", "err", err)
	case unopened != nil && !done.Restarted: // the next run opens the files of the new configuration
		r.logger.Error("couldn't reopen the access log", "err", unopened)
		err = fmt.Errorf("everything else was reloaded: %w", unopened)
	}
	changing := &r.supervisor.changing
	if (err != nil || !done.Restarted) && changing.making.TryLock() { // otherwise the new run, or the upgrade, records its own outcome
		changing.setFailure(err)
		changing.making.Unlock()
	}
	return done, err
}

// replaceConfiguration reads the configuration again, checks it by check, notifies the subscribers, and puts it and its log
// level into force. If a changed setting needs it, it requests a restart of the role, which it does not wait for; errUpgrading
// says that an upgrade prevents that. It returns which settings changed; these count only without an error. After any error the
// old configuration stays in force.
func (r *roleRun) replaceConfiguration(ctx context.Context, check func(*settings.Settings) error) (done Reloaded, err error) {
	c, changing := &r.supervisor.configuration, &r.supervisor.changing
	old := c.inForce.Get()
	fresh, err := old.Reload()
	if err == nil {
		err = check(fresh)
	}
	if err != nil {
		return done, err
	}
	changes := fresh.DiffFrom(old)
	done = Reloaded{Changed: changes.Names, Restart: changes.Fixed, Restarted: changes.Run}
	if changes.Run { // a process that takes over has read the configuration before
		if !changing.making.TryLock() {
			return done, errUpgrading
		}
		defer changing.making.Unlock()
	}
	if err := c.inForce.Notify(ctx, fresh); err != nil {
		return done, err
	}
	number := c.inForce.Set(fresh)
	if !changes.Run { // the parts work with it
		c.working.CompareAndSwap(old, fresh)
	}
	fresh.ApplyLogLevel()
	r.logger.Info("reloaded the configuration", "version", number, "changed", strings.Join(done.Changed, " "), "restarts", done.Restarted)
	if len(done.Restart) > 0 {
		r.logger.Warn("settings that only a restart of the process changes stay as they were", "settings", strings.Join(done.Restart, " "))
	}
	if changes.Run {
		changing.setFailure(nil)
		r.requestQuietRestart(restart{}) // if another restart is about to happen, that run has this version, too
	}
	return done, nil
}

// Reload makes the process on the data folder data reload its configuration. It returns when the configuration is in force, and
// the role has restarted if that was necessary. The error is that of the process, of reaching it, or that with which the new
// run failed; in the last case the old configuration is in force again. For states after other errors see [roleRun.reload].
func Reload(ctx context.Context, data string) (done Reloaded, err error) {
	client, err := dialRunning(ctx, data)
	if err != nil {
		return done, err
	}
	before, err := OpProcess.Ask(ctx, client, struct{}{}, nil)
	if err == nil {
		done, err = OpReload.Ask(ctx, client, struct{}{}, nil)
	}
	if err = errors.Join(err, client.Close()); err != nil || !done.Restarted {
		return done, err
	}
	before.Failed = "" // the reload has cleared it
	return done, before.awaitNextRun(ctx, data)
}

// awaitNextRun waits until the process on the data folder data has restarted its role since p, an earlier state of the process,
// was read. It returns the failure that the process reports, unless p has the same one, and an error if ctx ends or
// upgradeTimeout passes.
func (p Process) awaitNextRun(ctx context.Context, data string) error {
	ctx, cancel := context.WithTimeout(ctx, upgradeTimeout)
	defer cancel()
	for {
		now, err := requestProcess(ctx, data)
		switch {
		case err == nil && now.Failed != "" && now.Failed != p.Failed:
			return errors.New(now.Failed)
		case err == nil && now.RunStarted.After(p.RunStarted):
			return nil
		case retry.Sleep(ctx, upgradePoll) != nil:
			return fmt.Errorf("the process does not serve again; its log says why: %w", context.Cause(ctx))
		}
	}
}

// requestProcess returns the state of the process on a data folder. The error is [ErrNoProcess] if none runs.
func requestProcess(ctx context.Context, data string) (p Process, err error) {
	client, err := Dial(ctx, data)
	if err != nil {
		return p, err
	}
	p, err = OpProcess.Ask(ctx, client, struct{}{}, nil)
	return p, errors.Join(err, client.Close())
}
