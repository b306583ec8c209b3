package queue

import "math"

// Estimate is what a waiting visitor can be told.
type Estimate struct {
	// Known is whether the times mean anything: people have been admitted lately.
	Known bool
	// Ahead is how many wait in older buckets, or in all under Random.
	Ahead int
	// Minutes is the expected wait: under Random the one that half of the visitors
	// exceed.
	Minutes float64
	// P25, P50 and P75 are the minutes after which a quarter, half and three quarters
	// of the visitors are in. Under Random only.
	P25, P50, P75 float64
}

// FIFOWait is the minutes until those ahead are in, where so many are admitted a
// minute. It is infinite where nobody is.
func FIFOWait(ahead int, perMinute float64) float64 {
	if ahead <= 0 {
		return 0
	}
	return float64(ahead) / perMinute
}

// RandomWait is the minutes until a visitor is in with probability p, where each of the
// waiting has the same chance in each minute: log(1-p) / log(1-P), where P is the part
// of them that a minute lets in. It is 0 where that is everybody, infinite where it is
// nobody.
func RandomWait(p, perMinute float64, waiting int) float64 {
	chance := perMinute / float64(waiting)
	if waiting <= 0 || chance >= 1 {
		return 0
	}
	if chance <= 0 {
		return math.Inf(1)
	}
	return math.Log1p(-p) / math.Log1p(-chance)
}

// estimate is for a visitor of the bucket.
func (r *Room) estimate(m Method, bucket Minute) Estimate {
	e := Estimate{Known: r.PerMinute > 0}
	for _, b := range r.Waiting {
		if m == FIFO && b.Minute >= bucket {
			break
		}
		e.Ahead += b.Waiting
	}
	if !e.Known {
		return e
	}
	if m != Random {
		e.Minutes = FIFOWait(e.Ahead, r.PerMinute)
		return e
	}
	e.P25 = RandomWait(0.25, r.PerMinute, e.Ahead)
	e.P50 = RandomWait(0.50, r.PerMinute, e.Ahead)
	e.P75 = RandomWait(0.75, r.PerMinute, e.Ahead)
	e.Minutes = e.P50
	return e
}
