//go:build !linux

package server

import "syscall"

// setSocketOptions does nothing on this system: where accepted connections do not inherit the options of a listening socket, the kernel's own choice
// stays.
func setSocketOptions(_, _ string, _ syscall.RawConn) error { return nil }
