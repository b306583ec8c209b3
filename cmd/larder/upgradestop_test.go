package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/app"
)

// TestStopDuringUpgrade stops a process that waits for the process that is to take over: for its checks, or for it to open the store.
// Both end, the first one with success, and the data folder can be opened.
func TestStopDuringUpgrade(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	for name, says := range map[string]string{
		"before it has checked":     `echo >>started; exec sleep 600`,
		"before it has the sockets": `echo '{"is":"checked"}' >&$fd; read -r line <&$fd; echo >>started; exec sleep 600`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			data, program, started := filepath.Join(dir, "data"), filepath.Join(dir, "larder"), filepath.Join(dir, "started")
			stockNoise(t, data, 1, 1000)
			path, err := exec.LookPath("larder")
			if err == nil {
				err = os.Symlink(path, program)
			}
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(program, "serve", "--data", data, "--listen", "127.0.0.1:0", "--private-listen", "off")
			_, done := awaitLine(t, cmd, "Larder serves ")
			// The newer program never becomes ready. The descriptor of the older process is in the variable.
			script := "#!/bin/sh\ncd " + dir + `; echo $$ >pid; fd=${_LARDER_HANDED##*'"asks":'}; fd=${fd%%[!0-9]*}; ` + says + "\n"
			err = writeProgram(program+".new", script)
			if err == nil {
				err = os.Rename(program+".new", program)
			}
			if err != nil {
				t.Fatal(err)
			}
			upgraded := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				_, _, err := app.Upgrade(ctx, data)
				upgraded <- err
			}()
			waitFor(t, "that the newer process is so far", func() bool {
				select {
				case err := <-upgraded:
					t.Fatalf("the upgrade ended before it was stopped: %v", err)
				default:
				}
				_, err := os.Stat(started)
				return err == nil
			})
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			select {
			case <-done:
			case <-time.After(2 * time.Minute):
				t.Fatal("the process does not end")
			}
			cancel() // otherwise it waits for one of the two processes to serve
			if err := <-upgraded; err == nil {
				t.Error("the upgrade reports success")
			}
			if code := cmd.ProcessState.ExitCode(); code != exitDone {
				t.Errorf("the process ended with %d", code)
			}
			var pid int
			text, err := os.ReadFile(filepath.Join(dir, "pid"))
			if err == nil {
				_, err = fmt.Sscan(string(text), &pid)
			}
			if err != nil {
				t.Fatal(err)
			}
			waitFor(t, "that the newer process ends", func() bool { return ended(pid) })
			if code, out := larder(t, dir, "status", "--data", data); code != exitDone {
				t.Errorf("the data folder cannot be opened: %s", out)
			}
		})
	}
}
