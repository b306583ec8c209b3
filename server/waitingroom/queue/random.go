package queue

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// mix spreads the bits of a ticket's id and a salt over 64 bits (the finaliser of
// SplitMix64, Steele, Lea and Flood 2014).
func mix(id TicketID, salt uint64) uint64 {
	step := func(x uint64) uint64 {
		x += 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		return x ^ x>>31
	}
	return step(step(step(salt)^binary.LittleEndian.Uint64(id[:8])) ^ binary.LittleEndian.Uint64(id[8:]))
}

// generator is the random numbers of one machine: the same for the same seed and name,
// and unlike those of any other.
func generator(seed uint64, name string, incarnation int64) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(incarnation)))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// variation is how far an interval may be from its mean, in percent.
const variation = 15

// refresh draws an interval until the next check-in, in whole seconds.
func (s *Settings) refresh(r *rand.Rand) time.Duration {
	mean := int(s.RefreshInterval / time.Second)
	spread := max(1, (mean*variation+50)/100)
	return time.Duration(mean-spread+r.IntN(2*spread+1)) * time.Second
}

// longestRefresh is no less than refresh ever returns.
func (s *Settings) longestRefresh() time.Duration {
	return s.RefreshInterval + s.RefreshInterval*(variation+5)/100
}
