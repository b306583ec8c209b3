package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/cluster"
)

// describeRole returns a role as the tests below have it.
func describeRole(r role) string {
	text := "end"
	switch r := r.(type) {
	case standaloneRole:
		text = "alone"
	case mirrorRole:
		text = "mirror"
	case followerRole:
		text = fmt.Sprintf("follower after %d failures", r.takeover.failures)
	case leaderRole:
		text = fmt.Sprintf("leader after epoch %d", r.epoch)
	case readOnlyRole:
		text = "read-only"
	}
	return text
}

// TestTransition has each way in which a run ends, and the run that follows.
func TestTransition(t *testing.T) {
	one, two := settings.New(), settings.New()
	one.NewLogger(t.Output(), slog.LevelInfo) // SetLevel needs it
	names := map[*settings.Settings]string{one: "one", two: "two"}
	alone := Server{Serve: true, Fill: true, Logger: slog.New(slog.DiscardHandler)}
	node, mirror, once := alone, alone, alone
	mirror.Mirror, once.Once, node.Intervals = &Mirror{}, true, ClusterIntervals{Takeover: time.Second}
	for _, s := range []*settings.Settings{one, two} {
		s.Bucket = "file:///bucket"
	}
	broken, short := errors.New("broken"), &Shortfall{Damage: errors.New("damaged")}
	failed := takeoverBackoff{failures: 2}
	for _, tt := range []struct {
		name      string
		server    Server
		settings  *settings.Settings // of the run; nil for one, which worked before
		reloaded  bool               // two came into force during the run
		again     bool               // another run came before
		role      role
		ready     bool // all parts had started
		stopped   bool // the process was asked to stop
		execs     bool // the restart is one of the whole process
		requested *restart
		err       error
		want      string
		wantErr   error
	}{
		{name: "asked to stop", server: mirror, role: mirrorRole{mirror}, stopped: true, err: context.Canceled, want: "end"},
		{name: "a single pass that was asked to stop", server: once, role: standaloneRole{once}, stopped: true, err: context.Canceled, want: "end", wantErr: context.Canceled},
		{name: "done", server: once, role: standaloneRole{once}, want: "end"},
		{name: "the first run fails", server: mirror, role: mirrorRole{mirror}, err: broken, want: "end", wantErr: broken},
		{name: "reload", server: mirror, role: mirrorRole{mirror}, reloaded: true, requested: &restart{}, want: "mirror by two"},
		{name: "a configuration that cannot be started", server: mirror, settings: two, again: true, role: mirrorRole{mirror}, err: broken, want: "mirror by one"},
		{name: "a failure later", server: mirror, settings: two, again: true, role: mirrorRole{mirror}, ready: true, err: broken, want: "end", wantErr: broken},
		{name: "repair", server: mirror, settings: two, again: true, role: mirrorRole{mirror}, requested: &restart{}, want: "mirror by two"},
		{name: "a repair that fails", server: mirror, role: mirrorRole{mirror}, requested: &restart{before: func() error { return broken }}, want: "end", wantErr: broken},
		{name: "another process has taken over", server: mirror, role: mirrorRole{mirror}, requested: &restart{before: func() error { return errTaken }}, want: "end"},
		{name: "a restart that comes too late", server: mirror, role: mirrorRole{mirror}, stopped: true, requested: &restart{}, want: "end"},
		{name: "a full disk has space again, and the process is asked to stop", server: mirror, role: mirrorRole{mirror}, stopped: true, execs: true, requested: &restart{}, want: "end"},
		{name: "a restart whose run fails", server: mirror, role: mirrorRole{mirror}, requested: &restart{}, err: broken, want: "end", wantErr: broken},
		{name: "a damaged folder", server: mirror, settings: two, again: true, role: mirrorRole{mirror}, err: fmt.Errorf("opening: %w", short), want: "read-only by two"},
		{name: "a folder that is damaged while read-only", server: mirror, role: readOnlyRole{mirror, short, mirrorRole{mirror}}, err: short, want: "end", wantErr: short},
		{name: "repaired", server: mirror, again: true, role: readOnlyRole{mirror, short, mirrorRole{mirror}}, requested: &restart{}, want: "mirror by one"},
		{name: "promotion", server: node, role: followerRole{node, failed}, requested: &restart{role: leaderRole{node, 7, failed}}, want: "leader after epoch 7 by one"},
		{name: "demotion", server: node, again: true, role: leaderRole{node, 7, failed}, requested: &restart{}, want: "follower after 0 failures by one"},
		{name: "a node that cannot lead", server: node, again: true, role: leaderRole{node, 7, failed}, err: broken, want: "follower after 3 failures by one"},
		{name: "a leader that fails when it is to restart", server: node, again: true, role: leaderRole{node, 7, failed}, ready: true, reloaded: true, requested: &restart{}, err: broken, want: "follower after 3 failures by two"},
		{name: "a node that another overtakes", server: node, again: true, role: leaderRole{node, 7, failed}, err: &cluster.NotWriterError{}, want: "follower after 2 failures by one"},
		{name: "a node that is asked to stop while it starts to lead", server: node, again: true, role: leaderRole{node, 7, failed}, stopped: true, err: context.Canceled, want: "end"},
		{name: "a follower reloads", server: node, role: followerRole{node, failed}, reloaded: true, requested: &restart{}, want: "follower after 2 failures by two"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if tt.stopped {
				stop()
			}
			r := &roleRun{again: tt.again, supervisor: &supervisor{ending: ctx}, settings: cmp.Or(tt.settings, one)}
			if tt.execs {
				tt.requested.before = r.supervisor.replaceProcess
			}
			c := &r.supervisor.configuration
			c.inForce.Set(r.settings)
			if c.working.Store(one); tt.ready {
				c.working.Store(r.settings)
			}
			if tt.reloaded {
				c.inForce.Set(two)
			}
			r.ready.Store(tt.ready)
			abandoned := 0
			if tt.requested != nil {
				tt.requested.abandon = func() { abandoned++ }
			}
			next, err := tt.server.transition(ctx, r, tt.role, tt.requested, tt.err)
			if wants := tt.requested != nil && tt.err != nil; (abandoned > 0) != wants || abandoned > 1 {
				t.Errorf("the restart was abandoned %d times", abandoned)
			}
			got := describeRole(next)
			if next != nil {
				got += " by " + names[c.inForce.Get()]
			}
			if got != tt.want || !errors.Is(err, tt.wantErr) || tt.wantErr == nil && err != nil {
				t.Errorf("%s, %v; want %s, %v", got, err, tt.want, tt.wantErr)
			}
		})
	}
}

// TestRestarts requests several restarts of one run: the first is followed, and the others are abandoned.
func TestRestarts(t *testing.T) {
	newRun := func(ending context.Context) *roleRun {
		return &roleRun{supervisor: &supervisor{ending: ending}, restarts: restarts{begin: make(chan struct{})}}
	}
	t.Run("a promotion during an upgrade", func(t *testing.T) {
		r, abandoned := newRun(t.Context()), false
		if !r.restarts.request(restart{role: witnessRole{}}) {
			t.Fatal("the upgrade is refused")
		}
		r.requestRestart(restart{role: mirrorRole{}, abandon: func() { abandoned = true }})
		select {
		case <-r.restarts.begin:
			t.Error("the run ends before the upgrade begins")
		default:
		}
		r.beginRestart()
		if err := r.awaitRestart(t.Context()); err != parts.ErrDone {
			t.Errorf("the run ends with %v", err)
		}
		if next := r.restarts.endRun(); !abandoned || next == nil || reflect.TypeOf(next.role) != reflect.TypeFor[witnessRole]() {
			t.Errorf("%+v follows; the promotion was abandoned: %v", next, abandoned)
		}
	})
	t.Run("after the run", func(t *testing.T) {
		r, abandoned := newRun(t.Context()), false
		r.requestRestart(restart{})
		r.restarts.endRun()
		r.requestRestart(restart{role: mirrorRole{}, abandon: func() { abandoned = true }})
		if r.requestQuietRestart(restart{}) || !abandoned || r.restarts.endRun().role != nil {
			t.Error("another restart takes the place of the one that is followed")
		}
	})
	t.Run("when the process ends", func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		end()
		r := newRun(ctx)
		r.requestRestart(restart{})
		if err := r.awaitRestart(ctx); err != nil || r.restarts.pending.Load() {
			t.Errorf("the run ends for a restart (%v)", err)
		}
	})
}
