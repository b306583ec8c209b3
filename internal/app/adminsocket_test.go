package app

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
)

// holdsVariable is the environment variable that has this test program hold the store in a folder open.
const holdsVariable = "LARDER_TEST_HOLDS_STORE"

// holdStore opens the store in the folder dir, says so, and keeps it open until its standard input ends.
func holdStore(dir string) {
	store, err := kvstore.Open(dir, kvstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("open")
	io.Copy(io.Discard, os.Stdin) //nolint:errcheck // the end is what counts
	store.Close()
}

// TestReloadBetweenTwoRoles tests that a command for the running process says that it is to be tried again while a process has the data folder open
// without an admin socket, and that no process runs only where none has it open.
func TestReloadBetweenTwoRoles(t *testing.T) {
	data := t.TempDir()
	if _, err := Reload(t.Context(), data); !errors.Is(err, ErrNoProcess) {
		t.Errorf("without a process: %v", err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	holder := exec.Command(program)
	holder.Env = append(os.Environ(), holdsVariable+"="+storeDir(data))
	stop, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop.Close()
		_ = holder.Wait() // which may have ended already
	})
	if line, err := bufio.NewReader(said).ReadString('\n'); line != "open\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	if _, err := Reload(t.Context(), data); err == nil || errors.Is(err, ErrNoProcess) || !strings.Contains(err.Error(), "try again when it serves") {
		t.Errorf("with a process that has no socket: %v", err)
	}
	stop.Close()
	if err := holder.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := Reload(t.Context(), data); !errors.Is(err, ErrNoProcess) {
		t.Errorf("after the process: %v", err)
	}
}
