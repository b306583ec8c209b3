package worker

import "golang.org/x/sys/unix"

// limitMemory makes allocating more than this end the process.
func limitMemory(bytes uint64) {
	_ = unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: bytes, Max: bytes})
}
