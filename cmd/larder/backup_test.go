package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
)

// TestBackupCrash backs a data folder up while the bot fills it, and kills the bot's process, which makes the backups
// too. A backup that has its name is whole, and the data folder is none the worse. `make crash` has it do so more often.
func TestBackupCrash(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes by the dozen")
	}
	t.Parallel()
	_, whole := testCount(t, "CRASHES", 0)
	folders, kills := 1, 2
	if whole {
		folders, kills = 2, 8
	}
	c := &crasher{T: t, registry: npmtest.New(t), random: rand.New(rand.NewPCG(2, 2))}
	c.stock()
	c.data = t.TempDir()
	start := time.Now()
	c.ingest(0)
	length := time.Since(start)

	for range folders {
		c.data = t.TempDir()
		c.published = make(map[string]bool)
		for killed := true; killed; {
			ended := make(chan bool, 1)
			go func() { ended <- c.ingest(length/8 + time.Duration(c.random.Int64N(int64(length)))) }()
			killed = c.backUpUntil(ended)
			c.check()
		}
		c.complete()
	}

	// A process that only makes a backup.
	backups := t.TempDir()
	start = time.Now()
	c.run(0, "backup", filepath.Join(backups, "first"))
	length = time.Since(start)
	for i := range kills {
		dir := filepath.Join(backups, fmt.Sprint("killed-", i))
		killed := c.run(time.Duration(1+c.random.Int64N(int64(length))), "backup", dir)
		c.wantBackup(dir, !killed)
	}
	c.check()
	c.complete()
}

// backUpUntil makes one backup after the other once a process has the data folder, until that has ended. It returns
// what that ended with.
func (c *crasher) backUpUntil(ended <-chan bool) bool {
	c.Helper()
	backups := c.TempDir()
	for n := 0; ; {
		select {
		case killed := <-ended:
			return killed
		default:
		}
		if _, err := admin.Dial(c.Context(), c.data); err != nil {
			time.Sleep(time.Millisecond) // it has not come so far, or has ended
			continue
		}
		n++
		dir := filepath.Join(backups, fmt.Sprint(n))
		cmd := exec.Command("larder", "backup", dir, "--data", c.data)
		cmd.Env = c.env
		out, err := cmd.CombinedOutput()
		// The process may end meanwhile, with or without being killed, and close its socket before its store.
		if err != nil && !bytes.Contains(out, []byte("larder process")) && !bytes.Contains(out, []byte("no store")) {
			c.Errorf("larder backup: %v\n%s", err, out)
		}
		c.wantBackup(dir, err == nil)
	}
}

// wantBackup checks that a backup is whole, or has no name.
func (c *crasher) wantBackup(dir string, succeeded bool) {
	c.Helper()
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && !succeeded {
		return // killed before its end
	} else if err != nil {
		c.Fatalf("the backup is not there: %v", err)
	}
	cmd := exec.Command("larder", "fsck", "--all", "--json", "--data", dir, "--keys", c.data+"-keys")
	cmd.Env = c.env
	out, err := cmd.Output()
	var report struct {
		Checkpoint *logs.Checkpoint `json:"checkpoint"`
		List       []check.Finding  `json:"list"`
	}
	if json.Unmarshal(out, &report) != nil || report.Checkpoint == nil {
		c.Errorf("of a backup, larder fsck: %v\n%s", err, out)
	}
	for _, f := range report.List {
		// The process may have signed more since.
		if f.Kind != check.Checkpoint || !strings.Contains(f.Problem, "the last signed checkpoint has ") {
			c.Errorf("a backup: %+v", f)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		c.Error(err)
	}
}

// otherFileSystem returns a folder on another file system than dir.
func otherFileSystem(t *testing.T, dir string) string {
	probe := filepath.Join(dir, "probe")
	if err := os.WriteFile(probe, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(probe)
	for _, parent := range []string{"/dev/shm", "/var/tmp"} {
		other, err := os.MkdirTemp(parent, "larder-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { os.RemoveAll(other) })
		if os.Link(probe, filepath.Join(other, "probe")) != nil {
			return other
		}
	}
	t.Skip("no second file system to write to")
	return ""
}

// No hard links are made from one file system to another.
func TestBackupToAnotherFileSystem(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	dir := otherFileSystem(t, data)
	var stdout, stderr bytes.Buffer
	larder := func(args ...string) {
		t.Helper()
		stdout.Reset()
		if code := run(t.Context(), append(args, "--data", data), nil, &stdout, &stderr); code != exitDone {
			t.Fatalf("larder %s: %d\n%s%s", strings.Join(args, " "), code, &stdout, &stderr)
		}
	}
	store, err := kvstore.Open(filepath.Join(data, "store"), kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	larder("backup", filepath.Join(dir, "copy"))
	if !strings.HasPrefix(stdout.String(), "Backed up ") || strings.Contains(stdout.String(), "hard links") {
		t.Errorf("it says %s", &stdout)
	}
	data = filepath.Join(dir, "copy")
	larder("fsck", "--all")
}
