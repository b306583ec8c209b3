package durable

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

func TestMetrics(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := start(t)
		proceed := make(chan struct{})
		fail := errors.New("failed")
		ns := alarmed(t, r, Limits{Events: 1, Alarms: 1}, func(ctx context.Context, s *State, _ Alarm) error {
			if s.Name() == "slow" {
				return s.Call(ctx, func(context.Context) error { <-proceed; return nil })
			}
			return fail
		})
		do(t, ns.Object("slow"), setAlarm(time.Second))
		do(t, ns.Object("late"), setAlarm(2*time.Second))
		done := make(chan struct{})
		go func() {
			defer close(done)
			do(t, ns.Object("busy"), func(context.Context, *State) error { <-proceed; return nil })
		}()
		time.Sleep(5 * time.Second)
		if _, err := ns.Object("busy").Send(t.Context(), nil); !errors.Is(err, ErrOverloaded) {
			t.Error(err)
		}
		if _, err := ns.Object("broken").Send(t.Context(), func(context.Context, *State) error { panic("oh") }); !errors.Is(err, ErrReset) {
			t.Error(err)
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(r.Collector())
		want := func(want map[string]float64) {
			t.Helper()
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[string]float64)
			for _, f := range families {
				m := f.GetMetric()[0]
				got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
			for name, value := range want {
				if v, ok := got["larder_objects_"+name]; !ok || v != value {
					t.Errorf("%s is %v (%v), want %v", name, v, ok, value)
				}
			}
		}
		want(map[string]float64{"events_total": 4, "overloads_total": 1, "resets_total": 1, "alarms_total": 1, "alarm_failures_total": 0, "alarm_late_seconds": 3})
		close(proceed)
		<-done
		synctest.Wait()
		want(map[string]float64{"alarms_total": 2, "alarm_failures_total": 1, "alarm_late_seconds": 0})
	})
}
