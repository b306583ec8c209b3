package waitingroom

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A Period is what happened in a room in a minute, a quarter of an hour or an hour. Durations are
// in seconds, 0 if there is nothing to measure, and within 10 %.
type Period struct {
	Time    time.Time `json:"time"`    // when it began
	Minutes int       `json:"minutes"` // how long it is
	// Active and Queued are those at the end of a minute, or now; of a longer period the most.
	Active   int `json:"active_users"`
	Queued   int `json:"queued_users"`
	Admitted int `json:"new_users"`
	Revoked  int `json:"sessions_revoked"`
	// WaitP50 and WaitP90 are how long the admitted users had waited.
	WaitP50 float64 `json:"time_waited_p50_seconds"`
	WaitP90 float64 `json:"time_waited_p90_seconds"`
	// OriginP50 is how long the users were in whose session ended.
	OriginP50 float64 `json:"time_on_origin_p50_seconds"`
}

// keptMinutes bounds the minutes that wait for the store.
const keptMinutes = 24 * 60

// analytics counts what happens in a room in the present minute, for people to look at; minutes that
// are over go to the room's [history]. No decision depends on it.
type analytics struct {
	mu      sync.Mutex
	minute  int64    // of the present counts
	present record   // they, without its time, length and percentiles
	over    []record // minutes that are not in the history yet, ascending
}

// addSample sets how many users are in the room and how many wait in the current minute, in place of the last sample.
func (a *analytics) addSample(now time.Time, o *overview) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closeMinutes(now)
	a.present.Active, a.present.Queued = o.active, o.queued
}

// countAdmission counts the admission of the visitor with ticket t, and the time since the visitor's first request.
func (a *analytics) countAdmission(now time.Time, t queue.Ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closeMinutes(now)
	a.present.Admitted++
	a.present.Waits.count(now.Sub(t.Since))
}

// countStays counts how long users were in whose sessions have ended.
func (a *analytics) countStays(now time.Time, stays []time.Duration) {
	if len(stays) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closeMinutes(now)
	for _, stay := range stays {
		a.present.Stays.count(stay)
	}
}

// countRevoked counts that the origin has ended a session.
func (a *analytics) countRevoked(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closeMinutes(now)
	a.present.Revoked++
}

// closeMinutes starts a new minute if the current one is over at now. It appends a record of the old one to a.over, unless
// nothing happened or a day of them is there. The caller holds the lock.
func (a *analytics) closeMinutes(now time.Time) {
	minute := now.Unix() / 60
	if minute <= a.minute {
		return
	}
	if a.minute != 0 {
		a.closeMinute()
	}
	if minute > a.minute+1 { // there were no reports, because there were no users
		a.present = record{}
	}
	a.minute = minute
}

// closeMinute appends a record of the current minute to a.over, unless nothing happened or a day of them is there, and sets the
// counts of events to zero. Those of users stay. The caller holds the lock.
func (a *analytics) closeMinute() {
	if r := a.presentMinute(); !r.isEmpty() && len(a.over) < keptMinutes {
		a.over = append(a.over, r)
	}
	a.present = record{Period: Period{Active: a.present.Active, Queued: a.present.Queued}}
}

// isEmpty reports whether no users were in the room or waited in the period, and nothing else happened.
func (p *Period) isEmpty() bool { return *p == Period{Time: p.Time, Minutes: p.Minutes} }

// takeRecords returns the records that are not in the history yet, oldest first, and removes them. With all it includes the
// current minute so far, whose counts start at 0.
func (a *analytics) takeRecords(all bool) []record {
	a.mu.Lock()
	defer a.mu.Unlock()
	if all && a.minute != 0 {
		a.closeMinute()
	}
	taken := a.over
	a.over = nil
	return taken
}

// restoreRecords puts records back that takeRecords has returned and that could not be stored in the history. Beyond a day, the
// oldest are lost.
func (a *analytics) restoreRecords(records []record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = append(records, a.over...)
	a.over = a.over[max(0, len(a.over)-keptMinutes):]
}

// unstoredRecords returns the records that are not in the history yet, and last a record of the current minute so far, which may
// be empty. They stay.
func (a *analytics) unstoredRecords(now time.Time) []record {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closeMinutes(now)
	return append(slices.Clone(a.over), a.presentMinute())
}

// presentMinute returns a record of the current minute so far. The caller holds the lock.
func (a *analytics) presentMinute() record {
	r := a.present
	r.Time, r.Minutes, r.Waits, r.Stays = time.Unix(a.minute*60, 0).UTC(), 1, maps.Clone(r.Waits), maps.Clone(r.Stays)
	r.computePercentiles()
	return r
}
