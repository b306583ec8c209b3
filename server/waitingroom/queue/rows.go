package queue

import (
	"slices"
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
	redeemed      // in the journal only: active, and elsewhere
)

// A row is one ticket.
type row struct {
	kind      kind
	revoked   bool
	back      bool   // of waiting: it has come back since its first request, so a slot may be reserved for it
	stream    bool   // of waiting and called: it holds an event stream, so it comes as soon as it is called
	elsewhere bool   // of active: admitted for another data centre, and perhaps not passed there
	number    uint32 // of waiting: that of its entry in the ranks, if it is back
	wheel     int32  // of waiting: the slot of the wheel that has the ticket
	place     place  // of waiting and called: where it queues
	ends      Minute // of active and adopting: the session is over when this minute begins; of spent: it is forgotten then
	counted   Minute // when it was last counted as a user
	seq       uint64 // of adopting: the first report that counts it
	accepted  int64  // of active: when it was admitted, in nanoseconds; of called: when the slot was reserved
	at        int64  // of active: the last renewal; of waiting and called: when the next check-in counts
	gone      int64  // of waiting and called: when it stops counting unless it checks in, of called a whole second; of active elsewhere: until when its charge lets it enter
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
	wheel  map[int32][]TicketID // by the wheelSlot in which the line looks whether a visitor is gone
	turned int32                // the wheel's slots before are empty

	spent   map[Minute][]TicketID // by the minute in which they are forgotten
	cleared Minute
	stays   []time.Duration // how long the sessions lasted that have ended since TakeStays, until their last renewal

	changed     map[TicketID]struct{} // tickets that the journal lacks; nil without a journal
	absent      []Bucket              // of an earlier process, counted as waiting
	absentUntil time.Time             // until when
}

// recordChange marks a ticket as changed for the next [DataCentre.TakeChanges]. It does nothing if the data centre keeps no
// journal.
func (t *tickets) recordChange(id TicketID) {
	if t.changed != nil {
		t.changed[id] = struct{}{}
	}
}

// wheelSlot is the duration of a slot of the wheel, in nanoseconds.
const wheelSlot = int64(8 * time.Second)

// wheelSlotOf returns the number of the wheel's slot that a time falls into: how many whole slots have passed since 1970. Numbers never
// repeat. at is in nanoseconds since 1970.
func wheelSlotOf(at int64) int32 { return int32(at / wheelSlot) }

// newTickets returns an empty table of tickets. Nothing in it can expire before now.
func newTickets(now time.Time) tickets {
	return tickets{
		line: newLine(), rows: map[TicketID]row{}, ends: map[Minute][]TicketID{}, wheel: map[int32][]TicketID{}, spent: map[Minute][]TicketID{},
		aged: MinuteOf(now) - 1, turned: wheelSlotOf(now.UnixNano()), cleared: MinuteOf(now),
	}
}

// advance ends the sessions that are over at now by all clocks, removes waiting visitors who have not come back in time, and
// deletes the rows of tickets that no longer need to be remembered. Visitors from before a restart count as waiting until
// absentUntil.
func (t *tickets) advance(now time.Time, s *Settings) {
	for over := MinuteOf(now.Add(-s.Skew)); t.aged <= over; t.aged++ {
		for _, id := range t.ends[t.aged] {
			r, ok := t.rows[id]
			if ok && r.ends == t.aged && (r.kind == active || r.kind == adopting) {
				t.active--
				t.endSession(id, r, now, s)
			}
		}
		delete(t.ends, t.aged)
	}
	for slot := wheelSlotOf(now.UnixNano()); t.turned < slot; t.turned++ {
		for _, id := range t.wheel[t.turned] {
			r, ok := t.rows[id]
			switch {
			case !ok || r.kind != waiting || r.wheel != t.turned:
			case wheelSlotOf(r.gone) <= t.turned:
				t.remove(&r)
				delete(t.rows, id)
			default: // the visitor has come back since
				t.scheduleRemoval(id, &r)
				t.rows[id] = r
			}
		}
		delete(t.wheel, t.turned)
	}
	for minute := MinuteOf(now); t.cleared < minute; t.cleared++ {
		for _, id := range t.spent[t.cleared] {
			if r := t.rows[id]; r.kind == spent && r.ends <= t.cleared {
				delete(t.rows, id)
				t.recordChange(id)
			}
		}
		delete(t.spent, t.cleared)
	}
	if t.absent != nil && !now.Before(t.absentUntil) {
		t.removeAbsent()
	}
}

// endSession replaces the row r of a ticket by one that says that its session, or its wait, is over. It keeps the row for as long
// as the old waiting ticket would have a place in line, or the revoked ticket would pass. The caller has subtracted the session
// from t.active, or taken the visitor out of line.
func (t *tickets) endSession(id TicketID, r row, now time.Time, s *Settings) {
	if r.kind == active && !r.elsewhere {
		t.stays = append(t.stays, time.Duration(r.at-r.accepted))
	}
	until := MinuteOf(now.Add(s.PlaceKept+s.Skew)) + 1
	if r.revoked { // or as long as its accepted ticket would pass
		until = max(until, r.ends+1)
	}
	t.rows[id] = row{kind: spent, revoked: r.revoked, ends: until}
	if r.revoked { // an end that its journal knows needs no other row
		t.recordChange(id)
	}
	t.spent[until] = append(t.spent[until], id)
}

// countSession stores the row r of a ticket with a session, for the journal too, and schedules its end for the first whole minute
// at or after ends. It does not change t.active, which the caller counts.
func (t *tickets) countSession(id TicketID, r row, ends time.Time) {
	minute := MinuteOf(ends.Add(time.Minute - 1))
	if r.ends != minute {
		t.ends[minute] = append(t.ends[minute], id)
		r.ends = minute
	}
	t.rows[id] = r
	t.recordChange(id)
}

// joinLine stores the row r of a waiting ticket and puts its visitor in line, unless the visitor is there already, with the same
// place and r.back. It ignores r.number and r.wheel. It schedules that the visitor is removed at about r.gone.
func (t *tickets) joinLine(id TicketID, r row) {
	old := t.rows[id]
	r.number, r.wheel = old.number, old.wheel
	if old.kind != waiting || old.place != r.place || old.back != r.back {
		if old.kind == waiting {
			t.remove(&old)
		}
		t.pruneEntries(r.place.bucket)
		t.enter(id, &r)
	}
	if old.kind != waiting || wheelSlotOf(r.gone) < r.wheel { // a later end is noticed when the wheel comes to the present slot
		t.scheduleRemoval(id, &r)
	}
	t.rows[id] = r
}

// scheduleRemoval puts a waiting ticket into the slot of the wheel for the time r.gone, at which advance removes the visitor,
// unless its row has a later time by then. It sets r.wheel. The caller stores r.
func (t *tickets) scheduleRemoval(id TicketID, r *row) {
	r.wheel = wheelSlotOf(r.gone)
	t.wheel[r.wheel] = append(t.wheel[r.wheel], id)
}

// pruneEntries deletes the entries of visitors who have left a bucket, if these are more than pruneAbove more than the others.
func (t *tickets) pruneEntries(bucket Minute) {
	b := t.ticks[bucket]
	if b == nil || b.left <= b.ready+pruneAbove {
		return
	}
	for i := range b.entries {
		b.entries[i] = slices.DeleteFunc(b.entries[i], func(e entry) bool { return !t.isInLine(e) })
	}
	b.left = 0
}

// pruneAbove is how many entries of visitors who have left a bucket are no reason to prune.
const pruneAbove = 64

// isInLine reports whether e is the current entry of a visitor who waits and for whom a slot may be reserved.
func (t *tickets) isInLine(e entry) bool {
	r := t.rows[e.id]
	return r.kind == waiting && r.back && r.number == e.number
}

// A ledger is one minute's grants and their charges, with the other counts of the minute.
type ledger struct {
	MinuteCounts
	granted int
}

// ledgerOf returns the ledger of a minute. It adds an empty one if it is missing.
func (d *DataCentre) ledgerOf(m Minute) *ledger {
	l := d.minutes[m]
	if l == nil {
		l = &ledger{MinuteCounts: MinuteCounts{Minute: m}}
		d.minutes[m] = l
	}
	return l
}

// chargeableMinutes returns the first and last minute that it may be by the global object's clock when it is now here: this
// minute and, within Skew of its start or end, the neighbour. An admission is charged to the grants of each of them.
func (s *Settings) chargeableMinutes(now time.Time) (first, last Minute) {
	return MinuteOf(now.Add(-s.Skew)), MinuteOf(now.Add(s.Skew))
}

// charge takes a slot from the grants of each chargeable minute, and does not check that they have one. used is when the visitor
// enters: now or, for another data centre, the latest possible time.
func (d *DataCentre) charge(used time.Time) {
	first, last := d.settings.chargeableMinutes(d.now)
	d.addCharges(first, last, 1)
	d.addSlices(first, last, used, 1)
}

// chargeReservation takes a slot for the reservation of row r from the grants of each chargeable minute, and charges it to the later
// minutes in which its visitor may come, which have no grants yet. It counts as used at the latest possible time.
func (d *DataCentre) chargeReservation(r *row) {
	first, _ := d.settings.chargeableMinutes(time.Unix(0, r.accepted))
	end := time.Unix(0, r.gone)
	from, last := d.settings.chargeableMinutes(end)
	d.addCharges(first, last, 1)
	d.addSlices(from, last, end, 1)
}

// redeemCharge takes back the charges for the reservation of row r to the minutes after the chargeable ones, because its visitor
// enters now. Those of the chargeable minutes, and of earlier ones, stay. In the slices the slot counts as used now.
func (d *DataCentre) redeemCharge(r *row) {
	first, last := d.settings.chargeableMinutes(d.now)
	end := time.Unix(0, r.gone)
	from, latest := d.settings.chargeableMinutes(end)
	d.addCharges(last+1, latest, -1)
	d.addSlices(from, latest, end, -1)
	d.addSlices(first, last, d.now, 1)
}

// refund takes back the reserved slot of row r, which was not used: the visitor does not count as active any more, and the charges
// of the minutes that are not over are free again. The caller changes or deletes the row.
func (d *DataCentre) refund(r *row) {
	first, _ := d.settings.chargeableMinutes(time.Unix(0, r.accepted))
	end := time.Unix(0, r.gone)
	from, last := d.settings.chargeableMinutes(end)
	d.tickets.active--
	d.beyond = true
	d.addCharges(max(first, MinuteOf(d.now.Add(-d.settings.Skew))), last, -1)
	d.addSlices(from, last, end, -1)
}

// addCharges adds n charges, or removes them if n is negative, to each minute from first to last. It does nothing if last is
// before first.
func (d *DataCentre) addCharges(first, last Minute, n int) {
	for m := first; m <= last; m++ {
		d.ledgerOf(m).Charged += n
	}
}

// addSlices adds n, which may be negative, to one slice of each minute from first to last: that of the time used, or the nearest
// one to it.
func (d *DataCentre) addSlices(first, last Minute, used time.Time, n int) {
	for m := first; m <= last; m++ {
		d.ledgerOf(m).Slices[sliceOf(m, used)] += n
	}
}

// moveSlices moves the charge of an admission in the slices of its minutes from the time admitted to the time to, which is the
// latest at which its slot is used.
func (d *DataCentre) moveSlices(admitted, to time.Time) {
	first, last := d.settings.chargeableMinutes(admitted)
	d.addSlices(first, last, admitted, -1)
	d.addSlices(first, last, to, 1)
}

// unused returns how many more visitors the grants allow to be admitted now: the least of all chargeable minutes. It is 0 if one
// of them has no ledger. It is negative while slots that are reserved since the minute before have not been granted again.
func (d *DataCentre) unused() int {
	first, last := d.settings.chargeableMinutes(d.now)
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

// hasGrants reports whether there have been grants, used or not, for every minute that an admission now would be charged to.
func (d *DataCentre) hasGrants() bool {
	first, last := d.settings.chargeableMinutes(d.now)
	for m := first; m <= last; m++ {
		if l := d.minutes[m]; l == nil || l.granted == 0 {
			return false
		}
	}
	return true
}
