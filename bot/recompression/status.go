package recompression

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/kvstore"
)

// Collector returns the Prometheus gauge larder_bot_squeeze_backlog: how many contents wait for recompression.
func (r *Recompressor) Collector() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "larder_bot_squeeze_backlog",
		Help: "Contents waiting for recompression.",
	}, func() float64 { return float64(r.Backlog()) })
}

// A Summary counts what squeezing did.
type Summary struct {
	Contents int   `json:"contents"`
	Before   int64 `json:"before"` // bytes of their codings
	After    int64 `json:"after"`
	// Left is how many contents still wait, and LeftBytes their bytes. GivenUp is how many stay as they are, because their
	// encoders were killed again and again.
	Left      int   `json:"left"`
	LeftBytes int64 `json:"leftBytes"`
	GivenUp   int   `json:"givenUp"`
}

// QueueState is the size of the recompression queue, and its speed.
type QueueState struct {
	Contents int   `json:"contents"`
	Bytes    int64 `json:"bytes"` // of their identities, without the contents that lost codings to damage
	// GivenUp are contents whose encoders were killed again and again; `larder squeeze` tries them again.
	GivenUp int `json:"givenUp"`
	// Speed is how many bytes were squeezed in a second lately, 0 if that is not known, and Seconds what the rest
	// takes at that.
	Speed   int64   `json:"bytesPerSecond,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

// String returns a sentence with the contents and bytes that wait for recompression and, if the speed is known, the time that
// they will take.
func (s QueueState) String() string {
	text := fmt.Sprintf("%s file contents of %s wait to be squeezed", humanize.Comma(int64(s.Contents)), humanize.Bytes(uint64(s.Bytes)))
	if s.Contents == 1 {
		text = fmt.Sprintf("1 file content of %s waits to be squeezed", humanize.Bytes(uint64(s.Bytes)))
	}
	if s.Speed > 0 {
		text += ", " + s.describeSpeed()
	}
	return text + "."
}

// describeSpeed returns words for the expected time that the queue takes and the recent speed, as in "about 5m0s at the recent
// 1 MB/s".
func (s QueueState) describeSpeed() string {
	return fmt.Sprintf("about %v at the recent %s/s", max(time.Second, time.Duration(s.Seconds*float64(time.Second)).Round(time.Second)), humanize.Bytes(uint64(s.Speed)))
}

// Describe returns the bytes that wait for recompression and, if the speed is known, how long they take, as in "1.2 GB, about
// 20m0s at the recent 1 MB/s". It returns "" if none wait or the bytes are not known.
func (s QueueState) Describe() string {
	switch {
	case s.Bytes == 0:
		return "" // a follower knows the contents, not their sizes
	case s.Speed == 0:
		return humanize.Bytes(uint64(s.Bytes))
	}
	return humanize.Bytes(uint64(s.Bytes)) + ", " + s.describeSpeed()
}

// ReadQueue counts the contents that wait in the recompression queue of a store, and their bytes, and how many were given up, by scanning
// it. It reads the last measured speed, from which it computes Seconds. A malformed row counts with 0 bytes. In a process that
// recompresses, [Recompressor.Backlog] has the number of contents without a scan.
func ReadQueue(r kvstore.Reader) (QueueState, error) {
	var s QueueState
	for _, keys := range inTurn {
		for item, err := range r.Scan(kvstore.Queue, kvstore.Range{Prefix: keys.prefix}) {
			if err != nil {
				return s, fmt.Errorf("couldn't read the squeeze queue: %w", err)
			}
			s.Contents++
			s.Bytes += decodeTurn(item.Value).size
		}
	}
	for _, err := range r.Scan(kvstore.Queue, kvstore.Range{Prefix: givenUp}) {
		if err != nil {
			return s, fmt.Errorf("couldn't read the squeeze queue: %w", err)
		}
		s.GivenUp++
	}
	row, err := r.Get(kvstore.Meta, speedKey)
	if errors.Is(err, kvstore.ErrNotFound) {
		return s, nil
	}
	if speed, n := binary.Uvarint(row); n > 0 && speed > 0 && speed < math.MaxInt64 {
		s.Speed = int64(speed)
		s.Seconds = math.Round(float64(s.Bytes) / float64(speed))
	}
	return s, err
}

// speedKey is the row of the Meta namespace that has the speed of squeezing in bytes a second.
var speedKey = kvstore.Key("squeezing speed")

// A speed measures how many bytes a second are squeezed, while any are.
type speed struct {
	mu             sync.Mutex
	running        int
	last           time.Time // when it was counted last
	bytes, seconds float64   // fade away
}

// speedMemory is how fast what was measured fades away.
const speedMemory = 5 * time.Minute

// startEncoding records that an encoder starts now. The caller calls the result when the encoder ends, with the time and the size
// of the content in bytes.
func (s *speed) startEncoding(now time.Time) (end func(now time.Time, bytes int64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == 0 {
		s.last = now
	}
	s.running++
	return func(now time.Time, bytes int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running--
		passed := now.Sub(s.last)
		fade := math.Exp(-float64(passed) / float64(speedMemory))
		s.bytes = s.bytes*fade + float64(bytes)
		s.seconds = s.seconds*fade + passed.Seconds()
		s.last = now
	}
}

// bytesPerSecond returns how many bytes of contents are recompressed in a second: an average in which the last five minutes weigh
// most. It is 0 if nothing was measured.
func (s *speed) bytesPerSecond() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seconds < 0.001 {
		return 0
	}
	return s.bytes / s.seconds
}
