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

// A reloader has the parts of a role take up a configuration that was read again.
type reloader struct {
	mu      sync.Mutex
	files   map[string]string // contents of the files that the settings name
	inPlace map[string]applySetting
	refresh []func()
	reopen  []func() error
}

// An applySetting takes up a setting of a fresh configuration without another run of the role. It reports false where that takes one.
type applySetting func(ctx context.Context, fresh *settings.Settings) (applied bool, err error)

// applyInPlace has a setting be taken up by apply.
func (l *reloader) applyInPlace(setting string, apply applySetting) {
	if l.inPlace == nil {
		l.inPlace = map[string]applySetting{}
	}
	l.inPlace[setting] = apply
}

// onReload has refresh be called at each reload.
func (l *reloader) onReload(refresh func()) { l.refresh = append(l.refresh, refresh) }

// reopenOnReload has reopen be called at each reload that another run of the role does not follow.
func (l *reloader) reopenOnReload(reopen func() error) { l.reopen = append(l.reopen, reopen) }

// readAgain reads configuration and rooms again and polls the catalogue: all of it counts from now on, or where check finds something
// wrong, nothing.
func (r *roleRun) readAgain(ctx context.Context, check func(*settings.Settings) error) (done Reloaded, err error) {
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
	for name, apply := range l.inPlace { // no connection is affected
		applied, err := apply(ctx, fresh)
		if err != nil {
			return done, err
		}
		if applied {
			wants = slices.DeleteFunc(wants, func(changed string) bool { return changed == name })
			l.files[name] = files[name]
		}
	}
	if done.Anew = len(wants) > 0; done.Anew {
		changing := &r.supervisor.changing
		if !changing.making.TryLock() {
			return done, errUpgrading
		}
		changing.setFailure(nil)
		go func() {
			defer changing.making.Unlock()
			r.quiesce()
			r.restart(restart{settings: fresh})
		}()
	}
	fresh.SetLevel()
	for _, refresh := range l.refresh {
		refresh()
	}
	for _, reopen := range l.reopen {
		if done.Anew {
			break
		}
		if err := reopen(); err != nil {
			return done, fmt.Errorf("everything else was read again: %w", err)
		}
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
