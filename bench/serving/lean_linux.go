package main

import (
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// lean is a load generator that does as little as can be done: one thread, epoll,
// requests made beforehand, answers counted by the kernel (MSG_TRUNC on a TCP
// socket takes bytes without copying them). It knows how long each answer is: one
// of another length is a failure. What the answers say was compared before.
type lean struct {
	leanJob
	epoll   int
	to      unix.SockaddrInet4
	next    int // in Order
	buffer  []byte
	took    []uint32 // microseconds
	turn    turn
	clients []leanClient
}

type leanClient struct {
	fd    int
	left  int // bytes of the answer that are still to come
	start time.Time
}

func runLean(in io.Reader, out io.Writer) error {
	l := &lean{buffer: make([]byte, 1<<20)}
	if err := gob.NewDecoder(in).Decode(&l.leanJob); err != nil {
		return err
	}
	address, err := netip.ParseAddrPort(l.Address)
	if err != nil {
		return err
	}
	l.to = unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}
	if len(l.Order) == 0 || len(l.Requests) != len(l.Lengths) || l.Connections < 1 {
		return errors.New("nothing to do")
	}
	other := l.shakeHands
	if l.Streams > 0 {
		other = l.runHTTP2
	}
	if l.Handshakes != "" || l.Streams > 0 {
		if err := other(); err != nil {
			return err
		}
		return l.tell(out)
	}
	l.took = make([]uint32, 0, 1<<22)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := l.run(); err != nil {
		return err
	}
	return l.tell(out)
}

// tell writes what came of it.
func (l *lean) tell(out io.Writer) error {
	slices.Sort(l.took)
	if len(l.took) > 0 {
		l.turn.P50, l.turn.P99 = percentile(l.took, 50), percentile(l.took, 99)
	}
	return json.NewEncoder(out).Encode(l.turn)
}

func (l *lean) run() (err error) {
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(l.epoll)
	l.clients = make([]leanClient, l.Connections)
	defer func() {
		for _, c := range l.clients {
			if c.fd > 0 {
				unix.Close(c.fd)
			}
		}
	}()
	start := time.Now()
	end := start.Add(l.Duration)
	for i := range l.clients {
		if err := l.connect(i); err != nil {
			return err
		}
		if err := l.begin(i, start); err != nil {
			return err
		}
	}
	events := make([]unix.EpollEvent, l.Connections)
	for {
		n, err := unix.EpollWait(l.epoll, events, 1000)
		if err != nil && err != unix.EINTR {
			return err
		}
		now := time.Now()
		if now.After(end) {
			l.turn.Took = now.Sub(start)
			return nil
		}
		if n == 0 {
			return errors.New("no answer for a second: one was shorter than when it was compared, or the server hangs")
		}
		for _, e := range events[:max(0, n)] {
			if err := l.receive(int(e.Fd)); err != nil {
				return err
			}
		}
	}
}

// connect opens a client's connection. Its place, not its descriptor, is what
// epoll tells. Until the request is sent it waits in the kernel: on the loopback
// that is at once.
func (l *lean) connect(i int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	l.clients[i].fd = fd
	if err := errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.Connect(fd, &l.to), unix.SetNonblock(fd, true)); err != nil {
		return err
	}
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)})
}

// begin sends the next request of the list. A kilobyte always fits in the socket.
func (l *lean) begin(i int, now time.Time) error {
	c := &l.clients[i]
	q := l.Order[l.next]
	if l.next++; l.next == len(l.Order) {
		l.next = 0
	}
	c.left, c.start = l.Lengths[q], now
	n, err := unix.Write(c.fd, l.Requests[q])
	if err == nil && n != len(l.Requests[q]) {
		err = io.ErrShortWrite
	}
	return err
}

// receive takes what has come, and goes on with the next request after the last byte.
func (l *lean) receive(i int) error {
	c := &l.clients[i]
	for {
		// One byte more than is wanted: a longer answer must not pass.
		n, _, err := unix.Recvfrom(c.fd, l.buffer[:min(len(l.buffer), c.left+1)], unix.MSG_TRUNC)
		switch {
		case err == unix.EAGAIN:
			return nil
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n > c.left:
			return errors.New("an answer is longer than when it was compared")
		case n == 0 && (!l.Closing || c.left > 0):
			return fmt.Errorf("the server closed a connection with %d bytes to come", c.left)
		}
		c.left -= n
		l.turn.Bytes += int64(n)
		if l.Closing && n > 0 || c.left > 0 {
			if n < len(l.buffer) && !l.Closing {
				return nil // that was all there is
			}
			continue
		}
		break
	}
	now := time.Now()
	l.turn.Requests++
	l.took = append(l.took, uint32(now.Sub(c.start).Microseconds()))
	if l.Closing {
		fd := c.fd
		c.fd = 0
		if err := unix.Close(fd); err != nil {
			return err
		}
		now = time.Now()
		if err := l.connect(i); err != nil {
			return err
		}
	}
	return l.begin(i, now)
}
