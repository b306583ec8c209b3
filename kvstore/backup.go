package kvstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/disk"
)

// BackupProgress counts what a backup has so far.
type BackupProgress struct {
	Files  int
	Bytes  int64 // of the files
	Linked int64 // of those, what hard links share with the store
	Of     int64 // bytes that there will be, about
}

// Backup makes a copy of the store in dir, as it is at one moment of the call:
// whatever was committed before is in it, and of each later [Batch] all or
// nothing. The store is read and written meanwhile. Dir must not exist, its
// parent must; with an error, nothing is left of it. A crash may leave a part,
// so dir is best a temporary name, and the copy renamed.
//
// A backup is a copy of the files and not of the signed log (logs/replication), because it has what is in no log, such as schedules,
// webhooks and usage, and because it is made within milliseconds. A repair or a mirror reads a backup as any other source.
//
// Tables and blob files, which never change once they are written, are hard links
// where the file system has them, and copies elsewhere; what does change is always
// copied. So a write to either store never shows in the other. When Backup
// returns, the copy is on the disk.
//
// Progress, where set, is called after each file, and now and then in a large
// one, from one goroutine at a time. The store keeps on its disk what it replaces during a backup, and writers
// wait while the write-ahead log is copied at the end.
func (s *Store) Backup(ctx context.Context, dir string, progress func(BackupProgress)) (BackupProgress, error) {
	if !s.users.enter() {
		return BackupProgress{}, s.closedError()
	}
	defer s.users.leave()
	// Should the guard give up on the work below, it ends at the next file, if it can.
	working, end := context.WithCancel(ctx)
	defer end()
	c := &copyFS{FS: s.opts.FS, ctx: working, store: s, dir: s.opts.FS.PathJoin(dir), progress: progress}
	c.inside = strings.TrimSuffix(c.PathJoin(c.dir, "x"), "x")
	if progress == nil {
		c.progress = func(BackupProgress) {}
	}
	if err := c.checkVacant(); err != nil {
		return BackupProgress{}, err
	}
	if !s.guard.copying.CompareAndSwap(nil, c) {
		return BackupProgress{}, fmt.Errorf("another backup of the store in %s is under way: wait until it is done", s.dir)
	}
	work := c.copyLive
	if s.opts.ReadOnly {
		work = c.copyReadOnly
	}
	err := s.guard.do(func() error {
		defer s.guard.copying.Store(nil)
		return work()
	})
	switch {
	case err == nil:
		return c.progressSoFar(), nil
	case ctx.Err() != nil:
		return BackupProgress{}, context.Cause(ctx)
	case err == s.guard.reason(), errors.Is(err, ErrDiskFull):
		return BackupProgress{}, err
	case isNoSpace(err):
		return BackupProgress{}, c.fullError()
	}
	return BackupProgress{}, fmt.Errorf("couldn't back the store in %s up to %s: %w", s.dir, dir, err)
}

// copyFS is the file system that a backup is written to. Pebble knows only the
// store's own, so a guardFS sends here what is about the backup's folder: an error
// there is the backup's and must not make the store read-only.
type copyFS struct {
	vfs.FS
	ctx      context.Context
	store    *Store
	dir      string
	inside   string // what the names of its files begin with
	progress func(BackupProgress)
	held     bool // whether writers wait

	mu   sync.Mutex
	done BackupProgress
}

// owns reports whether a path is the backup's folder, is in it, or is its parent, which is synced.
func (c *copyFS) owns(name string) bool {
	return name == c.dir || strings.HasPrefix(name, c.inside) || name == c.PathDir(c.dir)
}

// checkVacant returns an error unless the backup's folder can be made.
func (c *copyFS) checkVacant() error {
	if _, err := c.Stat(c.dir); err == nil {
		return fmt.Errorf("couldn't back up to %s: it exists already", c.dir)
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("couldn't back up to %s: %w", c.dir, err)
	}
	if _, err := c.Stat(c.PathDir(c.dir)); err != nil {
		return fmt.Errorf("couldn't back up to %s: %w", c.dir, err)
	}
	return nil
}

// copyLive has Pebble copy the store, which deletes the copy again if that fails.
func (c *copyFS) copyLive() error {
	m := database(c.store).Metrics()
	c.done.Of = int64(m.Table.Local.LiveSize + m.BlobFiles.Local.LiveSize + m.WAL.PhysicalSize)
	defer c.releaseWriters()
	return database(c.store).Checkpoint(c.dir, pebble.WithFlushedWAL())
}

// holdWriters makes writers wait and syncs what they wrote. Pebble copies its log as it finds it: the copy of a log that grows meanwhile
// may have a gap, which counts as damage.
func (c *copyFS) holdWriters() error {
	if c.held {
		return nil
	}
	c.held = true
	c.store.writing.Lock()
	return database(c.store).LogData(nil, pebble.Sync)
}

// releaseWriters lets writers continue.
func (c *copyFS) releaseWriters() {
	if c.held {
		c.store.writing.Unlock()
	}
}

// copyReadOnly copies a store that this process has open read-only, so that no process can write to it.
func (c *copyFS) copyReadOnly() (err error) {
	from := c.store.dir
	names, err := c.List(from)
	if err != nil {
		return err
	}
	sizes := make(map[string]int64, len(names))
	for _, name := range names {
		info, err := c.Stat(c.PathJoin(from, name))
		if err != nil {
			return err
		}
		if name != "LOCK" && name != verifiedFile && !info.IsDir() {
			sizes[name] = info.Size()
			c.done.Of += info.Size()
		}
	}
	if err := c.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = c.RemoveAll(c.dir)
		}
	}()
	for name := range sizes {
		place := vfs.Copy
		if isImmutable(name) {
			place = vfs.LinkOrCopy
		}
		if err := place(c, c.PathJoin(from, name), c.PathJoin(c.dir, name)); err != nil {
			return err
		}
	}
	return errors.Join(disk.SyncFolder(c, c.dir), disk.SyncFolder(c, c.PathDir(c.dir)))
}

// isImmutable reports whether a file of this name is never changed once it is written: a table or a blob file.
func isImmutable(name string) bool {
	return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
}

// Link implements [vfs.FS]. With most errors, Pebble copies instead.
func (c *copyFS) Link(oldname, newname string) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	err := c.FS.Link(oldname, newname)
	if errors.Is(err, os.ErrPermission) {
		// So says a file system that has no links, too.
		return fmt.Errorf("couldn't link: %v", err) //nolint:errorlint // Pebble would take it for the last word
	}
	if err != nil {
		return err
	}
	info, err := c.Stat(newname)
	if err != nil {
		return err
	}
	c.addProgress(1, info.Size(), info.Size())
	return nil
}

// Create implements [vfs.FS].
func (c *copyFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	if strings.HasSuffix(name, ".log") && !c.store.opts.ReadOnly {
		if err := c.holdWriters(); err != nil {
			return nil, err
		}
	}
	if isImmutable(name) {
		if err := c.checkSpace(); err != nil {
			return nil, err
		}
	}
	f, err := c.FS.Create(name, category)
	if err != nil {
		return nil, err
	}
	c.addProgress(1, 0, 0)
	return copyFile{File: f, fs: c}, nil
}

// checkSpace returns an error if the disk, which may be the store's own, has no room for the rest of the copy.
func (c *copyFS) checkSpace() error {
	usage, err := c.GetDiskUsage(c.PathDir(c.dir))
	if errors.Is(err, vfs.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("couldn't learn how much space %s has left: %w", c.PathDir(c.dir), err)
	}
	done := c.progressSoFar()
	if need := uint64(max(0, done.Of-done.Bytes) + max(0, c.store.opts.MinFreeBytes)); usage.AvailBytes < need {
		return c.fullError()
	}
	return nil
}

// fullError returns the error of a disk without room for the copy.
func (c *copyFS) fullError() error {
	return fmt.Errorf("%w: the disk that is to hold %s has no room for a copy of %d MiB that leaves %d MiB free: choose another, or free some space",
		ErrDiskFull, c.dir, c.progressSoFar().Of>>20, max(0, c.store.opts.MinFreeBytes)>>20)
}

// progressSoFar returns what was copied so far.
func (c *copyFS) progressSoFar() BackupProgress {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// addProgress adds to what was copied, and reports it.
func (c *copyFS) addProgress(files int, bytes, linked int64) {
	c.mu.Lock()
	c.done.Files += files
	c.done.Bytes += bytes
	c.done.Linked += linked
	c.done.Of = max(c.done.Of, c.done.Bytes)
	done := c.done
	c.mu.Unlock()
	c.progress(done)
}

// copyFile counts what is copied, and ends with the backup's context.
type copyFile struct {
	vfs.File
	fs *copyFS
}

func (f copyFile) Write(p []byte) (int, error) {
	if err := f.fs.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := f.File.Write(p)
	f.fs.addProgress(0, int64(n), 0)
	return n, err
}
