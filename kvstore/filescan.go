package kvstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// A FileScan has what can be read of the files in a store's folder, without the MANIFEST: [ScanFiles].
//
// It keeps an index of its own in a scratch folder. A row of the index begins with one of these:
//
//	r  a version of a row, from a file that counts: namespace, hash of the key, newest first
//	x  the same, from a file that does not count or may be forged: only for what the caller can verify
//	h  that a content may be had by decoding a value: hash of the content, coding, hash of the value
//	n  that a row of h names a value: hash of the value
//	v  where a value is: hash of the value
type FileScan struct {
	fs      vfs.FS
	dir     string
	files   []string // by their number in a location
	counted countedFiles
	options any                // the sstable.ReaderOptions of its tables: see handle
	rows    map[Namespace]bool // those of which rows are kept

	lock    io.Closer // of the folder; nil if the caller has the store open
	index   handle    // a *pebble.DB, see indexOf
	scratch string
	batch   handle // a *pebble.Batch, see changesOf

	gaps []Gap

	unread atomic.Pointer[error] // the first error of reading the index

	identifying sync.Mutex // is held while values that no row names are decoded
	identified  bool
}

// A Gap is a part of a file that cannot be read.
type Gap struct {
	Finding
	// From and To are the first and the last namespace of which rows may have been there.
	From, To Namespace
}

// Concerns reports whether rows of the namespace ns may have been in the part of the file that cannot be read.
func (g Gap) Concerns(ns Namespace) bool { return g.From <= ns && ns <= g.To }

// ErrUndecided is that of a row of which two different versions have the same sequence number, such as in files of two stores.
var ErrUndecided = errors.New("there are two versions of a row, and nothing says which is newer")

// ScanFiles reads every table, blob file and write-ahead log in the folder dir of a damaged store, whether the MANIFEST names it or not. It builds an
// index of the rows of the namespaces in rows, and of where each content is. It calls progress, which must not be nil, with the bytes read and their
// total after each file. Damaged parts of files are no error: [FileScan.Gaps] has them. Besides the lock, it writes only into a new folder in
// scratch, "" being the system's folder for temporary files. The caller closes the scan, which removes that folder; after an error ScanFiles has
// removed it.
//
// It locks the folder dir until [FileScan.Close], and returns [ErrLocked] if a process has the store open. With [Options.ReadOnly], which says that
// this process has it open, read-only, it takes no lock.
func ScanFiles(ctx context.Context, dir, scratch string, o Options, rows []Namespace, progress func(done, of int64)) (_ *FileScan, err error) {
	o.setDefaults()
	s := &FileScan{fs: o.FS, dir: dir, rows: make(map[Namespace]bool)}
	for _, ns := range rows {
		s.rows[ns] = true
	}
	if _, err := o.FS.Stat(dir); err != nil {
		return nil, err
	}
	if !o.ReadOnly {
		if s.lock, err = lockFolder(dir, o); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	l, err := inspectFiles(dir, o)
	if err != nil {
		return nil, err
	}
	s.counted = l.filesThatCount()
	po := pebbleOptions(&o)
	po.EnsureDefaults()
	s.options = po.MakeReaderOptions()
	scratch = cmp.Or(scratch, os.TempDir())
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, fmt.Errorf("couldn't create a folder for the index of what the damaged store has: %w", err)
	}
	if s.scratch, err = os.MkdirTemp(scratch, "scan-"); err != nil {
		return nil, fmt.Errorf("couldn't create a folder for the index of what the damaged store has: %w", err)
	}
	index := pebbleOptions(&Options{CacheBytes: 16 << 20, MemTableBytes: 8 << 20})
	index.DisableWAL, index.Logger, index.Experimental.ValueSeparationPolicy = true, pebbleLogger{o.Logger}, nil
	db, err := pebble.Open(s.scratch, index)
	if err != nil {
		return nil, fmt.Errorf("couldn't create an index of what the damaged store has: %w", err)
	}
	s.index, s.batch = db, db.NewBatch()
	if err := s.readFiles(ctx, l, progress); err != nil {
		return nil, fmt.Errorf("couldn't read the files of the damaged store in %s: %w", dir, err)
	}
	return s, s.commit()
}

// readFiles reads all files that the inspection l has listed into the index, except empty ones and those whose size cannot be read. It records a gap
// for each file that belongs to the last state of the store and is missing or empty. It calls progress after each file.
func (s *FileScan) readFiles(ctx context.Context, l *inspection, progress func(done, of int64)) error {
	sizes := make(map[string]int64, len(l.names))
	var done, all int64
	for _, name := range l.names {
		info, err := s.fs.Stat(s.fs.PathJoin(s.dir, name))
		if err == nil && !info.IsDir() && info.Size() > 0 {
			sizes[name] = info.Size()
			all += info.Size()
			s.files = append(s.files, name)
		}
	}
	slices.Sort(s.files)
	for number, name := range s.files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.readFile(ctx, number, name, sizes[name]); err != nil {
			return err
		}
		done += sizes[name]
		progress(done, all)
	}
	for _, f := range l.missingFiles(s.counted, sizes) {
		gap := Gap{f, 0, math.MaxUint8}
		if isBlobFile(f.File) {
			gap.From, gap.To = Blobs, Blobs
		}
		s.gaps = append(s.gaps, gap)
	}
	return nil
}

// readFile reads a file as the kind of file that its last bytes or else its name says. If it finds nothing, it reads the file as the other kinds: two
// files may have been swapped. number is the file's index in s.files. A file that cannot be opened, and damage in a table, blob file or log by its
// name, become gaps, not an error. An error is one of the index, of ctx, or of the disk while a log or a table without its own index is read.
func (s *FileScan) readFile(ctx context.Context, number int, name string, size int64) error {
	f, err := s.fs.Open(s.fs.PathJoin(s.dir, name))
	if err != nil {
		s.gaps = append(s.gaps, Gap{Finding{name, -1, fmt.Sprintf("the file can't be opened: %v", err)}, 0, math.MaxUint8})
		return nil
	}
	defer f.Close()
	type kind struct {
		extension string
		magic     string // the bytes with which such files end; "" for none
		read      func(context.Context, *fileReader) error
	}
	kinds := []kind{{".sst", "\U0001fab3\U0001fab3", s.readTable}, {".log", "", s.readLog}, {".blob", "\U0001fab3\U0001f980", s.readBlobFile}}
	named := slices.IndexFunc(kinds, func(k kind) bool { return k.extension == filepath.Ext(name) })
	first := max(named, 0)
	end := make([]byte, min(8, size))
	if _, err := f.ReadAt(end, size-int64(len(end))); err == nil || err == io.EOF {
		if i := slices.IndexFunc(kinds, func(k kind) bool { return k.magic == string(end) }); i >= 0 {
			first = i
		}
	}
	kinds[0], kinds[first] = kinds[first], kinds[0]
	var gaps []Gap
	for i, kind := range kinds {
		r := &fileReader{File: f, scan: s, number: number, name: name, size: size, last: 0}
		if err := kind.read(ctx, r); err != nil {
			return err
		}
		if i == 0 || r.found > 0 {
			gaps = r.gaps
		}
		if r.found > 0 {
			break
		}
	}
	if named >= 0 {
		s.gaps = append(s.gaps, gaps...)
	}
	return nil
}

// A fileReader reads one file.
type fileReader struct {
	vfs.File
	scan   *FileScan
	number int // of the file
	name   string
	size   int64
	found  int       // blocks or records
	last   Namespace // of the last key
	gaps   []Gap
	open   bool // whether the last gap goes on to the next key

	window []byte // read ahead
	ahead  int64  // where it begins
}

// addGap begins a gap in the file: length bytes from offset on cannot be read, and rows of namespaces from the given one on may have been there. The
// gap reaches to the highest namespace, unless recordRow ends it earlier. If a gap is open, addGap does nothing, because the bytes belong to that
// one.
func (r *fileReader) addGap(offset, length int64, from Namespace) {
	if r.open && len(r.gaps) > 0 {
		return // it is part of the one before
	}
	r.open = true
	r.gaps = append(r.gaps, Gap{Finding{r.name, offset, fmt.Sprintf("%d bytes from here on cannot be read", length)}, from, math.MaxUint8})
}

// recordRow records that a row of a table with this key was read. The open gap, if there is one, ends with the namespace of the key, inclusive, and
// the next gap begins at it. It is called for every row, in the order of the file, and ignores an empty key.
func (r *fileReader) recordRow(key []byte) {
	if len(key) == 0 {
		return
	}
	if r.open {
		r.gaps[len(r.gaps)-1].To = Namespace(key[0])
		r.open = false
	}
	r.last = Namespace(key[0])
}

// read returns length bytes of the file at offset, in new memory. If they are not all there, it returns an error.
func (r *fileReader) read(offset, length int64) ([]byte, error) {
	if offset < 0 || length < 0 || offset+length > r.size {
		return nil, io.ErrUnexpectedEOF
	}
	buf := make([]byte, length)
	n, err := r.ReadAt(buf, offset)
	if int64(n) == length {
		err = nil
	}
	return buf, err
}

// A rowVersion is one version of a row.
type rowVersion struct {
	key, value []byte
	sequence   uint64
	deleted    bool
	counts     bool     // whether it comes from a file that counts, and is where Pebble has put it
	at         location // of the value
}

// location is where a value is.
type location struct {
	kind           byte // inBlobFile, inTable, or inIndex: behind this byte in the index itself
	file           int
	offset, length int64 // of the block, with its trailer
	row            int
}

const (
	inIndex = iota
	inBlobFile
	inTable
)

// encode returns the location as bytes, of variable length, for the index; see decodeLocation.
func (l location) encode() []byte {
	b := []byte{l.kind}
	for _, n := range []int64{int64(l.file), l.offset, l.length, int64(l.row)} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// decodeLocation is the inverse of [location.encode]: it returns the location that b begins with. b must not be empty. If b is cut short, the result
// means nothing.
func decodeLocation(b []byte) (l location) {
	d := decoder{row: b[1:]}
	return location{b[0], int(d.number()), d.length(), d.length(), int(d.number())}
}

// addVersion adds a version of a row to the index, if the scan keeps rows of its namespace; its key begins with the namespace, and is not empty. For
// rows of [Blobs] and [Contents] it records where contents may be found instead. Of these it ignores deletions, malformed rows and the bytes of
// deltas, and values in blob files, which readBlobFile records. It verifies nothing. An error is one of writing the index.
func (s *FileScan) addVersion(v rowVersion) error {
	ns, key := Namespace(v.key[0]), v.key[1:]
	switch {
	case ns == Blobs:
		if v.deleted || v.at.kind == inBlobFile || len(key) != len(Hash{})+1 {
			return nil
		}
		sum := Sum(v.value)
		s.addName(Hash(key[:len(Hash{})]), coding.Coding(key[len(Hash{})]), sum, false)
		return s.addLocation(sum, v.at, v.value)
	case ns == Contents:
		if v.deleted || len(key) != len(Hash{}) {
			return nil
		}
		content, err := decodeContent(v.value)
		if err != nil {
			return nil //nolint:nilerr // the blobs are identified by their bytes
		}
		for _, r := range content.Representations {
			s.addName(Hash(key), r.Coding, r.Sum, content.Squeezed)
		}
		return s.flushIfLarge()
	case !s.rows[ns]:
		return nil
	}
	row := []byte{'x'}
	if v.counts {
		row[0] = 'r'
	}
	row = append(rowPrefix(row[0], v.key), binary.BigEndian.AppendUint64(nil, math.MaxUint64-v.sequence)...)
	row = binary.BigEndian.AppendUint32(row, math.MaxUint32-fileNumber(s.files[v.at.file]))
	value := []byte{0}
	if !v.deleted {
		value[0] = 1
	}
	value = append(binary.AppendUvarint(value, uint64(len(v.key))), v.key...)
	value = append(value, v.value...)
	digest := sha256.Sum256(value) // so that two stores' versions do not hide each other
	if err := changesOf(s).Set(append(row, digest[:8]...), value, nil); err != nil {
		return err
	}
	return s.flushIfLarge()
}

// rowPrefix returns the prefix that the keys of all versions of a row have in the index. class is 'r' for versions from files that belong to the last
// state of the store, or 'x' for others; key begins with the namespace.
func rowPrefix(class byte, key []byte) []byte {
	digest := sha256.Sum256(key)
	return append([]byte{class, key[0]}, digest[:16]...)
}

const versionSuffix = 8 + 4 + 8 // of the sequence number, the file's number and the digest

// fileNumber returns the number at the beginning of a file's name, 0 if it has none.
func fileNumber(name string) (n uint32) {
	_, _ = fmt.Sscanf(name, "%d.", &n)
	return n
}

// addName records in the index that the value with the given hash may be the content h in the encoding c. squeezed says that the content was stored
// as having its best encodings.
func (s *FileScan) addName(h Hash, c coding.Coding, value Hash, squeezed bool) {
	key := slices.Concat([]byte{'h'}, h[:], []byte{byte(c)}, value[:])
	flag := []byte{0}
	if squeezed {
		flag[0] = 1
	}
	_ = changesOf(s).Set(key, flag, nil) // of a batch that is not committed
	_ = changesOf(s).Set(append([]byte{'n'}, value[:]...), nil, nil)
}

// addLocation records in the index where the value with the hash sum is, in place of a location that was recorded before. For a location in the
// index, value is stored there; otherwise it is ignored.
func (s *FileScan) addLocation(sum Hash, at location, value []byte) error {
	where := at.encode()
	if at.kind == inIndex {
		where = append([]byte{inIndex}, value...)
	}
	if err := changesOf(s).Set(append([]byte{'v'}, sum[:]...), where, nil); err != nil {
		return err
	}
	return s.flushIfLarge()
}

// indexOf returns the index of s as a Pebble database. It is a function, so that the methods of s do not mention Pebble's types: see handle.
func indexOf(s *FileScan) *pebble.DB { return s.index.(*pebble.DB) }

// changesOf returns the batch of changes of the index that s has gathered and not yet written.
func changesOf(s *FileScan) *pebble.Batch { return s.batch.(*pebble.Batch) }

// flushIfLarge writes the gathered changes to the index if they have 4 MiB or more.
func (s *FileScan) flushIfLarge() error {
	if changesOf(s).Len() < 4<<20 {
		return nil
	}
	return s.commit()
}

// commit writes the gathered changes to the index, and starts a new batch, also after an error, when they are lost.
func (s *FileScan) commit() error {
	err := changesOf(s).Commit(pebble.NoSync)
	err = errors.Join(err, s.batch.Close())
	s.batch = indexOf(s).NewBatch()
	if err != nil {
		return fmt.Errorf("couldn't write the index of what the damaged store has: %w", err)
	}
	return nil
}

// Close closes and deletes the index, and unlocks the store's folder. It must be called once only.
func (s *FileScan) Close() (err error) {
	if s.lock != nil {
		defer func() { err = errors.Join(err, s.lock.Close()) }()
	}
	if s.batch != nil {
		err = s.batch.Close()
	}
	if s.index != nil {
		err = errors.Join(err, s.index.Close())
	}
	if s.scratch == "" {
		return err
	}
	return errors.Join(err, os.RemoveAll(s.scratch))
}

// Gaps returns the parts of files that cannot be read, and the files of the last state of the store that are missing or empty; nil if there are none.
// The caller must not change the slice.
func (s *FileScan) Gaps() []Gap { return s.gaps }

// Uncertain reports whether it is unknown which files belonged to the last state of the store, because neither MANIFEST nor mark says it, so that the
// scan may return deleted rows.
func (s *FileScan) Uncertain() bool { return !s.counted.known }

// Values yields all values of a row that were found in any file, without deletions: first those of files that belong to the last state of the store,
// newest first, then those of other files, newest first. They may be old, deleted since, or forged: the caller verifies them. Each is valid until the
// next step. It reads the scan's index, and yields nothing for namespaces that ScanFiles was not given. If the index cannot be read on,
// it ends, and [FileScan.Err] says so afterwards; [FileScan.Gaps] has the parts of files that could not be read.
func (s *FileScan) Values(ns Namespace, key []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, class := range []byte{'r', 'x'} {
			prefix := rowPrefix(class, ns.physical(key))
			for _, value := range s.scanIndex(prefix) {
				if _, row, ok := splitVersion(value); ok && !yield(row) {
					return
				}
			}
		}
	}
}

// Count returns how many versions of rows of a namespace were found in any file, deletions included; 0 for a namespace of which the scan keeps no
// rows. [FileScan.Err] says afterwards whether all could be read.
func (s *FileScan) Count(ns Namespace) (n int64) {
	for _, class := range []byte{'r', 'x'} {
		for range s.scanIndex([]byte{class, byte(ns)}) {
			n++
		}
	}
	return n
}

// Get implements [Getter]. It returns a copy of the newest value of a row among files that belong to the last state of the store, or [ErrNotFound],
// also if the newest version is a deletion. Of versions with the same sequence number, it takes the one in the file with the highest number. Another
// error is that of reading the scan's index.
func (s *FileScan) Get(ns Namespace, key []byte) ([]byte, error) {
	for _, value := range s.scanIndex(rowPrefix('r', ns.physical(key))) {
		if _, row, ok := splitVersion(value); ok {
			return bytes.Clone(row), nil
		}
		break // it was deleted
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	return nil, ErrNotFound
}

// scanIndex yields the rows of the index whose keys begin with prefix; they are valid until the next step. If they cannot all be read, [FileScan.Err]
// says so afterwards.
func (s *FileScan) scanIndex(prefix []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		it, err := openIterator(s.index, prefix, prefixSuccessor(prefix))
		if err != nil {
			s.recordFailure(err)
			return
		}
		defer it.Close()
		for ok := it.First(); ok; ok = it.Next() {
			value, err := it.ValueAndErr()
			if err != nil {
				s.recordFailure(err)
				return
			}
			if !yield(it.Key(), value) {
				return
			}
		}
		if err := it.Error(); err != nil {
			s.recordFailure(err)
		}
	}
}

// recordFailure records err, which must not be nil, as the error of reading the index that [FileScan.Err] returns, unless it has one already.
func (s *FileScan) recordFailure(err error) {
	err = fmt.Errorf("couldn't read the index of what the damaged store has: %w", err)
	s.unread.CompareAndSwap(nil, &err)
}

// Err returns the first error of reading the index, nil if there was none. After an error, rows and contents that were not found may exist: run the
// scan again.
func (s *FileScan) Err() error {
	if err := s.unread.Load(); err != nil {
		return *err
	}
	return nil
}

// splitVersion splits a value of the index, which addVersion has written, into the row's key, with the namespace, and the row's value. ok is false if
// this version is a deletion.
func splitVersion(value []byte) (key, row []byte, ok bool) {
	n, used := binary.Uvarint(value[1:])
	rest := value[1+used:]
	return rest[:n], rest[n:], value[0] == 1
}

// Rows yields the newest version of each row of a namespace, in no order, among files that belong to the last state of the store. It leaves out rows
// whose newest version is a deletion. If another value, or a deletion, has the sequence number of the newest, it yields one of the values with
// [ErrUndecided] and continues; but for the number 0, which compactions give, the version in the file with the highest number is taken. Another error
// is the last thing it yields, without a row.
func (s *FileScan) Rows(ctx context.Context, ns Namespace) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		var group []byte  // what the versions of the row begin with
		var newest []byte // the sequence number of the first of them
		var pending Item  // the newest version of the row
		var decided error // why the row has none
		send := func() bool {
			return pending.Key == nil || yield(pending, decided)
		}
		for key, value := range s.scanIndex([]byte{'r', byte(ns)}) {
			if err := ctx.Err(); err != nil {
				yield(Item{}, err)
				return
			}
			version := key[:len(key)-versionSuffix]
			sequence := key[len(version) : len(version)+8]
			physical, row, there := splitVersion(value)
			if bytes.Equal(version, group) {
				// Compactions give rows of the last level the sequence number 0: then the newer file counts.
				differs := there != (pending.Key != nil) || there && !bytes.Equal(row, pending.Value)
				if differs && bytes.Equal(sequence, newest) && !bytes.Equal(sequence, oldest) {
					decided = ErrUndecided
					if pending.Key == nil { // the first version is a deletion
						pending = Item{bytes.Clone(physical[1:]), bytes.Clone(row)}
					}
				}
				continue
			}
			if !send() {
				return
			}
			group, newest, pending, decided = bytes.Clone(version), bytes.Clone(sequence), Item{}, nil
			if there {
				pending = Item{bytes.Clone(physical[1:]), bytes.Clone(row)}
			}
		}
		if err := s.Err(); err != nil { // a newer version of the pending row may be unread
			yield(Item{}, err)
			return
		}
		send()
	}
}

// oldest is the sequence number 0 in the index.
var oldest = bytes.Repeat([]byte{0xff}, 8)
