package download

import (
	"bufio"
	"net/http"
	"strconv"
	"time"
)

const (
	// chunkBytes is how much is written under one deadline, and streamChunkBytes
	// over HTTP/2, where it is what one stream sends before it is another's turn.
	chunkBytes       = 64 << 10
	streamChunkBytes = 16 << 10
	// maxStreams is how many requests a client of server.NewHTTPServer may have
	// under way on one HTTP/2 connection.
	maxStreams = 100
	// leastRate is what a client must take on average, in bytes a second, while
	// others would have to wait. It is more than for assets: there are few
	// turns, and whoever holds one holds it for a whole release.
	leastRate = 128 << 10
)

// A sender writes an archive to a client, under a deadline that rolls: each chunk
// has Options.StallTimeout to be taken. It is an io.Writer whose first error stays,
// and belongs to the client.
//
// Over HTTP/2 all streams share what the client takes, so each has as long as
// maxStreams of them need when the client is as slow as it may be.
type sender struct {
	buffer    *bufio.Writer
	w         http.ResponseWriter
	deadlines *http.ResponseController
	begin     func() // sets the headers
	chunk     int
	stall     time.Duration

	// scarce reports whether this archive keeps others from being made. As long as
	// it does, the average counts, after a grace period: what the client took,
	// over the time that was spent on waiting for it.
	scarce func() bool
	grace  time.Duration
	waited time.Duration

	begun bool // whether anything was sent, headers included
	sent  int64
	err   error
}

func (h *Handler) newSender(w http.ResponseWriter, r *http.Request, begin func()) *sender {
	s := &sender{
		w: w, deadlines: http.NewResponseController(w), begin: begin,
		chunk: chunkBytes, stall: h.stall, scarce: h.scarce, grace: h.stall,
	}
	if r.ProtoMajor == 2 {
		s.chunk = streamChunkBytes
		s.stall = h.stall * maxStreams * streamChunkBytes / chunkBytes
	}
	s.buffer = bufio.NewWriterSize(chunks{s}, chunkBytes)
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
		allowed := s.allowed(n)
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

// allowed is how long the client may take for the next n bytes.
func (s *sender) allowed(n int) time.Duration {
	if s.scarce() {
		atLeastRate := time.Duration(s.sent+int64(n)) * time.Second / leastRate
		return min(s.stall, s.grace+atLeastRate-s.waited)
	}
	return s.stall
}
