package queue

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"time"
)

// DataCentre decides about the visitors of one data centre. It is not safe for use by
// several goroutines at once.
//
// It may forget everything when its process ends: a new incarnation starts with nothing,
// and the global object counts what the last one promised until that must be over. One
// that ends in order may be continued instead: see [DataCentre.Snapshot].
type DataCentre struct {
	name        string
	incarnation int64
	settings    Settings
	rng         *rand.Rand
	started     time.Time
	now         time.Time // never goes back

	tickets
	minutes map[Minute]*ledger

	seq, acked    uint64
	leaseUntil    time.Time
	leaseDuration time.Duration
	room          Room
	anywhere      int
	stated        time.Time // when the last state came
	reportEvery   time.Duration
	want          int

	workers map[string]*workerRecord
}

// A ledger is one minute's grants and what became of them.
type ledger struct {
	MinuteCounts
	granted int
	// unreleased are the grants, all of them not charged yet, that are released later
	// in the minute while anybody waits.
	unreleased releases
}

type workerRecord struct{ seen time.Time }

// NewDataCentre returns a data centre without visitors. At most one with this name may
// be alive at a time, and incarnation has to rise with every life; the time of its start
// in nanoseconds will do. The settings must have come from [Settings.WithDefaults].
func NewDataCentre(name string, incarnation int64, s Settings, seed uint64, now time.Time) *DataCentre {
	return &DataCentre{
		name: name, incarnation: incarnation, settings: s, rng: generator(seed, name, incarnation), started: now, now: now,
		tickets: newTickets(now), minutes: map[Minute]*ledger{}, workers: map[string]*workerRecord{},
		reportEvery: usualReport,
	}
}

// Configure changes the settings. Sessions keep the end that they were promised.
func (d *DataCentre) Configure(now time.Time, s Settings) {
	d.advance(now)
	d.settings = s
}

// Active is how many sessions there are, and Queued how many visitors wait here.
func (d *DataCentre) Active(now time.Time) int { d.advance(now); return d.tickets.active }

// Queued is how many visitors wait here.
func (d *DataCentre) Queued(now time.Time) int { d.advance(now); return d.waiting }

// Room is the room as the global object last described it.
func (d *DataCentre) Room() Room { return d.room.clone() }

func (d *DataCentre) advance(now time.Time) {
	if !now.After(d.now) {
		return
	}
	turned := MinuteOf(now) != MinuteOf(d.now)
	d.now = now
	d.tickets.advance(now, &d.settings)
	if !turned {
		return
	}
	for m := range d.minutes {
		if m < MinuteOf(now)-keptMinutes {
			delete(d.minutes, m)
		}
	}
	for name, w := range d.workers {
		if now.Sub(w.seen) > workerGone {
			delete(d.workers, name)
		}
	}
}

const (
	// keptMinutes is how many minutes of counts are reported again and again.
	keptMinutes = 6
	// workerGone is after how long a worker that is silent counts no more.
	workerGone = 30 * time.Second
)

func (d *DataCentre) ledger(m Minute) *ledger {
	l := d.minutes[m]
	if l == nil {
		l = &ledger{MinuteCounts: MinuteCounts{Minute: m}}
		d.minutes[m] = l
	}
	return l
}

// Visit decides about a request. The outcome is Draw where the grants are used up but
// the global object may have more; nothing has changed then, and [DataCentre.Settle] has
// to follow.
func (d *DataCentre) Visit(now time.Time, v Visitor) Decision { return d.visit(now, v, true) }

// Settle decides about a request whose [DataCentre.Visit] said Draw, with what has come
// in since, and never says it again.
func (d *DataCentre) Settle(now time.Time, v Visitor) Decision { return d.visit(now, v, false) }

func (d *DataCentre) visit(now time.Time, v Visitor, draw bool) Decision {
	d.advance(now)
	s := &d.settings
	if s.Suspended {
		return Decision{Outcome: Pass, Visitor: v}
	}
	if !v.AcceptedAt.IsZero() {
		return d.session(v)
	}
	r, known := d.rows[v.ID]
	switch {
	case known && r.kind == active && !r.revoked:
		// its old waiting ticket: the session that it became
		v.AcceptedAt, v.LastCheckIn, v.Ends, v.RefreshInterval = time.Unix(0, r.accepted).UTC(), time.Unix(0, r.at).UTC(), r.ends.Time(), 0
		if s.FixedSessions { // the row knows its minute only
			v.Ends = earlier(v.Ends, v.AcceptedAt.Add(s.SessionDuration))
		}
		decision := d.session(v)
		decision.Changed = true
		return decision
	case known && r.kind != waiting:
		return Decision{Outcome: Reissue}
	case s.Method == Passthrough:
		if !known && d.tickets.active >= mostActive {
			return Decision{Outcome: Pass, Visitor: v}
		}
		return d.admit(v, r)
	case s.Method == Reject:
		return Decision{Outcome: Refuse, Visitor: v}
	case !v.First() && (d.now.Sub(v.LastCheckIn) > s.PlaceKept || v.LastCheckIn.After(d.now.Add(s.Skew)) || v.Bucket > MinuteOf(d.now.Add(s.Skew))):
		return Decision{Outcome: Reissue}
	case known && d.now.UnixNano() < r.at, !known && !v.First() && d.now.Before(v.LastCheckIn.Add(v.RefreshInterval)):
		if v.First() { // the same new id twice: the ticket has been sent already
			return Decision{Outcome: Reissue}
		}
		return Decision{Outcome: Wait, Visitor: v, Estimate: d.estimate(v)}
	}
	if v.First() {
		v.Bucket = MinuteOf(d.now)
	}
	if !known && d.waiting >= mostWaiting {
		// what is not remembered could be sent twice, so it has no chance
		return d.waits(v)
	}
	if d.chance(&v) {
		return d.admit(v, r)
	}
	if draw && d.mayDraw() {
		d.want++
		return Decision{Outcome: Draw, Visitor: v}
	}
	return d.wait(v, r)
}

// session passes an accepted ticket, and renews it where that is safe.
func (d *DataCentre) session(v Visitor) Decision {
	s := &d.settings
	r, known := d.rows[v.ID]
	if known && r.revoked {
		return Decision{Outcome: Reissue}
	}
	switch s.Session(d.now, &v) {
	case SessionOver:
		return Decision{Outcome: Reissue}
	case SessionPasses:
		return Decision{Outcome: Pass, Visitor: v, Counted: true}
	}
	d.countUser(&r)
	if !known || r.kind == waiting || r.kind == spent {
		// A session from elsewhere: whoever has it counts it until v.Ends. It may last
		// longer only once the global object counts it here.
		if known && r.kind == waiting {
			d.leave(r.bucket)
		}
		r = row{kind: adopting, seq: d.seq + 1, counted: r.counted, accepted: v.AcceptedAt.UnixNano(), at: v.LastCheckIn.UnixNano()}
		d.tickets.active++
		d.keep(v.ID, r, s.sessionEnd(d.now, maxSession))
		return Decision{Outcome: Pass, Visitor: v, Counted: true}
	}
	if r.kind == adopting && d.acked >= r.seq {
		r.kind = active
	}
	if r.kind == adopting || !d.now.Before(d.leaseUntil) && s.Allocator == Counter {
		d.rows[v.ID] = r
		return Decision{Outcome: Pass, Visitor: v, Counted: true}
	}
	v.LastCheckIn, v.Ends = d.now, s.sessionEnd(d.now, d.longest())
	r.at = d.now.UnixNano()
	d.keep(v.ID, r, later(v.Ends, r.ends.Time()))
	return Decision{Outcome: Pass, Visitor: v, Changed: true, Counted: true}
}

// longest is the longest session that may be promised.
func (d *DataCentre) longest() time.Duration {
	if d.settings.Allocator != Counter {
		return maxSession
	}
	return d.leaseDuration
}

// chance reports whether a check-in that counts gets one of the slots that are released.
func (d *DataCentre) chance(v *Visitor) bool {
	if d.settings.QueueAll || !d.now.Before(d.leaseUntil) {
		return false
	}
	slots := d.unused(d.waiting > 0)
	if slots <= 0 {
		return false
	}
	if v.First() {
		return slots > d.waiting
	}
	if d.settings.Method == Random {
		return true
	}
	return slots > d.ahead(d.settings.Shuffle.Place(v.ID, v.Bucket), slots)
}

// chargeable yields the minutes that an admission now may be in by the global object's
// clock: this one, and near its turn the neighbour.
func (s *Settings) chargeable(now time.Time) (first, last Minute) {
	return MinuteOf(now.Add(-s.Skew)), MinuteOf(now.Add(s.Skew))
}

// unused is how many visitors the grants still admit now. With paced it leaves out what
// is released later in the minute.
func (d *DataCentre) unused(paced bool) int {
	first, last := d.settings.chargeable(d.now)
	least := maxUsers
	for m := first; m <= last; m++ {
		l := d.minutes[m]
		if l == nil {
			return 0
		}
		n := l.granted - l.Charged
		l.unreleased.advance(d.now)
		if paced {
			n -= l.unreleased.Len()
		}
		least = min(least, n)
	}
	return least
}

// mayDraw reports whether it is worth while to ask the global object for slots.
func (d *DataCentre) mayDraw() bool {
	s := &d.settings
	if s.QueueAll || s.Allocator != Counter || d.room.Holding {
		return false
	}
	if d.anywhere > 0 {
		return true
	}
	// While people wait here, the reports ask for them.
	return d.waiting == 0 && (d.now.Sub(d.stated) >= fastestReport || !d.begun())
}

// begun reports whether there have been grants for the minutes that an admission now
// would be charged to.
func (d *DataCentre) begun() bool {
	first, last := d.settings.chargeable(d.now)
	for m := first; m <= last; m++ {
		if l := d.minutes[m]; l == nil || l.granted == 0 {
			return false
		}
	}
	return true
}

func (d *DataCentre) admit(v Visitor, r row) Decision {
	s := &d.settings
	if r.kind == waiting {
		d.leave(r.bucket)
	}
	first, last := s.chargeable(d.now)
	for m := first; m <= last; m++ {
		l := d.ledger(m)
		l.Charged++
		// what waits to be released is never more than what is left
		for l.unreleased.Len() > max(0, l.granted-l.Charged) {
			heap.Pop(&l.unreleased)
		}
	}
	d.ledger(MinuteOf(d.now)).Admitted++
	d.countUser(&r)
	longest := d.longest()
	if s.unlimited() {
		longest = maxSession
	}
	v.AcceptedAt, v.LastCheckIn, v.RefreshInterval = d.now, d.now, 0
	v.Ends = s.sessionEnd(d.now, longest)
	if v.Bucket == 0 {
		v.Bucket = MinuteOf(d.now)
	}
	d.tickets.active++
	d.keep(v.ID, row{kind: active, counted: r.counted, accepted: d.now.UnixNano(), at: d.now.UnixNano()}, v.Ends)
	return Decision{Outcome: Pass, Visitor: v, Changed: true, Counted: true}
}

// wait counts a visitor as waiting.
func (d *DataCentre) wait(v Visitor, r row) Decision {
	d.countUser(&r)
	decision := d.waits(v)
	next := d.now.Add(decision.Visitor.RefreshInterval)
	d.join(v.ID, row{
		kind: waiting, bucket: d.settings.Shuffle.Place(v.ID, v.Bucket), counted: r.counted,
		at: next.UnixNano(), gone: next.Add(absence).UnixNano(),
	})
	return decision
}

// waits is the answer to a check-in that counts.
func (d *DataCentre) waits(v Visitor) Decision {
	v.LastCheckIn, v.RefreshInterval = d.now, d.settings.refresh(d.rng)
	return Decision{Outcome: Wait, Visitor: v, Changed: true, Counted: true, Estimate: d.estimate(v)}
}

// mostWaiting bounds the memory that strangers can fill: about 200 MB. Who comes then
// gets a ticket with a place, and a chance once fewer wait.
const mostWaiting = 1 << 20

// mostActive bounds it likewise where everybody passes. Who comes then passes uncounted,
// without a session.
const mostActive = 1 << 20

// absence is how late a check-in may be before its slot is given to others. The ticket
// keeps its place for longer.
const absence = 10 * time.Second

func (d *DataCentre) estimate(v Visitor) Estimate {
	return d.room.estimate(d.settings.Method, d.settings.Shuffle.Place(v.ID, v.Bucket))
}

// countUser counts a ticket once a minute.
func (d *DataCentre) countUser(r *row) {
	if m := MinuteOf(d.now); r.counted != m {
		r.counted = m
		d.ledger(m).Users++
	}
}

// Revoke ends the session of a ticket: it does not pass here any more. Its slot is free
// at once where everywhere is true, for which the caller has to see to it that no other
// node lets it pass either; otherwise when the session would have ended.
func (d *DataCentre) Revoke(now time.Time, id TicketID, everywhere bool) {
	d.advance(now)
	r, known := d.rows[id]
	if !known || r.revoked {
		return
	}
	switch {
	case r.kind == waiting:
		d.leave(r.bucket)
	case r.kind == spent:
		return
	case !everywhere:
		r.revoked = true
		d.rows[id] = r
		return
	default:
		d.tickets.active--
	}
	r.revoked = true
	d.spend(id, r, d.now, &d.settings)
}

// Report is what the global object has to hear. Every report has to be sent, or lost;
// the next one says the same and more.
func (d *DataCentre) Report(now time.Time) Report {
	d.advance(now)
	d.seq++
	r := Report{
		DataCentre: d.name, Incarnation: d.incarnation, Started: d.started, Seq: d.seq, At: d.now,
		Active: d.tickets.active, Waiting: slices.Clone(d.buckets),
		Workers: max(1, len(d.workers)), Want: d.want, Unlimited: d.settings.unlimited(),
	}
	for m := MinuteOf(d.now) - keptMinutes; m <= MinuteOf(d.now)+1; m++ {
		if l := d.minutes[m]; l != nil {
			r.Minutes = append(r.Minutes, l.MinuteCounts)
		}
	}
	d.want = 0
	return r
}

// NextReport is when the next report is due where none was sent since last: after the
// interval that the global object has named, and soon after each turn of a minute, when
// sessions have ended and grants have expired.
func (d *DataCentre) NextReport(last time.Time) time.Time {
	due := last.Add(d.reportEvery)
	if turn := MinuteOf(last.Add(-d.settings.Skew)).end().Add(d.settings.Skew); turn.Before(due) {
		return turn
	}
	return due
}

// Apply takes what the global object has answered. States that come late or twice do no
// harm, those of another incarnation are ignored.
func (d *DataCentre) Apply(now time.Time, st State) {
	d.advance(now)
	if st.DataCentre != d.name || st.Incarnation != d.incarnation {
		return
	}
	if st.LeaseUntil.After(d.leaseUntil) {
		d.leaseUntil = st.LeaseUntil
	}
	if st.Ack >= d.acked {
		d.acked = st.Ack
		d.leaseDuration = st.LeaseDuration
		d.room = st.Room.clone()
		d.anywhere = st.Anywhere
		d.reportEvery = st.ReportEvery
		d.stated = d.now
	}
	short := st.Anywhere == 0 && (d.waiting > 0 || len(st.Room.Waiting) > 0)
	for _, g := range st.Grants {
		if g.Minute < MinuteOf(d.now)-1 {
			continue
		}
		l := d.ledger(g.Minute)
		for ; l.granted < g.Total; l.granted++ {
			if short && l.granted >= l.Charged {
				l.unreleased.add(d.releaseTime(g.Minute))
			}
		}
	}
}

// releaseTime draws when a slot is released: within one refresh interval, so that it is
// anybody's who waits, but early enough that everybody has checked in once more before
// the minute ends.
func (d *DataCentre) releaseTime(m Minute) int64 {
	longest := d.settings.longestRefresh()
	from := later(d.now, m.Time())
	span := min(longest, m.end().Add(-d.settings.Skew-longest).Sub(from))
	if span <= 0 {
		return from.UnixNano()
	}
	return from.Add(time.Duration(d.rng.Int64N(int64(span)))).UnixNano()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// releases is a heap of times.
type releases []int64

func (r releases) Len() int           { return len(r) }
func (r releases) Less(i, j int) bool { return r[i] < r[j] }
func (r releases) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *releases) Push(x any)        { *r = append(*r, x.(int64)) }
func (r *releases) Pop() any {
	x := (*r)[len(*r)-1]
	*r = (*r)[:len(*r)-1]
	return x
}

func (r *releases) add(at int64) { heap.Push(r, at) }

// advance takes out what is released by now.
func (r *releases) advance(now time.Time) {
	for len(*r) > 0 && (*r)[0] <= now.UnixNano() {
		heap.Pop(r)
	}
}
