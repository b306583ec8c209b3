package main

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
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// An attack is what one client does.
type attack struct {
	name string
	ways []string
	args []string // of Larder
	at   int      // how many at a time
	npm  bool     // whether Larder has a catalogue and asks a registry
	do   func(*assault) error
	also func(context.Context, *client) error // what the victim must get beside files
}

var (
	everyWay   = []string{plain, secure, h2, nginx, proxied, proxiedV2}
	fourPlaces = []string{"--max-connections", "400"}
	noCache    = append([]string{"--cache", "4MiB", "--sending", "32MiB"}, fourPlaces...)
)

var attacks = []attack{
	{name: "slow-readers", ways: everyWay, args: fourPlaces, at: 600, do: slowly(bigFile)},
	{name: "slow-readers-uncached", ways: everyWay, args: noCache, at: 600, do: slowly(bigFile)},
	{name: "silent", ways: []string{plain, secure, proxied}, args: fourPlaces, at: 600, do: silent("")},
	{name: "silent-11000", ways: []string{plain, secure}, at: 11_000, do: silent("")},
	{name: "half-a-head", ways: []string{plain, proxied}, args: fourPlaces, at: 600, do: silent("GET / HTTP/1.1\r\nHost: exam")},
	{name: "idle", ways: []string{plain, proxied}, args: fourPlaces, at: 600, do: silent("GET " + libs + "f1.js HTTP/1.1\r\nHost: example.com\r\n\r\n")},
	{name: "no-window", ways: []string{h2}, at: 12, do: noWindow},
	{name: "no-window-uncached", ways: []string{h2}, args: noCache, at: 12, do: noWindow},
	{name: "largest-page", ways: everyWay, at: 64, do: again(largestPage)},
	{name: "slow-archives", ways: []string{plain, secure, nginx, proxied}, at: 5, do: slowly(archive), also: gets(archive)},
	{name: "drafts", ways: []string{plain, nginx, proxied}, at: 64, npm: true, do: again(draftPage), also: gets(draftPage)},
	{name: "streams", ways: []string{plain, secure, nginx, proxied}, at: 256, do: slowly(streamPath), also: streams},
}

const (
	// comesAgain is after how long an attacker whose connection was closed comes again.
	comesAgain = 100 * time.Millisecond
	// settling is how long an attack goes on before the victim is measured.
	settling = 2 * time.Second
	// childArgument makes this program the attacker.
	childArgument = "attacker"
	// soon is how long the attacker has until all of it is there.
	soon = 15 * time.Second
)

// An assault is an attack from the attacker's side.
type assault struct {
	Attack, Address string
	Secure, H2      bool
}

// launch starts an attack in a process of its own, and returns when all of it has begun.
func launch(ctx context.Context, a attack, t *target) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	order, err := json.Marshal(assault{a.name, t.address, t.secure, t.h2})
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, self, childArgument, string(order))
	c.Stderr = os.Stderr
	said, err := c.StdoutPipe()
	if err != nil {
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

// runAttack is the attacker's main. It ends when it is killed.
func runAttack(args []string) {
	var x assault
	if err := json.Unmarshal([]byte(args[0]), &x); err != nil {
		panic(err)
	}
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 10) // no network is between it and the processors of the others
	for _, a := range attacks {
		if a.name != x.Attack {
			continue
		}
		var begun sync.WaitGroup
		for range a.at {
			begun.Add(1)
			go func() {
				first := sync.OnceFunc(begun.Done)
				time.AfterFunc(time.Second, first)
				for {
					_ = a.do(&x) // it is closed, sooner or later
					first()
					time.Sleep(comesAgain)
				}
			}()
		}
		begun.Wait()
		time.Sleep(settling)
		fmt.Println("begun")
		time.Sleep(time.Hour)
	}
}

// dial connects as the attacker, who takes little at a time.
func (x *assault) dial(protocols ...string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attacker)}, Timeout: soon, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) })
	}}
	c, err := d.Dial("tcp", x.Address)
	if err != nil || !x.Secure || protocols == nil {
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
func slowly(path string) func(*assault) error {
	return func(x *assault) error {
		c, err := x.dial("http/1.1")
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: example.com\r\n\r\n", path); err != nil {
			return err
		}
		for b := make([]byte, 250); err == nil; time.Sleep(250 * time.Millisecond) {
			_, err = c.Read(b)
		}
		return err
	}
}

// silent connects, sends that, and waits.
func silent(sent string) func(*assault) error {
	return func(x *assault) error {
		c, err := x.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err = io.WriteString(c, sent); err == nil {
			_, err = io.Copy(io.Discard, c)
		}
		return err
	}
}

// again asks for something as fast as it comes.
func again(path string) func(*assault) error {
	return func(x *assault) error {
		c, err := x.dial("http/1.1")
		if err != nil {
			return err
		}
		defer c.Close()
		r := bufio.NewReader(c)
		for {
			if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: example.com\r\n\r\n", path); err != nil {
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
}

// noWindow opens 100 streams, and a window for none of them.
func noWindow(x *assault) error {
	c, err := x.dial("h2")
	if err != nil {
		return err
	}
	defer c.Close()
	var b bytes.Buffer
	b.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	frame(&b, 4, 0, 0, []byte{0, 4, 0, 0, 0, 0}) // SETTINGS_INITIAL_WINDOW_SIZE is 0
	for stream := uint32(1); stream < 200; stream += 2 {
		block := []byte{0x82, 0x87, 0x04} // GET, https, and a path
		block = text(block, bigFile)
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
