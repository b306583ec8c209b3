//go:build unix && !linux

package worker

import "golang.org/x/sys/unix"

// lowerPriority gives way to every other process.
func lowerPriority() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, 19) }
