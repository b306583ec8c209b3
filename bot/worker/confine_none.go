//go:build !unix

package worker

// limitResources does nothing.
func limitResources() error { return nil }

// lowerPriority does nothing.
func lowerPriority() error { return nil }

// closeInheritedDescriptors does nothing.
func closeInheritedDescriptors() {}
