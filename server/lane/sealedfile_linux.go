package lane

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// A SealedFile is a copy of a body in a file in memory. The system sends it without copying it again. Seals forbid every change of it, so
// what is sent is what was verified.
type SealedFile struct{ fd int }

// NewSealedFile copies a body into a sealed file. The file is closed, and closed is called, some time after the last reference to it is
// gone: while a connection may send it, no other file has its descriptor.
func NewSealedFile(body []byte, closed func()) (*SealedFile, error) {
	fd, err := unix.MemfdCreate("body", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	for rest := body; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			_ = unix.Close(fd)
			return nil, fmt.Errorf("write a file in memory: %w", err)
		}
		rest = rest[n:]
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("seal a file in memory: %w", err)
	}
	f := &SealedFile{fd}
	runtime.AddCleanup(f, func(fd int) { _ = unix.Close(fd); closed() }, fd)
	return f, nil
}

// sendSealed sends the head from memory and the body from the sealed file in memory, with sendfile. It does not wait for the client: it returns nil when
// the socket is full.
func (c *conn) sendSealed() error {
	if head := len(c.parts[0]) + len(c.parts[1]); head > 0 {
		n, err := unix.SendmsgBuffers(c.fd, c.parts[:2], nil, nil, unix.MSG_MORE|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == unix.EAGAIN || err == unix.EINTR {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("sendmsg", err)
		}
		if c.removeSent(n); n < head {
			return nil
		}
	}
	file := c.sealed
	for len(c.parts[2]) > 0 { // a signal ends a call early, and no event would report that the client takes more
		offset := int64(c.exchange.size - len(c.parts[2]))
		n, err := unix.Sendfile(c.fd, file.fd, &offset, len(c.parts[2]))
		switch err {
		case nil:
			c.removeSent(n)
		case unix.EAGAIN:
			return nil
		case unix.EINTR:
		default:
			return os.NewSyscallError("sendfile", err)
		}
	}
	runtime.KeepAlive(file)
	return nil
}
