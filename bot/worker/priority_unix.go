//go:build unix

package worker

import "golang.org/x/sys/unix"

// lowerPriority gives way to every other process. It may fail without harm.
func lowerPriority() { _ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19) }
