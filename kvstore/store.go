package kvstore

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/retry"
)

// Store is an open folder. It is safe for concurrent use.
type Store struct {
	dir   string
	opts  Options
	lock  handle // a *pebble.Lock
	db    handle // a *pebble.DB, see pebbleOf
	guard *guard

	users users

	contents sync.Mutex    // held while a content's row and blobs change
	deltas   atomic.Uint64 // see StoredDeltas
	reclaim  reclaimer
	pins     pinned
	repairer repairer
	marker   *marker
}

// format is the version of the store's layout: of the keys and rows that this
// package writes. Rows in Meta have the version of the store's own layout, and that
// of the program that last opened the store for writing.
const format = 1

var formatKey, programKey = []byte("format"), []byte("program")

// Open opens the store in dir, and creates it if it does not exist; with Options.ReadOnly the error is [ErrNoStore] then. It locks the folder until
// [Store.Close], and returns [ErrLocked] if another process, or this one, has it open already.
//
// If the MANIFEST or a write-ahead log is damaged, or a file is missing or has another size, Open returns a [*DamageError]; with ReadOnly it
// opens the readable part, and [Store.Damage] reports the damage. A store that a newer program wrote is [ErrNewer], a full disk [ErrDiskFull],
// and damage that Pebble finds [ErrCorrupt]. After an error the folder is unlocked.
func Open(dir string, o Options) (*Store, error) {
	o.setDefaults()
	if _, err := o.FS.Stat(dir); errors.Is(err, os.ErrNotExist) && o.ReadOnly {
		return nil, openError(dir, ErrNoStore)
	}
	if err := disk.MakeFolder(o.FS, dir); err != nil && !o.ReadOnly {
		return nil, openError(dir, err)
	}
	lock, err := lockFolder(dir, o)
	if err != nil {
		return nil, err
	}
	inspected, damage := inspectFiles(dir, o)
	if damage == nil {
		damage = inspected.damageError()
	}
	if damage != nil && !o.ReadOnly {
		return nil, errors.Join(openError(dir, damage), lock.Close())
	}
	s := &Store{dir: dir, opts: o, lock: lock, guard: newGuard(dir, o, inspected)}
	s.pins.count = make(map[Hash]int)
	s.users.idle = make(chan struct{}, 1)
	if err := s.open(); err != nil {
		s.guard.endWaiting()
		if damage != nil {
			err = damage // the cause of whatever is missing
		}
		return nil, errors.Join(openError(dir, err), lock.Close())
	}
	return s, nil
}

// open opens Pebble's database behind the guard, checks the store's format or writes that of a new store, and records the version of the program.
// Then the guard starts to hide fatal errors of the disk, and a goroutine to update the mark file, unless the store is [Behind], read-only, or
// without such a file. If Pebble gives up
// by a panic with fatal, that is the error. After other errors the database is closed. If the store is read-only, [ErrCorrupt] that is found after
// Pebble has opened it is logged, and is no error.
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
	po := pebbleOptions(&s.opts)
	if has := s.guard.inspected.format; has != 0 {
		po.FormatMajorVersion = has // until UseNewestFormat
	}
	po.Lock = s.lock.(*pebble.Lock)
	po.FS = s.guard.fs()
	policy := po.Experimental.ValueSeparationPolicy
	po.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		p := policy()
		if s.guard.unsound.Load() || !s.guard.opened.Load() {
			p.TargetGarbageRatio = 1 // nothing is rewritten, see checkRead
		}
		return p
	}
	po.Logger = pebbleLogger{s.opts.Logger}
	po.EventListener = newEventListener(s.opts.Logger)
	po.EventListener.ManifestCreated = func(info pebble.ManifestCreateInfo) {
		if info.Err == nil {
			s.guard.disk.setManifest(s.opts.FS.PathBase(info.Path))
		}
	}
	db, err := pebble.Open(s.dir, po)
	if err != nil {
		return err
	}
	s.db = db
	err = errors.Join(s.checkFormat(), s.startReclaim())
	if err == nil {
		err = s.recordProgram()
	}
	if errors.Is(err, ErrCorrupt) && s.opts.ReadOnly {
		s.opts.Logger.Error("the store is opened although it is damaged", "dir", s.dir, "err", err)
	} else if err != nil {
		return errors.Join(err, s.db.Close())
	}
	s.guard.startGuarding()
	if s.Behind() == nil {
		s.marker = s.startMarker()
	}
	return nil
}

// checkFormat returns [ErrNewer] if a newer Larder wrote the store in a format that this one does not know, [ErrNoStore] if a read-only store has no
// format, and [ErrCorrupt] if the format is malformed. A store without a format that is open for writing is new: then checkFormat writes the present
// format, synced, and moves Pebble's files to its newest format.
func (s *Store) checkFormat() error {
	have, err := s.Get(Meta, formatKey)
	switch {
	case errors.Is(err, ErrNotFound) && !s.opts.ReadOnly: // also where the first start was cut short
		if err := pebbleOf(s).RatchetFormatMajorVersion(pebble.FormatNewest); err != nil {
			return err
		}
		for _, key := range [][]byte{formatKey, rowsKey} {
			if err := pebbleOf(s).Set(Meta.physical(key), []byte{format}, pebble.Sync); err != nil {
				return err
			}
		}
		// Pebble begins the first log of a new store in its oldest format, in which damage
		// looks like what a crash left. The next one has the newest.
		return pebbleOf(s).Flush()
	case errors.Is(err, ErrNotFound):
		return ErrNoStore
	case err != nil:
		return err
	case len(have) != 1 || have[0] < format:
		return fmt.Errorf("%w: its format is %v", ErrCorrupt, have)
	case have[0] > format:
		writer := "a newer larder"
		if program, err := s.Get(Meta, programKey); err == nil {
			writer = "larder " + string(program)
		}
		return newerError(fmt.Sprintf("%d instead of %d", have[0], format), writer)
	}
	return nil
}

// newerError returns an error that wraps [ErrNewer]; which says what format differs, and writer which program wrote the store.
func newerError(which, writer string) error {
	return fmt.Errorf("%w (%s): %s wrote it; use that or a newer one, or restore a backup from before it. No row was changed", ErrNewer, which, writer)
}

// recordProgram stores the version of this program in the store, synced, if it has another one. It does nothing if the store is read-only or
// Options.Program is empty.
func (s *Store) recordProgram() error {
	if s.opts.ReadOnly || s.opts.Program == "" {
		return nil
	}
	have, err := s.Get(Meta, programKey)
	if err == nil && string(have) == s.opts.Program || err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	return pebbleOf(s).Set(Meta.physical(programKey), []byte(s.opts.Program), pebble.Sync)
}

// Damage returns the damage that was found before the store was opened read-only, nil if there was none.
func (s *Store) Damage() *DamageError {
	var damage *DamageError
	errors.As(s.guard.inspected.damageError(), &damage)
	return damage
}

// Behind returns which durable changes, according to its mark file, the store lacked when it was opened; nil if it lacked none, or if it is damaged.
func (s *Store) Behind() *Behind {
	if s.Damage() != nil {
		return nil
	}
	return s.guard.inspected.behind()
}

// openError returns an error for err, which occurred while the store in dir was opened, that names the folder. A full disk, a missing store and a
// newer format of Pebble's files become [ErrDiskFull], [ErrNoStore] and [ErrNewer], in place of err. Damage becomes [ErrCorrupt] and, like any other
// error, wraps err. An err that has a [*DamageError] in it is returned as it is.
func openError(dir string, err error) error {
	var damage *DamageError
	switch {
	case errors.As(err, &damage): // which names the folder
		return err
	case isNoSpace(err):
		return fmt.Errorf("%w: couldn't open the store in %s: free some space on its disk, then start again", ErrDiskFull, dir)
	case errors.Is(err, pebble.ErrDBDoesNotExist), errors.Is(err, ErrNoStore):
		return fmt.Errorf("%w in %s", ErrNoStore, dir)
	case errors.Is(err, ErrCorrupt): // which says so already
		return fmt.Errorf("couldn't open %s: %w", dir, err)
	case pebble.IsCorruptionError(err):
		return fmt.Errorf("%w: couldn't open %s: %w", ErrCorrupt, dir, stripTrace(err))
	case strings.Contains(err.Error(), "unknown format major version"):
		err = newerError("of Pebble's files", "a newer larder")
	}
	return fmt.Errorf("couldn't open the store in %s: %w", dir, err)
}

// lockError returns the error for err, which occurred while the folder dir was locked: [ErrLocked], in place of err, if a process, also this one, has
// the folder open, and that of openError for any other err.
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

// write applies a batch to the database and closes it. It refuses the batch, and closes it too, if a call that built it failed, the store is closed
// or read-only, or its disk nearly full. With [pebble.Sync] it returns when the batch is on the disk, and records that for the mark. An empty batch
// writes and syncs nothing. If the disk fails meanwhile, write returns that error at once and does not close the batch: the write still hangs, and
// the next Open finds the batch as a whole or not at all.
func (s *Store) write(b *Batch, o *pebble.WriteOptions) error {
	batch := pebbleBatch(b)
	if !s.users.enter() {
		return errors.Join(s.closedError(), batch.Close())
	}
	defer s.users.leave()
	err := b.err
	if err == nil {
		err = s.checkWritable(2 * uint64(batch.Len()))
	}
	if err != nil || batch.Empty() {
		return errors.Join(err, batch.Close())
	}
	// If the guard gives up on it, the batch is left to the write, which still holds it.
	err = s.guard.do(func() error {
		err := pebbleOf(s).Apply(batch, o)
		if err == nil && o.Sync {
			s.guard.disk.recordCommitted(uint64(batch.SeqNum()), uint64(batch.Count()))
		}
		return errors.Join(err, batch.Close())
	})
	return s.describeFailure("write to", err)
}

// describeFailure adds to err the operation what, such as "write to", and the folder. It returns nil for nil, and err itself if it is the reason why
// the store has become read-only.
func (s *Store) describeFailure(what string, err error) error {
	if err == nil || err == s.guard.reason() {
		return err
	}
	return fmt.Errorf("couldn't %s the store in %s: %w", what, s.dir, err)
}

// checkWritable returns an error if a write of n bytes must be refused: the store was opened read-only, has become read-only after a disk error, or
// checkRoom refuses it.
func (s *Store) checkWritable(n uint64) error {
	if s.opts.ReadOnly {
		return fmt.Errorf("the store in %s was opened to be read only", s.dir)
	}
	if err := s.guard.reason(); err != nil {
		return err
	}
	return s.checkRoom(n)
}

// checkRoom returns [ErrDiskFull] if the disk cannot hold n bytes, of a batch those in the log and in a table, and keep its reserve of MinFreeBytes;
// another error if the free space cannot be read. It returns nil if MinFreeBytes is negative or the file system does not know its free space.
func (s *Store) checkRoom(n uint64) error {
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
	need := uint64(s.opts.MinFreeBytes) + n
	if usage.AvailBytes < need {
		return fmt.Errorf("%w: the disk that holds %s has %d MiB left and %d are needed: free some space; nothing was lost",
			ErrDiskFull, s.dir, usage.AvailBytes>>20, need>>20)
	}
	return nil
}

// Space returns how many bytes the folder's disk has free and in all, and least, how many must be free for a write, besides twice its own size. With
// an error, free and total are 0. least is 0 if Options.MinFreeBytes is negative.
func (s *Store) Space() (free, total, least int64, err error) {
	usage, err := s.opts.FS.GetDiskUsage(s.dir)
	return int64(usage.AvailBytes), int64(usage.TotalBytes), max(0, s.opts.MinFreeBytes), err
}

// UseNewestFormat makes the store write its files in Pebble's newest format from now on, which an older program may be unable to read. Before the
// call the store keeps its format, so that such a program can open it again. It also starts to move rows of an older layout, in the background.
func (s *Store) UseNewestFormat() error {
	if !s.users.enter() {
		return s.closedError()
	}
	defer s.users.leave()
	if err := s.guard.reason(); err != nil {
		return err
	}
	err := s.guard.do(func() error {
		return pebbleOf(s).RatchetFormatMajorVersion(max(pebble.FormatNewest, pebbleOf(s).FormatMajorVersion()))
	})
	if err == nil {
		s.moveRowsToTables()
	}
	return s.describeFailure("use the newest format for", err)
}

// rowsKey is the row of Meta that says that only contents' bytes are in blob files.
var rowsKey = []byte("rows-in-tables")

// moveRowsToTables starts a compaction in the background, once for a store that an older program wrote: it moves large rows from blob files, where
// only the MANIFEST finds them, into tables. Close cancels it. A failure is logged, and the next start tries again. It does nothing if the store is
// read-only, or if the row rowsKey exists or cannot be read.
func (s *Store) moveRowsToTables() {
	if _, err := s.Get(Meta, rowsKey); !errors.Is(err, ErrNotFound) || s.opts.ReadOnly {
		return
	}
	s.reclaim.wait.Go(func() {
		err := s.guard.do(func() error {
			for _, span := range [][2]byte{{0, byte(Blobs)}, {byte(Blobs) + 1, 0xff}} {
				if err := s.roomToCompact(span[:1], span[1:]); err != nil {
					return err
				}
				// Pebble moves a table that overlaps no other one without reading it. Tombstones of rows that never
				// were make all tables overlap.
				for _, key := range [][]byte{{span[0], 0}, {span[1] - 1, 0xff, 0xff}} {
					if err := pebbleOf(s).Delete(key, pebble.NoSync); err != nil {
						return err
					}
				}
				if err := pebbleOf(s).Compact(s.reclaim.ctx, span[:1], span[1:], false); err != nil {
					return err
				}
			}
			return pebbleOf(s).Set(Meta.physical(rowsKey), nil, pebble.Sync)
		})
		if err != nil && s.reclaim.ctx.Err() == nil {
			s.opts.Logger.Warn("couldn't move all rows into tables; the next start tries again", "dir", s.dir, "err", err)
		}
	})
}

// roomToCompact returns [ErrDiskFull] if the disk has no room for a second copy of the rows between the keys from and to beside its reserve: a
// compaction deletes the old tables only after it has written the new ones. It returns another error if the sizes cannot be read. The keys begin with
// the namespace.
func (s *Store) roomToCompact(from, to []byte) error {
	size, err := pebbleOf(s).EstimateDiskUsage(from, to)
	if err != nil {
		return err
	}
	return s.checkRoom(size)
}

// Failed returns the disk error because of which the store has become read-only, until another process opens it again. It returns nil if there was no
// such error, also for a store that was opened read-only.
func (s *Store) Failed() error { return s.guard.reason() }

// closedError returns an error, without a sentinel, that says that the store is closed and where it is.
func (s *Store) closedError() error {
	return fmt.Errorf("the store in %s is closed", s.dir)
}

// Close refuses new operations with an error, waits for those that are running, cancels compactions, and closes the store and unlocks its folder.
// Everything that was committed is on the disk already; contents that were put since may be. The caller closes snapshots before. A second call
// returns nil.
//
// If the disk has failed, Close returns the error of [Store.Failed], and the folder stays locked until the process ends; the next Open replays the
// log.
func (s *Store) Close() error {
	if !s.users.close() {
		return nil
	}
	s.guard.endWaiting()
	s.repairer.stop()
	s.stopReclaim()
	s.users.wait()
	if s.marker != nil {
		s.marker.done.Wait()
	}
	// If the disk has failed, the process ends without closing Pebble, and the next process replays the log on the disk.
	return s.describeFailure("close", s.guard.do(func() error {
		if s.guard.stuck.Load() { // Pebble would wait for the goroutine
			err := pebbleOf(s).LogData(nil, pebble.Sync)
			s.guard.ended.Store(true)
			return errors.Join(err, s.lock.Close(), s.lock.Close()) // Pebble's part of it, too
		}
		err := s.db.Close()
		if err == nil {
			s.marker.write()
		}
		return errors.Join(err, s.lock.Close())
	}))
}

// users counts the operations under way in a store, so that Close can wait for them: Pebble panics
// when it is used after it was closed.
//
// A read lock would deadlock a scan whose loop reads: while Close waits for the scan, the read
// would wait for Close.
type users struct {
	count  atomic.Int64
	closed atomic.Bool
	idle   chan struct{} // holds one when count may have come to zero after closing
}

// enter counts an operation that starts, and reports whether the store is open. If so, the caller calls leave at the end of the operation; if not, it
// must not use Pebble.
func (u *users) enter() bool {
	u.count.Add(1)
	if u.closed.Load() {
		u.leave()
		return false
	}
	return true
}

// leave counts that an operation has ended. After close, the last one wakes wait.
func (u *users) leave() {
	if u.count.Add(-1) == 0 && u.closed.Load() {
		retry.Wake(u.idle)
	}
}

// close makes enter return false from now on. It reports whether this is the first call.
func (u *users) close() bool { return !u.closed.Swap(true) }

// wait returns when all operations that enter has admitted have ended. It is called after close.
func (u *users) wait() {
	for u.count.Load() > 0 {
		<-u.idle
	}
}

// The errors that callers decide on. They come wrapped with what they concern.
var (
	// ErrNotFound says that a row, a content or a coding of it isn't stored.
	ErrNotFound = errors.New("not found")
	// ErrLocked says that another process, or this one, has the folder open.
	ErrLocked = errors.New("the store is locked")
	// ErrNoStore says that a folder that was opened to be read only is missing or holds no store.
	ErrNoStore = errors.New("there is no store")
	// ErrNewer says that a newer program wrote the store. No row of it was changed.
	ErrNewer = errors.New("its format is newer than what this larder reads")
	// ErrDiskFull says that the disk has no room for a write.
	ErrDiskFull = errors.New("the disk is full")
	// ErrCorrupt says that what is on the disk is not what was written there.
	ErrCorrupt = errors.New("the store is damaged")
)

// isNoSpace reports whether an error says that the disk, or the user's share of it, is full.
func isNoSpace(err error) bool {
	return vfs.IsNoSpaceError(err) || errors.Is(err, syscall.EDQUOT)
}

// stripTrace returns an error that wraps err and whose text is that of err on one line, without Pebble's marker of corruption; nil for nil.
func stripTrace(err error) error {
	if err == nil {
		return nil
	}
	return plainError{err}
}

type plainError struct{ cause error }

// Error returns the text of the cause on one line, without Pebble's marker of corruption.
func (e plainError) Error() string {
	lines := strings.FieldsFunc(e.cause.Error(), func(r rune) bool { return r == '\n' })
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "<corruption detail carrier>" })
	return strings.Join(lines, "; ")
}

// Unwrap returns the cause.
func (e plainError) Unwrap() error { return e.cause }
