//go:build unix

package settings

import "syscall"

// maxFiles is how many files the process may have open. Go has raised the soft limit to the hard one by now.
func maxFiles() (uint64, bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return uint64(limit.Cur), true
}
