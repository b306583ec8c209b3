package queue

import (
	"cmp"
	"slices"
	"time"
)

// A place is where a ticket is in line: a bucket, and a tick of its minute, in tenths of a second from 0.
type place struct {
	bucket Minute
	tick   uint16
}

// compare orders places in line: by bucket (the minute of the first request), then by tick (a tenth of a second in it). It
// returns a negative number, 0 or a positive number.
func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.bucket, o.bucket), cmp.Compare(p.tick, o.tick))
}

const (
	tick  = 100 * time.Millisecond
	ticks = int(time.Minute / tick) // of a bucket
)

// placeOf returns the place in line of a waiting ticket: by the time of the visitor's first request or, if that is within the
// range of the shuffle, a place that depends on the ticket's id and the shuffle's secret.
func (s *Settings) placeOf(t *Ticket) place {
	bucket := t.Bucket()
	if shuffled, ok := s.Shuffle.placeOf(t.ID, bucket); ok {
		return shuffled
	}
	return place{bucket, uint16(t.Since.Sub(bucket.Time()) / tick)}
}

// A line is the visitors who wait at a data centre.
type line struct {
	waiting int
	buckets []Bucket // ascending, none is empty
	ticks   map[Minute]*ranks
	ready   int    // visitors for whom a slot may be reserved: those who have come back since their first request
	entered uint32 // how many visitors have entered
}

// ranks are the visitors of a bucket for whom a slot may be reserved, in order.
type ranks struct {
	ready   int
	left    int // entries of visitors who have left the line, at most
	counts  [ticks]int32
	fresh   [ticks]int32 // visitors who have not come back since their first request
	entries [ticks][]entry
}

// An entry is a visitor who entered the line. It stays when the visitor leaves, until another visitor is looked for or the entries
// are pruned; a visitor who enters again has another number, so only one entry of a visitor counts.
type entry struct {
	id     TicketID
	number uint32
}

// newLine returns an empty line.
func newLine() line { return line{ticks: map[Minute]*ranks{}} }

// enter puts a visitor in line at r.place and counts it as waiting. If the visitor has come back since the first request
// (r.back), a slot may be reserved for it from now on, and enter sets r.number, by which later calls recognise this entry. Else
// the visitor gets no entry. The caller stores r.
func (l *line) enter(id TicketID, r *row) {
	l.addToBucket(r.place.bucket, 1)
	b := l.ticks[r.place.bucket]
	if b == nil {
		b = &ranks{}
		l.ticks[r.place.bucket] = b
	}
	if !r.back {
		b.fresh[r.place.tick]++
		return
	}
	l.entered++
	r.number = l.entered
	b.counts[r.place.tick]++
	b.entries[r.place.tick] = append(b.entries[r.place.tick], entry{id, r.number})
	b.ready++
	l.ready++
}

// remove takes the visitor of row r out of line and out of the counts. The visitor's entry stays in the ranks until it is skipped
// or pruned.
func (l *line) remove(r *row) {
	switch b := l.ticks[r.place.bucket]; {
	case b == nil:
	case r.back:
		b.counts[r.place.tick]--
		b.left++
		b.ready--
		l.ready--
	default:
		b.fresh[r.place.tick]--
	}
	l.addToBucket(r.place.bucket, -1)
}

// addToBucket adds n visitors, removes them if n is negative, to the count of those who wait and of one bucket. A bucket with
// none is deleted, with its ranks.
func (l *line) addToBucket(bucket Minute, n int) {
	l.waiting += n
	i, ok := slices.BinarySearchFunc(l.buckets, bucket, func(b Bucket, m Minute) int { return int(b.Minute - m) })
	if !ok {
		l.buckets = slices.Insert(l.buckets, i, Bucket{Minute: bucket, Waiting: n})
		return
	}
	l.buckets[i].Waiting += n
	if l.buckets[i].Waiting == 0 {
		l.buckets = slices.Delete(l.buckets, i, i+1)
		delete(l.ticks, bucket)
	}
}

const (
	// fineTicks is the width of the parts in which the buckets are reported that are next, at most mostFine of them.
	fineTicks = int(time.Second / tick)
	mostFine  = 240
)

// report returns how many visitors wait, by bucket in ascending order, nil if none do. The oldest buckets, as far as they contain
// the next visitors to enter (next of them), are divided into parts of a second, until the list has mostFine members. Visitors
// from before a restart, whose second is not known, are in the first part of their bucket.
func (l *line) report(next int) (list []Bucket) {
	for _, b := range l.buckets {
		ranks := l.ticks[b.Minute]
		if next <= 0 || ranks == nil || len(list) >= mostFine {
			list = append(list, b)
			continue
		}
		next -= b.Waiting
		var parts [ticks / fineTicks]int
		for tick := range ticks {
			n := int(ranks.counts[tick] + ranks.fresh[tick])
			parts[tick/fineTicks] += n
			b.Waiting -= n
		}
		parts[0] += b.Waiting
		for i, n := range parts {
			if n > 0 {
				list = append(list, Bucket{b.Minute, n, uint16(i * fineTicks)})
			}
		}
	}
	return list
}

// readyAhead returns how many visitors wait in the same bucket before p and have come back since their first request.
func (l *line) readyAhead(p place) (n int) {
	if b := l.ticks[p.bucket]; b != nil {
		for _, c := range b.counts[:p.tick] {
			n += int(c)
		}
	}
	return n
}

// freshTicks is how long visitors count as people ahead who have not come back since their first request: a browser opens an event
// stream in less.
const freshTicks = int(4500 * time.Millisecond / tick)

// freshAhead returns how many visitors made their first request less than 4.5 seconds before p and have not come back since.
func (l *line) freshAhead(p place) (n int) {
	sum := func(bucket Minute, from, to int) {
		if b := l.ticks[bucket]; b != nil {
			for _, c := range b.fresh[max(0, from):to] {
				n += int(c)
			}
		}
	}
	sum(p.bucket, int(p.tick)-freshTicks, int(p.tick))
	sum(p.bucket-1, min(ticks, ticks+int(p.tick)-freshTicks), ticks)
	return n
}

// readyOf returns for how many visitors of a bucket a slot may be reserved: they wait and have come back since their first
// request.
func (l *line) readyOf(bucket Minute) int {
	if b := l.ticks[bucket]; b != nil {
		return b.ready
	}
	return 0
}

// aheadOf estimates how many visitors enter before a visitor who waits at p. room has the buckets of all data centres, as they
// were a moment ago: the numbers of this data centre are scaled up by them. Visitors who have not come back some seconds after
// their first request do not count: a flood of them never does.
func (l *line) aheadOf(p place, room []Bucket) int {
	n := float64(l.freshAhead(p))
	for _, b := range l.buckets {
		for ; len(room) > 0 && room[0].Minute < b.Minute && room[0].Minute < p.bucket; room = room[1:] { // where no visitor waits here
			n += float64(room[0].Waiting)
		}
		if b.Minute > p.bucket {
			break
		}
		there := float64(l.readyOf(b.Minute))
		if b.Minute == p.bucket {
			there = float64(l.readyAhead(p))
		}
		if len(room) > 0 && room[0].Minute == b.Minute {
			there *= max(1, float64(room[0].Waiting)/float64(b.Waiting)) // as many at the others
			room = room[1:]
		}
		n += there
	}
	for ; len(room) > 0 && room[0].Minute < p.bucket; room = room[1:] {
		n += float64(room[0].Waiting)
	}
	return int(n + 0.5)
}
