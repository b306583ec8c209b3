package queue

import (
	"slices"
	"time"
)

// A place is where a ticket is in line: a bucket, and a tick of its minute. Data centres
// count buckets, and let the tickets of one in by their ticks.
type place struct {
	bucket Minute
	tick   uint16
}

const (
	tick  = 100 * time.Millisecond
	ticks = int(time.Minute / tick) // of a bucket
)

// place is where a ticket queues.
func (s *Settings) place(t *Ticket) place {
	bucket := t.Bucket()
	if at := s.Shuffle.place(t.ID, bucket); s.Shuffle.shuffles(bucket) {
		return place{at, uint16(mix(t.ID, ^s.Shuffle.Salt) % uint64(ticks))}
	}
	return place{bucket, uint16(t.Since.Sub(bucket.Time()) / tick)}
}

// A line is the visitors who wait at a data centre.
type line struct {
	waiting int
	buckets []Bucket // ascending, none is empty
	ticks   map[Minute]*[ticks]int32

	// fresh are those of a bucket who have not come back yet. A flood of them never does.
	fresh      map[Minute]int
	back, lost float64 // of fresh visitors: those who came back, and those who did not, lately
}

func newLine() line { return line{ticks: map[Minute]*[ticks]int32{}, fresh: map[Minute]int{}} }

// enter puts a visitor in line.
func (l *line) enter(r *row) {
	l.count(r.place.bucket, 1)
	if l.ticks[r.place.bucket] == nil {
		l.ticks[r.place.bucket] = new([ticks]int32)
	}
	l.ticks[r.place.bucket][r.place.tick]++
	if !r.back {
		l.fresh[r.place.bucket]++
	}
}

// leave takes a visitor out of line.
func (l *line) leave(r *row) {
	l.count(r.place.bucket, -1)
	if at := l.ticks[r.place.bucket]; at != nil {
		at[r.place.tick]--
	}
	if !r.back {
		l.fresh[r.place.bucket]--
	}
}

// count adds visitors to a bucket.
func (l *line) count(bucket Minute, n int) {
	l.waiting += n
	i, ok := slices.BinarySearchFunc(l.buckets, bucket, func(b Bucket, m Minute) int { return int(b.Minute - m) })
	if !ok {
		l.buckets = slices.Insert(l.buckets, i, Bucket{bucket, n})
		return
	}
	l.buckets[i].Waiting += n
	if l.buckets[i].Waiting == 0 {
		l.buckets = slices.Delete(l.buckets, i, i+1)
		delete(l.ticks, bucket)
		delete(l.fresh, bucket)
	}
}

// ahead is how many wait before a place; it stops counting above limit.
func (l *line) ahead(p place, limit int) int {
	n := 0
	for _, b := range l.buckets {
		if b.Minute >= p.bucket || n > limit {
			break
		}
		n += b.Waiting
	}
	if n <= limit {
		n += l.aheadInBucket(p)
	}
	return n
}

// aheadInBucket is how many wait before a place in its own bucket.
func (l *line) aheadInBucket(p place) (n int) {
	if at := l.ticks[p.bucket]; at != nil {
		for _, c := range at[:p.tick] {
			n += int(c)
		}
	}
	return n
}

// noteFresh counts what became of a fresh visitor.
func (l *line) noteFresh(came bool) {
	if came {
		l.back++
	} else {
		l.lost++
	}
}

// fade has the visitors of a minute ago count half.
func (l *line) fade() { l.back, l.lost = l.back/2, l.lost/2 }

// stays is the part of a bucket's visitors that will come back, as far as is known.
func (l *line) stays(b Bucket) float64 {
	known := l.back + l.lost
	if known < 20 || b.Waiting == 0 {
		return 1
	}
	return 1 - float64(l.fresh[b.Minute])/float64(b.Waiting)*l.lost/known
}

// aheadOf estimates how many go in before a visitor who waits at p, and stay in line until
// then. room has the buckets of all data centres, as they were a moment ago.
func (l *line) aheadOf(p place, room []Bucket) int {
	n := 0.0
	for _, b := range l.buckets {
		for ; len(room) > 0 && room[0].Minute < b.Minute && room[0].Minute < p.bucket; room = room[1:] { // where no visitor waits here
			n += float64(room[0].Waiting)
		}
		if b.Minute > p.bucket {
			break
		}
		there := float64(b.Waiting)
		if len(room) > 0 && room[0].Minute == b.Minute {
			there = max(there, float64(room[0].Waiting))
			room = room[1:]
		}
		if b.Minute == p.bucket {
			there *= float64(l.aheadInBucket(p)) / float64(b.Waiting)
		}
		n += there * l.stays(b)
	}
	for ; len(room) > 0 && room[0].Minute < p.bucket; room = room[1:] {
		n += float64(room[0].Waiting)
	}
	return int(n + 0.5)
}
