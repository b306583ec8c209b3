package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// Names under which this program is a child on a kernel that lacks something.
const (
	noLandlock = "no-landlock"
	noFilter   = "no-filter"
	noBoth     = "no-landlock-no-filter"
	broken     = "broken" // the kernel has Landlock and refuses it
)

func lacking() error { return unix.ENOSYS }

func kernelOf(name string) protections {
	k := system
	if name == noLandlock || name == noBoth {
		k.landlock = lacking
	}
	if name == noFilter || name == noBoth {
		k.filter = lacking
	}
	return k
}

// confinedMain is Main with tasks that break out.
func confinedMain() {
	early := make(chan func()) // runs functions in a thread that is older than the confinement
	started := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(started)
		for f := range early {
			f()
		}
	}()
	<-started
	maps.Copy(attempts, excesses)
	for name, attempt := range attempts {
		task := func(data []byte) ([]byte, error) { return nil, attempt(string(data)) }
		tasks[name] = task
		tasks["early-"+name] = func(data []byte) (_ []byte, err error) {
			var done sync.WaitGroup
			done.Add(1)
			early <- func() { _, err = task(data); done.Done() }
			done.Wait()
			return nil, err
		}
	}
	tasks["grow"] = func(data []byte) ([]byte, error) {
		n, err := strconv.Atoi(string(data))
		if err != nil {
			return nil, err
		}
		kept := make([][]byte, n)
		for i := range kept {
			kept[i] = bytes.Repeat([]byte{1}, 1<<20)
		}
		runtime.KeepAlive(kept)
		return nil, nil
	}
	tasks["threads"] = func(data []byte) ([]byte, error) {
		n, err := strconv.Atoi(string(data))
		if err != nil {
			return nil, err
		}
		var all, deep sync.WaitGroup
		deep.Add(n)
		for range n {
			all.Go(func() {
				runtime.LockOSThread() // until it ends, and the thread with it
				deepen(256 << 10)
				deep.Done()
				deep.Wait()
			})
		}
		all.Wait()
		return nil, nil
	}
	tasks["pid"] = func([]byte) ([]byte, error) { return strconv.AppendInt(nil, int64(os.Getpid()), 10), nil }
	tasks["spin"] = func(data []byte) ([]byte, error) { // until the process has used so much more processor time; without end for none
		bound, _ := time.ParseDuration(string(data))
		start, err := processorTime(os.Getpid())
		for now := start; err == nil && (bound == 0 || now < start+bound); {
			now, err = processorTime(os.Getpid())
		}
		return nil, err
	}
	if filepath.Base(os.Args[0]) == broken {
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: 3}) // so a rule set gets no descriptor
	}
	runChild(kernelOf(filepath.Base(os.Args[0])))
}

// deepen uses so many bytes of stack.
func deepen(bytes int) byte {
	var frame [4 << 10]byte
	if bytes > 0 {
		frame[bytes%len(frame)] = deepen(bytes - len(frame))
	}
	return frame[bytes&1]
}

// attempts are ways out of a child. Each returns nil where it succeeds.
var attempts = map[Task]func(argument string) error{
	"read":   func(name string) error { f, err := os.Open(name); return closed(f, err) },
	"folder": func(string) error { f, err := os.Open("/"); return closed(f, err) },
	"write":  func(name string) error { return os.WriteFile(name+".new", nil, 0o600) },
	"stat":   func(name string) error { _, err := os.Stat(name); return err },
	"remove": os.Remove,
	"tcp":    func(address string) error { c, err := net.Dial("tcp", address); return closed(c, err) },
	"listen": func(string) error { l, err := net.Listen("tcp", "127.0.0.1:0"); return closed(l, err) },
	"udp":    func(string) error { c, err := net.ListenPacket("udp", "127.0.0.1:0"); return closed(c, err) },
	"unix":   func(path string) error { c, err := net.Dial("unix", path); return closed(c, err) },
	"start":  func(program string) error { return exec.Command(program, "-test.list=^$").Run() },
	"exec":   func(program string) error { return unix.Exec(program, []string{program}, nil) },
	"fork": func(string) error {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			return errno
		}
		if pid == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		return nil
	},
	"signal": func(pid string) error { n, err := strconv.Atoi(pid); return errors.Join(err, unix.Kill(n, 0)) },
	"raise": func(string) error {
		return unix.Prlimit(0, unix.RLIMIT_DATA, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, nil)
	},
	"code": func(string) error {
		_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE)
		return err
	},
}

func closed[C interface{ Close() error }](c C, err error) error {
	if err == nil {
		err = c.Close()
	}
	return err
}

// targets returns an argument for each attempt that succeeds where nothing confines.
func targets(t *testing.T) map[Task]string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "confine") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file, socket := filepath.Join(dir, "file"), filepath.Join(dir, "socket")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tcp.Close() })
	local, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { local.Close() })
	return map[Task]string{
		"read": file, "write": file, "stat": file, "remove": filepath.Join(dir, "socket"), "unix": socket,
		"tcp": tcp.Addr().String(), "start": program, "exec": program, "signal": strconv.Itoa(os.Getpid()),
	}
}

func TestChildCannotGetOut(t *testing.T) {
	if lacks := Unprotected(); len(lacks) > 0 {
		t.Skipf("this kernel lacks %s", strings.Join(lacks, "; "))
	}
	// The attempts are sound: in this process, which nothing confines, they succeed.
	to := targets(t)
	for name, attempt := range attempts {
		if name == "exec" || name == "fork" || name == "raise" || name == "remove" {
			continue // they would end this process, or take it something
		}
		if err := attempt(to[name]); err != nil {
			t.Fatalf("%s fails without a child: %v", name, err)
		}
	}
	for _, nice := range []bool{false, true} {
		p := newPool(t, Options{Size: 1, Nice: nice})
		for name := range attempts {
			for _, task := range []Task{name, "early-" + name} {
				_, err := p.Do(context.Background(), "owner", task, []byte(to[name]))
				if err == nil || errors.As(err, new(*CrashError)) || errors.As(err, new(*StartError)) || strings.Contains(err.Error(), "unknown task") {
					t.Errorf("%s (nice %v): %v, want the system's refusal", task, nice, err)
				}
			}
		}
		// It reads its pipe and computes all the same.
		if got, err := p.Do(context.Background(), "owner", FindFormat, []byte("export default 1")); err != nil || string(got) != "esm" {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// Each of the two keeps the files from a child without the other.
func TestChildOnLesserKernels(t *testing.T) {
	if lacks := Unprotected(); len(lacks) > 0 {
		t.Skipf("this kernel lacks %s", strings.Join(lacks, "; "))
	}
	to := targets(t)
	for name, refused := range map[string][]Task{
		noLandlock: {"read", "write", "stat", "remove", "tcp", "udp", "unix", "start", "exec", "fork", "signal", "raise"},
		noFilter:   {"read", "write", "remove", "tcp", "udp", "unix", "start", "exec", "signal"},
		noBoth:     {"read", "folder", "tcp", "udp", "unix"}, // by the limit on descriptors
	} {
		p := newPool(t, Options{Program: link(t, name), Size: 1})
		for _, task := range refused {
			if _, err := p.Do(context.Background(), "owner", task, []byte(to[task])); err == nil || errors.As(err, new(*CrashError)) {
				t.Errorf("%s: %s: %v", name, task, err)
			}
		}
		if got, err := p.Do(context.Background(), "owner", MinifyJS, []byte("a ;")); err != nil || string(got) != "a;\n" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// TestStacksOfThreadsAreCounted has a job whose threads need more than it may have.
func TestStacksOfThreadsAreCounted(t *testing.T) {
	t.Parallel()
	if err := system.memory(); err != nil || raceEnabled {
		t.Skip("no limit on memory, or the race detector: ", err)
	}
	p := newPool(t, Options{Size: 1})
	var crash *CrashError
	if _, err := p.Do(t.Context(), "owner", "threads", []byte("500")); !errors.As(err, &crash) || !crash.Limited {
		t.Errorf("%v, want that it needed too much memory", err)
	}
	if _, err := p.Do(t.Context(), "owner", "threads", []byte("4")); err != nil {
		t.Errorf("few threads: %v", err)
	}
}

func init() { processorTimes["spin"] = time.Second }

// TestProcessorTimeIsBounded checks that the parent ends a job that does not end, also in a child that had jobs before it, and
// that these jobs do not count.
func TestProcessorTimeIsBounded(t *testing.T) {
	t.Parallel()
	p := newPool(t, Options{Size: 1, Timeout: time.Minute})
	var pid []byte
	for range 3 { // together they use more than the bound
		if _, used, err := p.DoTimed(t.Context(), "owner", "spin", []byte("600ms")); err != nil || used < 600*time.Millisecond || used > time.Second {
			t.Fatalf("%v used, %v", used, err)
		}
		before := pid
		var err error
		if pid, err = p.Do(t.Context(), "owner", "pid", nil); err != nil || before != nil && !bytes.Equal(pid, before) {
			t.Fatalf("process %s after process %s, %v", pid, before, err)
		}
	}
	var crash *CrashError
	if _, used, err := p.DoTimed(t.Context(), "owner", "spin", nil); used < time.Second || !errors.As(err, &crash) || crash.Killed || !crash.Limited || crash.TimedOut || crash.Reason != "it used more than 1s of processor time" {
		t.Errorf("%v after %v, want that it used too much", err, used)
	}
}

// TestOwnersDoNotShareProcesses holds that a child never works for two releases.
func TestOwnersDoNotShareProcesses(t *testing.T) {
	t.Parallel()
	p := newPool(t, Options{Size: 2})
	process := func(p *Pool, owner string) string {
		t.Helper()
		pid, err := p.Do(t.Context(), owner, "pid", nil)
		if err != nil {
			t.Fatal(err)
		}
		return string(pid)
	}
	first := process(p, "jquery@3.7.1")
	if again := process(p, "jquery@3.7.1"); again != first {
		t.Errorf("the same release: process %s, then %s", first, again)
	}
	seen := map[string]string{first: "jquery@3.7.1"}
	for _, owner := range []string{"evil@1.0.0", "jquery@4.0.0", "jquery@3.7.1", "evil@1.0.0", "vue@3.5.0"} {
		pid := process(p, owner)
		if of, ok := seen[pid]; ok && of != owner {
			t.Errorf("%s has the process of %s", owner, of)
		}
		seen[pid] = owner
		if len(p.idle) > 2 {
			t.Errorf("%d children", len(p.idle))
		}
	}
	none := newPool(t, Options{Size: 1})
	if one, other := process(none, ""), process(none, ""); one == other || len(none.idle) > 0 {
		t.Error("two jobs without an owner had the same process")
	}
}

func TestUnprotectedSaysWhat(t *testing.T) {
	for name, want := range map[string][]string{"": nil, noLandlock: {"Landlock"}, noFilter: {"system-call filter"}, noBoth: {"Landlock", "system-call filter"}} {
		k := kernelOf(name)
		if name == "" {
			k = protections{landlock: fine, filter: fine, memory: fine}
		} else if len(system.missing()) > 0 {
			continue // told by the other tests
		}
		lacks := k.missing()
		if len(lacks) != len(want) {
			t.Errorf("%s: %q", name, lacks)
			continue
		}
		for i := range want {
			if !strings.Contains(lacks[i], want[i]) || !strings.Contains(lacks[i], lacking().Error()) {
				t.Errorf("%s: %q, want it to name %s and why", name, lacks[i], want[i])
			}
		}
	}
}

func fine() error { return nil }

// A child that cannot apply what the kernel has does no work.
func TestChildThatCannotConfineItselfDoesNotWork(t *testing.T) {
	if system.landlock() != nil {
		t.Skip("this kernel lacks Landlock")
	}
	var start *StartError
	if _, err := newPool(t, Options{Program: link(t, broken), Size: 1}).Do(context.Background(), "owner", MinifyJS, []byte("a")); !errors.As(err, &start) || !strings.Contains(err.Error(), "confine") {
		t.Errorf("%v, want a StartError", err)
	}
}

// What the parent has open, the child has not, even where it is not closed on execution.
func TestChildHasNoDescriptorButItsPipes(t *testing.T) {
	f, err := os.Open(targets(t)["read"])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"LARDER_GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "NPM_TOKEN", "LARDER_HOOK_SECRET", "HTTPS_PROXY", "GODEBUGX"} {
		t.Setenv(name, "hunter2")
	}
	p := newPool(t, Options{Size: 1})
	if _, err := p.Do(context.Background(), "owner", MinifyJS, []byte("a")); err != nil {
		t.Fatal(err)
	}
	c := p.idle[0]
	if dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", c.cmd.Process.Pid)); err != nil || dir != "/" {
		t.Errorf("it works in %q, %v", dir, err)
	}
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", c.cmd.Process.Pid))
	if err != nil || len(open) < 3 {
		t.Fatalf("%q, %v", open, err)
	}
	for _, name := range open {
		to, err := os.Readlink(name)
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := strconv.Atoi(filepath.Base(name)); n > 2 && strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "/sys/fs/cgroup") || n <= 2 && !strings.HasPrefix(to, "pipe:") {
			t.Errorf("descriptor %d is %s", n, to)
		}
	}
	// Nor has it a secret of its parent, where other users of the machine would see it too.
	for _, name := range []string{"environ", "cmdline"} {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", c.cmd.Process.Pid, name)); err != nil || bytes.Contains(text, []byte("hunter2")) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	// Every thread is confined.
	statuses, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", c.cmd.Process.Pid))
	if err != nil || len(statuses) < 2 {
		t.Fatalf("%q, %v", statuses, err)
	}
	for _, name := range statuses {
		status, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(status), "\n")
		if system.filter() == nil && (!slices.Contains(lines, "Seccomp:\t2") || !slices.Contains(lines, "NoNewPrivs:\t1")) {
			t.Errorf("%s:\n%s", name, status)
		}
	}
}

// A child that takes more than its job may have ends, and says so; the next one works. A job within it is let be.
func TestMemoryOfChildIsBounded(t *testing.T) {
	if err := system.memory(); err != nil {
		t.Skip(err)
	}
	p := newPool(t, Options{Size: 1, Memory: 96 << 20})
	for range 3 {
		var crash *CrashError
		if _, err := p.Do(context.Background(), "owner", "grow", []byte("2000")); !errors.As(err, &crash) || crash.Killed || !crash.Limited || crash.Reason != "it needed more than 32 MiB of memory" {
			t.Fatalf("%v, want that it needed too much", err)
		}
		if _, err := p.Do(context.Background(), "owner", "grow", []byte("8")); err != nil {
			t.Errorf("8 MiB: %v", err)
		}
	}
	// Without a limit, twelve kilobytes of such JavaScript take about 100 MiB, and 64 about 340.
	var crash *CrashError
	if _, err := p.Do(context.Background(), "owner", MinifyJS, append(bytes.Repeat([]byte("!"), 12<<10), 'a')); !errors.As(err, &crash) || crash.Reason != "it needed more than 32 MiB of memory" {
		t.Errorf("%v", err)
	}
	large := append(bytes.Repeat([]byte("!"), 1<<20), 'a') // may have 96 MiB, because the pool has no more
	if _, err := p.Do(context.Background(), "owner", MinifyJS, large); !errors.As(err, &crash) || !strings.Contains(crash.Reason, "96 MiB") && !strings.Contains(crash.Reason, "stack") {
		t.Errorf("%v", err)
	}
}

// TestLargestDelta makes the largest delta, of bytes that do not compress, twice in a pool whose children have no more memory than a job may need.
func TestLargestDelta(t *testing.T) {
	t.Parallel()
	dictionary, content := make([]byte, coding.MaxDictionary), make([]byte, coding.MaxDictionary)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(dictionary)
	_, _ = random.Read(content)
	p := newPool(t, Options{Size: 1})
	for range 2 {
		delta, err := p.Do(t.Context(), "owner", EncodeDelta, JoinDelta(dictionary, content))
		if err != nil {
			t.Fatal(err)
		}
		if back, err := coding.DecodeDelta(dictionary, delta, int64(len(content))); err != nil || !bytes.Equal(back, content) {
			t.Errorf("the delta of %d bytes decodes to something else, %v", len(delta), err)
		}
	}
}
