package queue

import (
	"math"
	"time"
)

// Messages are values. The machine that makes a message and those that get it do not
// change it afterwards, so it may be carried late, twice, out of order or not at all. All
// numbers in messages are cumulative: a later message contains what an earlier one said.

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
	// Active is how many sessions there are or may yet be, including those taken over from
	// other data centres.
	Active int
	// Waiting are the buckets of the waiting visitors, ascending, in parts as far as slots may be granted in a minute.
	Waiting []Bucket
	// Minutes are the counts of the last few minutes, ascending.
	Minutes []MinuteCounts
	// Workers is how many workers there are.
	Workers int
	// Want is how many visitors wait for an answer while the grants are used up.
	Want int
	// Unlimited says that visitors are admitted without grants, or uncounted.
	Unlimited bool
	// Account is not nil if the global object may be the successor of another one.
	Account *Account
}

// Account is what a data centre may still do by the grants and leases of earlier global objects.
type Account struct {
	// First says that this data centre has no earlier incarnation.
	First bool
	// Grants are all that it has and may still charge.
	Grants []Grant
	// Over is when every session has ended, by the data centre's clock, that it has promised or may
	// promise without another answer.
	Over time.Time
}

// MinuteCounts are one minute's counts of one data centre, by its own clock.
type MinuteCounts struct {
	Minute Minute
	// Charged is how much of the minute's grants is used up. It can be more than them:
	// slots that are reserved before the minute for visitors who may come in it are
	// charged at once, and granted when it has begun. One admission near the
	// turn of a minute, which another clock may see in the other minute, is charged to
	// both.
	Charged int
	// Admitted is how many visitors were admitted.
	Admitted int
	// Users is how many different tickets tried to come in or were renewed.
	Users int
	// Slices is Charged by parts of the minute, of 5 s each. A charge to a minute beside
	// that of the clock is in its nearest slice.
	Slices [slices60]int
}

const (
	slices60 = 12 // of a minute
	slice    = time.Minute / slices60
)

// sliceOf returns the number of the slice of 5 seconds in minute m that a time is in, or nearest to if it is outside the minute.
func sliceOf(m Minute, at time.Time) int {
	return min(slices60-1, max(0, int(at.Sub(m.Time())/slice)))
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
	// Batch is what the visitors who are called now belong to.
	Batch Batch
	// Anywhere is how many slots are left for the data centre that asks next.
	Anywhere int
	// ReportEvery is how often the data centre should report from now on.
	ReportEvery time.Duration
	Room        Room
}

// A Batch is the visitors of all data centres for whom slots become free at about the same time. Those who hold event streams are called
// in their order: how many are before a place says when.
type Batch struct {
	Start time.Time // by the clock of [Room].At
	Slots int       // how many they are expected to be, or as are known
	Line  []Bucket  // who is next, as of the start
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
	// minutes while visitors waited, or as many of them as there have been; 0 in the first.
	PerMinute float64
	// Workers is how many workers there are everywhere.
	Workers int
	// Traffic is the history that slots are divided by.
	Traffic Traffic
	// Holding says that no new visitor is admitted because the global object has lost its
	// state and does not know yet how many are inside.
	Holding bool
}

// Queued returns how many visitors wait, in all data centres.
func (r *Room) Queued() int {
	n := 0
	for _, b := range r.Waiting {
		n += b.Waiting
	}
	return n
}

// sumBuckets adds up the waiting visitors of several data centres by minute. Each list must be ascending, and so is the result,
// which is nil if all lists are empty and has no parts of minutes.
func sumBuckets(lists ...[]Bucket) []Bucket {
	var sum []Bucket
	eachBucket(lists, func(p place, counts []int) bool {
		if len(sum) == 0 || sum[len(sum)-1].Minute != p.bucket {
			sum = append(sum, Bucket{Minute: p.bucket})
		}
		for _, c := range counts {
			sum[len(sum)-1].Waiting += c
		}
		return true
	})
	return sum
}

// eachBucket walks several lists of buckets at once, in ascending order of places. For each place it calls yield with how many
// visitors of each list wait there, until yield returns false. The counts are valid during the call, and yield may change them.
func eachBucket(lists [][]Bucket, yield func(place, []int) bool) {
	at := make([]int, len(lists))
	counts := make([]int, len(lists))
	for {
		found := false
		var oldest place
		for i, l := range lists {
			if at[i] < len(l) && (!found || l[at[i]].place().compare(oldest) < 0) {
				oldest, found = l[at[i]].place(), true
			}
		}
		if !found {
			return
		}
		for i, l := range lists {
			counts[i] = 0
			if at[i] < len(l) && l[at[i]].place() == oldest {
				counts[i] = l[at[i]].Waiting
				at[i]++
			}
		}
		if !yield(oldest, counts) {
			return
		}
	}
}

// WorkerReport is what a worker tells its data centre: the tickets it has admitted, renewed
// or had wait since the last report that is acknowledged.
type WorkerReport struct {
	Worker  string
	Seq     uint64
	Tickets []Ticket
}

// WorkerState is what a data centre answers to a worker.
type WorkerState struct {
	Worker string
	// Ack is the Seq of the report that it answers.
	Ack uint64
	// DataCentre and Workers are where the worker is and how many workers are there.
	DataCentre string
	Workers    int
	Room       Room
}

// Estimate is the wait that a visitor can expect.
type Estimate struct {
	// Known is whether the times mean anything: visitors have been admitted lately.
	Known bool
	// Ahead is how many go in before, under FIFO: those who wait in older buckets or came
	// earlier in this one, but for those who will not come back. Under Random it is all who
	// wait.
	Ahead int
	// Position is the place in line, from 1. Zero: there is no line, or it is not known.
	Position int
	// Minutes is the expected wait: under Random the wait that half of the visitors exceed.
	Minutes float64
	// P25, P50 and P75 are the minutes after which a quarter, half and three quarters
	// of the visitors are in. Under Random only.
	P25, P50, P75 float64
}

// FIFOWait returns the minutes until the visitors ahead are in, if perMinute visitors are admitted a minute. It is 0 if none are
// ahead, otherwise infinite if perMinute is 0.
func FIFOWait(ahead int, perMinute float64) float64 {
	if ahead <= 0 {
		return 0
	}
	return float64(ahead) / perMinute
}

// RandomWait returns the minutes until a visitor is in with probability p, from 0 to 1, if each of the waiting visitors has the
// same chance in each minute: log(1-p) / log(1-P), where P is the part of them that is admitted in a minute. It is 0 if P is 1 or
// more or if waiting is 0, otherwise infinite if P is 0.
func RandomWait(p, perMinute float64, waiting int) float64 {
	chance := perMinute / float64(waiting)
	if waiting <= 0 || chance >= 1 {
		return 0
	}
	if chance <= 0 {
		return math.Inf(1)
	}
	return math.Log1p(-p) / math.Log1p(-chance)
}

// estimate returns the estimated wait of a visitor in a bucket, under method m: under FIFO all older buckets are ahead, under
// others all who wait. It does not know the position, and no times if PerMinute is 0.
func (r *Room) estimate(m Method, bucket Minute) Estimate {
	e := Estimate{Known: r.PerMinute > 0}
	for _, b := range r.Waiting {
		if m == FIFO && b.Minute >= bucket {
			break
		}
		e.Ahead += b.Waiting
	}
	if !e.Known {
		return e
	}
	if m != Random {
		e.Minutes = FIFOWait(e.Ahead, r.PerMinute)
		return e
	}
	e.P25 = RandomWait(0.25, r.PerMinute, e.Ahead)
	e.P50 = RandomWait(0.50, r.PerMinute, e.Ahead)
	e.P75 = RandomWait(0.75, r.PerMinute, e.Ahead)
	e.Minutes = e.P50
	return e
}
