//go:build unix

package worker

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// mainStack is the size in bytes that the main thread's stack may have. Go allocates its own stacks on the heap.
const mainStack = 1 << 20

// limitResources sets limits of this process, for good: it may write no core files, open no more descriptors, and grow its main
// stack to 1 MiB at most. Every Unix has these limits. If it returns an error, those set before stay.
func limitResources() error {
	time.Sleep(time.Nanosecond) // the runtime's poller opens its descriptors with the first timer, and ends the process if it cannot
	for _, resource := range []int{unix.RLIMIT_CORE, unix.RLIMIT_NOFILE} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{}); err != nil {
			return fmt.Errorf("set resource limit %d: %w", resource, err)
		}
	}
	// The main thread's stack grows by itself, and no other limit of a process counts that on every system.
	var stack unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		return fmt.Errorf("read the limit of the stack: %w", err)
	}
	stack.Cur = min(stack.Cur, mainStack)
	stack.Max = stack.Cur
	if err := unix.Setrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		return fmt.Errorf("limit the stack: %w", err)
	}
	return nil
}

// closeInheritedDescriptors closes the descriptors that a parent process left open in this one, besides the three standard ones.
// It knows them by the missing flag to close on execution, which descriptors of Go's runtime have. It ignores errors; if the
// system does not list descriptors, it closes none.
func closeInheritedDescriptors() {
	names, _ := os.ReadDir("/dev/fd") // if it is not, Go's own parents leave nothing open
	for _, name := range names {
		fd, err := strconv.Atoi(name.Name())
		if err != nil || fd <= 2 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
}
