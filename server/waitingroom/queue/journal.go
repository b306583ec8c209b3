package queue

import (
	"iter"
	"slices"
	"time"
)

// A data centre that keeps a journal can be continued after its process was killed. Each
// session, with its latest end, and each charge is in the journal before the answer that
// promises it leaves; so the life that continues counts every session that passes, and
// charges nothing a second time. To the global object it is the same incarnation after a
// pause, of which the proof in the package documentation holds.
//
// Waiting visitors have their places in their tickets. The journal has only how many wait in
// each bucket, as of the last report. Until these have had the time to check in, they are
// counted as waiting, so that first requests and younger buckets do not overtake them.

// A Change is a row of the journal that replaces the one of the same ticket.
type Change struct {
	ID  TicketID
	Row []byte // nil: the journal has no row, because the ticket is forgotten or waits
}

// StartJournal makes a new data centre, which has no tickets yet, record its changes from now on, for [DataCentre.TakeChanges].
func (d *DataCentre) StartJournal() {
	d.tickets.changed = map[TicketID]struct{}{}
	d.beyond = true
}

// TakeChanges returns the changes since it was last called: rows of tickets, in no order, and the head, which has the rest of the
// state and is nil if it has not changed. Both are nil without a journal. The caller must store both together before any client
// gets a decision that the data centre made since then.
func (d *DataCentre) TakeChanges() (rows []Change, head []byte) {
	for id := range d.tickets.changed {
		c := Change{ID: id}
		if r, ok := d.rows[id]; ok && r.kind != waiting && r.kind != called {
			p := &pack{bytes: append(make([]byte, 0, 48), version)}
			r.pack(p)
			c.Row = p.bytes
		}
		rows = append(rows, c)
	}
	clear(d.tickets.changed)
	if d.beyond && d.tickets.changed != nil {
		p := writePack()
		d.packHead(p)
		head = p.bytes
	}
	d.beyond = false
	return rows, head
}

// pack appends the fields of a row that the journal has to p or, if p reads, sets them in r. A row that was admitted for another
// data centre has the kind redeemed there.
func (r *row) pack(p *pack) {
	kind := r.kind
	if r.elsewhere {
		kind = redeemed
	}
	packInt(p, &kind)
	if r.kind, r.elsewhere = kind, kind == redeemed; r.elsewhere {
		r.kind = active
	}
	p.bool(&r.revoked)
	packInt(p, &r.ends)
	packInt(p, &r.counted)
	packInt(p, &r.accepted)
	packInt(p, &r.at)
}

// packHead appends the head of the journal to p or, if p reads, sets d from it: the name, times, counts of each minute, and how
// many visitors wait in each bucket. The waiting visitors that it reads go to d.absent.
func (d *DataCentre) packHead(p *pack) {
	p.string(&d.name)
	packInt(p, &d.incarnation)
	packInt(p, &d.continued)
	p.time(&d.started)
	p.time(&d.now)
	packMap(p, &d.minutes, func(l **ledger) {
		if p.reading {
			*l = &ledger{}
		}
		p.counts(&(*l).MinuteCounts)
	})
	waiting := slices.Clone(d.buckets)
	p.buckets(&waiting)
	if p.reading {
		d.absent = waiting
	}
}

// maxAhead is how far ahead of the clock a stored time of a room may be. A room that is further ahead was stored by a wrong clock, would stand
// still until then, and starts anew.
const maxAhead = time.Hour

// ContinueDataCentre returns the data centre of an earlier run, with its incarnation, from the head and the rows of its journal.
// It continues the journal. seed determines its random numbers and must be new. It fails if the journal is damaged, has another
// name, or is more than an hour ahead of now. The caller must store the result of the first [DataCentre.TakeChanges] before the
// data centre decides anything.
func ContinueDataCentre(name string, head []byte, rows iter.Seq2[TicketID, []byte], s Settings, seed uint64, now time.Time) (*DataCentre, error) {
	d := NewDataCentre(name, 0, s, seed, now)
	p := readPack(head)
	d.packHead(p)
	p.fail(d.name != name)
	p.fail(d.now.After(now.Add(maxAhead)))
	if err := p.checkEnd(); err != nil {
		return nil, err
	}
	d.dropReservations()
	d.now = later(d.now, now) // its clock does not go back
	absent := d.absent
	d.tickets = newTickets(d.now)
	d.StartJournal()
	d.continued++
	d.seq = uint64(d.continued) << 32 // above those of the life before
	d.rng = newRandom(seed, name, d.incarnation+d.continued)
	for id, data := range rows {
		var r row
		p := readPack(data)
		r.pack(p)
		d.restoreRow(p, id, r)
		if err := p.checkEnd(); err != nil {
			return nil, err
		}
	}
	d.expectReturns(absent, d.now.Add(s.longestRefresh()))
	d.advance(d.now)
	return d, nil
}

// dropReservations ends the reservations of an earlier process, of which the journal has the charges only. It takes back those of
// minutes that had not begun by any clock. It sets the grants of all minutes to the charges that stay: this data centre will not
// use more.
func (d *DataCentre) dropReservations() {
	_, last := d.settings.chargeableMinutes(d.now)
	for m, l := range d.minutes {
		if m > last {
			l.Charged, l.Slices = 0, [slices60]int{}
		}
		l.granted = l.Charged
	}
}

// restoreRow adds the row r of a ticket that was read from the journal by p: of a session, which counts as active, or of a ticket
// whose session is over. Any other kind makes p fail. After a failure of p it adds no row.
func (d *DataCentre) restoreRow(p *pack, id TicketID, r row) {
	t := &d.tickets
	switch r.kind {
	case active, adopting:
		r.seq = d.seq + 1 // the next report counts it
		r.ends = max(r.ends, t.aged)
		t.active++
		t.ends[r.ends] = append(t.ends[r.ends], id)
	case spent:
		r.ends = max(r.ends, t.cleared)
		t.spent[r.ends] = append(t.spent[r.ends], id)
	default:
		p.fail(true)
	}
	if !p.failed {
		t.rows[id] = r
	}
}

// expectReturns counts visitors from before a restart, by bucket, as waiting until gone, or until countReturn counts them out.
func (t *tickets) expectReturns(absent []Bucket, gone time.Time) {
	for _, b := range absent {
		if b.Waiting > 0 {
			t.absent = append(t.absent, b)
			t.addToBucket(b.Minute, b.Waiting)
		}
	}
	t.absentUntil = gone
}

// countReturn counts a visitor of a bucket who has come back out of the absent ones from before a restart, if there are any. The
// caller counts it as waiting by its ticket.
func (t *tickets) countReturn(bucket Minute) {
	for i := range t.absent {
		if g := &t.absent[i]; g.Minute == bucket && g.Waiting > 0 {
			g.Waiting--
			t.addToBucket(bucket, -1)
			return
		}
	}
}

// removeAbsent stops counting the visitors from before a restart who have not come back.
func (t *tickets) removeAbsent() {
	for _, g := range t.absent {
		if g.Waiting > 0 {
			t.addToBucket(g.Minute, -g.Waiting)
		}
	}
	t.absent = nil
}
