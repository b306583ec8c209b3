package kvstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Store is an open folder. It is safe for concurrent use.
type Store struct {
	dir   string
	opts  Options
	lock  *pebble.Lock
	db    *pebble.DB
	guard *guard

	users users
	low   atomic.Bool // whether the last write found the disk too full

	writing  sync.RWMutex // held for reading by each write, for writing while there must be none
	contents sync.Mutex   // held while a content's row and blobs change
	reclaim  reclaimer
	pins     pinned
}

// format is the version of the store's layout: of the keys and rows that this
// package writes. A store says its own in Meta.
const format = 1

var formatKey = []byte("format")

// Open opens the store in dir, which it makes where there is none. It returns
// [ErrLocked] where another process, or this one, has it open already.
func Open(dir string, o Options) (*Store, error) {
	o.defaults()
	if err := makeDir(o.FS, dir); err != nil && !o.ReadOnly {
		return nil, openError(dir, err)
	}
	lock, err := pebble.LockDirectory(dir, o.FS)
	if err != nil {
		return nil, lockError(dir, err)
	}
	s := &Store{dir: dir, opts: o, lock: lock, guard: newGuard(dir, o)}
	s.pins.count = make(map[Hash]int)
	s.users.idle = make(chan struct{}, 1)
	if err := s.open(); err != nil {
		s.guard.close()
		return nil, errors.Join(openError(dir, err), lock.Close())
	}
	return s, nil
}

// makeDir makes dir where there is none, so that it is there after a power failure:
// Pebble syncs what it makes in dir, and not the folders that lead there. Often the
// folder above has just been made too.
func makeDir(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); err == nil {
		return nil
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	above := fs.PathDir(dir)
	if err := syncDir(fs, above); err != nil {
		return err
	}
	if err := syncDir(fs, fs.PathDir(above)); err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	return nil
}

func syncDir(fs vfs.FS, dir string) error {
	f, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (s *Store) open() (err error) {
	// While it opens, Pebble reports a file system that refuses the MANIFEST to
	// the logger only.
	defer func() {
		switch p := recover().(type) {
		case nil:
		case fatal:
			err = p
		default:
			panic(p)
		}
	}()
	po := s.opts.pebble()
	po.Lock = s.lock
	po.FS = s.guard.fs()
	po.Logger = pebbleLogger{s.opts.Logger}
	po.EventListener = listener(s.opts.Logger)
	if s.db, err = pebble.Open(s.dir, po); err != nil {
		return err
	}
	if err := errors.Join(s.checkFormat(), s.startReclaim()); err != nil {
		return errors.Join(err, s.db.Close())
	}
	s.guard.watch()
	return nil
}

// checkFormat refuses a store that a newer Larder wrote, and marks a new one.
func (s *Store) checkFormat() error {
	have, err := s.Get(Meta, formatKey)
	switch {
	case errors.Is(err, ErrNotFound) && !s.opts.ReadOnly:
		if err := s.db.Set(Meta.physical(formatKey), []byte{format}, pebble.Sync); err != nil {
			return err
		}
		// Pebble begins the first log of a new store in its oldest format, in which damage
		// cannot be told from what a crash left. The next one has the newest.
		return s.db.Flush()
	case errors.Is(err, ErrNotFound):
		return errors.New("it holds no store yet")
	case err != nil:
		return err
	case !bytes.Equal(have, []byte{format}):
		return fmt.Errorf("its format is %d, and this larder reads %d: use the larder that wrote it, or a newer one", have, format)
	}
	return nil
}

func openError(dir string, err error) error {
	switch {
	case noSpace(err):
		return fmt.Errorf("%w: couldn't open the store in %s: free some space on its disk, then start again", ErrDiskFull, dir)
	case errors.Is(err, pebble.ErrDBDoesNotExist):
		return fmt.Errorf("there is no store in %s", dir)
	case errors.Is(err, ErrCorrupt): // which says so already
		return fmt.Errorf("couldn't open %s: %w", dir, err)
	case pebble.IsCorruptionError(err):
		return fmt.Errorf("%w: couldn't open %s: %w", ErrCorrupt, dir, plain(err))
	case strings.Contains(err.Error(), "unknown format major version"):
		return fmt.Errorf("couldn't open the store in %s: a newer larder wrote it: use that one, or a newer one", dir)
	}
	return fmt.Errorf("couldn't open the store in %s: %w", dir, err)
}

func lockError(dir string, err error) error {
	// A lock that someone holds is a bare EAGAIN or EACCES, or Pebble's own
	// message where it is this process. A file that can't be made is a PathError.
	var path *os.PathError
	var errno syscall.Errno
	if errors.As(err, &path) || errors.As(err, &errno) && errno != syscall.EAGAIN && errno != syscall.EACCES {
		return openError(dir, err)
	}
	return fmt.Errorf("%w: another larder process uses %s: stop it, or choose another folder", ErrLocked, dir)
}

// write applies b, unless there is reason to refuse it, and closes it. When it
// returns, b is visible, and with [pebble.Sync] durable.
func (s *Store) write(b *pebble.Batch, o *pebble.WriteOptions) error {
	if !s.users.enter() {
		return errors.Join(s.closedError(), b.Close())
	}
	defer s.users.leave()
	if err := s.accept(b); err != nil || b.Empty() {
		return errors.Join(err, b.Close())
	}
	// If the guard gives up on it, b is left to the write, which still holds it.
	err := s.guard.do(func() error {
		s.writing.RLock()
		defer s.writing.RUnlock()
		return errors.Join(s.db.Apply(b, o), b.Close())
	})
	return s.failure("write to", err)
}

// failure says what couldn't be done, unless that is clear from the error.
func (s *Store) failure(what string, err error) error {
	if err == nil || err == s.guard.reason() {
		return err
	}
	return fmt.Errorf("couldn't %s the store in %s: %w", what, s.dir, err)
}

func (s *Store) accept(b *pebble.Batch) error {
	if s.opts.ReadOnly {
		return fmt.Errorf("the store in %s was opened to be read only", s.dir)
	}
	if err := s.guard.reason(); err != nil {
		return err
	}
	return s.room(b.Len())
}

// room refuses a write of n bytes where the disk couldn't hold it twice, in
// the log and in a table, and keep its reserve.
func (s *Store) room(n int) error {
	if s.opts.MinFreeBytes < 0 {
		return nil
	}
	usage, err := s.opts.FS.GetDiskUsage(s.dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("couldn't learn how much space %s has left: %w", s.dir, err)
	}
	need := uint64(s.opts.MinFreeBytes) + 2*uint64(n)
	full := usage.AvailBytes < need
	if s.low.Swap(full) != full {
		if full {
			s.opts.Logger.Error("the disk is full: nothing is written until there is space", "dir", s.dir, "free", usage.AvailBytes, "needed", need)
		} else {
			s.opts.Logger.Info("the disk has space again", "dir", s.dir, "free", usage.AvailBytes)
		}
	}
	if full {
		return fmt.Errorf("%w: the disk that holds %s has %d MiB left and %d are needed: free some space; nothing was lost",
			ErrDiskFull, s.dir, usage.AvailBytes>>20, need>>20)
	}
	return nil
}

func (s *Store) closedError() error {
	return fmt.Errorf("the store in %s is closed", s.dir)
}

// Close waits for what is under way and closes the store. What comes later
// gets an error. What was committed is on the disk already; contents put since
// may be too. Snapshots have to be closed before.
func (s *Store) Close() error {
	if !s.users.close() {
		return nil
	}
	s.guard.close()
	s.stopReclaim()
	s.users.wait()
	// Where the disk has failed, the process ends without Pebble's closing, and
	// the next one replays what is on the disk.
	return s.failure("close", s.guard.do(func() error {
		return errors.Join(s.db.Close(), s.lock.Close())
	}))
}
