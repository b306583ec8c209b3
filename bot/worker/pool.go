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

	"github.com/larder-cdn/larder/internal/text"
)

// Options configures a Pool.
type Options struct {
	// Program is the path, not relative, of the executable that calls RunChild when its
	// first argument is Argument; usually os.Executable().
	Program string
	// Size limits the jobs that run at once, each in a child of its own.
	Size int
	// Children limits the children, with and without a job. The default and the minimum is Size. An owner whose jobs come one after the
	// other keeps its child only while there are no more owners than that.
	Children int
	// Nice runs the children at the lowest priority.
	Nice bool
	// Timeout limits a job by the clock. The child ends with the job. Where the system counts the processor time of each process (Linux), the
	// task's limit of that ends jobs earlier, so Timeout is for jobs that wait. 0 means no limit.
	Timeout time.Duration
	// Memory limits the memory of a child, in bytes, besides [Memory]. 0 means no other limit.
	Memory int64
}

// A Pool runs jobs in children that it starts when needed. A child works for one owner only, usually a release, so a job that
// takes over its process can change nothing that another release gets. A job without an owner ("") has a child of its own.
type Pool struct {
	options Options
	slots   chan struct{} // holds a value for each child that has a job

	mu   sync.Mutex
	idle []*child // without a job, the longest idle first
}

// A CrashError is the error of a job whose process ended in the middle of it.
type CrashError struct {
	Task   Task
	Reason string
	// Killed says that a signal from outside ended the process, or that it ended before it read the job. The job may not be the cause.
	Killed bool
	// Limited says that the job exceeded its memory or processor time, and would do so again. It is false for a child that ended before it
	// read the job.
	Limited bool
	// TimedOut says that the job exceeded its time limit by the clock.
	TimedOut bool
}

// Error names the task, and says why the process of its job ended.
func (e *CrashError) Error() string {
	return fmt.Sprintf("%s: the process ended: %s", e.Task, e.Reason)
}

// IsTransient reports whether a job that failed with err may succeed if it runs again: no process could be started or confined
// for it, a signal from outside ended the process, the process ended before it greeted the parent, or the job exceeded its time
// limit by the clock. The caller tries such a job again later, so that a busy machine decides nothing for good. It is false for
// nil, and for the error of a cancelled context.
func IsTransient(err error) bool {
	crash, crashed := errors.AsType[*CrashError](err)
	return errors.As(err, new(*StartError)) || crashed && (crash.Killed || crash.TimedOut)
}

// A StartError is the error if no child can be started.
type StartError struct {
	Program string
	Err     error
}

// Error names the program from which no child process could be started, and says why.
func (e *StartError) Error() string {
	return fmt.Sprintf("couldn't start a worker process from %s: %v", e.Program, e.Err)
}

func (e *StartError) Unwrap() error { return e.Err }

// NewPool returns a pool without children. It starts children when jobs need them. o.Program and o.Size must be set: with a Size
// of 0 all jobs wait until their ctx ends. o.Children counts at least as o.Size. The caller calls Close after the last job.
func NewPool(o Options) *Pool {
	o.Children = max(o.Children, o.Size)
	return &Pool{options: o, slots: make(chan struct{}, o.Size)}
}

// Do runs the task t on data in a child process of the owner (usually a release), and returns the result. It waits while as many
// jobs run as [Options].Size allows. The error is a *StartError if no process could be started or confined, a *CrashError if the
// process ended in the middle of the job or the job exceeded a limit, or that of the task or of ctx. If ctx is cancelled while
// the job runs, its process is killed; if its deadline passes then, the error is a *CrashError with TimedOut.
func (p *Pool) Do(ctx context.Context, owner string, t Task, data []byte) ([]byte, error) {
	result, _, err := p.DoTimed(ctx, owner, t, data)
	return result, err
}

// DoTimed runs the task t on data in a child process of the owner, as [Pool.Do] does, and also returns the processor time that
// the job used, with an error too. The first job of a child includes its start. used is 0 if no child could be had. If the system
// does not count processor time for each process, used is how long the job ran by the clock.
func (p *Pool) DoTimed(ctx context.Context, owner string, t Task, data []byte) (result []byte, used time.Duration, err error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	defer func() { <-p.slots }()
	c, err := p.acquireChild(owner)
	if err != nil {
		return nil, 0, err
	}
	start := time.Now()
	before, uncounted := c.processorTime()
	answer, err := p.runJob(ctx, c, t, data)
	used = time.Since(start)
	if after, failed := c.processorTime(); uncounted == nil && failed == nil {
		used = after - before
	}
	if err != nil {
		return nil, used, err
	}
	p.releaseChild(c)
	if answer.Error != "" {
		return nil, used, errors.New(answer.Error)
	}
	return answer.Data, used, nil
}

// acquireChild returns an idle child process of the owner and removes it from the idle ones, or starts one. If there would be too
// many children then, it first ends the one that is idle longest, and waits for its end. The caller holds a slot of the pool, of
// which there is one for each job, and not p.mu. The error is a *StartError.
func (p *Pool) acquireChild(owner string) (*child, error) {
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
		other.wait()
	}
	if c != nil {
		return c, nil
	}
	return p.startChild(owner)
}

// releaseChild adds a child that has finished a job to the idle ones, for the next job of its owner. It ends the child instead,
// and waits for that, if it has no owner or has much memory mapped. The caller still holds its slot of the pool, and not p.mu.
func (p *Pool) releaseChild(c *child) {
	// The next job could use mapped memory without a limit, and needs some that is not mapped: the heap reuses only a part of its free blocks.
	if c.owner == "" || mappedData(c.cmd.Process.Pid) > c.unused.Data+Small*3/4*mappedPerByte {
		c.kill()
		c.wait()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, c)
}

// runJob runs the task t on data in a child, within the limits of memory and time of the task and the pool, and the deadline of
// ctx. It returns the child's response, which may have an error of the task; then the child lives. If runJob returns an error
// itself, the child has ended: a *StartError if it could not be confined, the error of ctx if that was cancelled, else a
// *CrashError.
func (p *Pool) runJob(ctx context.Context, c *child, t Task, data []byte) (response, error) {
	memory := Memory(t, int64(len(data)))
	if p.options.Memory > 0 {
		memory = min(memory, p.options.Memory)
	}
	if timeout := p.options.Timeout; timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it took more than %v", timeout))
		defer cancel()
	}
	if processor := processorTimes[t]; processor > 0 {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		go watchProcessorTime(ctx, c.cmd.Process.Pid, processor, cancel)
	}
	stop := context.AfterFunc(ctx, c.kill)
	answer, err := c.exchange(request{Task: t, Data: data, Memory: memory})
	if err == nil && stop() {
		return answer, nil
	}
	tooLarge, oversized := errors.AsType[*fieldSizeError](err)
	if oversized {
		c.kill() // it may wait until the rest of its response is read
	}
	reason, killed := c.wait() // a child that does not end is killed when ctx ends
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
	return response{}, &CrashError{Task: t, Reason: reason, Killed: killed || !c.confined, Limited: limited && c.confined, TimedOut: timedOut}
}

// A processorTimeError says that a job used more than its bound.
type processorTimeError struct{ bound time.Duration }

// Error says that a job used more processor time than its bound.
func (e *processorTimeError) Error() string {
	return fmt.Sprintf("it used more than %v of processor time", e.bound)
}

// watchProcessorTime calls cancel with a *processorTimeError once the process pid has used more processor time than bound since
// the start of the call. It blocks until then, until ctx ends, or until the time cannot be read, after which nothing bounds the
// job. RLIMIT_CPU cannot bound a job: only a privileged parent may raise the upper limit again for the next job, and a child that
// was taken over ignores the lower one.
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

// idleOwners implements childPool: it returns the owner of each child that has no job. An owner of several is repeated.
func (p *Pool) idleOwners() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	owners := make([]string, len(p.idle))
	for i, c := range p.idle {
		owners[i] = c.owner
	}
	return owners
}

// endIdleChildren implements childPool: it ends up to most children that have no job, the longest idle first, but none of the
// owners in except. It waits for their end, and returns how many it ended.
func (p *Pool) endIdleChildren(most int, except []string) int {
	p.mu.Lock()
	var ended []*child
	p.idle = slices.DeleteFunc(p.idle, func(c *child) bool {
		if len(ended) == most || slices.Contains(except, c.owner) {
			return false
		}
		ended = append(ended, c)
		return true
	})
	p.mu.Unlock()
	for _, c := range ended {
		c.kill()
		c.wait()
	}
	return len(ended)
}

// Close kills the idle children, and waits for their end. It takes no lock: the caller runs no job meanwhile or afterwards, so
// these are all children.
func (p *Pool) Close() {
	for _, c := range p.idle {
		c.kill()
		c.wait()
	}
	p.idle = nil
}

// A child is one process.
type child struct {
	owner  string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    *bufio.Reader
	stderr stderrHead

	confined bool       // the greeting has arrived
	unused   addressUse // what the child has mapped but does not use
}

// startChild starts a child process for an owner, which the caller ends. It does not wait for the child's greeting, which the
// first exchange reads. The error is a *StartError.
func (p *Pool) startChild(owner string) (*child, error) {
	args := []string{Argument}
	if p.options.Nice {
		args = append(args, niceArgument)
	}
	c := &child{owner: owner, cmd: exec.Command(p.options.Program, args...)}
	c.cmd.Dir = string(filepath.Separator)
	c.cmd.Env = filterEnvironment(os.Environ())
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

// inherited are the environment variables that a child inherits. The others may hold tokens.
var inherited = []string{
	"GODEBUG", "GOGC", "GOMAXPROCS", "GOTRACEBACK", // what the Go runtime reads
	"LD_LIBRARY_PATH", // for a program that is linked with libraries
}

// filterEnvironment returns those variables ("NAME=value") of an environment that a child inherits. The result is never nil: with
// nil, exec.Cmd would pass on everything.
func filterEnvironment(all []string) []string {
	kept := []string{}
	for _, variable := range all {
		if name, _, _ := strings.Cut(variable, "="); slices.Contains(inherited, name) {
			kept = append(kept, variable)
		}
	}
	return kept
}

// outOfMemory matches the words with which Go's runtime, or the race detector, ends at a limit on memory. The garbage collector
// of Go 1.26 does not check one of its allocations (spanQueue.tryDrain in runtime/mgcmark_greenteagc.go) and faults at address 0.
// A fault in Go code would be a panic, so this line is always the runtime's.
var outOfMemory = text.NewRegexp(`out of memory|cannot allocate memory|failed to allocate|pthread_create failed|^SIGSEGV: segmentation violation: PC=.* addr=0x0$`)

// isOutOfMemory reports whether the line with which a child gave its reason to end means that the system refused it memory, such
// as at its limit.
func isOutOfMemory(reason string) bool { return outOfMemory.MatchString(reason) }

// A confineError says why a child may run no job.
type confineError struct{ reason string }

// Error returns why the child process may run no job.
func (e *confineError) Error() string { return e.reason }

// exchange sends a request to the child and waits for its response; only the end of the child interrupts it. Before the first
// request it reads the child's greeting and sets c.confined; before each request it sets the limit of memory, where the system
// can. The error is a *confineError if the child may run no job, a *fieldSizeError if the response is too large, or else one of
// writing or reading. An error of the task is in the response. exchange does not end the child.
func (c *child) exchange(r request) (answer response, err error) {
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
	if err := limitMemory(c.cmd.Process.Pid, c.unused, r.Memory*mappedPerByte); err != nil && system.memory() == nil && !errors.Is(err, syscall.ESRCH) {
		return answer, &confineError{"couldn't limit its memory: " + err.Error()}
	}
	if err := r.write(c.stdin); err != nil {
		return answer, err
	}
	return readResponse(c.out, MaxResponseSize(r.Task, len(r.Data)))
}

// processorTime returns the processor time that the child has used since its start, also after [child.wait]. It returns an error
// while the child runs on a system that does not count that.
func (c *child) processorTime() (time.Duration, error) {
	if ended := c.cmd.ProcessState; ended != nil {
		return ended.UserTime() + ended.SystemTime(), nil
	}
	return processorTime(c.cmd.Process.Pid)
}

// kill sends the kill signal to the child process, and does not wait for its end, for which the caller calls wait. It does
// nothing if the process has ended. Any goroutine may call it.
func (c *child) kill() { _ = c.cmd.Process.Kill() }

// wait closes the child's input and waits for the end of the process; it kills nothing. The caller calls it once. reason is what
// the process wrote to its standard error about its end, or else what the system reports. killed says that a signal ended the
// process, and that it wrote nothing.
func (c *child) wait() (reason string, killed bool) {
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

// A stderrHead keeps the first bytes that a child writes to its standard error. A crash in Go starts with its reason, and a dump
// of all goroutines follows.
type stderrHead struct{ bytes.Buffer }

const headSize = 4 << 10

// Write implements io.Writer: it stores the first headSize bytes of all calls, and discards the others without an error.
func (h *stderrHead) Write(p []byte) (int, error) {
	h.Buffer.Write(p[:min(len(p), max(0, headSize-h.Len()))])
	return len(p), nil
}

// firstLine returns what says why the process ended: the text of Go's fatal error if there is one, else the first line, for
// SIGSEGV with the second, which has the address. It returns "" if the process wrote nothing.
func (h *stderrHead) firstLine() string {
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
