package main

import (
	"golang.org/x/sys/unix"
)

// pin lets this thread, and what it starts, run on one core, or on all.
func pin(core int) error {
	if core == anyCore {
		return nil
	}
	var set unix.CPUSet
	set.Set(core)
	return unix.SchedSetaffinity(0, &set)
}

// raiseOpenFiles asks for as many open files as nginx's open_file_cache can use,
// for this process and those that it starts.
func raiseOpenFiles() {
	const wanted = 400_000
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: wanted, Max: wanted}) == nil {
		return
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
}

// openFiles returns how many files a process may have open.
func openFiles() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 1024
	}
	return int(limit.Cur)
}
