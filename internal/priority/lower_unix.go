//go:build unix && !linux

package priority

import "golang.org/x/sys/unix"

// LowerForBackground gives this process the lowest priority, nice value 19, for background work.
func LowerForBackground() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, lowest) }
