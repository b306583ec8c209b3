package queue

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// Available is how many visitors may be admitted now.
func (s *Settings) Available(active, admittedThisMinute int) int {
	return max(0, min(s.TotalActiveUsers-active, s.NewUsersPerMinute-admittedThisMinute))
}

// Bucket is how many visitors wait whose first request was in one minute.
type Bucket struct {
	Minute  Minute
	Waiting int
}

// Reservation is how many slots a bucket gets. It is covered wholly where that is as
// many as wait.
type Reservation struct {
	Bucket
	Slots int
}

// Reserve gives the slots to the oldest buckets first. What is left over is for new
// visitors. The buckets are in ascending order.
func Reserve(slots int, buckets []Bucket) (reserved []Reservation, left int) {
	reserved = make([]Reservation, len(buckets))
	left = max(0, slots)
	for i, b := range buckets {
		n := min(b.Waiting, left)
		reserved[i] = Reservation{b, n}
		left -= n
	}
	return reserved, left
}

// Divide shares whole out in proportion to the weights, by largest remainder, so that
// the parts sum to the whole. Among equal remainders the larger weight comes first,
// then the earlier one. Where all weights are zero nobody gets anything.
func Divide(whole int, weights []int) []int {
	parts := make([]int, len(weights))
	total := uint64(0)
	for _, w := range weights {
		total += uint64(max(0, w))
	}
	if total == 0 || whole <= 0 {
		return parts
	}
	left := whole
	remainders := make([]uint64, len(weights))
	order := make([]int, len(weights))
	for i, w := range weights {
		order[i] = i
		// 128 bits, since the product of two counts need not fit into 64
		hi, lo := bits.Mul64(uint64(whole), uint64(max(0, w)))
		quotient, remainder := bits.Div64(hi, lo, total)
		parts[i], remainders[i] = int(quotient), remainder
		left -= parts[i]
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(remainders[b], remainders[a]), cmp.Compare(weights[b], weights[a]))
	})
	for _, i := range order[:left] {
		parts[i]++
	}
	return parts
}

// divideCapped is Divide where no part may exceed its cap; what one cannot take the
// others get. Those without weight come last, by their caps.
func divideCapped(whole int, weights, caps []int) []int {
	parts := make([]int, len(weights))
	room := slices.Clone(caps)
	for whole > 0 {
		open := make([]int, len(weights))
		for i := range open {
			if room[i] > 0 {
				open[i] = weights[i]
			}
		}
		more := Divide(whole, open)
		if slices.Max(more) == 0 {
			more = Divide(whole, room)
		}
		given := 0
		for i := range more {
			n := min(more[i], room[i])
			parts[i] += n
			room[i] -= n
			given += n
		}
		if given == 0 {
			break
		}
		whole -= given
	}
	return parts
}

// Share is how many different visitors tried to come in through one data centre during
// one minute.
type Share struct {
	DataCentre string
	Users      int
}

// Traffic is the history that slots are divided by. Shares are in ascending order of
// their data centres.
type Traffic struct {
	Shares []Share
	// Of is the number that the shares are parts of. What Users leave of it belongs to
	// Anywhere: to whichever data centre asks first. At most their sum, nothing does.
	Of int
}

// Divide divides slots by the shares of the traffic: of is the part of each data
// centre, in the order of the shares, and anywhere what nobody has reserved, which is
// everything where there is no history.
func (t Traffic) Divide(slots int) (of []int, anywhere int) {
	weights := make([]int, len(t.Shares)+1)
	sum := 0
	for i, s := range t.Shares {
		weights[i] = s.Users
		sum += s.Users
	}
	if sum == 0 {
		return weights[:len(t.Shares)], max(0, slots)
	}
	weights[len(t.Shares)] = max(0, t.Of-sum)
	parts := Divide(slots, weights)
	return parts[:len(t.Shares)], parts[len(t.Shares)]
}

// share is the part of one data centre, and what belongs to Anywhere.
func (t Traffic) share(slots int, dataCentre string) (own, anywhere int) {
	of, anywhere := t.Divide(slots)
	for i, s := range t.Shares {
		if s.DataCentre == dataCentre {
			return of[i], anywhere
		}
	}
	return 0, anywhere
}

// PerWorker is how many of the slots each worker may use under Even and Adaptive.
// Utilisation is the part of the active users in their limit. It is rounded down;
// under Even the parts of all workers never sum to more than the slots.
func (s *Settings) PerWorker(slots, workers int, utilisation float64) int {
	workers = max(1, workers)
	if s.Allocator != Adaptive {
		return slots / workers
	}
	// the tiny addition undoes rounding of powers, such as 10/1.25
	return int(float64(slots)/max(1, float64(workers)*math.Pow(min(1, max(0, utilisation)), s.CurveFactor)) + 1e-9)
}
