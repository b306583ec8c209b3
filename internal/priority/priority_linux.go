package priority

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// RaiseForRequests has the threads of this process, and of the processes that it starts, run soon after they wake up. It also lets more
// goroutines run at once than there are processors.
func RaiseForRequests() error {
	addThreads()
	return changeThreads(func(a *unix.SchedAttr) { a.Runtime = uint64(servingSlice) })
}

// RestoreTimeSlices gives all threads of this process the time slices of other processes.
func RestoreTimeSlices() error {
	return changeThreads(func(a *unix.SchedAttr) { a.Runtime = 0 })
}

// LowerForBackground gives all threads of this process the lowest priority and the time slices of other processes.
func LowerForBackground() error {
	return changeThreads(func(a *unix.SchedAttr) { a.Runtime, a.Nice = 0, lowest })
}

// changeThreads changes how the system runs all threads of this process. On Linux, nice values and time slices belong to threads, and a
// thread inherits them from the one that starts it. So it looks for new threads until there are none.
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

// changeThread changes how the system runs a thread.
func changeThread(id int, change func(*unix.SchedAttr)) error {
	a, err := unix.SchedGetAttr(id, 0)
	if err != nil {
		return os.NewSyscallError("sched_getattr", err)
	}
	change(a)
	return os.NewSyscallError("sched_setattr", unix.SchedSetAttr(id, a, 0))
}
