package worker

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/internal/lazyregexp"
)

// Options configures a Pool.
type Options struct {
	// Program is the path, not relative, of the executable that calls Main when its
	// first argument is Argument; usually os.Executable().
	Program string
	// Size is how many children run at most, one job each.
	Size int
	// Nice runs the children at the lowest priority.
	Nice bool
	// Timeout ends a job, and the child with it. 0 means none.
	Timeout time.Duration
	// Memory bounds what a job's child may have where [Memory] is more, in bytes. 0 means no other bound.
	Memory int64
}

// A Pool runs jobs in children that it starts when needed and keeps.
type Pool struct {
	options Options
	idle    chan *child // holds a nil for each child that is not running
}

// A CrashError says that a job's process ended in the middle of it.
type CrashError struct {
	Task   Task
	Reason string
	// Killed says that a signal from outside ended the process; the job may be innocent.
	Killed bool
}

func (e *CrashError) Error() string {
	return fmt.Sprintf("%s: the process ended: %s", e.Task, e.Reason)
}

// A StartError says that no child can be started at all.
type StartError struct {
	Program string
	Err     error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("couldn't start a worker process from %s: %v", e.Program, e.Err)
}

func (e *StartError) Unwrap() error { return e.Err }

// NewPool returns a pool without any child yet.
func NewPool(o Options) *Pool {
	p := &Pool{options: o, idle: make(chan *child, o.Size)}
	for range o.Size {
		p.idle <- nil
	}
	return p
}

// Do runs one job and returns its result. The error is a *CrashError where the
// job ended its process or ran out of time, and a *StartError where there is no
// process to run it in.
func (p *Pool) Do(ctx context.Context, t Task, data []byte) ([]byte, error) {
	var c *child
	select {
	case c = <-p.idle:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	// Whatever happens, the place goes back, with the child where it lives.
	defer func() { p.idle <- c }()
	memory := Memory(t, int64(len(data)))
	if p.options.Memory > 0 {
		memory = min(memory, p.options.Memory)
	}
	if c == nil {
		var err error
		if c, err = p.start(); err != nil {
			return nil, err
		}
	}
	if p.options.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.options.Timeout, fmt.Errorf("it took more than %v", p.options.Timeout))
		defer cancel()
	}
	stop := context.AfterFunc(ctx, c.kill)
	r, err := c.do(request{Task: t, Data: data, Memory: memory})
	if !stop() || err != nil {
		reason, killed := c.end()
		c = nil
		if start := new(confineError); errors.As(err, &start) {
			return nil, &StartError{p.options.Program, err}
		}
		if isOutOfMemory(reason) {
			reason = fmt.Sprintf("it needed more than %d MiB of memory", memory>>20)
		}
		if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.Canceled) {
			reason, killed = context.Cause(ctx).Error(), false
		} else if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &CrashError{Task: t, Reason: reason, Killed: killed}
	}
	if used(c.cmd.Process.Pid) > c.mapped+Small*mappedPerByte { // what is mapped once could be used again without a limit
		c.kill()
		c.end()
		c = nil
	}
	if r.Error != "" {
		return nil, errors.New(r.Error)
	}
	return r.Data, nil
}

// Drop ends a child that has no job, if there is one.
func (p *Pool) Drop() {
	for range p.options.Size {
		select {
		case c := <-p.idle:
			p.idle <- nil
			if c != nil {
				c.kill()
				c.end()
				return
			}
		default:
			return
		}
	}
}

// Close ends the children. No Do may be running or follow.
func (p *Pool) Close() {
	for range p.options.Size {
		if c := <-p.idle; c != nil {
			c.kill()
			c.end()
		}
	}
}

// A child is one process.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	in     *gob.Encoder
	out    *gob.Decoder
	stderr head

	confined bool  // its hello has come
	mapped   int64 // see hello
}

func (p *Pool) start() (*child, error) {
	args := []string{Argument}
	if p.options.Nice {
		args = append(args, niceArgument)
	}
	c := &child{cmd: exec.Command(p.options.Program, args...)}
	c.cmd.Dir = string(filepath.Separator)
	c.cmd.Env = environment(os.Environ())
	c.cmd.Stderr = &c.stderr
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, &StartError{p.options.Program, err}
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, &StartError{p.options.Program, err}
	}
	if err := c.cmd.Start(); err != nil {
		return nil, &StartError{p.options.Program, err}
	}
	c.stdin, c.in, c.out = stdin, gob.NewEncoder(stdin), gob.NewDecoder(stdout)
	return c, nil
}

// inherited are the variables that a child gets of the parent's, whose others may hold
// tokens: a child works on strangers' bytes.
var inherited = []string{
	"GODEBUG", "GOGC", "GOMAXPROCS", "GOTRACEBACK", // what the Go runtime reads
	"LD_LIBRARY_PATH", // for a program that is linked with libraries
}

// environment returns what is inherited of an environment. It is never nil, with which
// exec.Cmd would pass on everything.
func environment(all []string) []string {
	kept := []string{}
	for _, variable := range all {
		if name, _, _ := strings.Cut(variable, "="); slices.Contains(inherited, name) {
			kept = append(kept, variable)
		}
	}
	return kept
}

// outOfMemory matches the words with which Go's runtime, or the race detector, ends at a limit on memory. The garbage collector of
// Go 1.26 does not check one of its allocations (spanQueue.tryDrain in runtime/mgcmark_greenteagc.go) and faults at address 0.
// A fault in Go code would be a panic, so this line is always the runtime's.
var outOfMemory = lazyregexp.New(`out of memory|cannot allocate memory|failed to allocate|^SIGSEGV: segmentation violation: PC=.* addr=0x0$`)

// isOutOfMemory reports whether what a child wrote to stderr says that the system refused it memory.
func isOutOfMemory(reason string) bool { return outOfMemory.MatchString(reason) }

// A confineError says why a child may not work.
type confineError struct{ reason string }

func (e *confineError) Error() string { return e.reason }

func (c *child) do(r request) (answer response, err error) {
	if !c.confined {
		var first hello
		if err := c.out.Decode(&first); err != nil {
			return answer, err
		}
		if first.Failure != "" {
			return answer, &confineError{first.Failure}
		}
		c.confined, c.mapped = true, first.Mapped
	}
	if err := limitMemory(c.cmd.Process.Pid, c.mapped+r.Memory*mappedPerByte); err != nil && system.memory() == nil && !errors.Is(err, syscall.ESRCH) {
		return answer, &confineError{"couldn't limit its memory: " + err.Error()}
	}
	if err := c.in.Encode(r); err != nil {
		return answer, err
	}
	err = c.out.Decode(&answer)
	return answer, err
}

func (c *child) kill() { _ = c.cmd.Process.Kill() }

// end waits for the process and says what it died of, and whether that was a
// signal rather than something of its own.
func (c *child) end() (reason string, killed bool) {
	c.stdin.Close()
	err := c.cmd.Wait()
	if line := c.stderr.firstLine(); line != "" {
		return line, false
	}
	if err != nil {
		return err.Error(), !c.cmd.ProcessState.Exited()
	}
	return "it ended early", false
}

// head keeps the beginning of what is written to it: a Go crash says what
// happened there, and a goroutine dump after it has no end.
type head struct{ bytes.Buffer }

const headSize = 4 << 10

func (h *head) Write(p []byte) (int, error) {
	h.Buffer.Write(p[:min(len(p), max(0, headSize-h.Len()))])
	return len(p), nil
}

func (h *head) firstLine() string {
	for line := range bytes.Lines(h.Bytes()) {
		if reason, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("fatal error: ")); ok {
			return string(reason)
		}
	}
	line, rest, _ := bytes.Cut(h.Bytes(), []byte("\n"))
	if bytes.HasPrefix(line, []byte("SIGSEGV: ")) { // the next line has the address
		next, _, _ := bytes.Cut(rest, []byte("\n"))
		line = fmt.Appendf(nil, "%s: %s", line, next)
	}
	return string(bytes.TrimSpace(line))
}
