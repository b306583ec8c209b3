package priority

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

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
