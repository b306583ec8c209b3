package queue

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"time"
)

// A pack is a snapshot that is being written, or read: the same calls in the same order do
// both, so writing and reading cannot disagree.
type pack struct {
	bytes   []byte
	reading bool
	failed  bool
}

// version is the first number of every snapshot.
const version = 2

// writePack returns a pack that writes a snapshot, and has the version in it already.
func writePack() *pack { return &pack{bytes: append(make([]byte, 0, 512), version)} }

// readPack returns a pack that reads data, a snapshot. The pack has failed if the snapshot is of another version.
func readPack(data []byte) *pack {
	p := &pack{bytes: data, reading: true}
	if len(data) == 0 || data[0] != version {
		p.fail(true)
		return p
	}
	p.bytes = data[1:]
	return p
}

// checkEnd returns an error if reading has failed, or if bytes follow after what was read.
func (p *pack) checkEnd() error {
	if p.failed || len(p.bytes) > 0 {
		return errors.New("snapshot of the waiting room: damaged, or of another version")
	}
	return nil
}

// fail stops reading, for good, if wrong is true: the snapshot has a value that cannot have been written. It does nothing in a
// pack that writes.
func (p *pack) fail(wrong bool) {
	if p.reading && wrong {
		p.failed, p.bytes = true, nil
	}
}

// packInt appends the integer at n to the snapshot as a variable-length number or, in a pack that reads, sets it to the next one.
// If reading fails, n stays as it is. A number beyond the range of T is no failure: it is truncated.
func packInt[T ~int | ~int64 | ~uint64 | ~uint8](p *pack, n *T) {
	if !p.reading {
		p.bytes = binary.AppendVarint(p.bytes, int64(*n))
		return
	}
	v, size := binary.Varint(p.bytes)
	p.fail(size <= 0)
	if !p.failed {
		*n, p.bytes = T(v), p.bytes[size:]
	}
}

// bool appends the value at b to the snapshot or, in a pack that reads, sets it to the next one.
func (p *pack) bool(b *bool) {
	n := 0
	if *b {
		n = 1
	}
	packInt(p, &n)
	*b = n != 0
}

// time appends a time to the snapshot, to the nanosecond, or, in a pack that reads, sets it to the next one. The zero time is
// stored as 0.
func (p *pack) time(t *time.Time) {
	n := int64(0)
	if !t.IsZero() {
		n = t.UnixNano()
	}
	packInt(p, &n)
	if *t = (time.Time{}); n != 0 {
		*t = time.Unix(0, n).UTC()
	}
}

// raw appends the bytes of b to the snapshot or, in a pack that reads, fills b with the next len(b) bytes.
func (p *pack) raw(b []byte) {
	if !p.reading {
		p.bytes = append(p.bytes, b...)
		return
	}
	p.fail(len(p.bytes) < len(b))
	p.bytes = p.bytes[copy(b, p.bytes):]
}

// string appends a string, after its length, to the snapshot or, in a pack that reads, sets it to the next one, "" if reading
// fails.
func (p *pack) string(s *string) {
	b := make([]byte, p.length(len(*s)))
	copy(b, *s)
	p.raw(b)
	*s = string(b)
}

// length appends n, the length of a list or string, to the snapshot and returns it. In a pack that reads it ignores n and returns
// the next length. Each member takes at least one byte, so a length beyond the remaining bytes makes reading fail, and 0 is
// returned.
func (p *pack) length(n int) int {
	packInt(p, &n)
	p.fail(n < 0 || n > len(p.bytes))
	if p.failed {
		return 0
	}
	return n
}

// packList appends a list, after its length, to the snapshot or, in a pack that reads, replaces it by the next one, nil for an
// empty one. It calls member for each member, to append or read that.
func packList[T any](p *pack, list *[]T, member func(*T)) {
	if n := p.length(len(*list)); p.reading {
		*list = nil
		if n > 0 {
			*list = make([]T, n)
		}
	}
	for i := range *list {
		member(&(*list)[i])
	}
}

// packMap appends a map to the snapshot, by minutes in ascending order, or, in a pack that reads, replaces it by the next one. It
// calls value for each value, to append or read that.
func packMap[T any](p *pack, m *map[Minute]T, value func(*T)) {
	minutes := slices.Sorted(maps.Keys(*m))
	if p.reading {
		*m = map[Minute]T{}
	}
	packList(p, &minutes, func(minute *Minute) {
		packInt(p, minute)
		v := (*m)[*minute]
		value(&v)
		(*m)[*minute] = v
	})
}

// Snapshot returns the encoded state, from which [RestoreGlobal] continues. It lacks the accounts of reports, the last batch, and
// the longest session of [SucceedGlobal]. Its size grows with the number of data centres and of buckets in which visitors wait.
func (g *Global) Snapshot() []byte {
	p := writePack()
	g.pack(p)
	return p.bytes
}

// RestoreGlobal returns the global object whose Snapshot is data, with the settings s. It must be the last snapshot before a
// response was sent. If it may be an older one, or if this function fails, [RecoverGlobal] is safe. It fails for a damaged
// snapshot, one of another version, and one that is more than an hour ahead of now.
func RestoreGlobal(data []byte, s Settings, now time.Time) (*Global, error) {
	g := NewGlobal(s, now)
	p := readPack(data)
	g.pack(p)
	p.fail(g.now.After(now.Add(maxAhead)))
	if err := p.checkEnd(); err != nil {
		return nil, err
	}
	g.advance(now)
	return g, nil
}

// pack appends the state of the global object to the snapshot p or, if p reads, sets the state from it.
func (g *Global) pack(p *pack) {
	p.time(&g.now)
	p.bool(&g.holding)
	p.time(&g.holdUntil)
	p.time(&g.closed)
	p.time(&g.barrier)
	packInt(p, &g.queueing)
	packList(p, &g.expected, p.string)
	order := g.order
	packList(p, &order, func(id *reporterID) {
		r := g.reporters[*id]
		if p.reading {
			r = &reporter{}
		}
		r.pack(p)
		if !p.reading {
			return
		}
		*id = reporterID{r.DataCentre, r.Incarnation}
		p.fail(g.reporters[*id] != nil)
		g.insertReporter(*id, r)
	})
}

// pack appends what the global object knows about a data centre to the snapshot p or, if p reads, sets r from it.
func (r *reporter) pack(p *pack) {
	p.string(&r.DataCentre)
	packInt(p, &r.Incarnation)
	p.time(&r.Started)
	packInt(p, &r.Seq)
	p.time(&r.At)
	packInt(p, &r.Active)
	p.buckets(&r.Waiting)
	packInt(p, &r.Workers)
	packInt(p, &r.Want)
	p.bool(&r.Unlimited)
	p.time(&r.Heard)
	packMap(p, &r.Granted, func(g *given) { packInt(p, &g.Total); packInt(p, &g.Own); packInt(p, &g.Drawn) })
	packMap(p, &r.Counts, p.counts)
	p.time(&r.LeaseUntil)
	p.time(&r.Horizon)
	packInt(p, &r.Longest)
	p.bool(&r.Ended)
}

// buckets appends a list of buckets to the snapshot or, in a pack that reads, replaces it by the next one. Ticks within a bucket
// are not stored.
func (p *pack) buckets(list *[]Bucket) {
	packList(p, list, func(b *Bucket) { packInt(p, &b.Minute); packInt(p, &b.Waiting) })
}

// counts appends the counts of a minute to the snapshot or, in a pack that reads, sets them to the next ones.
func (p *pack) counts(c *MinuteCounts) {
	packInt(p, &c.Minute)
	packInt(p, &c.Charged)
	packInt(p, &c.Admitted)
	packInt(p, &c.Users)
	for i := range c.Slices {
		packInt(p, &c.Slices[i])
	}
}
