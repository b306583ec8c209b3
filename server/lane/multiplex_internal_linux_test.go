package lane

import (
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/lane/h2"
)

// A client that has crypto/tls answer it, and does not read, is not read from for ever. What it is
// answered has a time limit of its own.
func TestRecordsThatAreNotReadAreBounded(t *testing.T) {
	l := &Listener{open: newOpenList(), o: Options{StallTimeout: time.Hour}}
	m := &multiplexer{c: &conn{listener: l, fd: -1}} // reading fails
	m.h = h2.New(&h2.Options{Streams: 1}, time.Now())
	for m.readNow(time.Now()) != nil {
		if m.addRecord(make([]byte, 27)); m.sealed == nil || len(*m.sealed) > sealedMost+27 {
			t.Fatal("it is still read from")
		}
	}
	if !m.halted {
		t.Error("it is not known that there is more to read")
	}
	if left := time.Until(m.begun.Add(m.allowed)); left < 50*time.Minute {
		t.Errorf("the client has %v left", left)
	}
	if m.dropRecords(); m.readNow(time.Now()) == nil {
		t.Error("it is not read from again")
	}
}
