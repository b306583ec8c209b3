//go:build unix && !linux

package worker

import "golang.org/x/sys/unix"

// lowerPriority gives the process the lowest priority.
func lowerPriority() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, 19) }
