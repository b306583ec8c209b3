package fallback

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/tiles"
)

// stale returns the metric of that name of the only origin.
func (r *rig) stale() float64 {
	r.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.fallback.Collector())
	families, err := registry.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "larder_fallback_origin_stale" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	r.Fatal("no such metric")
	return 0
}

// TestOriginReplays: an origin that goes on showing an old checkpoint hides a withdrawal, which is reported after a day. What it
// proves is still taken from it.
func TestOriginReplays(t *testing.T) {
	s := lardertest.New(t)
	s.Shelf.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "a"})
	s.Shelf.Publish("a", "2.0.0", "a.js", map[string]string{"a.js": "two"})
	if err := s.Signer.Sign(); err != nil {
		t.Fatal(err)
	}
	signed, err := s.Signer.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	var logged bytes.Buffer
	r.fallback.Close()
	r.open(Options{Bot: r.bot, Store: r.Store, Origins: []string{"larder:" + s.URL}, Known: filepath.Join(t.TempDir(), "known"), Quota: 1 << 20, Now: r.clock, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	r.pass(time.Until(r.clock()) * -1)
	s.Lie("/log/checkpoint", string(signed.Note))
	s.Shelf.Withdraw("a", "1.0.0", "malware")
	s.Lie("/ajax/libs/a/1.0.0/a.js", "a")
	s.Lie(tiles.HashPath(kvstore.Sum([]byte("a"))), "a")

	if got := r.fallback.State().Origins[0]; got.Stale != "" || r.stale() != 0 {
		t.Errorf("before it was asked: %+v", got)
	}
	if got, failure := r.ask("1.0.0", "a.js"); got != "a" || failure != nil {
		t.Fatalf("got %q, %+v", got, failure)
	}
	r.waitIdle()
	check := func(stale, inLog bool) {
		t.Helper()
		logged.Reset()
		r.fallback.CheckMirrored(t.Context())
		state := r.fallback.State()
		description := state.Describe()
		if got := state.Origins[0]; (got.Stale != "") != stale || got.Cosigned.IsZero() || (r.stale() == 1) != stale || strings.Contains(description, "may be missing") != stale {
			t.Errorf("%+v, %s", got, description)
		}
		if strings.Contains(logged.String(), "withdrawals of an origin may be missing here") != inLog {
			t.Errorf("logged: %s", logged.String())
		}
	}
	check(false, false)
	r.pass(23 * time.Hour)
	check(false, false)
	r.pass(2 * time.Hour)
	check(true, true)
	check(true, false)
	if got, failure := r.ask("2.0.0", "a.js"); got != "two" || failure != nil {
		t.Errorf("got %q, %+v", got, failure)
	}
	r.waitIdle()
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Mirrored)
	r.pass(-25 * time.Hour)
	check(false, false)
}
