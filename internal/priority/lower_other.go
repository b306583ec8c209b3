//go:build !unix

package priority

// LowerForBackground does nothing.
func LowerForBackground() error { return nil }
