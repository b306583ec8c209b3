//go:build unix

package bucket_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/larder-cdn/larder/kvstore/bucket"
)

// TestPutWaitsForReplace tests that Put and Delete change nothing while a Replace, of another process perhaps, compares and writes.
func TestPutWaitsForReplace(t *testing.T) {
	dir := t.TempDir()
	b, err := bucket.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), "key", []byte("before")); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil { // as Replace does
		t.Fatal(err)
	}
	for name, write := range map[string]func(context.Context) error{
		"Put":    func(ctx context.Context) error { return b.Put(ctx, "key", []byte("after")) },
		"Delete": func(ctx context.Context) error { return b.Delete(ctx, "key") },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := write(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s does not wait: %v", name, err)
		}
		cancel()
		if data, _, err := b.Get(t.Context(), "key", 100); err != nil || string(data) != "before" {
			t.Errorf("%s has changed the object to %q, %v", name, data, err)
		}
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(t.Context(), "key"); err != nil {
		t.Error(err)
	}
}
