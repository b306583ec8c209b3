package worker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/internal/lazyregexp"
)

// Options configures a Pool.
type Options struct {
	// Program is the path, not relative, of the executable that calls Main when its
	// first argument is Argument; usually os.Executable().
	Program string
	// Size is how many jobs run at most, each in a child of its own.
	Size int
	// Children is how many children exist at most, with and without a job. The default, and the least, is Size. An
	// owner whose jobs come one after the other keeps its child only while there are no more owners than that.
	Children int
	// CPU ends a job that uses more processor time, and the child with it, where the system counts that for each process (Linux). The
	// first job of a child includes its start. 0 means no bound.
	CPU time.Duration
	// Nice runs the children at the lowest priority.
	Nice bool
	// Timeout ends a job, and the child with it. 0 means none.
	Timeout time.Duration
	// Memory bounds what a job's child may have where [Memory] is more, in bytes. 0 means no other bound.
	Memory int64
}

// A Pool runs jobs in children that it starts when needed. A child works for one owner only, which is a release where the job
// is about one: a job that takes over its process can change nothing that another release gets. A job without an owner ("") has a child of its own.
type Pool struct {
	options Options
	slots   chan struct{} // holds a value for each child that has a job

	mu   sync.Mutex
	idle []*child // without a job, the longest idle first
}

// A CrashError says that a job's process ended in the middle of it.
type CrashError struct {
	Task   Task
	Reason string
	// Killed says that a signal from outside ended the process; the job may be innocent.
	Killed bool
	// Limited says that the job exceeded its memory or processor time, which it will do again. A child that ends before it reads
	// the job ends for another reason.
	Limited bool
	// TimedOut says that the job was ended because it took longer than it may, by the clock.
	TimedOut bool
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
	o.Children = max(o.Children, o.Size)
	return &Pool{options: o, slots: make(chan struct{}, o.Size)}
}

// Do runs one job for an owner and returns its result. The error is a *CrashError where the
// job ended its process or ran out of time, and a *StartError where there is no
// process to run it in.
func (p *Pool) Do(ctx context.Context, owner string, t Task, data []byte) ([]byte, error) {
	result, _, err := p.DoTimed(ctx, owner, t, data)
	return result, err
}

// DoTimed is Do that also returns how long the job ran, without the time that it waited.
func (p *Pool) DoTimed(ctx context.Context, owner string, t Task, data []byte) (result []byte, took time.Duration, err error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	defer func() { <-p.slots }()
	c, err := p.acquire(owner)
	if err != nil {
		return nil, 0, err
	}
	start := time.Now()
	answer, err := p.run(ctx, c, t, data)
	took = time.Since(start)
	if err != nil {
		return nil, took, err
	}
	p.release(c)
	if answer.Error != "" {
		return nil, took, errors.New(answer.Error)
	}
	return answer.Data, took, nil
}

// acquire returns a child of the owner. The caller has a slot.
func (p *Pool) acquire(owner string) (*child, error) {
	p.mu.Lock()
	var c, other *child
	if i := slices.IndexFunc(p.idle, func(c *child) bool { return c.owner == owner }); i >= 0 {
		c = p.idle[i]
		p.idle = slices.Delete(p.idle, i, i+1)
	} else if len(p.idle) > 0 && len(p.idle)+len(p.slots) > p.options.Children {
		other = p.idle[0]
		p.idle = slices.Delete(p.idle, 0, 1)
	}
	p.mu.Unlock()
	if other != nil {
		other.kill()
		other.end()
	}
	if c != nil {
		return c, nil
	}
	return p.start(owner)
}

// release keeps a child for the next job of its owner, or ends it.
func (p *Pool) release(c *child) {
	// What is mapped once could be used again without a limit.
	if c.owner == "" || used(c.cmd.Process.Pid) > c.unused.Data+Small*mappedPerByte {
		c.kill()
		c.end()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, c)
}

// run runs one job in a child. If that fails, the child has ended.
func (p *Pool) run(ctx context.Context, c *child, t Task, data []byte) (response, error) {
	memory := Memory(t, int64(len(data)))
	if p.options.Memory > 0 {
		memory = min(memory, p.options.Memory)
	}
	if p.options.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.options.Timeout, fmt.Errorf("it took more than %v", p.options.Timeout))
		defer cancel()
	}
	if p.options.CPU > 0 {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		go watchProcessorTime(ctx, c.cmd.Process.Pid, p.options.CPU, cancel)
	}
	stop := context.AfterFunc(ctx, c.kill)
	answer, err := c.do(request{Task: t, Data: data, Memory: memory})
	if err == nil && stop() {
		return answer, nil
	}
	tooLarge, oversized := errors.AsType[*fieldSizeError](err)
	if oversized {
		c.kill() // it may wait until the rest of its response is read
	}
	reason, killed := c.end() // a child that does not end is killed when ctx ends
	stop()
	if start := new(confineError); errors.As(err, &start) {
		return response{}, &StartError{p.options.Program, err}
	}
	limited := isOutOfMemory(reason)
	if limited {
		reason = fmt.Sprintf("it needed more than %d MiB of memory", memory>>20)
	}
	if oversized {
		reason, killed = "its response has "+tooLarge.Error(), false
	}
	timedOut := false
	if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
		return response{}, ctx.Err()
	} else if cause != nil {
		limited = errors.As(cause, new(*processorTimeError))
		reason, killed, timedOut = cause.Error(), false, !limited
	}
	return response{}, &CrashError{Task: t, Reason: reason, Killed: killed, Limited: limited && c.confined, TimedOut: timedOut}
}

// A processorTimeError says that a job used more than its bound.
type processorTimeError struct{ bound time.Duration }

func (e *processorTimeError) Error() string {
	return fmt.Sprintf("it used more than %v of processor time", e.bound)
}

// watchProcessorTime cancels a context with a *processorTimeError once a process has used so much more processor time. RLIMIT_CPU cannot
// bound a job: only a privileged parent may raise the upper limit again for the next job, and a child that was taken over ignores the lower one.
func watchProcessorTime(ctx context.Context, pid int, bound time.Duration, cancel context.CancelCauseFunc) {
	start, err := processorTime(pid)
	for left := bound; err == nil; {
		select {
		case <-time.After(max(left/time.Duration(runtime.NumCPU()), 10*time.Millisecond)): // the child uses all processors at most
		case <-ctx.Done():
			return
		}
		var now time.Duration
		now, err = processorTime(pid)
		if left = start + bound - now; err == nil && left < 0 {
			cancel(&processorTimeError{bound})
			return
		}
	}
}

// Drop ends a child that has no job, if there is one.
func (p *Pool) Drop() {
	p.mu.Lock()
	var c *child
	if len(p.idle) > 0 {
		c = p.idle[0]
		p.idle = slices.Delete(p.idle, 0, 1)
	}
	p.mu.Unlock()
	if c != nil {
		c.kill()
		c.end()
	}
}

// Close ends the children. No Do may be running or follow.
func (p *Pool) Close() {
	for _, c := range p.idle {
		c.kill()
		c.end()
	}
	p.idle = nil
}

// A child is one process.
type child struct {
	owner  string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    *bufio.Reader
	stderr head

	confined bool   // its hello has come
	unused   mapped // see hello
}

func (p *Pool) start(owner string) (*child, error) {
	args := []string{Argument}
	if p.options.Nice {
		args = append(args, niceArgument)
	}
	c := &child{owner: owner, cmd: exec.Command(p.options.Program, args...)}
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
	c.stdin, c.out = stdin, bufio.NewReader(stdout)
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
var outOfMemory = lazyregexp.New(`out of memory|cannot allocate memory|failed to allocate|pthread_create failed|^SIGSEGV: segmentation violation: PC=.* addr=0x0$`)

// isOutOfMemory reports whether what a child wrote to stderr says that the system refused it memory.
func isOutOfMemory(reason string) bool { return outOfMemory.MatchString(reason) }

// A confineError says why a child may not work.
type confineError struct{ reason string }

func (e *confineError) Error() string { return e.reason }

func (c *child) do(r request) (answer response, err error) {
	if !c.confined {
		first, err := readHello(c.out)
		if err != nil {
			return answer, err
		}
		if first.Failure != "" {
			return answer, &confineError{first.Failure}
		}
		c.confined, c.unused = true, first.Mapped
	}
	if err := limit(c.cmd.Process.Pid, c.unused, r.Memory*mappedPerByte); err != nil && system.memory() == nil && !errors.Is(err, syscall.ESRCH) {
		return answer, &confineError{"couldn't limit its memory: " + err.Error()}
	}
	if err := r.write(c.stdin); err != nil {
		return answer, err
	}
	return readResponse(c.out, maxResponse(r.Task, len(r.Data)))
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
