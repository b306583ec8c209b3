package server

import (
	"net/http"
	"time"
)

// chunkBytes is how much is written under one deadline.
const chunkBytes = 64 << 10

// A sender writes a body under a deadline that rolls: each chunk has
// Options.StallTimeout to be taken. A client that is slow but steady gets all of
// a large file, one that stalls is closed. What fits into one chunk is left to the
// deadline of the whole answer, which NewHTTPServer sets.
type sender struct {
	w     http.ResponseWriter
	stall time.Duration

	sent int64
	err  error // the first; nothing is written after it
}

func (a *Assets) newSender(w http.ResponseWriter) sender {
	return sender{w: w, stall: a.stall}
}

func (s *sender) write(data []byte) {
	if s.sent+int64(len(data)) > chunkBytes {
		s.writeChunks(data)
		return
	}
	s.writeOnce(data)
}

func (s *sender) writeChunks(data []byte) {
	deadlines := http.NewResponseController(s.w)
	for len(data) > 0 && s.err == nil {
		// Writers that know no deadlines belong to tests.
		_ = deadlines.SetWriteDeadline(time.Now().Add(s.stall))
		n := min(len(data), chunkBytes)
		s.writeOnce(data[:n])
		data = data[n:]
	}
}

func (s *sender) writeOnce(data []byte) {
	if s.err != nil {
		return
	}
	var n int
	n, s.err = s.w.Write(data)
	s.sent += int64(n)
}
