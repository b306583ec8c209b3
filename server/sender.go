package server

import (
	"net/http"
	"time"

	"github.com/larder-cdn/larder/server/lane"
)

const (
	// chunkBytes is how much is written under one deadline, and streamChunkBytes
	// over HTTP/2, where it is what one stream sends before it is another's turn.
	chunkBytes       = 64 << 10
	streamChunkBytes = 16 << 10

	// maxStreams is how many requests a client may have under way on one
	// HTTP/2 connection.
	maxStreams = 100

	// leastRate is what a client must take on average, in bytes a second, while
	// room is scarce.
	leastRate = 32 << 10
)

// A sender writes a body under a deadline that rolls: each chunk has
// Options.StallTimeout to be taken. A client that is slow but steady gets all of
// a large file, one that stalls is closed. Over HTTP/1 what fits into one chunk is
// left to the deadline of the whole answer, which NewHTTPServer sets.
//
// Over HTTP/2 all streams share what the client takes, so each has as long as
// maxStreams of them need when the client is as slow as it may be. A connection
// that takes nothing at all is HTTPOptions.StallTimeout's to find.
type sender struct {
	w           http.ResponseWriter
	multiplexed bool
	chunk       int
	stall       time.Duration

	// held says whether this body keeps others from being sent. As long as it
	// does, the average counts, after a grace period.
	held  lane.Scarcity
	grace time.Duration
	begun time.Time

	sent int64
	err  error // the first; nothing is written after it
}

func (a *Assets) newSender(w http.ResponseWriter, protocol int, held lane.Scarcity) sender {
	s := sender{w: w, chunk: chunkBytes, stall: a.stall, held: held, grace: a.stall, begun: time.Now()}
	if protocol == 2 {
		s.multiplexed = true
		s.chunk = streamChunkBytes
		s.stall = a.stall * maxStreams * streamChunkBytes / chunkBytes
	}
	return s
}

func (s *sender) write(data []byte) {
	if s.multiplexed || s.sent+int64(len(data)) > chunkBytes {
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
	d := time.Now().Add(s.stall)
	if s.held.Scarce() {
		atLeastRate := time.Duration(s.sent+int64(n)) * time.Second / leastRate
		if due := s.begun.Add(s.grace + atLeastRate); due.Before(d) {
			return due
		}
	}
	return d
}

func (s *sender) writeOnce(data []byte) {
	if s.err != nil {
		return
	}
	var n int
	n, s.err = s.w.Write(data)
	s.sent += int64(n)
}
