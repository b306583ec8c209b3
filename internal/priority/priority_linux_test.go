package priority

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A goroutine that computes has a thread with the time slice of other processes, whose time slice is restored at the end.
func TestCompute(t *testing.T) {
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := RestoreTimeSlices(); err != nil {
			t.Error(err)
		}
		raised.Store(false)
	}()
	if err := RaiseForRequests(); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // so that it is the thread on which f runs
	defer runtime.UnlockOSThread()
	within, called := uint64(0), 0
	Compute(func() {
		a, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		within, called = a.Runtime, called+1
	})
	after, err := unix.SchedGetAttr(0, 0)
	if err != nil || called != 1 {
		t.Fatalf("f was called %d times, %v", called, err)
	}
	if before.Runtime == 0 {
		t.Skip("this Linux has no time slices of threads")
	}
	if within != before.Runtime || after.Runtime != uint64(servingSlice) {
		t.Errorf("the time slice is %d within and %d afterwards, want %d and %d", within, after.Runtime, before.Runtime, uint64(servingSlice))
	}
}

// TestPriority runs in processes of its own, since a process without privileges cannot take back the lowest priority.
func TestPriority(t *testing.T) {
	functions := map[string]func() error{"raise": RaiseForRequests, "restore": RestoreTimeSlices, "lower": LowerForBackground}
	if calls := os.Getenv("PRIORITY_CALLS"); calls != "" {
		before, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(calls) {
			if err := functions[name](); err != nil {
				t.Fatal(err)
			}
		}
		want := *before
		switch strings.Fields(calls)[len(strings.Fields(calls))-1] {
		case "raise":
			if before.Runtime != 0 { // before Linux 6.12, there are no time slices of threads
				want.Runtime = uint64(servingSlice)
			}
		case "lower":
			want.Nice = lowest
		}
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			id, err := strconv.Atoi(task.Name())
			if err != nil {
				t.Fatal(err)
			}
			if got, err := unix.SchedGetAttr(id, 0); err != nil || *got != want {
				t.Errorf("thread %d after %s: %+v, %v; want %+v", id, calls, got, err, want)
			}
		}
		return
	}
	for _, calls := range []string{"raise", "raise restore", "lower", "raise lower"} {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestPriority$")
		cmd.Env = append(os.Environ(), "PRIORITY_CALLS="+calls)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", calls, err, out)
		}
	}
}
