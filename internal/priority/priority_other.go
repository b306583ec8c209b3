//go:build unix && !linux

package priority

import "golang.org/x/sys/unix"

// RaiseForRequests lets more goroutines run at once than there are processors, unless the environment sets GOMAXPROCS. This system
// has no time slices that a process can set. It always returns nil.
func RaiseForRequests() error {
	addThreads()
	return nil
}

// Compute runs f.
func Compute(f func()) { f() }

// LowerForBackground gives this process the lowest priority, nice value 19, for background work.
func LowerForBackground() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, lowest) }

// RestoreTimeSlices does nothing on this system.
func RestoreTimeSlices() error { return nil }
