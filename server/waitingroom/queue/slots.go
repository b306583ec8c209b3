package queue

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// availableSlots returns how many visitors the limits allow to be admitted now, if active sessions exist and admittedThisMinute
// visitors have been admitted in this minute; 0 if the limits are exceeded.
func (s *Settings) availableSlots(active, admittedThisMinute int) int {
	return max(0, min(s.TotalActiveUsers-active, s.NewUsersPerMinute-admittedThisMinute))
}

// Bucket is how many visitors wait whose first request was in one minute, or in a part of it: from Tick, in tenths of a second, until
// the next bucket of the list.
type Bucket struct {
	Minute  Minute
	Waiting int
	Tick    uint16 `json:",omitempty"`
}

// place returns the place in line at which the bucket, or the part of it, begins.
func (b Bucket) place() place { return place{b.Minute, b.Tick} }

// divide divides a whole number in proportion to the weights, by largest remainder, so that the parts sum to the whole. Among
// equal remainders the larger weight comes first, then the earlier one. Negative weights count as zero. If no weight is positive,
// or whole is not, all parts are 0.
func divide(whole int, weights []int) []int {
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
		// 128 bits, because the product of two counts need not fit into 64
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

// divideCapped divides a whole number in proportion to the weights, of which there must be one or more, but no part exceeds its
// cap. The excess goes to the other parts, and finally to those without weight, by their caps. What exceeds all caps is not
// assigned.
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
		more := divide(whole, open)
		if slices.Max(more) == 0 {
			more = divide(whole, room)
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
	// Of is the number that the shares are parts of. The part of it beyond the sum of
	// Users belongs to Anywhere: to the data centre that asks first.
	Of int
}

// slotsOf divides slots by the data centres' shares of the traffic. own is how many belong to one data centre, anywhere how many are
// reserved for no data centre: all of them if there was no traffic.
func (t Traffic) slotsOf(slots int, dataCentre string) (own, anywhere int) {
	weights := make([]int, len(t.Shares)+1)
	sum := 0
	for i, s := range t.Shares {
		weights[i] = s.Users
		sum += s.Users
	}
	if sum == 0 {
		return 0, max(0, slots)
	}
	weights[len(t.Shares)] = max(0, t.Of-sum)
	parts := divide(slots, weights)
	if i := slices.IndexFunc(t.Shares, func(s Share) bool { return s.DataCentre == dataCentre }); i >= 0 {
		own = parts[i]
	}
	return own, parts[len(t.Shares)]
}

// slotsPerWorker returns how many of the slots each worker may use under the allocators Even and Adaptive, rounded down.
// Utilisation is the active users in proportion to their limit, from 0 to 1. Under Even the parts of all workers never sum to
// more than the slots. Under Adaptive they may.
func (s *Settings) slotsPerWorker(slots, workers int, utilisation float64) int {
	workers = max(1, workers)
	if s.Allocator != Adaptive {
		return slots / workers
	}
	// the tiny addition undoes rounding of powers, such as 10/1.25
	return int(float64(slots)/max(1, float64(workers)*math.Pow(min(1, max(0, utilisation)), s.CurveFactor)) + 1e-9)
}
