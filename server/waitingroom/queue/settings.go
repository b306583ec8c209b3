// Package queue decides which visitors come into a waiting room and which wait, across
// data centres. It is arithmetic only: three state machines that get the time and
// exchange messages as values,
//
//	Worker → DataCentre → Global → DataCentre → Worker
//
// so that one process, durable objects, a cluster or a simulation may carry them. The
// same calls with the same seed give the same decisions. It must not know HTTP, cookies,
// stores, goroutines or clocks.
//
// # What it guarantees
//
// With the allocator [Counter], and as long as no two clocks differ by more than
// [Settings].Skew, however late, lost, repeated or reordered messages are, even if data
// centres die, are cut off or come back without their memory:
//
//   - At no moment are there more sessions that pass anywhere than TotalActiveUsers.
//   - In no minute of the global object's clock are more visitors admitted than
//     NewUsersPerMinute; with RollingMinute, in no 60 seconds.
//
// Two cases are not covered: [Passthrough] and Suspended, which enforce nothing (afterwards
// no visitor is admitted until every data centre has reported again); and a lowered limit,
// which holds for later grants only. [Even] and [Adaptive] keep no limit; they are the
// published designs that came before, for comparison.
//
// # How
//
// The global object hands out grants. A grant is a number for one data centre (more
// exactly, one run of it, its incarnation) and one minute. The number only grows, so a
// data centre keeps the highest that it has seen, and a repeated or late grant changes
// nothing. Each admission is charged to the grant of its minute. Reports carry the
// charges of each minute, cumulatively, and the number of sessions.
//
// Minutes. An admission at c of the data centre's clock is charged to every minute that
// [c-Skew, c+Skew] touches: to two near the turn of a minute. By the global object's
// clock it happens in one of them. So at most as many are admitted in a minute as were
// granted for it, by all data centres together; and [Global] grants no more for a minute
// than NewUsersPerMinute in total, including the grants of data centres that have died since.
//
// Rolling minutes. With RollingMinute, [Global] counts towards a minute m, at each grant, the
// admissions of m-1 that were less than 60 s ago: by slices of the charges that reports name,
// and with every grant of m-1 that may still be charged. Any 60 s that begin in m-1 end before
// the grants of m that are given later can be used, and what was given before left room for all
// admissions since.
//
// Sessions. Let r be any report of a data centre, sent at s. Write active(s) for the
// sessions it counts, charged(m) for the charges to minute m that it names, granted(m)
// for the grants to it for m up to now. Then
//
//	bound = active(s) + Σ granted(m) - charged(m)
//	        over the minutes m that had not ended at s, see below
//
// is not exceeded by the sessions that this data centre answers for, now or at any time
// before the next grant: they grow only by admissions, each of which raises charged(m)
// for a minute m that had not ended, and never above granted(m). This holds for every
// report, even an old one; the newest is merely the tightest. A minute has ended at s if s
// is Skew after it: the data centre's clock does not go back, so it charges nothing to
// it any more, and the unused grants are known to be unused. Until a report says so, an
// expired grant counts as used. [Global] grants only while Σ bound over all data centres
// stays at most TotalActiveUsers. Between grants no bound grows except by sessions that
// have moved, which the next paragraph is about. So the limit holds at all times.
//
// Reservations. A slot that is reserved at c for a visitor who may come until e is charged to every minute that [c-Skew, e+Skew]
// touches, and its visitor counts as active. The charges to minutes that have not begun by any clock exceed granted(m) at first, and are
// taken back if the visitor comes in an earlier minute, which does not change active(s). So bound ignores the charges in reports
// that were sent before m began by any clock. Afterwards [Global] raises granted(m) to charged(m) before it grants anything else for m,
// which raises no bound. The visitor comes in only while granted(m) is at least charged(m) for each minute that an admission is charged to.
// Before that report, grants to others leave room for the charges to m, and for all grants of the minute before that may have been used for
// other reservations since; so each minute starts with the outstanding reservations already counted.
//
// Moved sessions. A ticket names the end of its session, E. The data centre that wrote E
// counts the session until its clock shows E+Skew; at that time no clock shows less than
// E, so the ticket passes nowhere. A renewal is written only by a data centre that counts
// the session. A ticket from another data centre is counted from its first request on (it
// is adopted) but renewed only when the global object has acknowledged a report that
// counts it; up to then E, and the data centre that wrote it, still hold. So the session is
// within some bound at every moment: until the acknowledged report was received within
// that of the old data centre, whose report without the session can only have been sent
// after E+Skew, and from then on within that of the new one. In between it is counted
// twice, which costs a slot and is safe. A life that has lost its memory is one more data
// centre: it adopts the sessions of the one before.
//
// Silence. A data centre renews and admits only under a lease, until [State].LeaseUntil
// by its own clock: Lease after the last answer was made. The last sessions that it wrote
// end by
//
//	horizon = LeaseUntil + one minute + SessionDuration + 2·Skew
//
// after which a silent data centre counts nothing. Its next life under the same name ends
// all its renewals, so then its horizon is a minute, SessionDuration and 2·Skew after the
// start of that life.
//
// Lost state. [DataCentre] may lose everything. [Global] must not, because its grants are
// recorded nowhere else; [RecoverGlobal] is for when it has. It admits no visitor until its
// grants of before have expired and every data centre has reported since, with no promise
// of an earlier life left; or until the horizon. The usual rule, one session duration,
// would not be safe here, because a data centre that cannot be reached may renew sessions
// during its lease: the wait includes the lease.
//
// Succession. [SucceedGlobal] is for a global object that knows nothing of the one before, and whose data
// centres take no more grants of that. Their reports have an [Account]: all grants that they may still
// charge, so no grant has to expire first. It waits for each of them, or until the horizon.
//
// # What it costs
//
// Slots that are unused while people wait are those of
//
//   - sessions that have ended since the last report: its interval and the way, twice;
//     or, for a data centre that cannot be reached, its bound, until its horizon: at most
//     Lease + SessionDuration + a minute + 2·Skew after the last answer to it;
//   - slots that are reserved for visitors who have yet to come: a visitor with an event stream is called within 5 s, and
//     has 30 s to come; another one comes at the next check-in, at most one refresh interval later. A slot whose visitor
//     does not come goes to the next one.
//
// Where all data centres can be reached and more visitors wait than there are slots, a
// slot is therefore in use again within
//
//	report + 2·delay + 2·Skew + 2·refresh,  and at most one minute more
//
// (with RollingMinute at most two, because grants of the minute before count too) and no more is unused than the sessions that ended in that time. Package simulate
// measures it.
//
// # Calls
//
// A slot that is free while visitors wait is reserved at once for the next one, who is called ([Call]) if it holds an event
// stream. Data centres report how many wait by the second of their first requests, as far as slots may be granted in a minute, and the
// global object grants in that order. It also says when a batch of slots became free and who was in line everywhere ([Batch]): all data
// centres call their visitors at times that follow from it, so that they come in their order.
//
// A reservation counts as active and is charged to each minute in which its visitor may come (see Reservations above). It is used by an
// admission, which is charged nothing then, or it lapses, and both the charges and the session are taken back together: the bound does
// not change. Towards a rolling minute it counts as if it were used as late as it can be. A visitor has a slot reserved only after the second contact. If the visitor comes to another data
// centre, the one that has called admits it ([DataCentre.Redeem]), and the other one passes on the ticket of the session as long as
// its clock plus Skew is in a minute that was charged ([DataCentre.PassRedeemed]); so the visitor enters in one of these minutes.
//
// # Tickets
//
// A waiting ticket counts once in its interval, and a check-in that is too early changes
// nothing. A first request gets a slot only beyond those that all waiting visitors of its
// data centre could take. The waiting ticket of a visitor who has come in is worth the
// session, and after that nothing. So hammering, dropping or repeating tickets gains
// nothing at one data centre. A copied ticket can wait once at each data centre that its
// holder can reach, and comes in with its place through each of them, within the limits;
// copies of an accepted ticket share its one session until it is revoked.
package queue

import (
	"cmp"
	"time"
)

// Method is how slots find their visitors.
type Method string

// The methods. FIFO is the default.
const (
	FIFO        Method = "fifo"        // the oldest buckets first, and in them the first to come
	Random      Method = "random"      // the next visitor to check in when a slot is free
	Passthrough Method = "passthrough" // every visitor goes in and is counted; no limit is enforced
	Reject      Method = "reject"      // no new visitor goes in, and none waits
)

// Methods are all methods, in the order in which messages list them.
var Methods = []Method{FIFO, Random, Passthrough, Reject}

// Allocator is how the slots of a data centre reach its workers. The package documentation
// says what each of them can promise.
type Allocator string

// The allocators. Counter is the default.
const (
	Counter  Allocator = "counter"  // one counter a data centre, fed by grants: no limit is ever exceeded
	Even     Allocator = "even"     // an equal part for each worker: queueing starts early
	Adaptive Allocator = "adaptive" // a larger part for each worker while the room is empty: bursts exceed the limits
)

// Allocators are all allocators, in the order in which messages list them.
var Allocators = []Allocator{Counter, Even, Adaptive}

// Settings are a room's limits and rules at one moment. Another moment, such as an event,
// may have other Settings; the caller configures them on every level.
type Settings struct {
	// TotalActiveUsers is how many sessions there may be at once. Required, at most
	// [MaxUsers].
	TotalActiveUsers int
	// NewUsersPerMinute is how many visitors may be admitted in one calendar minute,
	// at most TotalActiveUsers. Required.
	NewUsersPerMinute int
	// RollingMinute has NewUsersPerMinute hold for any 60 seconds.
	RollingMinute bool
	// SessionDuration is how long after the last request a visitor counts as active,
	// whole minutes from 1 to 30. Default 5 minutes.
	SessionDuration time.Duration
	// FixedSessions ends a session SessionDuration after the admission, whatever
	// requests follow.
	FixedSessions bool

	Method    Method    // default FIFO
	Allocator Allocator // default Counter
	// QueueAll makes every visitor without a session wait.
	QueueAll bool
	// Suspended makes the room do nothing: every visitor passes, uncounted.
	Suspended bool

	// CurveFactor is the exponent of Adaptive. Default 1.
	CurveFactor float64
	// HistoryMinutes says which minute's traffic decides the shares of the data centres:
	// 1, the minute before, where the slots beyond that traffic go to the data centre that
	// asks first; or 2, two minutes back, where all slots are shared out. Default 1.
	HistoryMinutes int

	// RefreshInterval is the mean time between a waiting visitor's check-ins. Each
	// one varies by up to 15 %, rounded to whole seconds, or by one second if that is more.
	// At most 30 s. Default 20 s.
	RefreshInterval time.Duration
	// PlaceKept is how long after the last check-in a waiting ticket keeps its place.
	// Default 5 minutes.
	PlaceKept time.Duration

	// Skew is the most that the clocks of any two nodes may differ; the limits hold as
	// long as they do not differ by more. Default 0, which is right for one node only;
	// at most 5 s.
	Skew time.Duration
	// Lease is how long a data centre goes on renewing sessions after the last answer
	// of the global object. Default: SessionDuration.
	Lease time.Duration

	// Shuffle puts the visitors who came before an event into a random order.
	Shuffle Shuffle
}

// MaxUsers is the highest limit. It keeps every product of two counts within an int64.
const MaxUsers = 1_000_000_000

// Shuffle spreads the tickets whose bucket is in [From, Until) at random over those
// buckets. A ticket's place is a function of its id and Salt, so nothing needs to be
// stored or sent. The zero Shuffle changes nothing.
type Shuffle struct {
	From, Until Minute
	// Salt is a secret of each event, so that visitors cannot choose a ticket by its place.
	Salt uint64
}

// placeOf returns the place in which a ticket queues, at random for that ticket, if bucket, that of its first request, is in the
// range of the shuffle. The bool is false if it is not.
func (s Shuffle) placeOf(id TicketID, bucket Minute) (place, bool) {
	if bucket < s.From || bucket >= s.Until {
		return place{}, false
	}
	return place{s.From + Minute(mixBits(id, s.Salt)%uint64(s.Until-s.From)), uint16(mixBits(id, ^s.Salt) % uint64(ticks))}, true
}

// WithDefaults returns a copy of the settings with defaults in place of zero fields that have one. It does not check the others:
// a file of rooms was checked when it was read.
func (s Settings) WithDefaults() Settings {
	s.SessionDuration = cmp.Or(s.SessionDuration, 5*time.Minute)
	s.Method = cmp.Or(s.Method, FIFO)
	s.Allocator = cmp.Or(s.Allocator, Counter)
	s.CurveFactor = cmp.Or(s.CurveFactor, 1)
	s.HistoryMinutes = cmp.Or(s.HistoryMinutes, 1)
	s.RefreshInterval = cmp.Or(s.RefreshInterval, 20*time.Second)
	s.PlaceKept = cmp.Or(s.PlaceKept, 5*time.Minute)
	s.Lease = cmp.Or(s.Lease, s.SessionDuration)
	return s
}

// unlimited reports whether visitors are admitted without limits: the room is suspended, or its method is Passthrough.
func (s *Settings) unlimited() bool { return s.Suspended || s.Method == Passthrough }
