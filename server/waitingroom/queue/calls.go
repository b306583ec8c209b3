package queue

import (
	"slices"
	"time"
)

// A slot that is free while visitors wait is reserved for the next of them at once: it is charged, and counts as active, from then
// on. A visitor who holds an event stream is called and comes right away. Others come at their next check-in.
//
// A reservation may outlive its minute. It is charged to each minute in which its visitor may come, also to the next one, for which no
// slots have been granted yet. The global object grants these first when that minute has begun, so the visitor can come then. The
// charges for other minutes than that in which the visitor comes are taken back.

const (
	// CallDuration is how long a visitor who was called has to come.
	CallDuration = 30 * time.Second
	// callsWithin is the time over which the visitors of a batch are called, in their order: the site need not serve all of them in the
	// same moment. It is shorter for few: callGap is the longest time between two.
	callsWithin = 5 * time.Second
	callGap     = 25 * time.Millisecond
	// batchDuration is how long slots that become free belong to the same batch.
	batchDuration = 2 * callsWithin
)

// calls are the slots that are reserved.
type calls struct {
	lapses map[int64][]TicketID // by the second in which the reservation lapses
	turned int64                // reservations before this second have lapsed
	made   []Call               // since the last TakeCalls
	last   time.Time            // when the last visitor is called
	batch  Batch                // the last one

	returned []TicketID // sessions that another data centre has not passed, and whose visitors came here later
}

// A Call says when to call a visitor who holds an event stream, and for whom a slot is reserved.
type Call struct {
	ID TicketID
	At time.Time // when to call
}

// reserveFreeSlots reserves all free slots for the visitors who are next in line, and calls those of them who hold an event
// stream. Before, it charges slots for the sessions on the list of mayResume. It does nothing without a lease, or if all visitors
// have to queue. It works under the allocator Counter and the methods FIFO and Random only.
func (d *DataCentre) reserveFreeSlots() {
	s := &d.settings
	if d.ready+len(d.calls.returned) == 0 || s.QueueAll || s.Suspended || s.Allocator != Counter || s.Method != FIFO && s.Method != Random || !d.now.Before(d.leaseUntil) {
		return
	}
	d.chargeReturned()
	for slots := d.unused(); slots > 0; slots-- {
		id, ok := d.takeNext(slots)
		if !ok {
			return
		}
		d.reserve(id)
	}
}

// callTime returns when to call the visitor who waits at place p and for whom a slot is reserved now; not before now. Visitors of
// all data centres who get slots at about the same time are called one after the other, in the order of their places. With the
// method Random, the visitor is called a short gap after the last call of this data centre.
func (d *DataCentre) callTime(p place) time.Time {
	slots := max(1, d.calls.batch.Slots)
	gap := min(callGap, callsWithin/time.Duration(slots))
	if d.settings.Method == Random {
		return later(d.now, d.calls.last.Add(gap))
	}
	before := 0.0
	for _, b := range d.calls.batch.Line {
		if at := b.place(); at.bucket < p.bucket {
			before += float64(b.Waiting)
		} else if at.compare(p) < 0 {
			before += float64(b.Waiting) * min(1, float64(p.tick-b.Tick)/float64(fineTicks))
		}
	}
	before = min(before, float64(slots)) // many of the line may have left, or not come back
	return later(d.now, d.calls.batch.Start.Add(time.Duration(before*float64(gap))))
}

// isBeyondBatch reports whether visitors of a bucket must not get slots now, because as many visitors as may be admitted in a
// minute wait before it, in all data centres. It is false except in the minute in which this data centre stops counting visitors
// from before a restart as waiting: slots were granted for these, who may wait at other data centres by now.
func (d *DataCentre) isBeyondBatch(bucket Minute) bool {
	if m := MinuteOf(d.now); m != MinuteOf(d.absentUntil) || m != MinuteOf(d.calls.batch.Start) {
		return false
	}
	most := d.settings.NewUsersPerMinute
	for _, b := range d.calls.batch.Line {
		if b.Minute < bucket {
			most -= b.Waiting
		}
	}
	return most <= 0
}

// mayResume reports whether a visitor with a session may enter with the old waiting ticket. r is the ticket's row. It is false
// for a session that was given for another data centre and not charged to this minute. Such a visitor may not have arrived there,
// so it first needs a slot of this minute: mayResume puts it before those in line, and tries to charge a slot at once.
func (d *DataCentre) mayResume(id TicketID, r row) bool {
	if !r.elsewhere || d.now.UnixNano() < r.gone || d.settings.unlimited() {
		return true
	}
	if !slices.Contains(d.calls.returned, id) {
		d.calls.returned = append(d.calls.returned, id)
	}
	d.reserveFreeSlots()
	return d.now.UnixNano() < d.rows[id].gone
}

// chargeReturned charges free slots of this minute for the sessions that mayResume has put on the list: they were given for
// another data centre, and their visitors have come here instead, after the charged time.
func (d *DataCentre) chargeReturned() {
	for len(d.calls.returned) > 0 && d.unused() > 0 {
		id := d.calls.returned[0]
		d.calls.returned = d.calls.returned[1:]
		r := d.rows[id]
		if r.kind != active || !r.elsewhere || d.now.UnixNano() < r.gone {
			continue
		}
		end := d.settings.endOfCharge(d.now)
		d.charge(end)
		d.beyond = true
		r.accepted, r.at, r.gone = d.now.UnixNano(), d.now.UnixNano(), end.UnixNano()
		d.rows[id] = r
		d.recordChange(id)
	}
}

// takeNext takes the entry of the visitor who is next out of the ranks, and returns the ticket's id. The visitor still counts as
// waiting until the caller reserves the slot. slots is how many are free. ok is false if no visitor waits for whom a slot may be
// reserved, or if all slots belong to visitors from before a restart who have yet to come back.
func (d *DataCentre) takeNext(slots int) (id TicketID, ok bool) {
	if d.ready == 0 {
		return id, false
	}
	if d.settings.Method == Random {
		return d.takeNextAtRandom(), true
	}
	absent := 0
	for _, b := range d.buckets {
		if d.isBeyondBatch(b.Minute) {
			break
		}
		for _, g := range d.absent {
			if g.Minute == b.Minute {
				absent += g.Waiting
			}
		}
		if slots <= absent {
			break
		}
		ranks := d.ticks[b.Minute]
		if ranks == nil || ranks.ready == 0 {
			continue
		}
		for tick := range &ranks.entries {
			for list := &ranks.entries[tick]; len(*list) > 0; {
				first := (*list)[0]
				*list = (*list)[1:]
				if d.isInLine(first) {
					return first.id, true
				}
			}
		}
	}
	return id, false
}

// takeNextAtRandom takes the entry of one of the visitors for whom a slot may be reserved out of the ranks, each with the same
// chance, and returns the ticket's id. There must be one.
func (d *DataCentre) takeNextAtRandom() TicketID {
	at := d.rng.IntN(d.ready) // the visitor with this number in the order of the ranks, but for the order within a tick
	for _, b := range d.buckets {
		ranks := d.ticks[b.Minute]
		if ranks == nil || at >= ranks.ready {
			at -= d.readyOf(b.Minute)
			continue
		}
		tick := 0
		for ; at >= int(ranks.counts[tick]); tick++ {
			at -= int(ranks.counts[tick])
		}
		for list := &ranks.entries[tick]; ; { // of which some visitors may have left the line
			i := d.rng.IntN(len(*list))
			taken := (*list)[i]
			*list = slices.Delete(*list, i, i+1)
			if d.isInLine(taken) {
				return taken.id
			}
		}
	}
	panic("no visitor waits for whom a slot may be reserved")
}

// endOfCharge returns the time until which a slot that is charged at a time may be used. Later it may be another minute, which
// the slot is not charged to, by some clock.
func (s *Settings) endOfCharge(at time.Time) time.Time {
	_, last := s.chargeableMinutes(at)
	return last.end().Add(-s.Skew)
}

// reserve takes the visitor of a waiting ticket out of line and reserves a slot for it, which is charged and counts as active
// from now on. It does not check that a slot is free. If the visitor holds an event stream, it adds a [Call] to those that
// TakeCalls returns.
func (d *DataCentre) reserve(id TicketID) {
	r := d.rows[id]
	d.remove(&r)
	d.beyond = true
	d.tickets.active++
	r.kind, r.accepted = called, d.now.UnixNano()
	if r.stream {
		at := d.callTime(r.place)
		d.calls.last = later(d.calls.last, at)
		r.at, r.gone = r.accepted, at.Add(CallDuration).UnixNano()
		d.calls.made = append(d.calls.made, Call{id, at})
	}
	second := max(d.calls.turned, (max(r.gone, r.accepted)+int64(time.Second)-1)/int64(time.Second))
	r.gone = second * int64(time.Second)
	d.rows[id] = r
	d.chargeReservation(&r)
	d.calls.lapses[second] = append(d.calls.lapses[second], id)
}

// endLapsedReservations ends the reservations that have lapsed by now. If there were any, it reserves free slots for the visitors
// who are next.
func (d *DataCentre) endLapsedReservations() {
	any := false
	for second := d.now.Unix(); d.calls.turned <= second; d.calls.turned++ {
		for _, id := range d.calls.lapses[d.calls.turned] {
			if r := d.rows[id]; r.kind == called && r.gone/int64(time.Second) <= second {
				d.endReservation(id, r)
				any = true
			}
		}
		delete(d.calls.lapses, d.calls.turned)
	}
	if any {
		d.reserveFreeSlots()
	}
}

// endReservation takes back the reserved slot of a ticket, whose row is r and whose visitor did not come in time. The visitor is
// forgotten or, with an event stream, stays in line and gets no slot before the next contact.
func (d *DataCentre) endReservation(id TicketID, r row) {
	d.refund(&r)
	if !r.stream {
		delete(d.rows, id)
		return
	}
	r.kind, r.accepted = waiting, 0
	r.back, r.at = false, d.now.UnixNano()
	r.gone = d.now.Add(d.settings.longestRefresh() + absence).UnixNano()
	d.joinLine(id, r)
}

// Standing is what an event stream can do for a ticket.
type Standing uint8

const (
	Polls  Standing = iota // nothing: its visitor has to request the page
	InLine                 // it is called as soon as a slot is reserved for it
	Called                 // its visitor may come now
)

// OpenStream records that the visitor of a waiting ticket holds an event stream. The visitor is called as soon as a slot is
// reserved, and counts as waiting until [DataCentre.CloseStream], for the time longest at most. For InLine, renewed is the ticket
// with the time of this contact. Otherwise it is the ticket unchanged, and standing says whether the visitor may come now or has
// to go on requesting the page.
func (d *DataCentre) OpenStream(now time.Time, t Ticket, longest time.Duration) (renewed Ticket, standing Standing) {
	d.advance(now)
	s := &d.settings
	r, known := d.rows[t.ID]
	switch {
	case !t.Waiting() || t.First() || s.Suspended || s.Allocator != Counter || s.Method != FIFO && s.Method != Random, !known && (s.hasLostPlace(d.now, &t) || d.waiting >= mostWaiting):
		return t, Polls
	case r.kind == called && s.QueueAll: // decide has the visitor wait: the page would open a stream again at once
		return t, Polls
	case r.kind == active || r.kind == called:
		if r.kind == called { // it would have to wait for its check-in
			r.at = min(r.at, d.now.UnixNano())
			d.rows[t.ID] = r
		}
		return t, Called
	case known && r.kind != waiting:
		return t, Polls
	case !known:
		d.countReturn(s.placeOf(&t).bucket)
	}
	d.countUser(&r)
	t.LastCheckIn, t.RefreshInterval, t.Stream = d.now, d.chooseRefresh(s.placeOf(&t)), true
	d.joinLine(t.ID, row{
		kind: waiting, place: s.placeOf(&t), back: true, stream: true, counted: r.counted,
		at: t.nextCheckIn().UnixNano(), gone: d.now.Add(longest).UnixNano(),
	})
	d.reserveFreeSlots() // if a slot is free, it is called like all others
	return t, InLine
}

// CloseStream records that the visitor of a ticket holds no event stream any more. A visitor in line waits on until shortly after
// the next check-in is due. A reservation stays. It does nothing for a ticket without a stream.
func (d *DataCentre) CloseStream(now time.Time, id TicketID) {
	d.advance(now)
	r := d.rows[id]
	if !r.stream {
		return
	}
	r.stream = false
	if r.kind == waiting {
		r.gone = d.now.Add(d.settings.longestRefresh() + absence).UnixNano()
		d.joinLine(id, r)
		return
	}
	d.rows[id] = r
}

// HasCalled reports whether some visitor has been called within the last 30 seconds, and so may come now, or will be called.
func (d *DataCentre) HasCalled(now time.Time) bool { return now.Before(d.calls.last.Add(CallDuration)) }

// MayBeCalledElsewhere reports whether another data centre may have called the visitor of a waiting ticket: the visitor has held
// an event stream, and no slot is reserved for it here.
func (d *DataCentre) MayBeCalledElsewhere(t *Ticket) bool {
	kind := d.rows[t.ID].kind
	return t.Waiting() && t.Stream && (kind == 0 || kind == waiting)
}

// redeemMargin is how long before the end of its charge a reservation is redeemed for another data centre, which passes the visitor a
// moment later.
const redeemMargin = 3 * time.Second

// redeemWithin is how long after its admission a redeemed session may pass at the other data centre, if the limit holds for any 60 seconds.
const redeemWithin = 3 * time.Second

// passDeadline returns the time until which another data centre may pass the visitor of a session that was admitted here at a
// time.
func (s *Settings) passDeadline(admitted time.Time) time.Time {
	end := s.endOfCharge(admitted)
	if s.RollingMinute {
		end = earlier(end, admitted.Add(redeemWithin))
	}
	return end
}

// Redeem admits the visitor of a waiting ticket for whom a slot is reserved here, because it has come to another data centre, and
// returns the ticket with its session. If the visitor was admitted here before, it returns that session. It returns the ticket
// unchanged, with ok set, if it has no session, and no slot that is reserved for long enough. It can be called again within the
// charged time, and returns the same session.
//
// ok is false if the visitor can be admitted only a moment later, when the next minute has begun and its slot was granted again:
// the other data centre would have too little time before the end of this one. Then nothing has changed.
func (d *DataCentre) Redeem(now time.Time, t Ticket) (session Ticket, ok bool) {
	d.advance(now)
	r := d.rows[t.ID]
	if !t.Waiting() || r.kind != active && (r.kind != called || time.Unix(0, r.gone).Sub(d.now) < redeemMargin) {
		return t, true
	}
	if r.elsewhere && d.now.UnixNano() >= r.gone { // it would have to be charged again
		return t, true
	}
	if r.kind == called && (d.unused() < 0 || d.settings.endOfCharge(d.now).Sub(d.now) < redeemMargin) {
		return t, false
	}
	decision := d.decide(now, t, false, false)
	if decision.Outcome != Pass {
		return t, true
	}
	if r.kind == called || r.elsewhere {
		deadline := d.settings.passDeadline(decision.Ticket.AcceptedAt)
		if r.kind == called {
			d.moveSlices(d.now, deadline)
		}
		r = d.rows[t.ID]
		r.elsewhere, r.gone = true, deadline.UnixNano()
		d.rows[t.ID] = r
		d.recordChange(t.ID)
	}
	return decision.Ticket, true
}

// PassRedeemed passes a visitor with the session that the [DataCentre.Redeem] of another data centre has given to the ticket.
// From then on this data centre counts the session too. ok is false if the time is over for which that data centre has charged
// the admission, if every new visitor has to wait here, or if the session does not pass.
func (d *DataCentre) PassRedeemed(now time.Time, session Ticket) (decision Decision, ok bool) {
	d.advance(now)
	if d.settings.QueueAll || !d.now.Before(d.settings.passDeadline(session.AcceptedAt)) {
		return decision, false
	}
	decision = d.Visit(now, session)
	decision.Changed = true
	return decision, decision.Outcome == Pass
}

// TakeCalls returns the calls that were made since it was last called, nil for none. The caller delivers each at its time over
// the visitor's event streams.
func (d *DataCentre) TakeCalls() []Call {
	made := d.calls.made
	d.calls.made = nil
	return made
}

// TakeStays returns how long the sessions lasted, from admission to last renewal, that have ended here since it was last called;
// nil for none.
func (d *DataCentre) TakeStays() []time.Duration {
	ended := d.tickets.stays
	d.tickets.stays = nil
	return ended
}

// EstimateOf returns the estimated wait for a ticket that waits here. The bool is false if the ticket does not wait here.
func (d *DataCentre) EstimateOf(id TicketID) (Estimate, bool) {
	r := d.rows[id]
	if r.kind != waiting {
		return Estimate{}, false
	}
	return d.estimateAt(r.place), true
}

// chooseRefresh returns a random interval until the next check-in of a visitor who waits at place p. Slots become free when a
// minute begins, and visitors without event streams take theirs at their next check-in. Under FIFO the visitors of a bucket
// should therefore check in in their order within each interval: of three random intervals it returns the one that comes closest
// to that. Under other methods it returns the first one.
func (d *DataCentre) chooseRefresh(p place) time.Duration {
	s := &d.settings
	interval := s.drawRefresh(d.rng)
	all := d.readyOf(p.bucket)
	if s.Method != FIFO || all == 0 {
		return interval
	}
	turn := time.Duration(float64(s.RefreshInterval) * float64(d.readyAhead(p)) / float64(all))
	distance := func(interval time.Duration) time.Duration {
		off := (d.now.Sub(MinuteOf(d.now).Time()) + interval - turn + s.RefreshInterval) % s.RefreshInterval
		return min(off, s.RefreshInterval-off)
	}
	const draws = 3
	for range draws - 1 {
		if other := s.drawRefresh(d.rng); distance(other) < distance(interval) {
			interval = other
		}
	}
	return interval
}
