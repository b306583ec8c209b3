//go:build !unix

package worker

// limitResources does nothing on this system, and returns nil: only Unix has the limits that Larder sets for child processes.
func limitResources() error { return nil }

// closeInheritedDescriptors does nothing on this system; on Unix it closes the descriptors that a parent left open.
func closeInheritedDescriptors() {}
