//go:build unix

package worker

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// lowerPriority gives way to every other process. On Linux a priority belongs to a
// thread and goes to those that it starts, so the process begins anew from one
// that has it. Failing does no harm.
func lowerPriority() {
	program, err := os.Executable()
	if err != nil {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Setpriority(unix.PRIO_PROCESS, 0, 19) == nil {
		_ = unix.Exec(program, []string{os.Args[0], Argument, nicedArgument}, os.Environ())
	}
}
