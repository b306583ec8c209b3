// Package pace says how long a client may take for what it is sent.
//
// A body is sent in chunks, each under a deadline of its own, so that a client which is
// slow but steady gets all of a large one, and one which stalls is closed. While what it
// holds is scarce, its average counts, too.
//
// It must not know what is sent, nor how a deadline is set.
package pace

import "time"

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
)

// A Pace is the least that a client must keep.
type Pace struct {
	// Stall is how long a client may take for Chunk bytes.
	Stall time.Duration
	// Least is what it must take on average while that is scarce, in bytes a second,
	// after a grace of Stall.
	Least int64
}

// Over returns how many bytes to write under one deadline over that major version of HTTP,
// and how long they may take. All streams of HTTP/2 share what the client takes, so each
// has as long as Streams of them need when the client is as slow as it may be.
func (p Pace) Over(protocol int) (chunk int, stall time.Duration) {
	if protocol == 2 {
		return StreamChunk, p.Stall * Streams * StreamChunk / Chunk
	}
	return Chunk, p.Stall
}

// Allow returns how much longer a client may take that was given so long for what came
// before, where sent counts what it has had and what it is to get now, in bytes. It is at
// most stall, and not positive where its time is over.
func (p Pace) Allow(stall, spent time.Duration, sent int64, scarce bool) time.Duration {
	if !scarce {
		return stall
	}
	return min(stall, p.Stall+time.Duration(sent)*time.Second/time.Duration(p.Least)-spent)
}
