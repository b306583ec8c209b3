package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

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

// reload reads configuration and rooms again and looks at the catalogue: all of it counts from now on, or where something is
// wrong, nothing.
func (s *running) reload(ctx context.Context) (done Reloaded, err error) {
	notify(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
	defer notify(daemon.SdNotifyReady)
	defer func() {
		if err != nil {
			s.logger.Error("the configuration is what it was, because it cannot be read again", "err", err)
		}
	}()
	s.reloading.Lock()
	defer s.reloading.Unlock()
	if !s.begun.Load() {
		return done, errNotBegun
	}
	if s.reopen != nil { // in any case: whoever rotates logs does not care about the configuration
		if failed := s.reopen(); failed != nil {
			defer func() { err = errors.Join(err, fmt.Errorf("couldn't reopen the access log: %w", failed)) }()
		}
	}
	fresh, err := s.settings.Reload()
	if err != nil {
		return done, err
	}
	next := s.Server
	next.Settings = fresh
	if err := next.check(); err != nil {
		return done, err
	}
	files := fresh.Files()
	done.Changed, done.Restart = fresh.TakeUp(s.settings)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if files[name] != s.files[name] && !slices.Contains(done.Changed, name) {
			done.Changed = append(done.Changed, name)
		}
	}
	wants := slices.DeleteFunc(slices.Clone(done.Changed), func(name string) bool {
		return name == "log-level" || slices.Contains(done.Restart, name)
	})
	reloadRooms := s.reloadRooms != nil && fresh.Rooms != settings.Off // no connection is affected
	if reloadRooms {
		wants = slices.DeleteFunc(wants, func(name string) bool { return name == "rooms" })
	}
	if done.Anew = len(wants) > 0; done.Anew && !s.lasting.upgrading.TryLock() { // before anything is changed
		return done, errUpgrading
	}
	if reloadRooms {
		if err := s.reloadRooms(ctx, fresh); err != nil {
			if done.Anew {
				s.lasting.upgrading.Unlock()
			}
			return done, err
		}
		s.files["rooms"] = files["rooms"]
		s.settings.UseRooms(fresh)
	}
	if done.Anew {
		s.lasting.fails(nil)
		go func() {
			defer s.lasting.upgrading.Unlock()
			s.quieten()
			if !s.again(func() error {
				s.next = fresh
				return nil
			}) {
				s.lasting.fails(errors.New("the process began anew for another reason meanwhile, without the new configuration; reload again"))
			}
		}()
	}
	fresh.SetLevel()
	if s.refresh != nil {
		s.refresh()
	}
	s.logger.Info("the configuration was read again", "changed", strings.Join(done.Changed, " "), "begins anew", done.Anew)
	if len(done.Restart) > 0 {
		s.logger.Warn("settings that only a restart changes stay what they were", "settings", strings.Join(done.Restart, " "))
	}
	return done, nil
}

// reloadOperation adds what `larder reload` asks.
func (s *running) reloadOperation(all operations) {
	answer(all, OpReload, func(ctx context.Context, _ struct{}, _ func(any)) (Reloaded, error) { return s.reload(ctx) })
}

// goBack returns the settings that a process goes on with that could not begin anew with others because of err, and err
// where there are none.
func (l *lasting) goBack(r *running, previous *settings.Settings, err error) (*settings.Settings, error) {
	if previous == nil || r.begun.Load() || l.ending.Err() != nil || errors.As(err, new(*Shortfall)) {
		return nil, err
	}
	l.fails(fmt.Errorf("the process could not begin anew with the new configuration, so that stays what it was: %w", err))
	l.logger.Error("the process could not begin anew with the new configuration, so that stays what it was", "err", err)
	previous.SetLevel()
	return previous, nil
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
