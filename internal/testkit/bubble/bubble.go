// Package bubble runs tests under the fake clock of testing/synctest.
//
// Tests use it in place of synctest.Test, which crashes the race detector of Go 1.26
// now and then (golang/go#78156): the goroutine that advances the clock and one that
// receives from a timer of the bubble use the race detector's state of the bubble's
// timers, and two processors may do so at once.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// Test runs test in a bubble, as synctest.Test does. Under the race detector the whole
// program has one processor until the last bubble has ended.
func Test(t *testing.T, test func(*testing.T)) {
	t.Helper()
	if raceDetector {
		processors.take()
		defer processors.restore()
	}
	synctest.Test(t, test)
}

// oneProcessor limits the program to one processor while it has users.
type oneProcessor struct {
	mu     sync.Mutex
	users  int
	before int // the processors without users
}

var processors oneProcessor

func (p *oneProcessor) take() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users++; p.users == 1 {
		p.before = runtime.GOMAXPROCS(1)
	}
}

func (p *oneProcessor) restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users == 0 {
		runtime.GOMAXPROCS(p.before)
	}
}
