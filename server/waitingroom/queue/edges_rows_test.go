package queue

import (
	"testing"
	"time"
)

// These hold settings, tickets and what a data centre notes of them at their edges.

func TestWidestSettings(t *testing.T) {
	settings(t, MaxUsers, MaxUsers, func(s *Settings) {
		s.SessionDuration, s.Lease, s.PlaceKept = 30*time.Minute, 30*time.Minute, 24*time.Hour
		s.RefreshInterval, s.CurveFactor = 30*time.Second, 100
	})
	settings(t, 1, 1, func(s *Settings) { s.RefreshInterval = 5 * time.Second })
}

func TestTicketsAtTheEnd(t *testing.T) {
	s, now := settings(t, 9, 9), minuteOf(t, "15:54").Time()
	v := Ticket{ID: testID(1), Since: now.Add(-time.Hour), LastCheckIn: now.Add(-s.PlaceKept)}
	if s.hasLostPlace(now, &v) || !s.hasLostPlace(now.Add(1), &v) {
		t.Error("a ticket keeps its place for another time than the settings say")
	}
	v.AcceptedAt, v.LastCheckIn, v.Ends = now, now, now.Add(maxSession)
	if got := s.Session(now, &v); got != SessionPasses {
		t.Errorf("the longest session is worth %v", got)
	}
	if v.Ends = v.Ends.Add(1); s.Session(now, &v) != SessionOver {
		t.Error("a session is longer than any that is promised")
	}
}

func TestNothingIsPromised(t *testing.T) {
	w := newWorld(t, settings(t, 9, 9), "one")
	d := w.sites[0]
	r := d.Report(w.now)
	if d.AddAccount(&r, true); r.Account.Over.After(r.At) {
		t.Errorf("sessions are over at %v, where there are none", r.Account.Over)
	}
}

func TestSpend(t *testing.T) {
	w := newWorld(t, settings(t, 9, 9, func(s *Settings) { s.Skew = 5 * time.Second }), "one")
	d, m := w.sites[0], minuteOf(t, "15:54")
	for _, c := range []struct {
		at      time.Duration
		revoked bool
		ends    Minute // of the session
		want    Minute
	}{
		{54 * time.Second, false, 0, m + 6},
		{55 * time.Second, false, 0, m + 7}, // by another clock
		{0, false, m + 20, m + 6},
		{0, true, m + 20, m + 21},
	} {
		d.endSession(testID(1), row{revoked: c.revoked, ends: c.ends}, m.Time().Add(c.at), &w.settings)
		if got := d.rows[testID(1)].ends; got != c.want {
			t.Errorf("%+v: forgotten in minute %d and not %d", c, got-m, c.want-m)
		}
	}
}

func TestGranted(t *testing.T) {
	w := newWorld(t, settings(t, 9, 9, func(s *Settings) { s.Skew = 2 * time.Second }), "one")
	d, m := w.sites[0], MinuteOf(w.now)
	for _, c := range []struct {
		now        time.Time
		this, next int
		want       bool
	}{
		{w.now, 0, 0, false},
		{w.now, 0, 1, false},
		{w.now, 1, 0, true},
		{m.end().Add(-time.Second), 1, 0, false},
		{m.end().Add(-time.Second), 1, 1, true},
	} {
		d.now = c.now
		d.ledgerOf(m).granted, d.ledgerOf(m+1).granted = c.this, c.next
		if got := d.hasGrants(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	clear(d.minutes)
	if d.hasGrants() {
		t.Error("there are grants of a minute that is not known")
	}
}

func TestSilentWorkers(t *testing.T) {
	w := newWorld(t, settings(t, 9, 9), "one")
	d, turn := w.sites[0], MinuteOf(w.now).end()
	d.workers["heard"], d.workers["silent"] = turn.Add(-30*time.Second), turn.Add(-30*time.Second-1)
	if d.advance(turn); len(d.workers) != 1 || d.workers["heard"].IsZero() {
		t.Errorf("these count: %v", d.workers)
	}
	d.leaseUntil, d.leaseDuration = turn.Add(time.Minute), 3*time.Minute
	r := Report{}
	if d.AddAccount(&r, true); !r.Account.Over.Equal(turn.Add(5 * time.Minute)) {
		t.Errorf("sessions of the lease are over at %v", r.Account.Over)
	}
}

func TestRollingSlices(t *testing.T) {
	g, all := known(t, settings(t, 100, 100, func(s *Settings) { s.RollingMinute, s.Skew = true, 5*time.Second }), "one")
	r, m := all[0], MinuteOf(g.now) // 20 s ago
	counts := MinuteCounts{Minute: m - 1, Users: 2}
	for i := range counts.Slices {
		counts.Slices[i] = 1
	}
	r.Counts[m-1] = counts
	if n := r.recentGrants(m-1, (m - 1).Time().Add(30*time.Second), 0); n != 6 {
		t.Errorf("%d of 12 were in the last 30 s of a minute", n)
	}
	if n := g.grantableIn(m); n != 90 {
		t.Errorf("%d may be granted: by a clock that differs by 10 s, ten were in the last minute", n)
	}
	next := &reporter{Counts: r.Counts, Horizon: r.Horizon}
	g.insertReporter(reporterID{"one", 2}, next)
	if shares := g.traffic(m - 1).Shares; len(shares) != 1 || shares[0].Users != 4 {
		t.Errorf("two lives of a data centre have the shares %v", shares)
	}
}
