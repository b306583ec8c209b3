package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// An actor is a process that serves, and that may be killed, stopped and begun again; an upgrade may have put another one in
// its place.
type actor struct {
	name    string
	folder  string // with its data, keys and log
	program string
	args    []string // behind the command's name
	command string   // up, or mirror
	env     []string
	address string // host and port of the public listener
	private string
	secure  bool
	log     *os.File

	mu  sync.Mutex
	pid int
}

func (a *actor) data() string { return filepath.Join(a.folder, "data") }
func (a *actor) keys() string { return filepath.Join(a.folder, "keys") }

// config is the file that `larder reload` reads.
func (a *actor) config() string { return filepath.Join(a.folder, "larder.yaml") }

const soundConfig = "cache: 48MiB\nstore-cache: 16MiB\nmemory: 128MiB\nlog-level: info\n"

// startSoon is how long a process has until it serves; the machine may be busy.
const startSoon = 2 * time.Minute

// freeAddress finds a port of that address.
func freeAddress(ip string) (string, error) {
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// start starts the process, and returns when it listens. It may have yet to catch up.
func (a *actor) start(ctx context.Context) error {
	ready := filepath.Join(a.folder, "ready")
	err := errors.Join(os.MkdirAll(a.folder, 0o755), os.RemoveAll(ready))
	if _, statErr := os.Stat(a.config()); errors.Is(statErr, fs.ErrNotExist) {
		err = errors.Join(err, os.WriteFile(a.config(), []byte(soundConfig), 0o644))
	}
	if err == nil && a.log == nil {
		a.log, err = os.Create(filepath.Join(a.folder, "log"))
	}
	if err != nil {
		return err
	}
	args := append([]string{a.command}, a.args...)
	args = append(args, "--data", a.data(), "--keys", a.keys(), "--config", a.config(), "--listen", a.address, "--private-listen", a.private, "--ready-file", ready)
	c := exec.Command(a.program, args...)
	c.Env = append(os.Environ(), a.env...)
	c.Stdout, c.Stderr = a.log, a.log
	if err := c.Start(); err != nil {
		return err
	}
	a.setPID(c.Process.Pid)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait()
	}()
	for deadline := time.Now().Add(startSoon); ; {
		if _, err := os.Stat(ready); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return fmt.Errorf("%s has ended; it said: %s", a.name, a.lastWords())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not serve within %v; it said: %s", a.name, startSoon, a.lastWords())
		}
	}
}

// lastWords is the end of what the process has said.
func (a *actor) lastWords() string {
	text, _ := os.ReadFile(filepath.Join(a.folder, "log"))
	return string(text[max(0, len(text)-700):])
}

func (a *actor) setPID(pid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pid = pid
}

func (a *actor) getPID() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pid
}

func (a *actor) signal(s syscall.Signal) error {
	pid := a.getPID()
	if pid == 0 {
		return fmt.Errorf("%s does not run", a.name)
	}
	return syscall.Kill(pid, s)
}

// end ends the process, and returns when it has ended.
func (a *actor) end(s syscall.Signal) error {
	pid := a.getPID()
	if pid == 0 {
		return nil
	}
	if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	for deadline := time.Now().Add(startSoon); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if gone(pid) {
			a.setPID(0)
			return nil
		}
	}
	return fmt.Errorf("%s does not end; it said: %s", a.name, a.lastWords())
}

// gone reports whether a process has ended with all its threads, until when its sockets are open. What another process started may stay as a zombie.
func gone(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err != nil || bytes.Contains(state, []byte(") Z ")) && len(threads) <= 1
}

// kill ends the process whatever state it is in.
func (a *actor) kill() {
	_ = a.signal(syscall.SIGCONT)
	_ = a.end(syscall.SIGKILL)
}

// larder runs a command on the actor's data folder, and returns what it says.
func (a *actor) larder(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, a.program, append(args, "--data", a.data(), "--log-level", "error")...)
	c.Env = append(os.Environ(), a.env...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if err != nil {
		err = fmt.Errorf("larder %s on %s: %w: %s%s", args[0], a.name, err, out.String(), errs.String())
	}
	return out.String(), err
}

// publishes is whether a node of the cluster is the one that does, by its own word.
func (a *actor) publishes(ctx context.Context) bool {
	_, said, err := a.askPrivate(ctx, "/metrics")
	return err == nil && strings.Contains(said, "\nlarder_cluster_leader 1\n")
}

// ready is whether the private address says that all is well.
func (a *actor) ready(ctx context.Context) error {
	status, said, err := a.askPrivate(ctx, "/readyz")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: %d: %s", a.name, status, strings.TrimSpace(said))
	}
	return err
}

// inUse is how much of its memory a process has in use, in bytes, and 0 where it does not say. What it has of the system tells
// little: as much garbage again may lie there.
func (a *actor) inUse(ctx context.Context) int64 {
	_, said, err := a.askPrivate(ctx, "/metrics")
	_, next, ok := strings.Cut(said, "\ngo_memstats_next_gc_bytes ")
	if err != nil || !ok {
		return 0
	}
	value, _, _ := strings.Cut(next, "\n")
	bytes, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return 0
	}
	return int64(bytes / 2) // Go collects garbage when there is as much of it as was in use after the last time
}

func (a *actor) askPrivate(ctx context.Context, path string) (status int, said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.private+path, nil)
	if err != nil {
		return 0, "", err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 4<<20))
	return answer.StatusCode, string(body), err
}

// The gateway is the object store: versitygw in a process, on a port of its own.
type gateway struct {
	program, folder, address string
	cmd                      *exec.Cmd
	log                      *os.File
}

// What the gateway's program knows; tools/versitygw has it.
const (
	gatewayAccess = "larder"
	gatewaySecret = "larder-secret"
	gatewayBucket = "releases"
)

func (g *gateway) start(ctx context.Context) error {
	err := os.MkdirAll(filepath.Join(g.folder, "objects", gatewayBucket), 0o700)
	if err == nil && g.log == nil {
		g.log, err = os.Create(filepath.Join(g.folder, "log"))
	}
	if err != nil {
		return err
	}
	g.cmd = exec.Command(g.program)
	g.cmd.Dir = g.folder
	g.cmd.Env = append(os.Environ(), "LARDER_TEST_GATEWAY="+filepath.Join(g.folder, "objects"), "LARDER_TEST_GATEWAY_SOCKET="+g.address)
	g.cmd.Stdout, g.cmd.Stderr = g.log, g.log
	if err := g.cmd.Start(); err != nil {
		return err
	}
	return listens(ctx, g.address)
}

func (g *gateway) kill() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
}

// listens waits until someone does at an address.
func listens(ctx context.Context, address string) error {
	for deadline := time.Now().Add(startSoon); time.Now().Before(deadline); {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return errors.New("nothing listens at " + address + " within " + strconv.Itoa(int(startSoon.Seconds())) + " seconds")
}
