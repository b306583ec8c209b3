// Package priority says which processes the system runs first: one that serves requests, then others, then background work.
//
// It guarantees nothing: a system that cannot do it, or forbids it, runs all processes alike. The package must not know what the processes
// do.
package priority

import (
	"os"
	"runtime"
	"time"
)

// processors is what runtime.GOMAXPROCS was at the start of the process.
var processors = runtime.GOMAXPROCS(0)

// Processors returns the number of processors that this process was allowed at its start (runtime.GOMAXPROCS), before
// RaiseForRequests changed that.
func Processors() int { return processors }

// extraGoroutines is how many goroutines may compute without one that serves a request having to wait until the Go scheduler interrupts one
// of them, which it does after 10 ms. The system divides the processors among their threads, and interrupts those at once.
const extraGoroutines = 2

// addThreads lets extraGoroutines more goroutines run at once than there are processors, unless the environment sets GOMAXPROCS.
func addThreads() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(processors + extraGoroutines)
	}
}

// servingSlice is the time slice of a process that serves requests. Since Linux 6.12, a thread that wakes up takes the processor at once from
// a thread with a longer slice (sched(7), EEVDF). Otherwise it waits until the slice of the other thread ends, however low the other's
// priority is. This is the shortest slice that Linux accepts.
const servingSlice = 100 * time.Microsecond

// lowest is the nice value of background work.
const lowest = 19
