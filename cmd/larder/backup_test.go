package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// TestBackupCrash backs a data folder up while the bot fills it, and kills the process, which makes the backups too. After each kill, the
// backup is that of an earlier moment, and the next run goes on with it. `make crash` kills more often.
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
	c := &crasher{T: t, registry: npmtest.New(t), random: rand.New(rand.NewPCG(2, 2)), logged: make(chan struct{}, 1)}
	c.stock(whole)
	c.data = t.TempDir()
	start := time.Now()
	c.ingest(0)
	length := time.Since(start)

	var target string
	for range folders {
		c.data, target = t.TempDir(), filepath.Join(t.TempDir(), "backup")
		c.published = make(map[string]bool)
		for killed := true; killed; {
			ended := make(chan bool, 1)
			go func() { ended <- c.ingest(length/8 + time.Duration(c.random.Int64N(int64(length)))) }()
			killed = c.backUpUntil(target, ended)
			c.check()
			c.checkBackup(target)
		}
		c.complete()
	}

	// A process that only makes a backup, of everything.
	start = time.Now()
	c.run(0, "backup", filepath.Join(t.TempDir(), "first"))
	length = time.Since(start)
	target = filepath.Join(t.TempDir(), "killed")
	for range kills {
		c.run(time.Duration(1+c.random.Int64N(int64(length))), "backup", target)
		c.checkBackup(target)
	}
	c.run(0, "backup", target)
	c.larder("repair", "--data", filepath.Join(t.TempDir(), "restored"), "--keys", c.data+"-keys", "--from", target)
	c.check()
	c.complete()
}

// backUpUntil makes one backup after the other in target once a process has the data folder, until that has ended. It returns
// what that ended with.
func (c *crasher) backUpUntil(target string, ended <-chan bool) bool {
	c.Helper()
	for {
		select {
		case killed := <-ended:
			return killed
		default:
		}
		if _, err := api.DialAdmin(c.Context(), c.data); err != nil {
			select {
			case <-c.logged: // it may have opened the folder meanwhile
				continue
			case killed := <-ended:
				return killed
			}
		}
		cmd := exec.Command("larder", "backup", target, "--data", c.data)
		cmd.Env = c.env
		out, err := cmd.CombinedOutput()
		// The process may end meanwhile, with or without being killed, and close its socket before its store.
		if err != nil && !bytes.Contains(out, []byte("larder process")) && !bytes.Contains(out, []byte("no store")) && !bytes.Contains(out, []byte("not signed")) {
			c.Errorf("larder backup: %v\n%s", err, out)
		}
	}
}

// checkBackup checks that a mirror of the backup is complete, if one was completed.
func (c *crasher) checkBackup(target string) {
	c.Helper()
	if _, err := os.Stat(filepath.Join(target, "public", "log", "checkpoint")); errors.Is(err, fs.ErrNotExist) {
		return // killed before its end
	}
	dir := c.TempDir()
	data, key := filepath.Join(dir, "mirror"), filepath.Join(c.data+"-keys", "log.pub")
	c.larder("mirror", target, "--key", key, "--once", "--data", data, "--private-listen", "off")
	c.larder("fsck", "--all", "--data", data)
	if err := os.RemoveAll(dir); err != nil {
		c.Error(err)
	}
}

// larder runs a command that has to succeed.
func (c *crasher) larder(args ...string) {
	c.Helper()
	cmd := exec.Command("larder", args...)
	cmd.Env = c.env
	if out, err := cmd.CombinedOutput(); err != nil {
		c.Error(fmt.Errorf("larder %s: %w\n%s", args, err, out))
	}
}
