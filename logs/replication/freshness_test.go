package replication_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/verify"
)

// gauges returns the metrics of a mirror.
func gauges(t *testing.T, m *mirror) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	replication.RegisterMetrics(r, m.Follower, time.Now())
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		all[strings.TrimPrefix(f.GetName(), "larder_follow_")] = f.GetMetric()[0].GetGauge().GetValue()
	}
	return all
}

// TestStaleSource: a source that replays an old checkpoint, or is not signed any more, is reported after a day, and what it proves
// is still taken over.
func TestStaleSource(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	var ahead time.Duration
	var logged bytes.Buffer
	m := newMirror(t, u.url, func(o *replication.Options) {
		o.Now = func() time.Time { return time.Now().Add(ahead) }
		o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	})
	if s := m.State(); s.Stale != "" || !math.IsNaN(gauges(t, m)["cosigned_age_seconds"]) {
		t.Errorf("before it has caught up: %+v", s)
	}
	m.catchUp(t)
	old, _ := u.signer.Checkpoint()
	reported := false
	check := func(stale string) {
		t.Helper()
		m.catchUp(t)
		s, g := m.State(), gauges(t, m)
		if (s.Stale == "") != (stale == "") || !strings.Contains(s.Stale, stale) || s.Problem != "" || (g["stale"] == 1) != (stale != "") {
			t.Errorf("%+v, %v; want %q", s, g, stale)
		}
		if before := reported; m.ReportAge(before) != (stale != "") || (strings.Contains(logged.String(), "may be out of date") != (stale != "" && !before)) {
			t.Errorf("logged %q", logged.String())
		}
		reported = stale != ""
		logged.Reset()
	}
	check("")

	u.Withdraw("vue", "3.0.0", "malware")
	u.signNow(t)
	u.lies(func(path string, body []byte) []byte {
		if path == "/log/checkpoint" {
			return old.Note
		}
		return body
	})
	ahead = 24*time.Hour - time.Minute
	check("")
	if g := gauges(t, m)["cosigned_age_seconds"]; g < ahead.Seconds() || g > (24*time.Hour+time.Hour).Seconds() {
		t.Errorf("the age is %v s", g)
	}
	ahead = 25 * time.Hour
	check("25 hours old, and 24 hours is the limit")
	check("25 hours old") // once in the log
	m.again(t, u.url, func(o *replication.Options) { o.Now = func() time.Time { return time.Now().Add(ahead) } })
	if s := m.State(); s.Stale == "" || !s.Ready {
		t.Errorf("after a restart: %+v", s)
	}
	m.again(t, u.url, func(o *replication.Options) {
		o.Now = func() time.Time { return time.Now().Add(ahead) }
		o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	})

	u.lies(nil)
	check("25 hours old") // it is signed, but not cosigned since
	m.same(t, u)          // and taken over all the same
	u.ahead.Store(int64(ahead))
	u.signNow(t)
	check("")
	m.same(t, u) // with the new line
	ahead = 0
	check("in the future")
}

// TestOlderCosignature: nodes behind one address may show cosignatures of different hours. The newest one stays.
func TestOlderCosignature(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	old, _ := u.signer.Checkpoint()
	u.ahead.Store(int64(2 * time.Hour))
	u.signNow(t)
	m := newMirror(t, u.url, func(o *replication.Options) { o.Now = u.now })
	m.catchUp(t)
	m.same(t, u)
	u.lies(func(path string, body []byte) []byte {
		if path == "/log/checkpoint" {
			return old.Note
		}
		return body
	})
	m.catchUp(t)
	m.same(t, u)
	if age := u.now().Sub(m.State().Cosigned); age < 2*time.Hour-time.Minute {
		t.Errorf("the source shows one of two hours ago, and the state says %v", age)
	}
}

// TestMirrorOfOldLarder: a source that does not cosign is followed, and reported.
func TestMirrorOfOldLarder(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	u.lies(func(path string, body []byte) []byte {
		if path != "/log/checkpoint" {
			return body
		}
		text, signatures, _ := bytes.Cut(body, []byte("\n\n"))
		first, _, _ := bytes.Cut(signatures, []byte("\n"))
		return fmt.Appendf(nil, "%s\n\n%s\n", text, first)
	})
	m := newMirror(t, u.url)
	m.catchUp(t)
	if s := m.State(); !s.Ready || !s.Cosigned.IsZero() || !strings.Contains(s.Stale, "unknown") {
		t.Errorf("%+v", s)
	}
}

// TestAgeOfBundle: a bundle says how old it is, and is refused for that only if the operator asks for it.
func TestAgeOfBundle(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	path := filepath.Join(t.TempDir(), "bundle.tar")
	written, err := replication.WriteBundle(t.Context(), path, replication.BundleOptions{Source: replication.NewServer(verify.Options{Server: u.url}), Trust: verify.Trust{Key: u.signer.Key()}})
	if err != nil || written.Cosigned.IsZero() {
		t.Fatalf("%+v, %v", written, err)
	}
	for _, tt := range []struct {
		max     time.Duration
		refused string
	}{{0, ""}, {40 * 24 * time.Hour, ""}, {7 * 24 * time.Hour, "30 days old, and 7 days is the limit"}} {
		bundle, err := replication.OpenBundle(path)
		if err != nil {
			t.Fatal(err)
		}
		m := newMirror(t, "", func(o *replication.Options) {
			o.Source, o.Trust = bundle, verify.Trust{Key: u.signer.Key(), MaxAge: tt.max}
			o.Now = func() time.Time { return time.Now().Add(30 * 24 * time.Hour) }
		})
		err = m.Once(t.Context())
		if (err == nil) != (tt.refused == "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("at most %v: %v", tt.max, err)
		}
		if s := m.State(); s.Stale != "" || err == nil && !s.Cosigned.Equal(written.Cosigned) {
			t.Errorf("at most %v: %+v", tt.max, s)
		}
		bundle.Close()
	}
}
