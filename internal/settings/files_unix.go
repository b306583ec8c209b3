//go:build unix

package settings

import "syscall"

// maxOpenFiles returns how many files the process may have open; false if that is not known.
func maxOpenFiles() (uint64, bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return uint64(limit.Cur), true
}
