package server

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// sendQueueBytes is how much unsent data makes a socket unwritable.
const sendQueueBytes = 128 << 10

// deferSeconds is how long the kernel keeps a connection to itself on which nothing has come. Clients speak first, in
// all protocols that are served here.
const deferSeconds = 1

// setSocketOptions sets options on a listening socket, which accepted connections inherit. Without TCP_NOTSENT_LOWAT a client
// that reads 10 KB/s steadily would let nothing be written for minutes, then a megabyte at once, and look stalled. With
// TCP_DEFER_ACCEPT the first request is there when the connection is accepted: the process is woken once, not twice. An option
// that cannot be set is ignored, for example by a kernel that does not know it; the error is only that of accessing the socket.
func setSocketOptions(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		// A kernel that does not know an option works as it did before.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, sendQueueBytes)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, deferSeconds)
	})
}
