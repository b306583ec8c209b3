package answers

import (
	"testing"
	"time"
)

func TestAllow(t *testing.T) {
	p := Pace{Stall: 30 * time.Second, Least: AssetRate}
	for _, test := range []struct {
		name     string
		protocol int
		spent    time.Duration
		sent     int64
		scarce   bool
		want     time.Duration
	}{
		{"nothing is scarce", 1, time.Hour, 64 << 10, false, 30 * time.Second},
		{"scarce, at first", 1, 0, 64 << 10, true, 30 * time.Second},
		{"scarce, as fast as the average wants", 1, 60 * time.Second, 60 * 32 << 10, true, 30 * time.Second},
		{"scarce, slower", 1, 60 * time.Second, 40 * 32 << 10, true, 10 * time.Second},
		{"scarce, too slow", 1, 60 * time.Second, 20 * 32 << 10, true, -10 * time.Second},
		{"one of many streams", 2, 0, 16 << 10, false, 750 * time.Second},
		{"one of many streams, scarce", 2, 0, 16 << 10, true, 30*time.Second + 500*time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, stall := p.ChunkFor(test.protocol)
			if got := p.TimeFor(stall, test.spent, test.sent, test.scarce); got != test.want {
				t.Errorf("%v more, want %v", got, test.want)
			}
		})
	}
}

// A connection whose streams each take their time is as slow as one without streams may be.
func TestStreamsShareWhatTheClientTakes(t *testing.T) {
	p := Pace{Stall: 30 * time.Second, Least: 1}
	chunk, stall := p.ChunkFor(1)
	streamChunk, streamStall := p.ChunkFor(2)
	one := float64(chunk) / stall.Seconds()
	if all := Streams * float64(streamChunk) / streamStall.Seconds(); all != one {
		t.Errorf("%d streams take %v bytes a second at least, one connection %v", Streams, all, one)
	}
}
