package main

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// bareArgument makes this program the bare server.
const bareArgument = "bare-server"

// A bareJob is what the bare server responds with: for each path the same bytes, head and body.
type bareJob struct {
	Address   string
	Responses map[string][]byte
}

// A bareServer does as little as a server on epoll can: it looks for the path, and writes the response from memory. It shows how much
// more efficient a server could be.
type bareServer struct {
	bareJob
	epoll   int
	clients []bareClient // by descriptor
	buffer  [4 << 10]byte
}

// A bareClient is a connection of a bareServer.
type bareClient struct {
	left []byte // of the response
}

// startBare starts a bare server with the responses of another server to some requests.
func startBare(ctx context.Context, from *server, requests []request) (*server, error) {
	job := bareJob{Responses: make(map[string][]byte)}
	var err error
	if job.Address, err = freeAddress(); err != nil {
		return nil, err
	}
	conn, err := dial(ctx, from.address, false)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	for _, q := range requests {
		a, err := conn.ask(q, validators{}, false, chrome)
		if err != nil {
			return nil, err
		}
		head := bytes.NewBufferString("HTTP/1.1 200 OK\r\n")
		if err := a.header.Write(head); err != nil {
			return nil, err
		}
		head.WriteString("\r\n")
		job.Responses[q.Path] = append(head.Bytes(), a.body...)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var in bytes.Buffer
	if err := gob.NewEncoder(&in).Encode(job); err != nil {
		return nil, err
	}
	cmd := exec.Command(program, bareArgument)
	cmd.Stdin, cmd.Env = &in, append(os.Environ(), "GOMAXPROCS=1")
	return launch(ctx, "bare", cmd, job.Address, serverCore, false)
}

// runBare runs a bare server with the job in a reader. It returns only if it fails.
func runBare(in io.Reader) error {
	s := new(bareServer)
	if err := gob.NewDecoder(in).Decode(&s.bareJob); err != nil {
		return err
	}
	address, err := netip.ParseAddrPort(s.Address)
	if err != nil {
		return err
	}
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	}
	if err == nil {
		err = errors.Join(unix.SetsockoptInt(listener, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
			unix.Bind(listener, &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}),
			unix.Listen(listener, 4096), s.watch(listener, unix.EPOLLIN))
	}
	events := make([]unix.EpollEvent, 128)
	for err == nil {
		n := 0
		if n, err = unix.EpollWait(s.epoll, events, -1); err == unix.EINTR {
			err = nil
		}
		for _, e := range events[:max(0, n)] {
			if fd := int(e.Fd); fd != listener {
				s.serve(fd)
			} else if fd, _, e := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC); e == nil {
				for len(s.clients) <= fd {
					s.clients = append(s.clients, bareClient{})
				}
				s.clients[fd] = bareClient{}
				err = s.watch(fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLET)
			}
		}
	}
	return fmt.Errorf("the bare server: %w", err)
}

// watch adds a descriptor to the epoll set.
func (s *bareServer) watch(fd int, events uint32) error {
	return unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// serve sends the rest of a response, and responds to requests until there are no more. Each request arrives in one piece.
func (s *bareServer) serve(fd int) {
	c := &s.clients[fd]
	for {
		for len(c.left) > 0 {
			n, err := unix.Write(fd, c.left)
			if err == unix.EAGAIN {
				return
			}
			if err != nil {
				unix.Close(fd)
				return
			}
			c.left = c.left[n:]
		}
		n, err := unix.Read(fd, s.buffer[:])
		if err == unix.EAGAIN {
			return
		}
		fields := bytes.SplitN(s.buffer[:max(0, n)], []byte(" "), 3)
		if len(fields) < 3 || string(fields[0]) != http.MethodGet {
			unix.Close(fd)
			return
		}
		if c.left = s.Responses[string(fields[1])]; c.left == nil {
			unix.Close(fd)
			return
		}
	}
}
