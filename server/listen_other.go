//go:build !linux

package server

import "syscall"

// setSocketOptions does nothing: where accepted connections do not inherit the
// options, the kernel's own choice stays.
func setSocketOptions(_, _ string, _ syscall.RawConn) error { return nil }
