package simulate

import (
	"time"

	"github.com/larder-cdn/larder/server/waitingroom"
)

// A siteClock is the clock of a data centre. With [Options].Follow it is that of a node in a cluster: the wall clock of the machine does not
// matter, because the responses of the global object say what time it is.
type siteClock struct {
	offset time.Duration       // of the wall clock
	member *waitingroom.Member // nil for a data centre that goes by its wall clock
}

// startClock has the data centre s, whose process starts, learn the time from the global object. The way to that and back take different
// times, so the clock is not exact.
func (r *run) startClock(s *site) {
	if !r.Follow {
		return
	}
	s.member = waitingroom.NewMember(s.name, waitingroom.NewClock(func() time.Duration { return r.now }, r.clockAt(s.offset)))
	uneven := time.Duration((r.rng.Float64() - 0.5) * float64(r.Delay))
	if _, err := s.member.AcceptResponse(s.member.NewRequest(), waitingroom.LeaderResponse{Now: r.clockAt(uneven)}); err != nil {
		r.err = err
	}
}

// clock returns the present virtual time by the data centre's own clock.
func (s *site) clock(r *run) time.Time {
	if s.member != nil {
		return s.member.Clock.Now()
	}
	return r.clockAt(s.offset)
}

// accept sets the clock of a data centre by the response m, and reports whether the data centre may use the response.
func (s *site) accept(m *message) bool {
	if s.member == nil {
		return true
	}
	_, err := s.member.AcceptResponse(m.sent, waitingroom.LeaderResponse{Now: m.at})
	return err == nil
}
