package lane

import (
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/larder-cdn/larder/server/lane/h2"
)

const (
	// turns is how often 64 KiB are sent on a connection before it is another's turn.
	turns = 4
	// sealedMost is how many bytes of records may be unsent before nothing more is read: crypto/tls
	// answers clients, too, which may ask for new keys and not read.
	sealedMost = 2 * h2.Gathered
)

// sealings hold the records of what is gathered at a time.
var sealings = newBufferPool(h2.Gathered + 4<<10)

var vectors = sync.Pool{New: func() any { return new([h2.MostParts + 2]unix.Iovec) }}

// onEvent serves a connection with HTTP/2 after an epoll event, when the client has sent something or can take more. It runs on
// the event loop, and locks mu.
func (m *multiplexer) onEvent(events uint32, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.makeBusy() {
		return
	}
	switch c := m.c; {
	case m.halted, events&^(unix.EPOLLIN|unix.EPOLLOUT) != 0: // the client has closed, or it broke
		c.unread = unknown
	case events&unix.EPOLLIN == 0:
		c.unread = none
	default:
		c.unread = some
	}
	if m.readNow(now) != nil {
		m.close()
		return
	}
	m.flushAndWait(now)
}

// readNow processes what the client has sent, without waiting. It stops after 16 reads, or when too much waits to be sent, and records
// in halted that bytes may be left. The error is io.EOF when the client has closed the connection, else that of reading.
func (m *multiplexer) readNow(now time.Time) error {
	c := m.c
	read := c.receiveNow
	if c.secure != nil {
		read = c.secure.Read
	}
	b := wides.Get().(*[wideBytes]byte)
	defer wides.Put(b)
	m.halted = false
	for round := 0; ; round++ {
		if round == rounds || m.isFull() {
			m.halted = true
			return nil
		}
		n, err := read(b[:])
		switch {
		case n > 0:
			m.receive(b[:n], now)
		case err == errAgain:
			return nil
		default:
			return err
		}
	}
}

// isFull reports whether so many control frames or TLS records wait to be sent that the connection must not be read from before.
func (m *multiplexer) isFull() bool {
	return m.h.Full() || m.sealed != nil && len(*m.sealed)-m.sealedAt > sealedMost
}

// sendNow makes handlers' responses into frames and sends them, without waiting, until nothing is left, the client takes no more, or it
// is another connection's turn. In the last case the loop serves the connection again later, as it does if bytes are left to read and
// not too much waits to be sent. The caller holds mu.
func (m *multiplexer) sendNow(now time.Time) error {
	more, err := m.sendSome(now)
	if err == nil && (more || m.halted && !m.isFull()) {
		// This makes the loop report an event once more, also if nothing new happens.
		_ = m.c.loop.changeEvents(unix.EPOLL_CTL_MOD, m.c.fd, interest|unix.EPOLLOUT)
	}
	return err
}

// sendSome gathers and sends up to turns batches, without waiting. more reports that it stopped at this limit, so that something
// may be left.
func (m *multiplexer) sendSome(now time.Time) (more bool, err error) {
	for turn := 0; ; turn++ {
		if !m.isSent() {
			if err := m.flush(); err != nil || !m.isSent() {
				return false, err
			}
		}
		if turn == turns {
			return true, nil
		}
		if turn > 0 {
			now = time.Now()
		}
		if m.out = m.nextData(now); m.out == nil {
			return false, nil
		}
		if m.c.secure != nil { // addRecord gets the TLS records
			_, err := m.c.secure.Write(m.out.Bytes)
			m.h.Free(m.out)
			if m.out = nil; err != nil {
				return false, err
			}
		}
	}
}

// addRecord appends an encrypted TLS record to those that wait to be sent.
func (m *multiplexer) addRecord(p []byte) {
	if m.isSent() { // it is crypto/tls that answers
		m.begun, m.allowed = time.Now(), m.c.listener.o.StallTimeout
	}
	if m.sealed == nil {
		m.sealed = sealings.Get().(*[]byte)
	}
	*m.sealed = append(*m.sealed, p...)
}

// flush sends as much of the gathered frames, or of the TLS records, as the system takes without waiting.
func (m *multiplexer) flush() error {
	if m.sealed != nil {
		return m.flushRecords()
	}
	v := vectors.Get().(*[h2.MostParts + 2]unix.Iovec)
	defer vectors.Put(v)
	for {
		parts := m.out.Parts()
		for i, p := range parts {
			v[i].Base = unsafe.SliceData(p)
			v[i].SetLen(len(p))
		}
		sent, _, err := syscall.RawSyscall(syscall.SYS_WRITEV, uintptr(m.c.fd), uintptr(unsafe.Pointer(v)), uintptr(len(parts)))
		clear(v[:len(parts)])
		switch err {
		case 0:
			m.out.Sent(int(sent))
		case unix.EAGAIN:
			return nil
		case unix.EINTR:
		default:
			return os.NewSyscallError("writev", err)
		}
		if m.out.Size() == 0 {
			m.waited += time.Since(m.begun)
			m.h.Free(m.out)
			m.out = nil
			return nil
		}
	}
}

// flushRecords sends as much of the encrypted TLS records as the system takes without waiting, and frees them once all are sent.
func (m *multiplexer) flushRecords() error {
	for {
		p := (*m.sealed)[m.sealedAt:]
		sent, _, err := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(m.c.fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		switch err {
		case 0:
			m.sealedAt += int(sent)
		case unix.EAGAIN:
			return nil
		case unix.EINTR:
		default:
			return os.NewSyscallError("write", err)
		}
		if m.sealedAt == len(*m.sealed) {
			m.waited += time.Since(m.begun)
			m.dropRecords()
			return nil
		}
	}
}

// dropRecords frees the encrypted TLS records, sent or not.
func (m *multiplexer) dropRecords() {
	if m.sealed != nil {
		*m.sealed = (*m.sealed)[:0]
		sealings.Put(m.sealed)
		m.sealed, m.sealedAt = nil, 0
	}
}

// shutWrite sends the close_notify of TLS, if there is TLS, and closes a connection on an event loop for writing.
func (m *multiplexer) shutWrite() {
	m.sendCloseNotify()
	_ = unix.Shutdown(m.c.fd, unix.SHUT_WR)
}

// sendCloseNotify sends the close_notify of TLS, unless that needs waiting, and drops unsent records. Without TLS it does
// nothing.
func (m *multiplexer) sendCloseNotify() {
	if m.c.secure == nil {
		return
	}
	if m.sealed == nil {
		if _ = m.c.secure.CloseWrite(); m.sealed != nil {
			_ = m.flushRecords()
		}
	}
	m.dropRecords()
}

// closeNow sends the close_notify of TLS and closes a connection on an event loop, without waiting.
func (m *multiplexer) closeNow() {
	m.sendCloseNotify()
	c := m.c
	if c.socket != nil {
		_ = c.socket.Close()
		return
	}
	_ = c.closeDescriptor()
}

// peerAddress returns address and port of the client of a connection on an event loop, as the PROXY protocol or the system names
// it; "" if the system knows none.
func (c *conn) peerAddress() string {
	if c.place != nil && c.place.remote != nil {
		return c.place.remote.String()
	}
	var peer unix.RawSockaddrAny
	size := uint32(unsafe.Sizeof(peer))
	_, _, err := syscall.RawSyscall(syscall.SYS_GETPEERNAME, uintptr(c.fd), uintptr(unsafe.Pointer(&peer)), uintptr(unsafe.Pointer(&size)))
	if a := toAddrPort(&peer); err == 0 && a.IsValid() {
		return a.String()
	}
	return ""
}
