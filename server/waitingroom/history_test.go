package waitingroom

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestHistory has a user a minute for 31 days: the minutes of a day are there, the quarters of an hour of a
// week, and the hours of 30 days; a restart forgets nothing, and there are no rows of before.
func TestHistory(t *testing.T) {
	dir := t.TempDir()
	h := openWith(t, houseOptions{yaml: small(3), dir: dir})
	room := h.rooms.currentRooms().byName["shop"]
	const days = 31
	for minute := range days * 24 * 60 {
		if minute%7 > 2 { // none comes
			h.add(time.Minute)
			continue
		}
		now := h.Now()
		ticket := newTicket()
		ticket.Since, ticket.AcceptedAt, ticket.Ends = now.Add(-time.Duration(minute%7+1)*time.Minute), now, now.Add(time.Minute)
		room.analytics.addSample(now, &overview{active: minute % 7, queued: 5})
		room.analytics.countAdmission(now, ticket)
		h.add(time.Minute)
		room.analytics.addSample(h.Now(), &overview{})
		if minute%500 == 0 || minute > (days*24-1)*60 {
			if err := room.storeHistory(t.Context(), false); err != nil {
				t.Fatal(err)
			}
		}
	}
	admitted := func(h *house, minutes int) (sum, periods, length int) {
		t.Helper()
		all, ok, err := h.rooms.Analytics(t.Context(), "shop", minutes)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		for i, p := range all {
			sum += p.Admitted
			if i > 0 && p.Time.Sub(all[i-1].Time) != time.Duration(p.Minutes)*time.Minute {
				t.Fatalf("after %v comes %v", all[i-1].Time, p.Time)
			}
		}
		return sum, len(all), all[0].Minutes
	}
	check := func(h *house) {
		t.Helper()
		for _, c := range []struct{ minutes, periods, length int }{
			{60, 60, 1}, {24 * 60, 24 * 60, 1}, {24*60 + 1, 97, 15}, {7 * 24 * 60, 7 * 24 * 4, 15}, {8 * 24 * 60, 8 * 24, 60}, {MaxMinutes, 720, 60}, {2 * MaxMinutes, 720, 60},
		} {
			sum, periods, length := admitted(h, c.minutes)
			want := float64(min(c.minutes, MaxMinutes)) * 3 / 7
			if periods != c.periods || length != c.length || math.Abs(float64(sum)-want) > 30 {
				t.Errorf("%d minutes: %d users in %d periods of %d minutes, want about %.0f in %d of %d", c.minutes, sum, periods, length, want, c.periods, c.length)
			}
		}
	}
	check(h)
	all, _, _ := h.rooms.Analytics(t.Context(), "shop", MaxMinutes)
	if p := all[100]; p.Active != 2 || p.Queued != 5 || p.WaitP50 < 108 || p.WaitP50 > 132 || p.WaitP90 < 162 || p.WaitP90 > 198 {
		t.Errorf("an hour in which users had waited one, two and three minutes: %+v", p)
	}
	rows := 0
	for _, tier := range tiers {
		kept, err := room.history.Send(t.Context(), historyRequest{tier: tier})
		if err != nil {
			t.Fatal(err)
		}
		rows += len(kept)
	}
	if rows > 24*60+7*24*4+720+3 {
		t.Errorf("%d rows", rows)
	}
	h.close()
	check(openWith(t, houseOptions{yaml: small(3), dir: dir, clock: h.clock}))
}

// TestHistoryAcrossRestarts has the users of a minute be counted once, whether they came before a restart in it
// or after.
func TestHistoryAcrossRestarts(t *testing.T) {
	dir := t.TempDir()
	clock := newClock()
	for range 3 {
		h := openWith(t, houseOptions{yaml: small(9), dir: dir, clock: clock})
		h.user().get("/")
		h.user().get("/")
		if err := h.rooms.currentRooms().rooms[0].storeHistory(t.Context(), true); err != nil { // as Run does at its end
			t.Fatal(err)
		}
		if again, _, _ := h.rooms.Analytics(t.Context(), "shop", 1); len(again) != 1 {
			t.Fatal(again)
		}
		h.close()
		clock.add(time.Second)
	}
	h := openWith(t, houseOptions{yaml: small(9), dir: dir, clock: clock})
	for _, minutes := range []int{5, 2 * 24 * 60, MaxMinutes} {
		all, _, err := h.rooms.Analytics(t.Context(), "shop", minutes)
		if err != nil {
			t.Fatal(err)
		}
		if got := all[len(all)-1].Admitted; got != 6 {
			t.Errorf("%d minutes: %d users in the last period, 6 came", minutes, got)
		}
	}
}

// TestHistoryAtShutdown has a report end while its minutes are on their way to the disk: they are kept once.
func TestHistoryAtShutdown(t *testing.T) {
	h := openWith(t, houseOptions{yaml: small(9)})
	h.user().get("/")
	h.user().get("/")
	room := h.rooms.currentRooms().rooms[0]
	h.add(time.Minute)
	room.analytics.addSample(h.Now(), &overview{})
	ended, end := context.WithCancel(t.Context())
	end()
	if err := room.storeHistory(ended, false); err != nil {
		t.Errorf("minutes on their way to the disk: %v", err)
	}
	if err := room.storeHistory(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	for _, minutes := range []int{5, 2 * 24 * 60, MaxMinutes} {
		all, _, err := h.rooms.Analytics(t.Context(), "shop", minutes)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, p := range all {
			sum += p.Admitted
		}
		if sum != 2 {
			t.Errorf("%d minutes: %d users, 2 came", minutes, sum)
		}
	}
}

func countDurations(seconds []float64) (h histogram) {
	for _, s := range seconds {
		h.count(time.Duration(s * float64(time.Second)))
	}
	return h
}

// TestHistogram holds percentiles to 10 % of the exact ones.
func TestHistogram(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		values := make([]float64, 1+rng.IntN(300))
		for i := range values {
			values[i] = math.Exp(rng.Float64() * 13)
		}
		h := countDurations(values[:len(values)/2]).plus(countDurations(values[len(values)/2:]))
		slices.Sort(values)
		for _, p := range []int{50, 90} {
			if got, want := h.percentile(p), values[(len(values)*p+99)/100-1]; math.Abs(got-want) > 0.1*want+0.1 {
				t.Fatalf("%d values: p%d is %v, not %v", len(values), p, got, want)
			}
		}
	}
	if got := countDurations([]float64{0, 0.5, 0.9}).percentile(90); got != 0 {
		t.Errorf("of no time at all: %v", got)
	}
	if got := (histogram)(nil).percentile(50); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
