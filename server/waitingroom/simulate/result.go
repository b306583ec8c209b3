package simulate

import (
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// Result is what happened.
type Result struct {
	Settings queue.Settings
	Visitors []Visitor
	Minutes  []Minute
	Seconds  []Second
	// PeakActive is the most sessions at once, and PeakAdmitted the most admissions in
	// one calendar minute of the global object's clock.
	PeakActive, PeakAdmitted int
	// FirstWait is how many were active when somebody had to wait first.
	FirstWait int
	// Draws is how many requests waited for the global object.
	Draws int

	fresh int
	ends  map[int]int // by second
}

// Visitor is one who came.
type Visitor struct {
	Arrived  time.Duration // by the ticket
	Joined   time.Duration // the first request
	Admitted time.Duration // the first time
	In       bool          // whether there was one
	CheckIns int           // that counted, before the first admission and after the session
	Attacks  bool
}

// Wait is how long it took to come in.
func (v Visitor) Wait() time.Duration { return v.Admitted - v.Joined }

// Minute is one minute of the run.
type Minute struct {
	Arrived, Admitted int
	Active, Waiting   int // at its end
	Peak              int // of the active
}

// Second is one sample.
type Second struct {
	Active, Waiting int
	// Ended is how many sessions have ended in the second before, and Admitted how many
	// visitors have come in.
	Ended, Admitted int
}

func newResult(o Options) *Result {
	return &Result{Settings: o.Settings, ends: map[int]int{}}
}

func (r *Result) minute(at time.Duration) *Minute {
	m := int(at / time.Minute)
	for len(r.Minutes) <= m {
		r.Minutes = append(r.Minutes, Minute{})
	}
	return &r.Minutes[m]
}

func (r *Result) admitted(run *run) {
	m := r.minute(run.now)
	m.Admitted++
	m.Peak = max(m.Peak, run.active)
	r.fresh++
	r.PeakActive = max(r.PeakActive, run.active)
	r.PeakAdmitted = max(r.PeakAdmitted, m.Admitted)
}

func (r *Result) ended(at time.Duration) { r.ends[int(at/time.Second)]++ }

func (r *Result) sample(run *run) {
	s := Second{Active: run.active, Waiting: run.waiting, Admitted: r.fresh, Ended: r.ends[len(r.Seconds)-1]}
	delete(r.ends, len(r.Seconds)-1)
	r.fresh = 0
	r.Seconds = append(r.Seconds, s)
	m := r.minute(run.now)
	m.Active, m.Waiting, m.Peak = run.active, run.waiting, max(m.Peak, run.active)
}

func (r *Result) finish(run *run) {
	for i := range run.users {
		r.Visitors = append(r.Visitors, run.users[i].Visitor)
		r.minute(run.users[i].Arrived).Arrived++
	}
}
