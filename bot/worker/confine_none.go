//go:build !unix

package worker

// limitResources does nothing.
func limitResources() error { return nil }

// closeInheritedDescriptors does nothing.
func closeInheritedDescriptors() {}
