package worker

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	landlocksys "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var system = protections{landlock: probeLandlock, filter: probeFilter, memory: probeMemory}

// probeLandlock returns nil if the kernel offers Landlock in any version, else why it does not. All versions restrict a process's
// access to files; TCP is restricted only from version 4 on, which probeLandlock does not look for.
func probeLandlock() error {
	if _, err := landlocksys.LandlockGetABIVersion(); err != nil {
		return fmt.Errorf("the kernel lacks it, or did not enable it when it started (lsm=landlock,…): %w", err)
	}
	return nil
}

// probeFilter returns nil if system-call filters (seccomp) work with this kernel and Larder has one for this processor, else why
// not.
func probeFilter() error {
	if architecture == 0 {
		return fmt.Errorf("not available for processors of type %s", runtime.GOARCH)
	}
	action := uint32(unix.SECCOMP_RET_ERRNO)
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action))); errno != 0 {
		return fmt.Errorf("the kernel refuses seccomp: %w", errno)
	}
	return nil
}

// probeMemory returns nil if the kernel allows prlimit, with which a parent limits the memory of a child, else why not. It only
// reads a limit of this process.
func probeMemory() error {
	var limit unix.Rlimit
	if err := unix.Prlimit(os.Getpid(), unix.RLIMIT_DATA, nil, &limit); err != nil {
		return fmt.Errorf("the kernel refuses prlimit: %w", err)
	}
	return nil
}

// confine restricts all threads of this process for good, as far as the system can: Landlock denies files and TCP, limits of
// resources deny new descriptors, and a system-call filter denies other sockets, processes and raised limits. It leaves out
// Landlock or the filter if k says that the system lacks it. The parent sets the limit of memory. If confine returns an error,
// what it applied before stays.
func (k protections) confine() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if k.landlock() == nil {
		if err := landlock.V11.BestEffort().Restrict(); err != nil {
			return fmt.Errorf("landlock: %w", err)
		}
	}
	if err := limitResources(); err != nil {
		return err
	}
	if k.filter() == nil {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("no new privileges: %w", err)
		}
		if err := installFilter(); err != nil {
			return fmt.Errorf("system-call filter: %w", err)
		}
	}
	return nil
}

// needed are the system calls of Go's runtime, and of the C library's threads and allocator, when nothing but memory and
// open descriptors are used. mremap is not among them: it enlarges the main thread's stack, which RLIMIT_DATA does not count.
var needed = []uint32{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_PREAD64,
	unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_MINCORE, unix.SYS_BRK,
	unix.SYS_FUTEX, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_CTL, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY,
	unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_MEMBARRIER,
	unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_GETRANDOM,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
	unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
}

// A condition allows a system call if the bits of one argument have that value. All conditions of a call must hold. They follow
// each other.
type condition struct {
	call, argument, bits, value uint32
}

// callConditions returns the conditions under which the system-call filter allows those system calls whose arguments decide.
// Those of one call follow each other, and all of them must hold. They allow signals only to this process, whose id they contain.
func callConditions() []condition {
	const thread = unix.CLONE_VM | unix.CLONE_THREAD
	self := uint32(os.Getpid())
	return []condition{
		{unix.SYS_CLONE, 0, thread, thread}, // a thread, no process
		{unix.SYS_TGKILL, 0, ^uint32(0), self},
		{unix.SYS_KILL, 0, ^uint32(0), self},
		{unix.SYS_MMAP, 2, unix.PROT_EXEC, 0},
		{unix.SYS_MMAP, 3, unix.MAP_TYPE | unix.MAP_GROWSDOWN | unix.MAP_HUGETLB, unix.MAP_PRIVATE}, // what the limits of memory count
		{unix.SYS_MPROTECT, 2, unix.PROT_EXEC | unix.PROT_WRITE, unix.PROT_WRITE},                   // the limit of data counts only what can be written
	}
}

// installFilter installs a filter (seccomp) in all threads of this process for good. It allows the system calls in needed, and
// those in callConditions under their conditions. All others fail with EPERM, or clone3 with ENOSYS, so that the C library uses
// clone. A call of another architecture ends the process. Before, the caller sets no_new_privs, and checks with probeFilter
// that a filter for this processor exists; without one every later call would end the process.
func installFilter() error {
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
	all := callConditions()
	for len(all) > 0 {
		n := 1 // conditions of the same call
		for n < len(all) && all[n].call == all[0].call {
			n++
		}
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: all[0].call, SkipFalse: uint8(4*n + 1)})
		for _, c := range all[:n] {
			program = append(program,
				bpf.LoadAbsolute{Off: arguments + 8*c.argument, Size: 4},
				bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: c.bits},
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.value, SkipTrue: 1},
				refuse(unix.EPERM),
			)
		}
		program = append(program, allow)
		all = all[n:]
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

// unusedAddressSpace returns how many bytes this process has mapped beyond the private memory in use, so that the limit for a job
// does not count them: in All of all address space, in Data of private writable memory. If the system does not report it, the
// result is a usual value.
func unusedAddressSpace() addressUse {
	const usual = 80 << 20
	m, private, err := readStatm("self")
	if err != nil {
		return addressUse{All: 2 << 30, Data: usual}
	}
	return addressUse{All: m.All - private, Data: m.Data - private}
}

// arenas limits the address space that Go's runtime reserves beyond the heap that it uses. It reserves arenas of 64 MiB.
const arenas = 192 << 20

// limitMemory limits the memory of another process, pid, to bytes, in addition to unused, the address space that it has mapped
// but does not use. The limits are soft ones, which the next call replaces. If the process needs more, allocation fails and Go's
// runtime ends it. RLIMIT_DATA counts private writable mappings. RLIMIT_AS counts all address space, also shared mappings,
// stacks that grow, and pages that are only read, which take tables. It is larger by arenas, for what Go's runtime reserves.
func limitMemory(pid int, unused addressUse, bytes int64) error {
	limits := map[int]unix.Rlimit{
		unix.RLIMIT_DATA: {Cur: uint64(unused.Data + bytes), Max: unix.RLIM_INFINITY},
		unix.RLIMIT_AS:   {Cur: uint64(unused.All + bytes + arenas), Max: unix.RLIM_INFINITY},
	}
	for resource, l := range limits {
		if err := unix.Prlimit(pid, resource, &l, nil); err != nil {
			return err
		}
	}
	return nil
}

// processorTime returns how much processor time all threads of a running process have used since it started, in user and system
// mode.
func processorTime(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED: what the scheduler counted for all threads; clock_getcpuclockid(3) makes the same number
	var used unix.Timespec
	err := unix.ClockGettime(^int32(pid)<<3|scheduled, &used)
	return time.Duration(used.Nano()), err
}

// mappedData returns how many bytes of private writable memory a process has mapped, or 0 if the system does not report that.
func mappedData(pid int) int64 {
	m, _, _ := readStatm(fmt.Sprint(pid))
	return m.Data
}

// readStatm reads /proc/PROCESS/statm, where process is an id or "self". It returns how many bytes of address space the process
// has mapped, in All, and of these private and writable, in Data. private is how many bytes of memory it uses that are not shared
// with a file.
func readStatm(process string) (m addressUse, private int64, err error) {
	text, err := os.ReadFile("/proc/" + process + "/statm")
	if err != nil {
		return addressUse{}, 0, err
	}
	var size, resident, shared, code, library, data int64
	if _, err := fmt.Sscan(string(text), &size, &resident, &shared, &code, &library, &data); err != nil {
		return addressUse{}, 0, err
	}
	page := int64(os.Getpagesize())
	return addressUse{All: size * page, Data: data * page}, (resident - shared) * page, nil
}
