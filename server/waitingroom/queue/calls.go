package queue

import "time"

// A slot that is free while visitors wait is reserved for the next of them at once: it is charged, and counts as active, from then
// on. A visitor who holds an event stream is called and comes right away. Others come at their next check-in. A reservation does not
// outlive the minutes that it is charged to; then its visitor is first in line again, for the slots of the next minute.

const (
	// CallDuration is how long a visitor who was called has to come.
	CallDuration = 30 * time.Second
	// callsWithin is the time over which visitors are called whose slots become free together, in their order: the site need not serve
	// all of them in the same moment. It is shorter for few: callGap is the longest time between two.
	callsWithin = 5 * time.Second
	callGap     = 25 * time.Millisecond
	// shortestCall is the least time before the end of a minute in which a slot is reserved.
	shortestCall = 10 * time.Second
)

// calls are the slots that are reserved.
type calls struct {
	lapses map[int64][]TicketID // by the second in which the reservation lapses
	turned int64                // reservations before this second have lapsed
	made   []Call               // since the last TakeCalls
	last   time.Time            // when the visitor who was called last is to come
}

// A Call has a visitor come who holds an event stream, and for whom a slot is reserved.
type Call struct {
	ID TicketID
	At time.Time // when to call
}

// call reserves the slots that are free for the visitors who are next.
func (d *DataCentre) call() {
	s := &d.settings
	if d.ready == 0 || s.QueueAll || s.Suspended || s.Allocator != Counter || s.Method != FIFO && s.Method != Random || !d.now.Before(d.leaseUntil) {
		return
	}
	if s.endOfCharge(d.now).Sub(d.now) < shortestCall {
		return
	}
	free := d.unused()
	for slots := free; slots > 0; slots-- {
		id, ok := d.next(slots)
		if !ok {
			return
		}
		d.reserve(id, min(callGap, callsWithin/time.Duration(free)))
	}
}

// next takes the visitor who is next out of the ranks. ok is false if no visitor waits, or if all slots belong to visitors from before
// a restart, who have yet to come back.
func (d *DataCentre) next(slots int) (id TicketID, ok bool) {
	if d.ready == 0 {
		return id, false
	}
	if d.settings.Method == Random {
		return d.nextAtRandom(), true
	}
	ghosts := 0
	for _, b := range d.buckets {
		for _, g := range d.ghosts {
			if g.Minute == b.Minute {
				ghosts += g.Waiting
			}
		}
		if slots <= ghosts {
			break
		}
		ranks := d.ticks[b.Minute]
		if ranks == nil || ranks.ready == 0 {
			continue
		}
		for tick := range &ranks.ids {
			for list := &ranks.ids[tick]; len(*list) > 0; {
				id := (*list)[0]
				*list = (*list)[1:]
				if d.waitsAt(id, place{b.Minute, uint16(tick)}) {
					return id, true
				}
			}
		}
	}
	return id, false
}

// nextAtRandom takes one of the visitors for whom a slot may be reserved out of the ranks, each with the same chance.
func (d *DataCentre) nextAtRandom() TicketID {
	for {
		at := d.rng.IntN(d.ready)
		for _, b := range d.buckets {
			ranks := d.ticks[b.Minute]
			if ranks == nil {
				continue
			}
			if at -= ranks.ready; at >= 0 {
				continue
			}
			if id, ok := d.takeAtRandom(b.Minute, ranks); ok {
				return id
			}
			break
		}
	}
}

// takeAtRandom takes a visitor out of the ranks of a bucket; false if it met one who has left, and removed that.
func (d *DataCentre) takeAtRandom(bucket Minute, ranks *ranks) (id TicketID, ok bool) {
	all := 0
	for tick := range &ranks.ids {
		all += len(ranks.ids[tick])
	}
	at := d.rng.IntN(all)
	for tick := range &ranks.ids {
		list := ranks.ids[tick]
		if at >= len(list) {
			at -= len(list)
			continue
		}
		id = list[at]
		list[at] = list[len(list)-1]
		ranks.ids[tick] = list[:len(list)-1]
		return id, d.waitsAt(id, place{bucket, uint16(tick)})
	}
	return id, false
}

// waitsAt reports whether a ticket waits at a place, and a slot may be reserved for it.
func (d *DataCentre) waitsAt(id TicketID, p place) bool {
	r := d.rows[id]
	return r.kind == waiting && r.back && r.place == p
}

// endOfCharge returns until when a slot that is charged at a time may be used: then another minute begins by some clock.
func (s *Settings) endOfCharge(at time.Time) time.Time {
	_, last := s.chargeable(at)
	return last.end().Add(-s.Skew)
}

// lapseTime returns when the reserved slot of a ticket lapses.
func (s *Settings) lapseTime(r *row) time.Time {
	return earlier(time.Unix(0, r.gone), s.endOfCharge(time.Unix(0, r.accepted)))
}

// reserve reserves a slot for a waiting ticket. If its visitor holds an event stream, the call is made no earlier than gap after the
// one before.
func (d *DataCentre) reserve(id TicketID, gap time.Duration) {
	r := d.rows[id]
	d.leave(&r)
	d.beyond = true
	d.tickets.active++
	r.kind, r.accepted = called, d.now.UnixNano()
	if r.stream {
		d.calls.last = later(d.now, d.calls.last.Add(gap))
		r.at, r.gone = r.accepted, d.calls.last.Add(CallDuration).UnixNano()
		d.calls.made = append(d.calls.made, Call{id, d.calls.last})
	}
	r.gone = max(r.gone, r.accepted)
	d.rows[id] = r
	lapses := d.settings.lapseTime(&r)
	d.charge(lapses)
	second := max(d.calls.turned, lapses.Unix())
	d.calls.lapses[second] = append(d.calls.lapses[second], id)
}

// lapseCalls ends the reservations that are over by now, and reserves their slots for others.
func (d *DataCentre) lapseCalls() {
	any := false
	for second := d.now.Unix(); d.calls.turned <= second; d.calls.turned++ {
		for _, id := range d.calls.lapses[d.calls.turned] {
			if r := d.rows[id]; r.kind == called && d.settings.lapseTime(&r).Unix() <= second {
				d.lapse(id, r)
				any = true
			}
		}
		delete(d.calls.lapses, d.calls.turned)
	}
	if any {
		d.call()
	}
}

// lapse takes the reserved slot from a ticket. A visitor who had not the time to come is in line again. One who did not come is
// forgotten, or with an event stream waits for the next contact.
func (d *DataCentre) lapse(id TicketID, r row) {
	d.tickets.active--
	d.refund(&r)
	d.beyond = true
	r.kind, r.accepted = waiting, 0
	missed := r.gone/int64(time.Second) <= d.now.Unix()
	if missed && !r.stream {
		delete(d.rows, id)
		return
	}
	if missed {
		r.back, r.at = false, d.now.UnixNano()
		r.gone = d.now.Add(d.settings.longestRefresh() + absence).UnixNano()
	}
	d.join(id, r)
}

// Standing is what an event stream can do for a ticket.
type Standing uint8

const (
	Polls  Standing = iota // nothing: its visitor has to request the page
	InLine                 // it is called as soon as a slot is reserved for it
	Called                 // its visitor may come now
)

// OpenStream notes that a ticket which waits holds an event stream, so that it comes as soon as it is called, and counts as present
// until CloseStream, for at most a time. It returns the ticket with the time of this contact.
func (d *DataCentre) OpenStream(now time.Time, t Ticket, longest time.Duration) (renewed Ticket, standing Standing) {
	d.advance(now)
	s := &d.settings
	r, known := d.rows[t.ID]
	switch {
	case !t.Waiting() || t.First() || s.Suspended || s.Allocator != Counter || s.Method != FIFO && s.Method != Random, !known && (s.misplaced(d.now, &t) || d.waiting >= mostWaiting):
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
		d.lay(s.place(&t).bucket)
	}
	d.countUser(&r)
	t.LastCheckIn, t.RefreshInterval = d.now, d.refresh(s.place(&t))
	d.join(t.ID, row{
		kind: waiting, place: s.place(&t), back: true, stream: true, counted: r.counted,
		at: t.next().UnixNano(), gone: d.now.Add(longest).UnixNano(),
	})
	d.call() // if a slot is free, it is called like all others
	return t, InLine
}

// CloseStream notes that a ticket holds no event stream any more. It keeps its place until the next check-in is due.
func (d *DataCentre) CloseStream(now time.Time, id TicketID) {
	d.advance(now)
	r := d.rows[id]
	if !r.stream {
		return
	}
	r.stream = false
	if r.kind == waiting {
		r.gone = d.now.Add(d.settings.longestRefresh() + absence).UnixNano()
		d.join(id, r)
		return
	}
	d.rows[id] = r
}

// TakeCalls returns the calls that were made since the last call of it.
func (d *DataCentre) TakeCalls() []Call {
	made := d.calls.made
	d.calls.made = nil
	return made
}

// EstimateOf returns the estimate for a ticket that waits here; false if it does not wait.
func (d *DataCentre) EstimateOf(id TicketID) (Estimate, bool) {
	r := d.rows[id]
	if r.kind != waiting {
		return Estimate{}, false
	}
	return d.estimateAt(r.place), true
}

// refresh draws an interval until the next check-in of a visitor who waits at a place. Slots become free when a minute begins, and
// visitors without event streams take theirs at their next check-in. So in each interval the visitors of a bucket check in by and by
// in their order: of some intervals that it draws, refresh returns the one that comes closest to that.
func (d *DataCentre) refresh(p place) time.Duration {
	s := &d.settings
	interval := s.refresh(d.rng)
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
		if other := s.refresh(d.rng); distance(other) < distance(interval) {
			interval = other
		}
	}
	return interval
}
