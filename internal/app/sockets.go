package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/server"
)

// A socket is one that the process listens on. It stays open between two runs of a role: connections wait in the system's queue.
type socket struct {
	For     purpose `json:"for"`
	Address string  `json:"address"` // as the settings have it; "systemd" if the service manager has opened it
	FD      int     `json:"fd"`      // the descriptor in the process that receives it; set for a handover only
	at      net.Listener
}

// A purpose says what a socket is for. It is also the name that the service manager gives to the socket; it may give any other
// name to a public one.
type purpose string

const (
	forPublic  purpose = "public"
	forPrivate purpose = "private" // for the operator
	forPlain   purpose = "http"    // beside the public one, without TLS
)

// fromSystemd is the address of sockets that the service manager has opened.
const fromSystemd = "systemd"

// newListener returns a listener on a duplicate of the socket. Closing the listener leaves the socket open.
func (s *socket) newListener() (net.Listener, error) {
	f, err := s.duplicate()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return server.ListenOnFile(f)
}

// duplicate returns a duplicate of the socket's descriptor as a file, for another process; the caller closes it.
// net.TCPListener.File is not used because it makes the socket block for all that listen on it.
func (s *socket) duplicate() (*os.File, error) {
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

// sockets are all sockets of a process.
type sockets []*socket

// public returns the sockets of the public addresses, in order.
func (all sockets) public() (public []*socket) {
	return slices.DeleteFunc(slices.Clone(all), func(s *socket) bool { return s.For != forPublic })
}

// find returns the first socket for a purpose, or nil.
func (all sockets) find(p purpose) *socket {
	if i := slices.IndexFunc(all, func(s *socket) bool { return s.For == p }); i >= 0 {
		return all[i]
	}
	return nil
}

// close closes all sockets, also after an error, and returns all errors.
func (all sockets) close() (err error) {
	for _, s := range all {
		err = errors.Join(err, s.at.Close())
	}
	return err
}

// keepFiles makes the files of Unix sockets stay when the sockets are closed, because another process uses them.
func (all sockets) keepFiles() {
	for _, s := range all {
		if l, ok := s.at.(*net.UnixListener); ok {
			l.SetUnlinkOnClose(false)
		}
	}
}

// openSockets opens the sockets of the settings: the private one, and if serve is true the public and the plain ones. It uses a
// socket in handed, from an older process or the service manager, if its purpose and address are the same, and closes the
// others. Sockets of the service manager replace the addresses in the settings. If the default private address cannot be
// opened, it calls warn with the error, and all has no private socket. After any other error all sockets, also those in handed,
// are closed.
func openSockets(ctx context.Context, s *settings.Settings, serve bool, handed sockets, warn func(error)) (all sockets, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, all.close())
			all = nil
		}
		_ = handed.close() // those that are not used
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
	if err != nil && !s.IsSet("private-listen") {
		// This address is the default, so that it is taken is no reason not to start.
		warn(err)
		err = nil
	}
	return all, err
}

// findLarder returns the URL of the Larder that serves on an address of this machine, which it requests; "" if another program
// does, or if its certificate is not for the address. It takes at most two seconds.
func findLarder(ctx context.Context, address string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	for _, scheme := range []string{"http", "https"} {
		at := scheme + "://" + net.JoinHostPort(host, port)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/openapi.json", nil)
		if err != nil {
			return ""
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			continue
		}
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20))
		response.Body.Close()
		if bytes.Contains(text, []byte(`"/packages/{library}/sris/{version}"`)) {
			return at
		}
	}
	return ""
}

// listenOn opens a socket on an address. setting is the name of the setting that has the address; the errors, which are for the
// operator, say to change it.
func listenOn(ctx context.Context, setting, address string) (net.Listener, error) {
	l, err := server.OpenSocket(ctx, address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		by, remedy := "another program", "stop it"
		if at := findLarder(ctx, address); at != "" && setting == "private-listen" {
			by = "another Larder"
		} else if at != "" {
			by, remedy = "another Larder, "+at, "use that, stop it"
		}
		return nil, fmt.Errorf("%s is in use by %s; %s, or choose another address with --%s (port 0 picks a free one)", address, by, remedy, setting)
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

// A handover is the message by which a larder process passes its sockets to the next one.
type handover struct {
	Sockets sockets `json:"sockets"`
	// Asks is the descriptor over which the two processes agree on when the older closes the store and the newer opens it; 0
	// if there is only one process.
	Asks int `json:"asks,omitempty"`
	// CaughtUp says that this node of a cluster has caught up before, so that the newer process serves at once.
	CaughtUp bool `json:"caughtUp,omitempty"`
}

// receiveHandover returns the sockets that a larder process that this one replaces, or the service manager, gave to this
// process. older is the connection to that process if it waits for this one, nil otherwise; the caller closes it. Without a
// handover, handed is empty. receiveHandover can be called once: it removes the environment variable with the handover.
func receiveHandover() (handed handover, older *os.File, err error) {
	defer os.Unsetenv(handedVariable)
	text, ok := os.LookupEnv(handedVariable)
	if !ok {
		for _, f := range activation.Files(true) {
			l, err := server.ListenOnFile(f)
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
		return handover{}, nil, fmt.Errorf("%s: %w", handedVariable, err)
	}
	for _, s := range handed.Sockets {
		syscall.CloseOnExec(s.FD)
		f := os.NewFile(uintptr(s.FD), s.Address)
		if s.at, err = server.ListenOnFile(f); err != nil {
			return handover{}, nil, fmt.Errorf("the socket %s that was handed over cannot be used: %w", s.Address, err)
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

// replaceProcess replaces this process by a new one of the same program, with its sockets (exec), and without any shutdown. It
// returns only if that fails, with an error, or if the process was asked to stop, with nil.
func (v *supervisor) replaceProcess() error {
	if v.ending.Err() != nil { // the process was asked to stop
		return nil
	}
	for _, s := range v.sockets {
		f, err := s.duplicate()
		if err != nil {
			return err
		}
		defer f.Close()
		s.FD = int(f.Fd())
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
			return err
		}
	}
	text, err := json.Marshal(handover{Sockets: v.sockets, CaughtUp: v.node.caughtUp.Load()})
	if err != nil {
		return err
	}
	return syscall.Exec(program, os.Args, append(os.Environ(), handedVariable+"="+string(text)))
}
