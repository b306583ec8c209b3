//go:build !unix

package priority

// RaiseForRequests lets more goroutines run at once than there are processors, unless the environment sets GOMAXPROCS. This system
// has no time slices that a process can set. It always returns nil.
func RaiseForRequests() error {
	addThreads()
	return nil
}

// Compute runs f.
func Compute(f func()) { f() }

// LowerForBackground does nothing on this system, which has no priorities of Unix processes.
func LowerForBackground() error { return nil }

// RestoreTimeSlices does nothing on this system.
func RestoreTimeSlices() error { return nil }
