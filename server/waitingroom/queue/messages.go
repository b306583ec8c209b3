package queue

import (
	"slices"
	"time"
)

// Messages are values without pointers into the machines that made them, so whoever
// carries them may do so when and how it likes: late, twice, out of order or not at
// all. All numbers in them are cumulative: a later message contains what an earlier one
// said.

// Report is what a data centre tells the global object.
type Report struct {
	DataCentre string
	// Incarnation tells the lives of a data centre apart, see [NewDataCentre].
	Incarnation int64
	// Started is when this incarnation began, by its own clock.
	Started time.Time
	// Seq rises by one with every report.
	Seq uint64
	// At is the data centre's clock.
	At time.Time
	// Active is how many sessions there are or may yet be, those included which it has
	// taken over from elsewhere.
	Active int
	// Waiting are the buckets of those who wait, ascending.
	Waiting []Bucket
	// Minutes are the counts of the last few minutes, ascending.
	Minutes []MinuteCounts
	// Workers is how many workers there are.
	Workers int
	// Want is how many visitors wait for an answer while the grants are used up.
	Want int
	// Unlimited says that visitors are let in without grants, or uncounted.
	Unlimited bool
}

// MinuteCounts are one minute's counts of one data centre, by its own clock.
type MinuteCounts struct {
	Minute Minute
	// Charged is how much of the minute's grants is used up. One admission near the
	// turn of a minute, which another clock may see in the other minute, is charged to
	// both.
	Charged int
	// Admitted is how many visitors were admitted.
	Admitted int
	// Users is how many different tickets tried to come in or were renewed.
	Users int
}

// Grant is how many charges a data centre may make to a minute in total, in this
// incarnation of it. It never falls.
type Grant struct {
	Minute Minute
	Total  int
}

// State is what the global object answers to a report.
type State struct {
	DataCentre  string
	Incarnation int64
	// Ack is the highest Seq that has come in.
	Ack uint64
	// LeaseUntil is until when, by the data centre's own clock, it may renew sessions
	// and admit visitors, and LeaseDuration the longest session that it may promise.
	LeaseUntil    time.Time
	LeaseDuration time.Duration
	// Grants are those for the minutes that may still be charged.
	Grants []Grant
	// Anywhere is how many slots are left to be drawn by whoever asks.
	Anywhere int
	// ReportEvery is how often the data centre should report from now on.
	ReportEvery time.Duration
	Room        Room
}

// Room is the sum of what the data centres have reported.
type Room struct {
	At time.Time
	// Active is the sum of the sessions reported, and Waiting of the buckets.
	Active  int
	Waiting []Bucket
	// Admitted is how many have been admitted in the minute of At.
	Admitted int
	// PerMinute is how many were admitted a minute on average, in the last five whole
	// minutes or as many of them as there have been.
	PerMinute float64
	// Workers is how many workers there are everywhere.
	Workers int
	// Traffic is the history that slots are divided by.
	Traffic Traffic
	// Holding says that nobody new is admitted because the global object has lost its
	// state and does not know yet who is inside.
	Holding bool
}

// Queued is how many wait.
func (r *Room) Queued() int {
	n := 0
	for _, b := range r.Waiting {
		n += b.Waiting
	}
	return n
}

// SlotsOfMinute is how many visitors may be admitted in the minute of At, those
// included who have been.
func (r *Room) SlotsOfMinute(s *Settings) int {
	return s.Available(r.Active-r.Admitted, 0)
}

func (r *Room) clone() Room {
	c := *r
	c.Waiting = slices.Clone(r.Waiting)
	c.Traffic.Shares = slices.Clone(r.Traffic.Shares)
	return c
}

// Sum adds up the buckets of several data centres, each ascending.
func Sum(lists ...[]Bucket) []Bucket {
	var sum []Bucket
	eachBucket(lists, func(m Minute, counts []int) bool {
		n := 0
		for _, c := range counts {
			n += c
		}
		sum = append(sum, Bucket{m, n})
		return true
	})
	return sum
}

// eachBucket walks the lists from the oldest bucket on and gives yield how many of it
// are in each list, until yield returns false. The counts are valid during the call.
func eachBucket(lists [][]Bucket, yield func(Minute, []int) bool) {
	at := make([]int, len(lists))
	counts := make([]int, len(lists))
	for {
		found := false
		var oldest Minute
		for i, l := range lists {
			if at[i] < len(l) && (!found || l[at[i]].Minute < oldest) {
				oldest, found = l[at[i]].Minute, true
			}
		}
		if !found {
			return
		}
		for i, l := range lists {
			counts[i] = 0
			if at[i] < len(l) && l[at[i]].Minute == oldest {
				counts[i] = l[at[i]].Waiting
				at[i]++
			}
		}
		if !yield(oldest, counts) {
			return
		}
	}
}

// WorkerReport is what a worker tells its data centre. Under Counter it says little
// more than that the worker is there; under Even and Adaptive, where the worker decides
// alone, it carries what was decided since the last report that is acknowledged.
type WorkerReport struct {
	Worker string
	Seq    uint64
	At     time.Time
	// Seen are accepted tickets, and Waiting those that wait.
	Seen    []SeenTicket
	Waiting []WaitingTicket
}

// SeenTicket is an accepted ticket that was used.
type SeenTicket struct {
	ID TicketID
	// AcceptedAt and At are when it was admitted and when it was seen last, and Ends
	// when its session ends.
	AcceptedAt, At, Ends time.Time
}

// WaitingTicket is a ticket that has checked in.
type WaitingTicket struct {
	ID     TicketID
	Bucket Minute
	// Next is when its next check-in counts.
	Next time.Time
}

// WorkerState is what a data centre answers to a worker.
type WorkerState struct {
	Worker string
	// Ack is the Seq of the report that it answers.
	Ack uint64
	// DataCentre and Workers are where the worker is and with how many others.
	DataCentre string
	Workers    int
	// ReportEvery is how often the worker should report from now on.
	ReportEvery time.Duration
	Room        Room
}
