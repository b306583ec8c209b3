//go:build !unix

package priority

// LowerForBackground does nothing on this system, which has no priorities of Unix processes.
func LowerForBackground() error { return nil }
