package queue

import (
	"container/heap"
	"time"
)

// A kind is what a data centre knows about a ticket.
type kind uint8

const (
	waiting  kind = iota + 1
	active        // admitted or taken over; counted until its session has ended everywhere
	adopting      // from another data centre; counted, but not renewed before the global object knows of it
	spent         // its session is over; remembered so that its old waiting ticket is worthless
)

// A row is one ticket.
type row struct {
	kind     kind
	revoked  bool
	back     bool   // of waiting: it has come back since its first request
	place    place  // of waiting: where it queues
	ends     Minute // of active and adopting: the session is over when this minute begins; of spent: it is forgotten then
	counted  Minute // when it was last counted as a user
	seq      uint64 // of adopting: the first report that counts it
	accepted int64  // of active: when it was admitted, in nanoseconds
	at       int64  // of active: the last renewal; of waiting: when the next check-in counts
	gone     int64  // of waiting: when it stops counting unless it checks in
}

// tickets is what a data centre knows about the tickets that came to it. Its size is
// bounded by their number: a waiting ticket that stays away is forgotten after two
// intervals, an accepted one once its old waiting ticket has lost its place.
type tickets struct {
	rows map[TicketID]row

	active int
	aged   Minute // sessions that end before are over
	ends   map[Minute][]TicketID

	line
	wheel  map[int64][]TicketID
	turned int64 // the wheel's slots before are empty

	spent   map[Minute][]TicketID // by the minute in which they are forgotten
	cleared Minute

	changed map[TicketID]struct{} // tickets that the journal lacks; nil without a journal
	ghosts  []Bucket              // of an earlier process, counted as waiting
	haunted time.Time             // until when
}

// note has the journal learn of a ticket.
func (t *tickets) note(id TicketID) {
	if t.changed != nil {
		t.changed[id] = struct{}{}
	}
}

const wheelSlot = int64(8 * time.Second)

func newTickets(now time.Time) tickets {
	return tickets{
		line: newLine(), rows: map[TicketID]row{}, ends: map[Minute][]TicketID{}, wheel: map[int64][]TicketID{}, spent: map[Minute][]TicketID{},
		aged: MinuteOf(now) - 1, turned: now.UnixNano() / wheelSlot, cleared: MinuteOf(now),
	}
}

// advance ends what is over at now.
func (t *tickets) advance(now time.Time, s *Settings) {
	for over := MinuteOf(now.Add(-s.Skew)); t.aged <= over; t.aged++ {
		for _, id := range t.ends[t.aged] {
			r, ok := t.rows[id]
			if ok && r.ends == t.aged && (r.kind == active || r.kind == adopting) {
				t.active--
				t.spend(id, r, now, s)
			}
		}
		delete(t.ends, t.aged)
	}
	for slot := now.UnixNano() / wheelSlot; t.turned < slot; t.turned++ {
		for _, id := range t.wheel[t.turned] {
			if r, ok := t.rows[id]; ok && r.kind == waiting && r.gone/wheelSlot <= t.turned {
				t.leave(&r)
				if !r.back {
					t.noteFresh(false)
				}
				delete(t.rows, id)
			}
		}
		delete(t.wheel, t.turned)
	}
	for minute := MinuteOf(now); t.cleared < minute; t.cleared++ {
		for _, id := range t.spent[t.cleared] {
			if r := t.rows[id]; r.kind == spent && r.ends <= t.cleared {
				delete(t.rows, id)
				t.note(id)
			}
		}
		delete(t.spent, t.cleared)
		t.fade()
	}
	if t.ghosts != nil && !now.Before(t.haunted) {
		t.exorcise()
	}
}

// spend remembers a ticket for as long as a waiting ticket with its id may have a place.
func (t *tickets) spend(id TicketID, r row, now time.Time, s *Settings) {
	until := MinuteOf(now.Add(s.PlaceKept+s.Skew)) + 1
	if r.revoked { // or as long as its accepted ticket would pass
		until = max(until, r.ends+1)
	}
	t.rows[id] = row{kind: spent, revoked: r.revoked, ends: until}
	if r.revoked { // an end that its journal knows needs no other row
		t.note(id)
	}
	t.spent[until] = append(t.spent[until], id)
}

// keep has an active ticket counted until the session ends; it counts nothing itself.
func (t *tickets) keep(id TicketID, r row, ends time.Time) {
	minute := MinuteOf(ends.Add(time.Minute - 1))
	if r.ends != minute {
		t.ends[minute] = append(t.ends[minute], id)
		r.ends = minute
	}
	t.rows[id] = r
	t.note(id)
}

// join counts a ticket as waiting until gone.
func (t *tickets) join(id TicketID, r row) {
	if old, ok := t.rows[id]; ok && old.kind == waiting {
		t.leave(&old)
	}
	t.enter(&r)
	t.rows[id] = r
	slot := r.gone / wheelSlot
	t.wheel[slot] = append(t.wheel[slot], id)
}

// A ledger is one minute's grants and what became of them.
type ledger struct {
	MinuteCounts
	granted int
	// unreleased are grants, none of them charged yet, that are released later in the
	// minute while visitors wait.
	unreleased releases
}

func (d *DataCentre) ledger(m Minute) *ledger {
	l := d.minutes[m]
	if l == nil {
		l = &ledger{MinuteCounts: MinuteCounts{Minute: m}}
		d.minutes[m] = l
	}
	return l
}

// chargeable are the minutes that an admission now may be in by the global object's
// clock: this one, and near its turn the neighbour.
func (s *Settings) chargeable(now time.Time) (first, last Minute) {
	return MinuteOf(now.Add(-s.Skew)), MinuteOf(now.Add(s.Skew))
}

// charge takes an admission from the grants.
func (d *DataCentre) charge() {
	first, last := d.settings.chargeable(d.now)
	for m := first; m <= last; m++ {
		l := d.ledger(m)
		l.Charged++
		l.Slices[sliceOf(m, d.now)]++
		// No more slots can wait for their release than are left.
		for l.unreleased.Len() > max(0, l.granted-l.Charged) {
			heap.Pop(&l.unreleased)
		}
	}
	d.ledger(MinuteOf(d.now)).Admitted++
}

// unused is how many visitors the grants still admit now. With paced it leaves out the
// slots that are released later in the minute.
func (d *DataCentre) unused(paced bool) int {
	first, last := d.settings.chargeable(d.now)
	least := MaxUsers
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

// granted reports whether there have been grants for the minutes that an admission now
// would be charged to.
func (d *DataCentre) granted() bool {
	first, last := d.settings.chargeable(d.now)
	for m := first; m <= last; m++ {
		if l := d.minutes[m]; l == nil || l.granted == 0 {
			return false
		}
	}
	return true
}

// releaseTime draws when a slot is released: within one refresh interval, so that every
// waiting visitor may get it, but early enough that all have checked in once more before
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
