//go:build !unix

package worker

// limitResources does nothing: only Unix has the limits that Larder sets.
func limitResources() error { return nil }

// closeInheritedDescriptors does nothing on this system; on Unix it closes the descriptors that a parent left open.
func closeInheritedDescriptors() {}
