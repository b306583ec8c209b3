//go:build unix && !linux

package priority

import "golang.org/x/sys/unix"

// LowerForBackground gives this process the lowest priority.
func LowerForBackground() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, lowest) }
