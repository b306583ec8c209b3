package kvstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/retry"
)

// mark is what a store is known to have had on its disk. It is kept in a file outside of the
// store's folder, so that a store that has less is noticed: see [Behind]. Each number in it was synced
// before the mark was written, so no crash leaves a store with less.
type mark struct {
	// Sequence is the sequence number of the last change that was committed.
	Sequence uint64 `json:"sequence"`
	// Files has how many bytes the live MANIFEST and each write-ahead log had, by name.
	Files map[string]int64 `json:"files"`
	// Tables has the size of each table that the MANIFEST named, by name, and Log the first write-ahead log that was
	// needed beside them, so that a repair without the MANIFEST knows which files count.
	Tables map[string]int64 `json:"tables,omitempty"`
	Log    uint64           `json:"log,omitempty"`
}

// manifest returns the file name of the MANIFEST that was in use when the mark was written, "" if the mark has none.
func (m mark) manifest() string {
	for name := range m.Files {
		if isManifest(name) {
			return name
		}
	}
	return ""
}

// isManifest reports whether a file with this name is a MANIFEST.
func isManifest(name string) bool { return strings.HasPrefix(name, "MANIFEST-") }

// encode returns the content of the mark's file: one line of JSON, and one with its checksum.
func (m mark) encode() []byte {
	line, err := json.Marshal(m)
	if err != nil {
		panic(err) // it has no type that can't be encoded
	}
	return fmt.Appendf(nil, "%s\n%08x\n", line, checksum(line))
}

// readMark reads the mark of a store, the record of what it has had on its disk, from the file at path. It returns an empty mark if the file does not
// exist. A wrong checksum and malformed JSON are errors without a sentinel.
func readMark(fs vfs.FS, path string) (mark, error) {
	text, err := readFile(fs, path, math.MaxInt64)
	if err != nil || text == nil {
		return mark{}, err
	}
	line, sum, _ := bytes.Cut(text, []byte("\n"))
	var m mark
	if string(sum) != fmt.Sprintf("%08x\n", checksum(line)) {
		return mark{}, errors.New("it does not have its checksum")
	}
	return m, json.Unmarshal(line, &m)
}

// readFile returns the content of the file at path, at most limit bytes of it; nil if the file does not exist.
func readFile(fs vfs.FS, path string, limit int64) ([]byte, error) {
	f, err := fs.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// replaceFile writes content to the file at path, durably and atomically: after a crash it has the old content or the new one. It uses path with
// ".next" as a temporary file, which may stay after an error. If only syncing the folder fails, the file has the new content in spite of the error.
func replaceFile(fs vfs.FS, path string, content []byte) error {
	next := path + ".next"
	f, err := fs.Create(next, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := fs.Rename(next, path); err != nil {
		return err
	}
	return disk.SyncFolder(fs, fs.PathDir(path))
}

// durableState learns, from what Pebble writes and syncs, what the disk has.
type durableState struct {
	sequence atomic.Uint64

	mu       sync.Mutex
	manifest string             // the live one
	files    map[string]*extent // the logs and manifests that were made since the store was opened
}

// extent is how much of a file was written, and of that synced.
type extent struct{ written, synced atomic.Int64 }

// recordCreated records that Pebble created a write-ahead log or MANIFEST, and returns the counters of its written and synced bytes. For files of
// other kinds it returns nil.
func (d *durableState) recordCreated(name string) *extent {
	if !isManifest(name) && !strings.HasSuffix(name, ".log") {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := new(extent)
	d.files[name] = e
	return e
}

// recordRemoved deletes what is recorded about a file that was removed or renamed.
func (d *durableState) recordRemoved(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, name)
}

// setManifest records the name of the MANIFEST that is in use. It is called once the disk has the marker file that names that MANIFEST.
func (d *durableState) setManifest(manifest string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.manifest = manifest
}

// recordCommitted records that a batch of count changes is on the disk, of which the first has the sequence number first. It ignores zero numbers,
// and batches before the last one that it knows.
func (d *durableState) recordCommitted(first, count uint64) {
	if first == 0 || count == 0 {
		return // Pebble empties a batch over half a memtable, and its number with it
	}
	last := first + count - 1
	for {
		before := d.sequence.Load()
		if last <= before || d.sequence.CompareAndSwap(before, last) {
			return
		}
	}
}

// newMark returns a mark with the last committed sequence number, and the synced sizes of the logs and of the live MANIFEST, as far as this process
// has created them and synced a part. Its Tables and Log are empty.
func (d *durableState) newMark() mark {
	m := mark{Sequence: d.sequence.Load(), Files: make(map[string]int64)}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, e := range d.files {
		// A log is in its folder for good before something in it is synced. A MANIFEST
		// counts once it is live.
		if n := e.synced.Load(); n > 0 && (!isManifest(name) || name == d.manifest) {
			m.Files[name] = n
		}
	}
	return m
}

// A marker keeps the mark of a store up to date.
type marker struct {
	store *Store
	last  mark
	stuck bool // whether it could not be written
	done  sync.WaitGroup
}

// KeepMark starts to update the mark file of a store that was opened [Behind] it, with what the store has now. For other stores Open has started
// that, and KeepMark does nothing. Until the call the mark stays, so that the next start reports the same. It must not be called twice.
func (s *Store) KeepMark() {
	if s.Behind() != nil {
		s.marker = s.startMarker()
	}
}

// startMarker starts a goroutine that updates the mark file once a second, if anything has changed, until the store closes. It returns nil if the
// store has no mark file or is read-only.
func (s *Store) startMarker() *marker {
	if s.opts.Mark == "" || s.opts.ReadOnly {
		return nil
	}
	m := &marker{store: s}
	if s.Behind() == nil {
		m.last = s.guard.inspected.mark
	}
	m.done.Go(func() {
		for retry.Sleep(s.reclaim.ctx, s.opts.markEvery) == nil {
			m.write()
		}
	})
	return m
}

// write replaces the mark file if the last committed change, or the synced sizes of the logs and the MANIFEST, have changed since it was last
// written. The mark also has the tables that the MANIFEST names, or those of the mark before if the MANIFEST cannot be read. It logs the first of
// consecutive failures, unless the mark's folder is missing. It does nothing for a nil marker.
func (m *marker) write() {
	if m == nil {
		return
	}
	now := m.store.guard.disk.newMark()
	now.Sequence = max(now.Sequence, m.last.Sequence)
	if name := m.last.manifest(); now.manifest() == "" && name != "" {
		now.Files[name] = m.last.Files[name] // this process has made none yet
	}
	if now.Sequence == m.last.Sequence && maps.Equal(now.Files, m.last.Files) {
		return
	}
	now.Tables, now.Log = m.last.Tables, m.last.Log
	if name := now.manifest(); name != "" && (now.Files[name] != m.last.Files[name] || now.Tables == nil) {
		if v, err := readVersion(m.store.opts.FS, m.store.dir, name, now.Files[name]); err == nil {
			now.Tables, now.Log = v.tableSizes(), v.log
		}
	}
	err := replaceFile(m.store.opts.FS, m.store.opts.Mark, now.encode())
	if err == nil {
		m.last = now
	} else if !m.stuck && !errors.Is(err, os.ErrNotExist) { // its folder may be made later
		m.store.opts.Logger.Warn("couldn't write the mark of the store", "file", m.store.opts.Mark, "err", err)
	}
	m.stuck = err != nil
}
