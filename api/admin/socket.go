package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// socketName is the socket's name in a data folder.
const socketName = "admin.sock"

// Listen makes the socket in the data folder dir, for this user alone. The caller must own the folder's store: what
// stands there from a process that ended badly is replaced. Closing the listener removes the socket.
func Listen(dir string) (net.Listener, error) {
	// The socket is made in a folder that nobody else can enter and moved out when its permissions are right. The
	// rename also replaces a stale one in a single step.
	nursery := filepath.Join(dir, "admin.new")
	if err := os.RemoveAll(nursery); err != nil {
		return nil, fmt.Errorf("couldn't prepare the admin socket: %w", err)
	}
	if err := os.Mkdir(nursery, 0o700); err != nil {
		return nil, fmt.Errorf("couldn't prepare the admin socket: %w", err)
	}
	defer os.RemoveAll(nursery)

	var listener *net.UnixListener
	err := shortPath(nursery, func(folder string) (err error) {
		listener, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(folder, socketName)})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("couldn't make the admin socket in %s: %w", dir, err)
	}
	listener.SetUnlinkOnClose(false) // it would look where the socket was made
	made, path := filepath.Join(nursery, socketName), filepath.Join(dir, socketName)
	if err := errors.Join(os.Chmod(made, 0o600), os.Rename(made, path)); err != nil {
		listener.Close()
		return nil, fmt.Errorf("couldn't make the admin socket: %w", err)
	}
	return &socket{UnixListener: listener, path: path}, nil
}

type socket struct {
	*net.UnixListener
	path string
}

func (s *socket) Close() error {
	err := s.UnixListener.Close()
	if !errors.Is(err, net.ErrClosed) { // the first time only: by the second, the socket may be another process's
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

// ErrNoProcess is what Dial returns where no process answers.
var ErrNoProcess = errors.New("no larder process runs on this data folder")

// Dial returns a client of the process that owns the data folder dir, or ErrNoProcess.
func Dial(ctx context.Context, dir string) (*Client, error) {
	dial := func(ctx context.Context) (conn net.Conn, err error) {
		err = shortPath(dir, func(folder string) error {
			conn, err = new(net.Dialer).DialContext(ctx, "unix", filepath.Join(folder, socketName))
			return err
		})
		return conn, err
	}
	conn, err := dial(ctx)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return nil, ErrNoProcess
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("a larder process of another user may run on %s; run this command as that user: %w", dir, err)
	case err != nil:
		return nil, fmt.Errorf("couldn't reach the larder process on %s: %w", dir, err)
	}
	conn.Close()
	return newClient(dial), nil
}

// maxSocketPath is what a socket's address holds on every system we know: 104 bytes with the closing NUL.
const maxSocketPath = 103

// shortPath calls use with a name of the folder that is short enough for a socket's address to hold.
func shortPath(folder string, use func(folder string) error) error {
	if len(filepath.Join(folder, socketName)) <= maxSocketPath {
		return use(folder)
	}
	if runtime.GOOS != "linux" {
		return fmt.Errorf("the path of the data folder %s is too long for a socket; choose one with at most %d bytes", folder, maxSocketPath-len(socketName)-12)
	}
	open, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer open.Close()
	return use(fmt.Sprintf("/proc/self/fd/%d", open.Fd()))
}
