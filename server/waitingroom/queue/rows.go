package queue

import (
	"time"
)

// A kind is what a data centre knows about a ticket.
type kind uint8

const (
	waiting  kind = iota + 1
	active        // admitted or taken over; counted until its session has ended everywhere
	adopting      // from another data centre; counted, but not renewed before the global object knows of it
	spent         // its session is over; remembered so that its old waiting ticket is worthless
	called        // a slot is reserved for it; counted as active until it comes, or the reservation lapses
)

// A row is one ticket.
type row struct {
	kind     kind
	revoked  bool
	back     bool   // of waiting: it has come back since its first request, so a slot may be reserved for it
	stream   bool   // of waiting and called: it holds an event stream, so it comes as soon as it is called
	place    place  // of waiting and called: where it queues
	ends     Minute // of active and adopting: the session is over when this minute begins; of spent: it is forgotten then
	counted  Minute // when it was last counted as a user
	seq      uint64 // of adopting: the first report that counts it
	accepted int64  // of active: when it was admitted, in nanoseconds; of called: when the slot was reserved
	at       int64  // of active: the last renewal; of waiting and called: when the next check-in counts
	gone     int64  // of waiting and called: when it stops counting unless it checks in
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
	if old := t.rows[id]; old.kind != waiting || old.place != r.place || old.back != r.back {
		if old.kind == waiting {
			t.leave(&old)
		}
		t.enter(id, &r)
	}
	t.rows[id] = r
	slot := r.gone / wheelSlot
	t.wheel[slot] = append(t.wheel[slot], id)
}

// A ledger is one minute's grants and what became of them.
type ledger struct {
	MinuteCounts
	granted int
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

// charge takes a slot from the grants, for an admission at used, which is now or, for a reserved slot, when that lapses at last.
func (d *DataCentre) charge(used time.Time) {
	first, last := d.settings.chargeable(d.now)
	for m := first; m <= last; m++ {
		l := d.ledger(m)
		l.Charged++
		l.Slices[sliceOf(m, used)]++
	}
}

// moveCharge records that the reserved slot of a ticket is used now.
func (d *DataCentre) moveCharge(r *row) {
	first, last := d.settings.chargeable(time.Unix(0, r.accepted))
	for m := first; m <= last; m++ {
		l := d.ledger(m)
		l.Slices[sliceOf(m, d.settings.lapseTime(r))]--
		l.Slices[sliceOf(m, d.now)]++
	}
}

// refund returns the reserved slot of a ticket that has not used it to the grants of the minutes that are not over.
func (d *DataCentre) refund(r *row) {
	first, last := d.settings.chargeable(time.Unix(0, r.accepted))
	for m := first; m <= last; m++ {
		if l := d.minutes[m]; l != nil && m >= MinuteOf(d.now.Add(-d.settings.Skew)) {
			l.Charged--
			l.Slices[sliceOf(m, d.settings.lapseTime(r))]--
		}
	}
}

// unused is how many slots the grants still have now.
func (d *DataCentre) unused() int {
	first, last := d.settings.chargeable(d.now)
	least := MaxUsers
	for m := first; m <= last; m++ {
		l := d.minutes[m]
		if l == nil {
			return 0
		}
		least = min(least, l.granted-l.Charged)
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
