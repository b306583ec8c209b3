package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/server"
)

// A socket is one that the process listens on. It stays open while what serves on it comes and goes: connections wait in
// the system's queue meanwhile.
type socket struct {
	For     purpose `json:"for"`
	Address string  `json:"address"` // as it is configured; "systemd" where that has opened it
	FD      int     `json:"fd"`      // in the process that it is handed to
	at      net.Listener
}

// A purpose says what a socket is for. It is what the service manager calls the socket, unless that is for the public.
type purpose string

const (
	forPublic  purpose = "public"
	forPrivate purpose = "private" // for the operator
	forPlain   purpose = "http"    // beside the public one, without TLS
)

// fromSystemd is the address of sockets that the service manager has opened.
const fromSystemd = "systemd"

// listener returns a listener on the socket, whose closing leaves the socket open.
func (s *socket) listener() (net.Listener, error) {
	f, err := s.file()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return server.Adopt(f)
}

// file returns the socket, to be given to another process. That of net.TCPListener.File would make the socket block, for all
// that listen on it, as soon as its number is asked for.
func (s *socket) file() (*os.File, error) {
	shared, ok := s.at.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%s cannot be handed over", s.at.Addr())
	}
	raw, err := shared.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	if failed := raw.Control(func(at uintptr) { fd, err = unix.FcntlInt(at, unix.F_DUPFD_CLOEXEC, 0) }); failed != nil {
		err = failed
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot be handed over: %w", s.at.Addr(), err)
	}
	return os.NewFile(uintptr(fd), s.Address), nil
}

// sockets are all of a process.
type sockets []*socket

func (all sockets) public() (public []*socket) {
	return slices.DeleteFunc(slices.Clone(all), func(s *socket) bool { return s.For != forPublic })
}

// only returns the one for another purpose, or nil.
func (all sockets) only(p purpose) *socket {
	if i := slices.IndexFunc(all, func(s *socket) bool { return s.For == p }); i >= 0 {
		return all[i]
	}
	return nil
}

func (all sockets) close() (err error) {
	for _, s := range all {
		err = errors.Join(err, s.at.Close())
	}
	return err
}

// keepFiles has the files of Unix sockets stay, which are another process's from now on.
func (all sockets) keepFiles() {
	for _, s := range all {
		if l, ok := s.at.(*net.UnixListener); ok {
			l.SetUnlinkOnClose(false)
		}
	}
}

// openSockets opens the sockets of the settings, as far as no other process has handed them over. Those of the service
// manager take the place of all.
func openSockets(ctx context.Context, s *settings.Settings, serve bool, handed sockets, warn func(error)) (all sockets, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, all.close())
			all = nil
		}
		_ = handed.close() // those that are not wanted any more
	}()
	take := func(p purpose, address string) bool {
		i := slices.IndexFunc(handed, func(h *socket) bool { return h.For == p && h.Address == address })
		if i >= 0 {
			all = append(all, handed[i])
			handed = slices.Delete(handed, i, i+1)
		}
		return i >= 0
	}
	open := func(p purpose, setting, address string) error {
		if take(p, address) {
			return nil
		}
		l, err := listenOn(ctx, setting, address)
		if err == nil {
			all = append(all, &socket{For: p, Address: address, at: l})
		}
		return err
	}
	if serve && !take(forPublic, fromSystemd) {
		for _, address := range s.Listen {
			if err := open(forPublic, "listen", address); err != nil {
				return all, err
			}
		}
	}
	for serve && take(forPublic, fromSystemd) {
	}
	switch {
	case !serve:
	case take(forPlain, fromSystemd):
		if !s.HTTPS() {
			return all, errors.New("the service manager gives a socket named http, which leads to HTTPS; that needs a certificate, with --acme-domain or --tls-cert")
		}
	case s.HTTPListen != "":
		if err := open(forPlain, "http-listen", s.HTTPListen); err != nil {
			return all, err
		}
	}
	if take(forPrivate, fromSystemd) || s.PrivateListen == settings.Off {
		return all, nil
	}
	err = open(forPrivate, "private-listen", s.PrivateListen)
	if err != nil && !s.Given("private-listen") {
		// This address is the default, so that it is taken is no reason not to start.
		warn(err)
		err = nil
	}
	return all, err
}

func listenOn(ctx context.Context, setting, address string) (net.Listener, error) {
	l, err := server.Open(ctx, address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another program; stop it, or choose another address with --%s (port 0 picks a free one)", address, setting)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("this user may not listen on %s; choose a port above 1023 with --%s", address, setting)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is not an address of this machine; choose another with --%s", address, setting)
	case err != nil:
		return nil, fmt.Errorf("couldn't listen on %s: %w; choose another address with --%s", address, err, setting)
	}
	return l, nil
}

// firstExtra is the first of the descriptors that a process gives to one that it starts.
const firstExtra = 3

// handedVariable describes, as JSON, the descriptors that a larder process gives to the next one.
const handedVariable = "_LARDER_HANDED"

// A handing is what one larder process gives to the next one.
type handing struct {
	Sockets sockets `json:"sockets"`
	// Asks is the descriptor over which the two processes agree on when the one closes the store and the other opens it; 0
	// where there is only one process.
	Asks int `json:"asks,omitempty"`
	// CaughtUp is whether a node of a cluster has caught up, so that it serves at once.
	CaughtUp bool `json:"caughtUp,omitempty"`
}

// received returns what this process was given: by another larder, or by the service manager. It can be asked once.
func received() (handed handing, older *os.File, err error) {
	defer os.Unsetenv(handedVariable)
	text, ok := os.LookupEnv(handedVariable)
	if !ok {
		for _, f := range activation.Files(true) {
			l, err := server.Adopt(f)
			if err = errors.Join(err, f.Close()); err != nil {
				return handed, nil, fmt.Errorf("a socket of the service manager's cannot be used: %w; it must be a stream socket that listens", err)
			}
			to := purpose(f.Name())
			if to != forPrivate && to != forPlain {
				to = forPublic
			}
			handed.Sockets = append(handed.Sockets, &socket{For: to, Address: fromSystemd, at: l})
		}
		return handed, nil, nil
	}
	if err := json.Unmarshal([]byte(text), &handed); err != nil {
		return handing{}, nil, fmt.Errorf("%s: %w", handedVariable, err)
	}
	for _, s := range handed.Sockets {
		syscall.CloseOnExec(s.FD)
		f := os.NewFile(uintptr(s.FD), s.Address)
		if s.at, err = server.Adopt(f); err != nil {
			return handing{}, nil, fmt.Errorf("the socket %s that was handed over cannot be used: %w", s.Address, err)
		}
		if l, ok := s.at.(*net.UnixListener); ok {
			l.SetUnlinkOnClose(s.Address != fromSystemd)
		}
		f.Close()
	}
	if handed.Asks != 0 {
		syscall.CloseOnExec(handed.Asks)
		older = os.NewFile(uintptr(handed.Asks), "the older process")
	}
	return handed, older, nil
}

// execAgain replaces this process by a new one of its program, with its sockets. It returns only if that fails.
func (v *supervisor) execAgain() error {
	if v.ending.Err() != nil { // the process was asked to stop
		return nil
	}
	for _, s := range v.sockets {
		f, err := s.file()
		if err != nil {
			return err
		}
		defer f.Close()
		s.FD = int(f.Fd())
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
			return err
		}
	}
	text, err := json.Marshal(handing{Sockets: v.sockets, CaughtUp: v.node.caughtUp.Load()})
	if err != nil {
		return err
	}
	return syscall.Exec(program, os.Args, append(os.Environ(), handedVariable+"="+string(text)))
}
