package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	serverCore = 0
	loadCore   = 1
	anyCore    = -1
)

// A process is a program that was started on one core.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; read after done
}

// startProcess starts the program on the core. What it starts in turn is on that
// core, too.
func startProcess(cmd *exec.Cmd, core int) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The child inherits the affinity of the thread that forks. The thread is
		// not given back: it ends with this goroutine.
		runtime.LockOSThread()
		if err := pin(core); err != nil {
			started <- fmt.Errorf("couldn't pin %s to core %d: %w", filepath.Base(cmd.Path), core, err)
			return
		}
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// stop ends the process, gently if it will.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// output runs a program on the core and returns what it prints and the processor
// time it took.
func output(ctx context.Context, core int, stdin []byte, name string, args ...string) (string, time.Duration, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errs
	p, err := startProcess(cmd, core)
	if err != nil {
		return "", 0, err
	}
	<-p.done
	if p.err != nil {
		return "", 0, fmt.Errorf("%s: %w: %s%s", filepath.Base(name), errors.Join(ctx.Err(), p.err), out.String(), errs.String())
	}
	return out.String(), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// family returns the process and its children, as nginx's worker is one.
func (p *process) family() []int {
	pid := p.cmd.Process.Pid
	pids := []int{pid}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	for field := range strings.FieldsSeq(string(children)) {
		if child, err := strconv.Atoi(field); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// ticksPerSecond is USER_HZ, which is 100 on all of Linux's architectures that Go
// runs on.
const ticksPerSecond = 100

// cpu returns the processor time that the process and its children have used.
func (p *process) cpu() (time.Duration, error) {
	sum := time.Duration(0)
	for _, pid := range p.family() {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		ticks, err := parseStat(string(data))
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ticks) * (time.Second / ticksPerSecond)
	}
	return sum, nil
}

// parseStat returns utime and stime of /proc/PID/stat, in ticks.
func parseStat(stat string) (int64, error) {
	// The second field is the name in parentheses, which may hold anything.
	_, rest, found := strings.Cut(stat[max(0, strings.LastIndexByte(stat, ')')):], ") ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 13 {
		return 0, fmt.Errorf("unexpected /proc/PID/stat: %q", stat)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return user + system, errors.Join(err1, err2)
}

// peak returns the peak resident memory in bytes since resetPeak.
func (p *process) peak() int64 {
	sum := int64(0)
	for _, pid := range p.family() {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		for line := range strings.Lines(string(status)) {
			if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
				kilobytes, _ := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
				sum += kilobytes << 10
			}
		}
	}
	return sum
}

// resetPeak begins the peak anew.
func (p *process) resetPeak() {
	for _, pid := range p.family() {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0) // refused where it isn't ours; the peak is then an older one
	}
}

// installed says what is missing and how to get it.
func installed(headline bool) error {
	needed := []struct{ command, debian string }{
		{"wrk", "wrk"}, {"h2load", "nghttp2-client"}, {"nginx", "nginx-light libnginx-mod-http-brotli-static"}, {"caddy", "caddy"},
	}
	if headline {
		needed = nil
	}
	var commands, debian []string
	for _, n := range needed {
		if _, err := findCommand(n.command); err != nil {
			commands, debian = append(commands, n.command), append(debian, n.debian)
		}
	}
	if _, err := os.Stat(brotliStatic); err != nil && !headline {
		commands, debian = append(commands, "nginx's brotli_static"), append(debian, "libnginx-mod-http-brotli-static")
	}
	if len(commands) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s; on Debian: apt-get install %s", errMissing, strings.Join(commands, ", "), strings.Join(debian, " "))
}

var errMissing = errors.New("not installed")

// findCommand finds a command, also where only administrators look.
func findCommand(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return exec.LookPath(filepath.Join("/usr/sbin", name))
}
