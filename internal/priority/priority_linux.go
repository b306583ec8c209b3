package priority

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// RaiseForRequests makes Linux run the threads of this process, and of the processes that it starts, soon after they wake up, by
// the shortest time slice. It also lets more goroutines run at once than there are processors, unless the environment sets
// GOMAXPROCS. An error says that Linux refused the time slice for a thread; some threads may have it then.
func RaiseForRequests() error {
	addThreads()
	raised.Store(true)
	return changeThreads(func(a *unix.SchedAttr) { a.Runtime = uint64(servingSlice) })
}

// raised is true once RaiseForRequests was called.
var raised atomic.Bool

// Compute runs f, which computes for a millisecond or longer. In a process that serves requests, f has a thread with the time slice of other
// processes meanwhile, so that each thread that wakes up to serve a request takes the processor from it at once. f must not wait for
// anything that takes long.
func Compute(f func()) {
	if !raised.Load() {
		f()
		return
	}
	runtime.LockOSThread() // the Go runtime does not start other threads from a locked one, which would inherit its time slice
	defer runtime.UnlockOSThread()
	if changeThread(0, func(a *unix.SchedAttr) { a.Runtime = 0 }) == nil {
		defer func() { _ = changeThread(0, func(a *unix.SchedAttr) { a.Runtime = uint64(servingSlice) }) }()
	}
	f()
}

// RestoreTimeSlices gives all threads of this process the default time slices again. A child process calls it that has inherited
// those of RaiseForRequests.
func RestoreTimeSlices() error {
	return changeThreads(func(a *unix.SchedAttr) { a.Runtime = 0 })
}

// LowerForBackground gives all threads of this process the lowest priority, nice value 19, and the default time slices, for
// background work.
func LowerForBackground() error {
	return changeThreads(func(a *unix.SchedAttr) { a.Runtime, a.Nice = 0, lowest })
}

// changeThreads applies change to the scheduling attributes of all threads of this process. Attributes belong to threads on
// Linux, and a thread inherits them from the one that starts it, so it repeats until it finds no new thread. It stops at the first
// error, but ignores threads that have ended.
func changeThreads(change func(*unix.SchedAttr)) error {
	for changed := map[string]bool{}; ; {
		before := len(changed)
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, thread := range threads {
			if changed[thread.Name()] {
				continue
			}
			changed[thread.Name()] = true
			id, err := strconv.Atoi(thread.Name())
			if err == nil {
				err = changeThread(id, change)
			}
			if err != nil && !errors.Is(err, unix.ESRCH) { // it may have ended
				return err
			}
		}
		if len(changed) == before {
			return nil
		}
	}
}

// changeThread applies change to the scheduling attributes of the thread with an id.
func changeThread(id int, change func(*unix.SchedAttr)) error {
	a, err := unix.SchedGetAttr(id, 0)
	if err != nil {
		return os.NewSyscallError("sched_getattr", err)
	}
	change(a)
	return os.NewSyscallError("sched_setattr", unix.SchedSetAttr(id, a, 0))
}
