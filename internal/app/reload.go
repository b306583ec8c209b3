package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/settings"
)

// OpReload has the process read its configuration again.
const OpReload Operation[struct{}, any, Reloaded] = "reload"

// Reloaded is what reading the configuration again came to.
type Reloaded struct {
	Changed []string `json:"changed"` // settings, and files that settings name
	Restart []string `json:"restart"` // those of them that only a restart changes
	// Anew says that the process begins anew with the others: connections wait for a moment.
	Anew bool `json:"anew"`
}

// errNotBegun is about what cannot be done yet.
var errNotBegun = errors.New("the process is still opening the store; try again when it serves")

// errNotTakenUp is about a configuration that the next run of the role does not have.
var errNotTakenUp = errors.New("the process began anew for another reason meanwhile, without the new configuration; reload again")

// A reloader has the parts of a role take up a configuration that was read again.
type reloader struct {
	mu      sync.Mutex
	files   map[string]string // contents of the files that the settings name
	live    []liveSetting
	refresh []func()       // are called after the configuration was read again
	reopen  []func() error // are called before, also if the configuration is invalid: log rotation does not depend on it
}

// A liveSetting takes effect without another run of the role.
type liveSetting struct {
	name    string
	applies func(fresh *settings.Settings) bool // whether apply can take up a fresh configuration
	apply   func(ctx context.Context, fresh *settings.Settings) error
}

// readAgain reads configuration and rooms again and polls the catalogue: all of it counts from now on, or where check finds something
// wrong, nothing.
func (r *roleRun) readAgain(ctx context.Context, check func(*settings.Settings) error) (done Reloaded, err error) {
	var failed error // of reopening
	defer func() {
		switch {
		case failed == nil || done.Anew: // the next run opens the files of the new configuration
		case err == nil:
			err = fmt.Errorf("everything else was read again: %w", failed)
			r.logger.Error("the access log could not be reopened", "err", failed)
		default:
			err = errors.Join(err, failed)
		}
	}()
	notify(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
	defer notify(daemon.SdNotifyReady)
	defer func() {
		if err != nil {
			r.logger.Error("the configuration is what it was, because it cannot be read again", "err", err)
		}
	}()
	l := &r.reload
	l.mu.Lock()
	defer l.mu.Unlock()
	if !r.ready.Load() {
		return done, errNotBegun
	}
	for _, reopen := range l.reopen {
		failed = errors.Join(failed, reopen())
	}
	fresh, err := r.settings.Reload()
	if err != nil {
		return done, err
	}
	if err := check(fresh); err != nil {
		return done, err
	}
	files := fresh.Files()
	done.Changed, done.Restart = fresh.TakeUp(r.settings)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if files[name] != l.files[name] && !slices.Contains(done.Changed, name) {
			done.Changed = append(done.Changed, name)
		}
	}
	wants := slices.DeleteFunc(slices.Clone(done.Changed), func(name string) bool {
		return name == "log-level" || slices.Contains(done.Restart, name)
	})
	live := slices.DeleteFunc(slices.Clone(l.live), func(s liveSetting) bool { return !s.applies(fresh) })
	for _, s := range live {
		wants = slices.DeleteFunc(wants, func(name string) bool { return name == s.name })
	}
	changing := &r.supervisor.changing
	if done.Anew = len(wants) > 0; done.Anew && !changing.making.TryLock() { // before anything is changed
		return done, errUpgrading
	}
	for _, s := range live {
		if err := s.apply(ctx, fresh); err != nil {
			if done.Anew {
				changing.making.Unlock()
			}
			return done, err
		}
		l.files[s.name] = files[s.name]
	}
	if done.Anew {
		changing.setFailure(nil)
		how := restart{
			settings: fresh,
			before:   func() error { changing.making.Unlock(); return nil },
			abandon:  func() { changing.setFailure(errNotTakenUp); changing.making.Unlock() },
		}
		if !r.restartQuietly(how) {
			changing.making.Unlock()
			return done, errNotTakenUp
		}
	}
	fresh.SetLevel()
	for _, refresh := range l.refresh {
		refresh()
	}
	r.logger.Info("the configuration was read again", "changed", strings.Join(done.Changed, " "), "begins anew", done.Anew)
	if len(done.Restart) > 0 {
		r.logger.Warn("settings that only a restart changes stay what they were", "settings", strings.Join(done.Restart, " "))
	}
	return done, nil
}

// Reload has the process on a data folder read its configuration again, and returns when that counts.
func Reload(ctx context.Context, data string) (done Reloaded, err error) {
	client, err := Dial(ctx, data)
	if err != nil {
		return done, err
	}
	before, err := OpProcess.Ask(ctx, client, struct{}{}, nil)
	if err == nil {
		done, err = OpReload.Ask(ctx, client, struct{}{}, nil)
	}
	if err = errors.Join(err, client.Close()); err != nil || !done.Anew {
		return done, err
	}
	return done, before.awaitNext(ctx, data)
}

// awaitNext returns when the process on a data folder has begun anew, since it said that it is p.
func (p Process) awaitNext(ctx context.Context, data string) error {
	ctx, cancel := context.WithTimeout(ctx, upgradeWait)
	defer cancel()
	for {
		now, err := askProcess(ctx, data)
		switch {
		case err == nil && now.Failed != "":
			return errors.New(now.Failed)
		case err == nil && now.Began.After(p.Began):
			return nil
		case retry.Sleep(ctx, upgradeAgain) != nil:
			return fmt.Errorf("the process does not say that it serves again; look at its log: %w", context.Cause(ctx))
		}
	}
}

func askProcess(ctx context.Context, data string) (p Process, err error) {
	client, err := Dial(ctx, data)
	if err != nil {
		return p, err
	}
	p, err = OpProcess.Ask(ctx, client, struct{}{}, nil)
	return p, errors.Join(err, client.Close())
}
