package queue

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// A data centre that stops in order may continue where it was: its snapshot, restored, is
// the same machine after a pause, and of the same incarnation. For that the one that the
// snapshot was taken from may do nothing more, and no snapshot may be restored twice.

// savedCentre is what of a data centre survives.
type savedCentre struct {
	Version       int
	Name          string
	Incarnation   int64
	Started, Now  time.Time
	Rows          []byte // of savedRow bytes each
	Minutes       []savedLedger
	Seq, Acked    uint64
	LeaseUntil    time.Time
	LeaseDuration time.Duration
	Room          Room
	Anywhere      int
	Stated        time.Time
	ReportEvery   time.Duration
	Want          int
}

type savedLedger struct {
	MinuteCounts
	Granted    int
	Unreleased []int64
}

const (
	savedVersion = 1
	// savedRow is the id, the kind with the revocation, and the numbers of a row.
	savedRow = len(TicketID{}) + 1 + 7*8
	// mostSaved bounds the tickets of a snapshot, which then has less than 12 MiB.
	mostSaved = 100_000
)

// ErrTooMany says that a data centre has more tickets than a snapshot may.
var ErrTooMany = errors.New("too many tickets for a snapshot")

// Incarnation tells this life of the data centre from others.
func (d *DataCentre) Incarnation() int64 { return d.incarnation }

// Snapshot is the state that [RestoreDataCentre] continues from, or [ErrTooMany]. After it
// the data centre must decide nothing any more.
func (d *DataCentre) Snapshot() ([]byte, error) {
	if len(d.rows) > mostSaved {
		return nil, ErrTooMany
	}
	s := savedCentre{
		Version: savedVersion, Name: d.name, Incarnation: d.incarnation, Started: d.started, Now: d.now,
		Seq: d.seq, Acked: d.acked, LeaseUntil: d.leaseUntil, LeaseDuration: d.leaseDuration,
		Room: d.room, Anywhere: d.anywhere, Stated: d.stated, ReportEvery: d.reportEvery, Want: d.want,
	}
	forgotten := make(map[TicketID]Minute)
	for m, ids := range d.spent {
		for _, id := range ids {
			forgotten[id] = max(forgotten[id], m)
		}
	}
	for id, r := range d.rows {
		if r.kind == spent {
			r.ends = forgotten[id] // which a spent ticket has no use for
		}
		s.Rows = append(s.Rows, id[:]...)
		kind := byte(r.kind)
		if r.revoked {
			kind |= 0x80
		}
		s.Rows = append(s.Rows, kind)
		for _, n := range [...]int64{int64(r.bucket), int64(r.ends), int64(r.counted), int64(r.seq), r.accepted, r.at, r.gone} {
			s.Rows = binary.BigEndian.AppendUint64(s.Rows, uint64(n))
		}
	}
	for _, l := range d.minutes {
		s.Minutes = append(s.Minutes, savedLedger{l.MinuteCounts, l.granted, l.unreleased})
	}
	return json.Marshal(s)
}

// RestoreDataCentre returns the data centre that a snapshot was taken from.
func RestoreDataCentre(data []byte, name string, s Settings, seed uint64, now time.Time) (*DataCentre, error) {
	var saved savedCentre
	if err := json.Unmarshal(data, &saved); err != nil {
		return nil, fmt.Errorf("state of a data centre: %w", err)
	}
	switch {
	case saved.Version != savedVersion:
		return nil, fmt.Errorf("state of a data centre: version %d is not %d", saved.Version, savedVersion)
	case saved.Name != name:
		return nil, fmt.Errorf("state of a data centre: it is of %q", saved.Name)
	case len(saved.Rows)%savedRow != 0:
		return nil, errors.New("state of a data centre: it is cut off")
	}
	// The generator goes on from the seed, which is another one.
	d := NewDataCentre(name, saved.Incarnation, s, seed, saved.Now)
	d.started, d.seq, d.acked = saved.Started, saved.Seq, saved.Acked
	d.leaseUntil, d.leaseDuration = saved.LeaseUntil, saved.LeaseDuration
	d.room, d.anywhere, d.stated = saved.Room, saved.Anywhere, saved.Stated
	d.reportEvery, d.want = saved.ReportEvery, saved.Want
	for _, l := range saved.Minutes {
		d.minutes[l.Minute] = &ledger{l.MinuteCounts, l.Granted, l.Unreleased}
	}
	for b := saved.Rows; len(b) > 0; b = b[savedRow:] {
		if err := d.restore(b[:savedRow]); err != nil {
			return nil, err
		}
	}
	d.advance(now)
	return d, nil
}

// restore takes back one row.
func (t *tickets) restore(b []byte) error {
	id := TicketID(b)
	b = b[len(id):]
	r := row{kind: kind(b[0] &^ 0x80), revoked: b[0]&0x80 != 0}
	b = b[1:]
	next := func() int64 {
		n := int64(binary.BigEndian.Uint64(b))
		b = b[8:]
		return n
	}
	r.bucket, r.ends, r.counted, r.seq = Minute(next()), Minute(next()), Minute(next()), uint64(next())
	r.accepted, r.at, r.gone = next(), next(), next()
	if _, twice := t.rows[id]; twice {
		return errors.New("state of a data centre: a ticket is there twice")
	}
	switch r.kind {
	case active, adopting:
		t.active++
		t.ends[r.ends] = append(t.ends[r.ends], id)
	case waiting:
		t.join(id, r)
	case spent:
		t.spent[r.ends] = append(t.spent[r.ends], id)
		r.ends = 0
	default:
		return fmt.Errorf("state of a data centre: a ticket is of kind %d", r.kind)
	}
	t.rows[id] = r
	return nil
}
