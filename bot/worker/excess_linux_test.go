package worker

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// excess is more memory in bytes than any job of these tests may have.
const excess = 1500 << 20

// excesses are ways to memory that a limit might not count. Each returns nil where it succeeds.
var excesses = map[Task]func(argument string) error{
	"private": func(string) error { return mapExcess(unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE) },
	"private early": func(string) error {
		return mapExcess(unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_POPULATE)
	},
	"reserved":     func(string) error { return mapExcess(unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_NORESERVE) },
	"read only":    func(string) error { return mapExcess(unix.PROT_READ, unix.MAP_PRIVATE) }, // its tables take memory
	"shared":       func(string) error { return mapExcess(unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED) },
	"shared small": func(string) error { return mapBytes(1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED) },
	"validated":    func(string) error { return mapBytes(1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED_VALIDATE) },
	"droppable":    func(string) error { return mapBytes(1<<20, unix.PROT_READ|unix.PROT_WRITE, 0x08) },
	"grows down": func(string) error {
		return mapBytes(1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_GROWSDOWN)
	},
	"huge pages": func(string) error {
		return mapBytes(2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_HUGETLB)
	},
	"written, then read only": func(string) error { return mapWritten(unix.PROT_READ) },
	"written, then reserved":  func(string) error { return mapWritten(unix.PROT_NONE) },
	"stack":                   growStack,
	"break":                   func(string) error { return call(unix.SYS_BRK, ^uintptr(0)>>17) },
	"memfd": func(string) error {
		return call(unix.SYS_MEMFD_CREATE, uintptr(unsafe.Pointer(&[]byte("x\x00")[0])), 0)
	},
	"secret":      func(string) error { return call(unix.SYS_MEMFD_SECRET, 0) },
	"segment":     func(string) error { return call(unix.SYS_SHMGET, unix.IPC_PRIVATE, excess, 0o600|unix.IPC_CREAT) },
	"queue":       func(string) error { return call(unix.SYS_MSGGET, unix.IPC_PRIVATE, 0o600|unix.IPC_CREAT) },
	"pipe":        func(string) error { var p [2]int; return unix.Pipe(p[:]) },
	"pair":        func(string) error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err },
	"larger pipe": func(string) error { _, err := unix.FcntlInt(1, unix.F_SETPIPE_SZ, 1<<20); return err },
	"ring":        func(string) error { return call(unix.SYS_IO_URING_SETUP, 8, uintptr(unsafe.Pointer(new([120]byte)))) },
	"faults":      func(string) error { return call(unix.SYS_USERFAULTFD, 1) },
	"bpf":         func(string) error { return call(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(new([128]byte))), 128) }, // a map
	"events":      func(string) error { return call(unix.SYS_PERF_EVENT_OPEN, uintptr(unsafe.Pointer(new([128]byte)))) },
	"file in memory": func(string) error {
		fd, err := unix.Open("/dev/shm", unix.O_TMPFILE|unix.O_RDWR, 0o600)
		if err == nil {
			err = errors.Join(unix.Fallocate(fd, 0, 0, 1<<20), unix.Close(fd))
		}
		return err
	},
	"keys": func(string) error { return call(unix.SYS_ADD_KEY, 0, 0, 0, 0, 0) },
	"raise space": func(string) error {
		return unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	},
	"raise time": func(string) error {
		return unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	},
	"other's memory": func(pid string) error { return attachTo(pid) },
}

// mapWritten maps memory, writes it and takes the right to write away, by which the kernel stops counting it as data, piece by piece.
func mapWritten(protection int) error {
	const piece = 4 << 20
	for range 64 << 20 / piece { // the limit on addresses allows so much
		b, err := unix.Mmap(-1, 0, piece, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return err
		}
		for i := 0; i < piece; i += 4096 {
			b[i] = 1
		}
		if err := unix.Mprotect(b, protection); err != nil {
			return err
		}
	}
	return nil
}

func call(number uintptr, arguments ...uintptr) error {
	var a [6]uintptr
	copy(a[:], arguments)
	before := uintptr(0)
	if number == unix.SYS_BRK { // which returns where the break is, whatever happened
		before, _, _ = unix.RawSyscall(number, 0, 0, 0)
	}
	r, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	switch {
	case errno != 0:
		return errno
	case number == unix.SYS_BRK && r == before:
		return unix.ENOMEM
	}
	return nil
}

func mapExcess(protection, flags int) error { return mapBytes(excess, protection, flags) }

func mapBytes(n, protection, flags int) error {
	_, err := unix.Mmap(-1, 0, n, protection, flags|unix.MAP_ANON)
	return err
}

// growStack moves the main thread's stack, and makes it larger than any limit of data.
func growStack(string) error {
	mappings, err := os.ReadFile("/proc/self/maps") // refused, too; an address without meaning shows whether the call is
	at := uintptr(1 << 20)
	if err == nil {
		for line := range strings.Lines(string(mappings)) {
			if strings.HasSuffix(strings.TrimSpace(line), "[stack]") {
				start, _ := strconv.ParseUint(line[:strings.IndexByte(line, '-')], 16, 64)
				at = uintptr(start)
			}
		}
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_MREMAP, at, 4096, excess, unix.MREMAP_MAYMOVE, 0, 0)
	if errno == unix.EFAULT { // the call itself is let through
		return nil
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// attachTo reads memory of another process.
func attachTo(pid string) error {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	var word [8]byte
	local := []unix.Iovec{{Base: &word[0], Len: 8}}
	_, err = unix.ProcessVMReadv(n, local, []unix.RemoteIovec{{Base: 0x10000, Len: 8}}, 0)
	if errors.Is(err, unix.EFAULT) {
		return nil // the address is wrong, and the call was let through
	}
	return err
}

// TestMemoryCannotBeExceeded has a child try what its limits might not count: each way is refused by the system. Where there is no
// filter, what would go beyond the limits is refused all the same.
func TestMemoryCannotBeExceeded(t *testing.T) {
	t.Parallel()
	if lacks := Unprotected(); len(lacks) > 0 {
		t.Skipf("this kernel lacks %s", strings.Join(lacks, "; "))
	}
	for _, way := range []Task{"private", "reserved", "read only", "shared", "shared small", "grows down", "memfd", "pipe", "pair"} {
		if err := excesses[way](""); err != nil { // this process has no limits: the ways are sound
			t.Errorf("%s fails without a child: %v", way, err)
		}
	}
	pools := map[string]*Pool{"": newPool(t, Options{Size: 1}), noFilter: newPool(t, Options{Size: 1, Program: link(t, noFilter)})}
	for way := range excesses {
		argument := ""
		if way == "other's memory" {
			argument = strconv.Itoa(os.Getpid())
		}
		for name, p := range pools {
			if raceEnabled && name == noFilter {
				continue // its shadow of the memory has no end
			}
			counted := strings.HasPrefix(string(way), "private") || slices.Contains([]Task{"reserved", "read only", "shared", "break"}, way)
			if name == noFilter && !counted {
				continue
			}
			_, err := p.Do(t.Context(), "owner", way, []byte(argument))
			if err == nil || errors.As(err, new(*CrashError)) || errors.As(err, new(*StartError)) || strings.Contains(err.Error(), "unknown task") {
				t.Errorf("%s %s: %v, want the system's refusal", way, name, err)
			}
		}
	}
}

// TestContractOfMemory holds that the ways to memory that the contract names are among those that are tried.
func TestContractOfMemory(t *testing.T) {
	for named, ways := range map[string][]Task{
		"MAP_SHARED": {"shared", "shared small", "validated", "droppable"}, "MAP_GROWSDOWN": {"grows down"}, "the main stack": {"stack"}, "memfd_create": {"memfd", "secret"},
		"socket pairs": {"pair"}, "pipes and their size": {"pipe", "larger pipe"}, "System V shared memory": {"segment", "queue"}, "userfaultfd": {"faults"}, "io_uring": {"ring"}, "bpf": {"bpf", "events", "keys"},
		"huge pages": {"huge pages"}, "files in memory": {"file in memory"}, "other limits": {"raise space", "raise time"}, "other processes": {"other's memory"}, "private mappings": {"private", "private early", "reserved", "read only", "written, then read only", "written, then reserved", "break"},
	} {
		for _, way := range ways {
			if excesses[way] == nil {
				t.Errorf("%s: nothing tries %s", named, way)
			}
		}
	}
	for _, way := range []Task{"tcp", "listen", "udp", "unix", "fork", "start", "exec"} { // sockets and processes
		if attempts[way] == nil {
			t.Errorf("nothing tries %s", way)
		}
	}
}
