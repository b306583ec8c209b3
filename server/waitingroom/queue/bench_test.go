package queue

import (
	"testing"
	"time"
)

// BenchmarkAccepted is what a request with a session costs within its minute.
func BenchmarkAccepted(b *testing.B) {
	s := settings(b, 10, 10)
	now := minuteOf(b, "15:54").Time()
	v := Ticket{ID: testID(1), AcceptedAt: now, LastCheckIn: now, Ends: s.sessionEnd(now, maxSession)}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if s.Session(now, &v) != SessionPasses {
				b.Fail()
			}
		}
	})
}

// BenchmarkRenewal is the request that renews, once a minute.
func BenchmarkRenewal(b *testing.B) {
	const users = 10_000
	w := newWorld(b, settings(b, users, users), "one")
	d := w.sites[0]
	inside := w.fill(d, users)
	w.exchange(d)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%users == 0 {
			w.now = w.now.Add(time.Minute)
			w.exchange(d)
		}
		decision := d.Visit(w.now, inside[i%users])
		if decision.Outcome != Pass {
			b.Fatal(decision.Outcome)
		}
		inside[i%users] = decision.Ticket
	}
}

// BenchmarkWaiting is a check-in that counts, of one of 10,000 who wait in 30 buckets.
func BenchmarkWaiting(b *testing.B) {
	const users = 10_000
	w := newWorld(b, settings(b, 1, 1), "one")
	d := w.sites[0]
	w.fill(d, 1)
	var queue []Ticket
	for i := range users {
		v := w.newcomer()
		v.Since, v.LastCheckIn = w.now.Add(-time.Duration(i%30)*time.Minute), w.now.Add(-time.Minute)
		queue = append(queue, d.Settle(w.now, v).Ticket)
	}
	w.exchange(d)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%users == 0 {
			w.now = w.now.Add(24 * time.Second)
		}
		decision := d.Visit(w.now, queue[i%users])
		if decision.Outcome != Wait {
			b.Fatal(decision.Outcome)
		}
		queue[i%users] = decision.Ticket
	}
}
