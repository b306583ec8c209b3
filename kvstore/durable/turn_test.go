package durable

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestHang has a handler that never returns: its caller is told, the object starts again from its
// storage for the callers behind, and what hangs can do nothing any more.
func TestHang(t *testing.T) {
	ns := scripts(t, start(t), Limits{Turn: 50 * time.Millisecond})
	o := ns.Object("a")
	if _, err := o.Send(t.Context(), func(ctx context.Context, s *State) error { return PutJSON(ctx, s, "before", 1) }); err != nil {
		t.Fatal(err)
	}
	hangs, wakes, woken := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	told := make(chan error, 1)
	go func() {
		_, err := o.Send(t.Context(), func(ctx context.Context, s *State) error {
			_ = PutJSON(ctx, s, "lost", 1)
			close(hangs)
			<-wakes // whatever its context says
			woken <- PutJSON(ctx, s, "after", 1)
			return nil
		})
		told <- err
	}()
	<-hangs
	seen, err := o.Send(t.Context(), func(ctx context.Context, s *State) error { // in line behind it
		if n, found, err := GetJSON[int](ctx, s, "before"); n != 1 || !found || err != nil {
			t.Errorf("what was stored: %d, %v, %v", n, found, err)
		}
		if _, found, _ := GetJSON[int](ctx, s, "lost"); found {
			t.Error("what the handler that hangs had written is there")
		}
		return nil
	})
	if err != nil || seen != 1 {
		t.Errorf("the event behind is number %d of its instance: %v", seen, err)
	}
	if err := <-told; !errors.Is(err, ErrReset) || !strings.Contains(err.Error(), "kept its turn for more than 50ms") {
		t.Errorf("the caller is told %v", err)
	}
	close(wakes)
	if err := <-woken; !errors.Is(err, ErrReset) {
		t.Errorf("a handler that wakes up writes: %v", err)
	}
	if n := ns.class.counts.resets.Load(); n != 1 {
		t.Errorf("%d resets", n)
	}
}

// TestLongCall has a handler be in a call for longer than it may have the turn, and take many
// short turns: neither is stopped.
func TestLongCall(t *testing.T) {
	ns := scripts(t, start(t), Limits{Turn: 200 * time.Millisecond})
	o := ns.Object("a")
	hung := make(chan struct{})
	go func() { // lasts for as long as a handler may
		defer close(hung)
		_, _ = ns.Object("b").Send(t.Context(), func(ctx context.Context, s *State) error { <-ctx.Done(); return nil })
	}()
	_, err := o.Send(t.Context(), func(ctx context.Context, s *State) error {
		return errors.Join(s.Call(ctx, func(context.Context) error { <-hung; return nil }), PutJSON(ctx, s, "after", 1))
	})
	if err != nil {
		t.Error(err)
	}
}

// TestHangingAlarm has an alarm hang: it is tried again.
func TestHangingAlarm(t *testing.T) {
	r := start(t)
	rung := make(chan struct{}, 2)
	first := make(chan struct{}, 1)
	first <- struct{}{}
	ns, err := Open(r, Class[step, int]{
		Name: "script", Limits: Limits{Turn: 50 * time.Millisecond},
		New: func(context.Context, *State) (Handler[step, int], error) {
			return &script{alarm: func(context.Context, *State, Alarm) error {
				select {
				case <-first:
					<-t.Context().Done() // for ever
				default:
				}
				rung <- struct{}{}
				return nil
			}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ns.Object("a").Send(t.Context(), setAlarm(0)); err != nil {
		t.Fatal(err)
	}
	<-rung
}
