//go:build !linux

package worker

import (
	"errors"
	"time"
)

var system = protections{landlock: unsupported, filter: unsupported, memory: unsupported}

// unsupported returns the error of a protection that only Linux has.
func unsupported() error { return errors.New("this system has none that Larder can use") }

// confine takes from this process what limitResources takes.
func (protections) confine() error { return limitResources() }

// unusedAddressSpace returns 0: no limit counts what is mapped.
func unusedAddressSpace() addressUse { return addressUse{} }

// limitMemory does nothing.
func limitMemory(int, addressUse, int64) error { return nil }

// processorTime returns an error: the system does not count it for each process.
func processorTime(int) (time.Duration, error) { return 0, unsupported() }

// mappedData returns 0: the system does not tell.
func mappedData(int) int64 { return 0 }
