package worker

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/larder-cdn/larder/internal/priority"
)

// TestChildHasUsualTimeSlice has a parent with short time slices start a child.
func TestChildHasUsualTimeSlice(t *testing.T) {
	usual, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if usual.Runtime == 0 {
		t.Skip("this kernel has no time slices of threads (Linux 6.12)")
	}
	if err := priority.RaiseForRequests(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = priority.RestoreTimeSlices() })
	p := newPool(t, Options{Size: 1})
	if _, err := p.Do(context.Background(), "owner", MinifyJS, []byte("a")); err != nil {
		t.Fatal(err)
	}
	got, err := unix.SchedGetAttr(p.idle[0].cmd.Process.Pid, 0)
	if err != nil || got.Runtime != usual.Runtime {
		t.Errorf("a time slice of %d ns, %v; want %d", got.Runtime, err, usual.Runtime)
	}
}
