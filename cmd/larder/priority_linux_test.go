package main

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestServingHasShortTimeSlices starts a process that serves.
func TestServingHasShortTimeSlices(t *testing.T) {
	t.Parallel()
	usual, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if usual.Runtime == 0 {
		t.Skip("this kernel has no time slices of threads (Linux 6.12)")
	}
	data := filepath.Join(t.TempDir(), "data")
	stockNoise(t, data, 1, 1000)
	cmd := exec.Command("larder", "serve", "--data", data, "--listen", "127.0.0.1:0", "--private-listen", "off")
	startServing(t, cmd)
	got, err := unix.SchedGetAttr(cmd.Process.Pid, 0)
	if want := uint64(100 * time.Microsecond); err != nil || got.Runtime != want {
		t.Errorf("a time slice of %d ns, %v; want %d", got.Runtime, err, want)
	}
}
