package server

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// sendQueueBytes is how much unsent data makes a socket unwritable.
const sendQueueBytes = 128 << 10

// shortSendQueue sets TCP_NOTSENT_LOWAT on a listener; accepted connections
// inherit it. Without it a client that reads 10 KB/s steadily would let nothing be
// written for minutes, then a megabyte at once, and look stalled.
func shortSendQueue(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		// A kernel that does not know the option works as it did before.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, sendQueueBytes)
	})
}
