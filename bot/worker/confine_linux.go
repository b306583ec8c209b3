package worker

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	landlocksys "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

var system = kernel{landlock: probeLandlock, filter: probeFilter, memory: probeMemory}

func probeLandlock() error {
	if _, err := landlocksys.LandlockGetABIVersion(); err != nil {
		return fmt.Errorf("the kernel lacks it, or did not enable it when it started (lsm=landlock,…): %w", err)
	}
	return nil
}

func probeFilter() error {
	if architecture == 0 {
		return fmt.Errorf("there is none for %s", runtime.GOARCH)
	}
	action := uint32(unix.SECCOMP_RET_ERRNO)
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action))); errno != 0 {
		return fmt.Errorf("the kernel refuses seccomp: %w", errno)
	}
	return nil
}

func probeMemory() error {
	var limit unix.Rlimit
	if err := unix.Prlimit(os.Getpid(), unix.RLIMIT_DATA, nil, &limit); err != nil {
		return fmt.Errorf("the kernel refuses prlimit: %w", err)
	}
	return nil
}

// confine takes from all threads of the process, for good, everything that working on bytes does not need. What the
// kernel has and refuses all the same is an error.
func (k kernel) confine() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if k.landlock() == nil {
		if err := landlock.V11.BestEffort().Restrict(); err != nil {
			return fmt.Errorf("landlock: %w", err)
		}
	}
	if err := confineAnywhere(); err != nil {
		return err
	}
	if k.filter() == nil {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("no new privileges: %w", err)
		}
		if err := filter(); err != nil {
			return fmt.Errorf("system-call filter: %w", err)
		}
	}
	return nil
}

// needed are the system calls of Go's runtime, and of the C library's threads and allocator, when nothing but memory and
// open descriptors are used.
var needed = []uint32{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_PREAD64,
	unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_MADVISE, unix.SYS_MINCORE, unix.SYS_BRK,
	unix.SYS_FUTEX, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_CTL, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY,
	unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_MEMBARRIER,
	unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_GETRANDOM,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
	unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
}

// A condition lets a system call pass where the bits of one argument have that value.
type condition struct {
	call, argument, bits, value uint32
}

func conditions() []condition {
	const thread = unix.CLONE_VM | unix.CLONE_THREAD
	self := uint32(os.Getpid())
	return []condition{
		{unix.SYS_CLONE, 0, thread, thread}, // a thread, no process
		{unix.SYS_TGKILL, 0, ^uint32(0), self},
		{unix.SYS_KILL, 0, ^uint32(0), self},
		{unix.SYS_MMAP, 2, unix.PROT_EXEC, 0},
		{unix.SYS_MPROTECT, 2, unix.PROT_EXEC, 0},
	}
}

// filter installs the filter in all threads.
func filter() error {
	const number, arch, arguments = 0, 4, 16 // offsets in struct seccomp_data, whose words begin with their low half
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	refuse := func(errno unix.Errno) bpf.Instruction {
		return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)}
	}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: arch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: architecture, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: number, Size: 4},
	}
	for _, call := range needed {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: call, SkipFalse: 1}, allow)
	}
	for _, c := range conditions() {
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.call, SkipFalse: 5},
			bpf.LoadAbsolute{Off: arguments + 8*c.argument, Size: 4},
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: c.bits},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.value, SkipFalse: 1},
			allow,
			refuse(unix.EPERM),
		)
	}
	program = append(program,
		// Its flags are behind a pointer. The C library falls back on clone.
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_CLONE3, SkipFalse: 1},
		refuse(unix.ENOSYS),
		refuse(unix.EPERM),
	)
	assembled, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	raw := make([]unix.SockFilter, len(assembled))
	for i, in := range assembled {
		raw[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	of := unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&of)))
	runtime.KeepAlive(raw)
	switch {
	case errno != 0:
		return errno
	case thread != 0:
		return errors.New("a thread has another filter")
	}
	return nil
}

// lowerPriority gives way to every other process. On Linux a priority belongs to a thread.
func lowerPriority() error {
	if _, _, errno := psx.Syscall3(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, 19); errno != 0 {
		return errno
	}
	return nil
}

// addressSpace returns how many bytes the process has mapped as data without using them, which RLIMIT_DATA counts too.
func addressSpace() int64 {
	const usual = 80 << 20
	pages, err := statm("self")
	if err != nil {
		return usual
	}
	return pages.data - pages.private
}

// limitMemory makes allocating more data than so many bytes end the process.
func limitMemory(pid int, bytes int64) error {
	return unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: uint64(bytes), Max: unix.RLIM_INFINITY}, nil)
}

// used returns how many bytes a process has mapped as data, or 0 where the system does not tell.
func used(pid int) int64 {
	pages, _ := statm(fmt.Sprint(pid))
	return pages.data
}

// A mapped is what a process has of the memory, in bytes.
type mapped struct {
	data    int64 // mapped, used or not
	private int64 // resident, and shared with no file
}

func statm(process string) (mapped, error) {
	text, err := os.ReadFile("/proc/" + process + "/statm")
	if err != nil {
		return mapped{}, err
	}
	var size, resident, shared, code, library, data int64
	if _, err := fmt.Sscan(string(text), &size, &resident, &shared, &code, &library, &data); err != nil {
		return mapped{}, err
	}
	page := int64(os.Getpagesize())
	return mapped{data: data * page, private: (resident - shared) * page}, nil
}
