//go:build !linux

package server

import "syscall"

// listenWell does nothing: where accepted connections do not inherit the
// option, the kernel's own choice stays.
func listenWell(_, _ string, _ syscall.RawConn) error { return nil }
