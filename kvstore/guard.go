package kvstore

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A guard stands between Pebble and the disk.
//
// Pebble ends the process when it can't write its log or its manifest: with
// some errors through Logger.Fatalf, with others by a panic under its locks.
// Larder would rather go on serving what it has. So an error of such a file
// never reaches Pebble: the store becomes read-only with that error, and the
// goroutine that met it stops for good. To Pebble that is a very slow disk. It
// holds none of the locks that reads need meanwhile; everything else that may
// wait goes through do.
//
// A full disk is given some time first. Errors of tables and blob files do
// reach Pebble, which keeps what it has in the log and tries again.
type guard struct {
	dir  string
	opts Options

	failed  chan struct{} // closed when the store has become read-only
	once    sync.Once     // guards the closing
	err     error         // why; set before
	closing chan struct{} // closed when waiting makes no sense any more
	opened  atomic.Bool   // whether Open has succeeded; before, Open returns every error

	disk      durableState
	inspected *inspection // what was found before the store was opened

	unsound atomic.Bool // whether a block could not be read
	stuck   atomic.Bool // whether a goroutine of Pebble's has stopped for that
	ended   atomic.Bool // whether the store was closed without closing Pebble, whose goroutines then stop at their next write

	sizesMu sync.Mutex
	sizes   map[string]int64 // of tables and blob files
}

// pause is how long a failed write of a table waits before Pebble learns of
// it, because it tries again at once and for ever.
const pause = time.Second

// newGuard returns the guard of the store in dir, the layer between Pebble and the disk. inspected is what was found in the store's files. It passes
// errors of the disk on to Pebble until startGuarding is called.
func newGuard(dir string, o Options, inspected *inspection) *guard {
	return &guard{dir: dir, opts: o, failed: make(chan struct{}), closing: make(chan struct{}),
		disk: durableState{files: make(map[string]*extent)}, inspected: inspected, sizes: inspected.version.fileSizes()}
}

// startGuarding makes the guard hide fatal errors of the disk from Pebble from now on. It is called when the store has been opened.
func (g *guard) startGuarding() { g.opened.Store(true) }

// endWaiting ends all waits for disk space and pauses after errors, because the store is about to close. It must be called once only.
func (g *guard) endWaiting() { close(g.closing) }

// fs returns the file system that Pebble uses: that of the options, with the guard in between, which also waits for space when the disk is full.
func (g *guard) fs() vfs.FS {
	return guardFS{FS: vfs.OnDiskFull(g.opts.FS, g.waitForSpace), guard: g}
}

// waitForSpace logs that the disk is full, and waits until more than Options.MinFreeBytes, and more than 64 MiB, are free. It gives up after
// Options.fullDiskTimeout, or when the store closes. While the store is being opened, it does nothing. It is called when a write has found the disk
// full; the caller then tries the write once more.
func (g *guard) waitForSpace() {
	if !g.opened.Load() {
		return
	}
	g.opts.Logger.Error("the disk is full: waiting for space", "dir", g.dir, "for", g.opts.fullDiskTimeout)
	deadline := time.NewTimer(g.opts.fullDiskTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(max(g.opts.fullDiskTimeout/40, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-g.closing:
			return
		case <-deadline.C:
			return
		case <-tick.C:
			usage, err := g.opts.FS.GetDiskUsage(g.dir)
			if err == nil && usage.AvailBytes > uint64(max(g.opts.MinFreeBytes, 64<<20)) {
				return
			}
		}
	}
}

// checkWrite handles err, the result of writing or syncing the named file. It returns nil for nil, and returns errors as they are before the store is
// open. It returns an error of a table or blob file after a pause of up to a second. An error of any other file makes the store read-only. Once the
// store is read-only, checkWrite returns no error any more: it stops the calling goroutine, which is Pebble's, for good.
func (g *guard) checkWrite(name string, err error) error {
	if err == nil || !g.opened.Load() {
		return err
	}
	if isImmutable(name) {
		select {
		case <-time.After(min(pause, g.opts.fullDiskTimeout)):
		case <-g.closing:
		}
		if g.reason() == nil {
			return err
		}
	} else {
		g.fail(name, err)
	}
	select {} // see guard
}

// do runs f, which may wait for the disk, in a goroutine and returns its error. If the store is read-only after a disk error, it returns that error
// and does not call f. If the store becomes so meanwhile, it returns the error without waiting for f, which may never return.
func (g *guard) do(f func() error) error {
	if err := g.reason(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-g.failed:
		return g.err
	}
}

// reason returns the disk error because of which the store has become read-only, nil while it has not.
func (g *guard) reason() error {
	select {
	case <-g.failed:
		return g.err
	default:
		return nil
	}
}

// fail makes the store read-only until the next start because err occurred in the named file, and logs it. Only the first call has an effect.
func (g *guard) fail(name string, err error) {
	g.once.Do(func() {
		if isNoSpace(err) {
			g.err = fmt.Errorf("%w: free some space on the disk that holds %s, then start again; what was committed is safe", ErrDiskFull, g.dir)
		} else {
			g.err = fmt.Errorf("couldn't write to the store in %s: %w: check the disk, then start again; what was committed is safe", g.dir, err)
		}
		g.opts.Logger.Error("the store can only be read until the next start", "dir", g.dir, "file", name, "err", err)
		close(g.failed)
	})
}

// expectedSize returns how many bytes the named table or blob file has to have, 0 if that is not known.
func (g *guard) expectedSize(name string) int64 {
	g.sizesMu.Lock()
	defer g.sizesMu.Unlock()
	return g.sizes[name]
}

// setSize records how many bytes the named table or blob file has, 0 if it was removed.
func (g *guard) setSize(name string, size int64) {
	g.sizesMu.Lock()
	defer g.sizesMu.Unlock()
	if g.sizes[name] = size; size == 0 {
		delete(g.sizes, name)
	}
}

// guardFS is the file system that Pebble uses: that of the options, with the checks and records of the guard.
type guardFS struct {
	vfs.FS
	guard *guard
}

// Unwrap returns the file system behind the guard, for [vfs.Root].
func (fs guardFS) Unwrap() vfs.FS { return fs.FS }

// haltIfEnded stops the calling goroutine, which is Pebble's, for good if the store was closed while a goroutine of Pebble was stuck, so that Pebble
// could not be closed.
func (g *guard) haltIfEnded() {
	if g.ended.Load() {
		select {}
	}
}

// guardFile returns the created file f wrapped so that its errors go through guard.checkWrite, which makes the store read-only rather than let Pebble
// end the process, and so that it is recorded how much of it is written and synced. f and err are the results of creating it.
func (fs guardFS) guardFile(name string, f vfs.File, err error) (vfs.File, error) {
	if err := fs.guard.checkWrite(name, err); err != nil {
		return nil, err
	}
	base := fs.PathBase(name)
	guarded := guardedFile{File: f, name: name, guard: fs.guard, extent: fs.guard.disk.recordCreated(base)}
	if isImmutable(name) {
		guarded.extent, guarded.immutable = new(extent), base
	}
	return guarded, nil
}

// Create implements [vfs.FS]. Errors of creating the file, and later of writing to it, go through guard.checkWrite, which may make the store
// read-only and never return.
func (fs guardFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	fs.guard.haltIfEnded()
	f, err := fs.FS.Create(name, c)
	return fs.guardFile(name, f, err)
}

// ReuseForWrite implements [vfs.FS]: it reuses a file under a new name. Errors of that, and later of writing to it, go through guard.checkWrite,
// which may make the store read-only and never return.
func (fs guardFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	fs.guard.haltIfEnded()
	fs.guard.disk.recordRemoved(fs.PathBase(oldname))
	f, err := fs.FS.ReuseForWrite(oldname, newname, c)
	return fs.guardFile(newname, f, err)
}

// List implements [vfs.FS]. For a damaged store that is opened read-only, it leaves out files with which Pebble could not open it, and adds missing
// blob files: Pebble finds out by opening them.
func (fs guardFS) List(dir string) ([]string, error) {
	names, err := fs.FS.List(dir)
	names = slices.DeleteFunc(names, func(name string) bool { return fs.guard.inspected.hidden[name] })
	return append(names, fs.guard.inspected.missing...), err
}

// Open implements [vfs.FS]. It checks blob files and tables, whose blocks are checked when they are read. A damaged log, which only a store that is
// opened read-only may have, ends where it is still sound.
func (fs guardFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.Open(name, o...)
	switch base := fs.PathBase(name); {
	case isImmutable(base):
		return fs.guard.openImmutable(base, f, err)
	case err == nil && base == fs.guard.inspected.cut:
		return cutFile{f, io.LimitReader(f, fs.guard.inspected.sound)}, nil
	}
	return f, err
}

// cutFile is a damaged log, of which Read returns only the sound beginning.
type cutFile struct {
	vfs.File
	sound io.Reader
}

// Read implements [vfs.File]. It reads the sound beginning of a damaged log, and then returns [io.EOF].
func (f cutFile) Read(p []byte) (int, error) { return f.sound.Read(p) }

// Remove implements [vfs.FS]. It also deletes what is recorded about the file's size.
func (fs guardFS) Remove(name string) error {
	fs.guard.haltIfEnded()
	fs.guard.disk.recordRemoved(fs.PathBase(name))
	fs.guard.setSize(fs.PathBase(name), 0)
	return fs.FS.Remove(name)
}

// OpenDir implements [vfs.FS]. Errors of syncing the folder, which makes new files durable, go through guard.checkWrite, which may make the store
// read-only.
func (fs guardFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return guardedFile{File: f, name: name, guard: fs.guard}, nil
}

// guardedFile is a file or folder that Pebble has open for writing. Its errors go through guard.checkWrite.
type guardedFile struct {
	vfs.File
	name   string
	guard  *guard
	extent *extent // nil if neither the mark nor the guard records the file's size

	immutable string // the name of a table or blob file, without the folder
}

// Write implements [vfs.File], and counts the written bytes. An error goes through guard.checkWrite, which may make the store read-only and never
// return.
func (f guardedFile) Write(p []byte) (int, error) {
	f.guard.haltIfEnded()
	n, err := f.File.Write(p)
	if f.extent != nil {
		f.extent.written.Add(int64(n))
	}
	return n, f.guard.checkWrite(f.name, err)
}

// WriteAt implements [vfs.File]. An error goes through guard.checkWrite, which may make the store read-only and never return.
func (f guardedFile) WriteAt(p []byte, offset int64) (int, error) {
	n, err := f.File.WriteAt(p, offset)
	return n, f.guard.checkWrite(f.name, err)
}

// Sync implements [vfs.File], and records that what was written before is on the disk. An error goes through guard.checkWrite, which
// may make the store read-only and never return.
func (f guardedFile) Sync() error { return f.syncWith(f.File.Sync) }

// SyncData implements [vfs.File]: it syncs the file without its metadata, and records that what was written before is on the disk. An error goes
// through guard.checkWrite, which may make the store read-only and never return.
func (f guardedFile) SyncData() error { return f.syncWith(f.File.SyncData) }

// syncWith syncs the file by calling sync, and records that all bytes that were written before are on the disk. An error goes through
// guard.checkWrite, which may make the store read-only and never return.
func (f guardedFile) syncWith(sync func() error) error {
	var written int64
	if f.extent != nil {
		written = f.extent.written.Load()
	}
	err := sync()
	if f.extent != nil && err == nil {
		f.extent.synced.Store(written)
	}
	return f.guard.checkWrite(f.name, err)
}

// SyncTo implements [vfs.File]: it syncs the first length bytes, and reports whether it has synced the whole file. It does not record that for the
// mark. An error goes through guard.checkWrite, which may make the store read-only and never return.
func (f guardedFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	return full, f.guard.checkWrite(f.name, err)
}

// Close implements [vfs.File], and records the size of a table or blob file, which is complete now. An error goes through guard.checkWrite, which may
// make the store read-only and never return.
func (f guardedFile) Close() error {
	err := f.guard.checkWrite(f.name, f.File.Close())
	if err == nil && f.immutable != "" {
		f.guard.setSize(f.immutable, f.extent.written.Load())
	}
	return err
}
