package download

import (
	"bufio"
	"net/http"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/server/pace"
)

// leastRate is what a client must take on average, in bytes a second, while others would
// have to wait. It is more than for assets: there are few turns, and whoever holds one
// holds it for a whole release.
const leastRate = 128 << 10

// A sender writes an archive to a client, at a pace of Options.StallTimeout for each chunk.
// It is an io.Writer whose first error stays, and belongs to the client.
type sender struct {
	buffer    *bufio.Writer
	w         http.ResponseWriter
	deadlines *http.ResponseController
	begin     func() // sets the headers
	pace      pace.Pace
	chunk     int
	stall     time.Duration

	// scarce reports whether this archive keeps others from being made. Then what counts
	// is the time that was spent on waiting for the client.
	scarce func() bool
	waited time.Duration

	begun bool // whether anything was sent, headers included
	sent  int64
	err   error
}

func (h *Handler) newSender(w http.ResponseWriter, r *http.Request, begin func()) *sender {
	s := &sender{
		w: w, deadlines: http.NewResponseController(w), begin: begin,
		pace: pace.Pace{Stall: h.stall, Least: leastRate}, scarce: h.scarce,
	}
	s.chunk, s.stall = s.pace.Over(r.ProtoMajor)
	s.buffer = bufio.NewWriterSize(chunks{s}, pace.Chunk)
	return s
}

// Write implements io.Writer. Nothing is sent before a whole chunk is there, so an
// archive that fails early can still be answered for.
func (s *sender) Write(data []byte) (int, error) { return s.buffer.Write(data) }

// finish sends what is left. The length of an archive of which nothing was sent is
// known.
func (s *sender) finish() error {
	if !s.begun {
		s.w.Header().Set("Content-Length", strconv.Itoa(s.buffer.Buffered()))
	}
	return s.buffer.Flush()
}

// chunks is what a sender's buffer writes to.
type chunks struct{ *sender }

func (s chunks) Write(data []byte) (int, error) {
	if !s.begun {
		s.begun = true
		s.begin()
		s.w.WriteHeader(http.StatusOK)
	}
	written := 0
	for written < len(data) && s.err == nil {
		n := min(len(data)-written, s.chunk)
		start := time.Now()
		allowed := s.pace.Allow(s.stall, s.waited, s.sent+int64(n), s.scarce())
		// Writers that know no deadlines belong to tests.
		_ = s.deadlines.SetWriteDeadline(start.Add(allowed))
		n, s.err = s.w.Write(data[written : written+n])
		written += n
		s.sent += int64(n)
		s.waited += time.Since(start)
		if allowed < s.stall && s.err == nil {
			// A deadline also ends a stream that has nothing to write yet,
			// and making the next chunk is not the client's time.
			_ = s.deadlines.SetWriteDeadline(time.Now().Add(s.stall))
		}
	}
	return written, s.err
}
