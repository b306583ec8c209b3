package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// newReload returns a process with a configuration file, of which reloadRooms is called by a reload.
func newReload(t *testing.T, reloadRooms func(context.Context) error) (r *roleRun, write func(string), reopened *int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "larder.yaml")
	write = func(config string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("name: One\n")
	s := settings.New()
	if err := s.Flags.Set("config", file); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(nil); err != nil {
		t.Fatal(err)
	}
	s.NewLogger(&strings.Builder{}, slog.LevelInfo)
	logger := slog.New(slog.DiscardHandler)
	reopened = new(int)
	s.ReadFiles()
	r = &roleRun{
		settings: s, logger: logger, supervisor: &supervisor{ending: t.Context()}, parts: parts.NewGroup(t.Context(), logger),
		restarts: restarts{begin: make(chan struct{})},
		reopen:   []func() error{func() error { *reopened++; return nil }},
	}
	r.supervisor.configuration.inForce.Set(s)
	r.subscribe(func(ctx context.Context, _ *settings.Settings) error { return reloadRooms(ctx) })
	r.ready.Store(true)
	return r, write, reopened
}

// Those who wait for the announcement of the site may reload the process at once. A run whose announcement fails is not ready.
func TestReloadAtAnnouncement(t *testing.T) {
	r, write, _ := newReload(t, func(context.Context) error { return nil })
	r.ready.Store(false)
	write("name: Another\n")
	announced := false
	r.announce = []func() error{func() error {
		announced = true
		done, err := r.reload(t.Context(), Server{Logger: r.logger}.checkSettings)
		if err != nil || !done.Restarted {
			t.Errorf("%+v, %v", done, err)
		}
		return nil
	}}
	if err := r.markReady(func() {}); err != nil || !announced {
		t.Errorf("announced is %v, %v", announced, err)
	}

	r, write, _ = newReload(t, func(context.Context) error { return nil })
	r.ready.Store(false)
	write("name: Another\n")
	failed := errors.New("there is no such folder")
	r.announce = []func() error{func() error { return failed }}
	r.onReady = []func(){func() { t.Error("it is ready") }}
	if err := r.markReady(func() {}); !errors.Is(err, failed) {
		t.Error(err)
	}
	if _, err := r.reload(t.Context(), Server{Logger: r.logger}.checkSettings); !errors.Is(err, errNotReady) {
		t.Errorf("a reload after the announcement failed: %v", err)
	}
}

// A reload reopens the logs, also if the configuration cannot be taken up.
func TestReloadReopensLogs(t *testing.T) {
	refused := &waitingroom.SupersededFileError{File: "rooms.yaml", Version: 1, Current: 2}
	r, write, reopened := newReload(t, func(context.Context) error { return refused })
	if _, err := r.reload(t.Context(), Server{Logger: r.logger}.checkSettings); !errors.Is(err, refused) || *reopened != 1 {
		t.Errorf("reopened %d times, %v", *reopened, err)
	}
	write("no-such-setting: 1\n")
	if _, err := r.reload(t.Context(), Server{Logger: r.logger}.checkSettings); err == nil || *reopened != 2 {
		t.Errorf("reopened %d times, %v", *reopened, err)
	}
}

// A log that cannot be reopened keeps nothing else from coming into force, and does not matter if another run opens its own.
func TestReloadWithLogThatCannotBeReopened(t *testing.T) {
	r, write, _ := newReload(t, func(context.Context) error { return nil })
	gone := errors.New("the folder is gone")
	r.reopen = []func() error{func() error { return gone }}
	write("name: One\nlame-duck: 5s\n")
	if done, err := r.reload(t.Context(), Server{Logger: r.logger}.checkSettings); !errors.Is(err, gone) || !strings.Contains(err.Error(), "everything else was reloaded") || done.Restarted {
		t.Errorf("%+v, %v", done, err)
	}
	if got := r.supervisor.configuration.inForce.Get().LameDuck; got != 5*time.Second {
		t.Errorf("the lame duck is %v", got)
	}
	write("name: Another\n")
	if done, err := r.reload(t.Context(), Server{Logger: r.logger}.checkSettings); err != nil || !done.Restarted {
		t.Errorf("%+v, %v", done, err)
	}
	<-r.restarts.begin
}

// A reload that cannot begin, because of an upgrade, changes no rooms.
func TestReloadDuringUpgrade(t *testing.T) {
	changed, refused := 0, error(nil)
	r, write, _ := newReload(t, func(context.Context) error { changed++; return refused })
	write("name: Another\n")
	r.supervisor.changing.making.Lock()
	if _, err := r.reload(t.Context(), Server{Logger: r.logger}.checkSettings); !errors.Is(err, errUpgrading) || changed != 0 {
		t.Errorf("rooms were changed %d times, %v", changed, err)
	}
	r.supervisor.changing.making.Unlock()
	refused = errors.New("refused")
	if _, err := r.reload(t.Context(), Server{Logger: r.logger}.checkSettings); !errors.Is(err, refused) {
		t.Error(err)
	}
	if name := r.supervisor.configuration.inForce.Get().Name; name != "One" {
		t.Errorf("%s is in force, which was refused", name)
	}
	if got := r.supervisor.changing.failure(); !strings.Contains(got, "refused") {
		t.Errorf("the status has the failure %q", got)
	}
	if !r.supervisor.changing.making.TryLock() {
		t.Error("a reload that fails keeps others out")
	}
}

// waitRole is a role that ends when its run restarts.
type waitRole struct{ run func(*roleRun) }

func (w waitRole) start(_ context.Context, r *roleRun) error {
	r.parts.Add(parts.Part{Name: "restart", Run: r.awaitRestart})
	w.run(r)
	return nil
}

// A reload that is under way when its run ends for another reason, such as a promotion, ends before the next run starts. That has the
// new configuration if the reload succeeds, and all of the old one if it does not.
func TestReloadWhileRunEnds(t *testing.T) {
	for _, succeeds := range []bool{true, false} {
		applying := make(chan struct{})
		r, write, _ := newReload(t, func(ctx context.Context) error {
			close(applying)
			<-ctx.Done() // the run ends
			if succeeds {
				return nil
			}
			return ctx.Err()
		})
		write("name: Another\nrooms: off\n")
		reloaded := make(chan error, 1)
		requested, err := r.runRole(waitRole{func(r *roleRun) {
			go func() {
				_, err := r.reload(context.Background(), Server{Logger: r.logger}.checkSettings)
				reloaded <- err
			}()
			<-applying
			r.requestRestart(restart{role: mirrorRole{}})
		}})
		if err != nil || requested == nil || requested.role == nil {
			t.Fatalf("%+v follows, %v", requested, err)
		}
		again := newRoleRun(t.Context(), r.supervisor, true) // while the reload may go on
		if r.again || !again.again {
			t.Errorf("another run came before the first: %v, before the next: %v", r.again, again.again)
		}
		next := again.settings
		if err := <-reloaded; (err == nil) != succeeds {
			t.Error(err)
		}
		want := map[bool]string{true: "Another, off", false: "One, "}[succeeds]
		if got := next.Name + ", " + next.Rooms; got != want || next != r.supervisor.configuration.inForce.Get() {
			t.Errorf("the next run has %q, want %q", got, want)
		}
		if _, err := r.reload(t.Context(), Server{Logger: r.logger}.checkSettings); !errors.Is(err, errNotReady) {
			t.Errorf("a reload by a run that has ended: %v", err)
		}
	}
}

// A process starts without its rooms file if there is a record, and not otherwise.
func TestRoomsFileIsNeededWithoutRecord(t *testing.T) {
	s := &settings.Settings{Data: t.TempDir(), Rooms: filepath.Join(t.TempDir(), "rooms.yaml")}
	s.ReadFiles()
	if err := checkRooms(s); !errors.As(err, new(settings.Mistake)) {
		t.Errorf("without a record: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(s.Data, waitingroom.RecordFolder, "version", "1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkRooms(s); err != nil {
		t.Errorf("with a record: %v", err)
	}
}

// The content of a file that a setting names belongs to the version of the settings.
func TestReloadOfNamedFile(t *testing.T) {
	r, write, _ := newReload(t, func(context.Context) error { return nil })
	root := filepath.Join(t.TempDir(), "root.json")
	write("name: One\nsigstore-root: " + root + "\n")
	if err := os.WriteFile(root, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	none := func(s *settings.Settings) error { s.ReadFiles(); return nil }
	if _, err := r.replaceConfiguration(t.Context(), none); err != nil {
		t.Fatal(err)
	}
	if done, err := r.replaceConfiguration(t.Context(), none); err != nil || len(done.Changed) > 0 {
		t.Errorf("the same file: %+v, %v", done, err)
	}
	if err := os.WriteFile(root, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if done, err := r.replaceConfiguration(t.Context(), none); err != nil || !slices.Equal(done.Changed, []string{"sigstore-root"}) || !done.Restarted {
		t.Errorf("another file: %+v, %v", done, err)
	}
	filling := Server{Serve: true, Fill: true, Logger: r.logger}
	if _, err := r.replaceConfiguration(t.Context(), filling.checkSettings); !errors.As(err, new(settings.Mistake)) || !strings.Contains(err.Error(), "trusted root") {
		t.Errorf("a file that is no trusted root: %v", err)
	}
}
