package answers

import (
	"net/http"
	"time"
)

// A Writer writes to a client, in chunks that each have a deadline. It is an io.Writer whose
// first error stays, and is the client's.
type Writer struct {
	w         http.ResponseWriter
	deadlines *http.ResponseController
	pace      Pace
	chunk     int
	stall     time.Duration
	scarce    func() bool
	waited    time.Duration

	// Sent is how many bytes the client has had.
	Sent int64
	// Err is the first error; nothing is written after it.
	Err error
}

// NewWriter returns a writer of a response over HTTP/1 or HTTP/2, as the major version protocol says. The client must keep the
// pace p. scarce reports whether other clients wait for the memory that the response holds; then the time spent waiting for this
// client is limited.
func NewWriter(w http.ResponseWriter, protocol int, p Pace, scarce func() bool) *Writer {
	chunk, stall := p.ChunkFor(protocol)
	return &Writer{w: w, deadlines: http.NewResponseController(w), pace: p, chunk: chunk, stall: stall, scarce: scarce}
}

// Write writes data to the client in chunks, each with a deadline by the pace. After an error, such as a passed deadline, this and
// later calls write nothing more and return it. It implements io.Writer.
func (w *Writer) Write(data []byte) (written int, err error) {
	for written < len(data) && w.Err == nil {
		n := min(len(data)-written, w.chunk)
		start := time.Now()
		allowed := w.pace.TimeFor(w.stall, w.waited, w.Sent+int64(n), w.scarce())
		// Writers that know no deadlines belong to tests.
		_ = w.deadlines.SetWriteDeadline(start.Add(allowed))
		n, w.Err = w.w.Write(data[written : written+n])
		written += n
		w.Sent += int64(n)
		w.waited += time.Since(start)
		if allowed < w.stall && w.Err == nil {
			// A deadline also ends a stream that has nothing to write yet, and making the
			// next chunk is not the client's time.
			_ = w.deadlines.SetWriteDeadline(time.Now().Add(w.stall))
		}
	}
	return written, w.Err
}

const (
	// Chunk is how much is written under one deadline, in bytes.
	Chunk = 64 << 10
	// StreamChunk is the same over HTTP/2, where it is what one stream sends before it is
	// another's turn.
	StreamChunk = 16 << 10
	// Streams is how many requests a client may have under way on one HTTP/2 connection.
	Streams = 100
	// AssetRate is what a client must take of an asset that is scarce, on average, in bytes
	// a second.
	AssetRate = 32 << 10
	// StallTimeout is how long a client may take for Chunk bytes of a body, over HTTP/2 of all
	// streams together. It is then disconnected.
	StallTimeout = 30 * time.Second
)

// A Pace is the least that a client must keep.
type Pace struct {
	// Stall is how long a client may take for Chunk bytes.
	Stall time.Duration
	// Least is what it must take on average while that is scarce, in bytes a second,
	// after a grace of Stall.
	Least int64
}

// ChunkFor returns how many bytes to write under one deadline over a major version of HTTP, and how long the client may take for
// them. The streams of an HTTP/2 connection share what the client receives, so each has as long as all of them need if the client
// is as slow as it may be.
func (p Pace) ChunkFor(protocol int) (chunk int, stall time.Duration) {
	if protocol == 2 {
		return StreamChunk, p.Stall * Streams * StreamChunk / Chunk
	}
	return Chunk, p.Stall
}

// TimeFor returns how long a client may take for the next bytes. stall is the most; spent is the time that it took for the bytes
// before, and sent counts those and the next ones. If scarce is set, the client must keep the average rate, and the result is not
// positive if it does not.
func (p Pace) TimeFor(stall, spent time.Duration, sent int64, scarce bool) time.Duration {
	if !scarce {
		return stall
	}
	return min(stall, p.Stall+time.Duration(sent)*time.Second/time.Duration(p.Least)-spent)
}
