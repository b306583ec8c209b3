//go:build !linux

package worker

import (
	"errors"
	"time"
)

var system = protections{landlock: unsupported, filter: unsupported, memory: unsupported}

// unsupported is the probe of each protection, which only Linux has. It always returns an error.
func unsupported() error { return errors.New("this system has none that Larder can use") }

// confine sets only the limits of limitResources, because this system has no protections that Larder can use.
func (protections) confine() error { return limitResources() }

// unusedAddressSpace returns zero. It is only needed on Linux, where a limit of memory counts mapped address space.
func unusedAddressSpace() addressUse { return addressUse{} }

// limitMemory does nothing and returns nil, because this system cannot limit the memory of another process.
func limitMemory(int, addressUse, int64) error { return nil }

// processorTime returns an error: this system does not count processor time for each process.
func processorTime(int) (time.Duration, error) { return 0, unsupported() }

// mappedData returns 0: this system does not report how much memory a process has mapped.
func mappedData(int) int64 { return 0 }
