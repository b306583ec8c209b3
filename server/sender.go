package server

import (
	"net/http"
	"time"

	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/pace"
)

// A sender writes a body at a pace of Options.StallTimeout for each chunk. Over HTTP/1 what
// fits into one chunk is left to the deadline of the whole answer, which NewHTTPServer
// sets. An HTTP/2 connection that takes nothing at all is HTTPOptions.StallTimeout's
// to find.
type sender struct {
	w           http.ResponseWriter
	multiplexed bool
	pace        pace.Pace
	chunk       int
	stall       time.Duration

	// held says whether this body keeps others from being sent.
	held  lane.Scarcity
	begun time.Time

	sent int64
	err  error // the first; nothing is written after it
}

func (a *Assets) newSender(w http.ResponseWriter, protocol int, held lane.Scarcity) sender {
	s := sender{w: w, multiplexed: protocol == 2, pace: pace.Pace{Stall: a.stall, Least: pace.AssetRate}, held: held, begun: time.Now()}
	s.chunk, s.stall = s.pace.Over(protocol)
	return s
}

func (s *sender) write(data []byte) {
	if s.multiplexed || s.sent+int64(len(data)) > pace.Chunk {
		s.writeChunks(data)
		return
	}
	s.writeOnce(data)
}

func (s *sender) writeChunks(data []byte) {
	deadlines := http.NewResponseController(s.w)
	for len(data) > 0 && s.err == nil {
		n := min(len(data), s.chunk)
		// Writers that know no deadlines belong to tests.
		_ = deadlines.SetWriteDeadline(s.deadline(n))
		s.writeOnce(data[:n])
		data = data[n:]
	}
}

// deadline is when the next n bytes must have been taken.
func (s *sender) deadline(n int) time.Time {
	now := time.Now()
	return now.Add(s.pace.Allow(s.stall, now.Sub(s.begun), s.sent+int64(n), s.held.Scarce()))
}

func (s *sender) writeOnce(data []byte) {
	if s.err != nil {
		return
	}
	var n int
	n, s.err = s.w.Write(data)
	s.sent += int64(n)
}
