package kvstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/batchrepr"
)

// readLog adds the changes of the write-ahead log r to the scan's index, also those after damage, which becomes a gap. A log may be written over an
// older one, of which chunks may be left; each chunk has the number of its log. If the disk cannot read a part, readLog stops and returns that error;
// other errors are those of the index and of ctx.
func (s *FileScan) readLog(ctx context.Context, r *fileReader) error {
	l := &logReader{fileReader: r}
	if filepath.Ext(r.name) == ".log" {
		l.named = fileNumber(r.name)
	}
	for offset := int64(0); offset < r.size; offset += blockSize {
		if err := ctx.Err(); err != nil {
			return err
		}
		b, err := r.read(offset, min(blockSize, r.size-offset))
		if err != nil {
			return err
		}
		if _, log, ok := parseLogChunk(b); ok && offset == 0 {
			l.begins = log
		}
		if err := l.readBlock(b, offset); err != nil {
			return err
		}
	}
	return nil
}

// A logReader puts records together.
type logReader struct {
	*fileReader
	record []byte
	log    uint32 // whose record it is
	inside bool   // whether a record has begun and not ended
	sound  bool   // whether all chunks of it are where Pebble has put them
	newest uint32 // the log that the file is
	named  uint32 // the number in the file's name, 0 if it is not named as a log
	begins uint32 // the log of the chunk that the file begins with, 0 if it begins with none
}

// mayHave reports whether the file can have chunks of the log with this number: it is the file's own, or that of an older log whose file this one
// reuses, so that the log has no file of its own. In every other file, such chunks are bytes that someone has published.
func (l *logReader) mayHave(log uint32) bool {
	if log == 0 || log == l.named || log == l.begins {
		return log != 0
	}
	_, elsewhere := slices.BinarySearch(l.scan.files, fmt.Sprintf("%06d.log", log))
	return log < max(l.named, l.begins) && !elsewhere
}

// readBlock reads the chunks of b, the block of the log at offset, puts them together to records, and adds the changes of each complete record to the
// scan's index. It records a gap where no valid chunk is, unless no record is open and the bytes seem left from an older log than the newest one
// read. It ends at zeros, at a log's trailer, and at a rest that is too short for a chunk.
func (l *logReader) readBlock(b []byte, offset int64) error {
	sound := true // the beginning of a block is one of a chunk
	for at := 0; at < len(b); {
		found, log, ok := parseLogChunk(b[at:])
		if ok {
			if err := l.addChunk(found, log, sound); err != nil {
				return err
			}
			at += found.length
			continue
		}
		if isZero(b[at:]) || len(b)-at < logHeader || isLogTrailer(b[at:]) {
			return nil // the end, or padding
		}
		if log := binary.LittleEndian.Uint32(b[at+legacyHeader:]); log >= l.newest || l.inside {
			l.addGap(offset+int64(at), int64(len(b)-at), 0)
		}
		l.inside = false
		at, sound = nextLogChunk(b, at)
	}
	return nil
}

// nextLogChunk returns the position in b of the next chunk after the damaged one at the position at, len(b) if none exists. sound is true if the
// damaged chunk's length leads there. Otherwise each position is tried, and the chunk may be in the middle of a file that someone has published.
func nextLogChunk(b []byte, at int) (next int, sound bool) {
	if header := (&chunkReader{log: 1}).headerLength(b[at+chunkStart]); header > 0 { // of a log, whichever it is
		next = at + header + int(binary.LittleEndian.Uint16(b[at+4:]))
		if next <= len(b) {
			if _, _, ok := parseLogChunk(b[next:]); ok || len(b)-next < syncedHeader || isZero(b[next:]) {
				return next, true
			}
		}
	}
	for next = at + 1; next < len(b); next++ {
		if _, _, ok := parseLogChunk(b[next:]); ok {
			break
		}
	}
	return next, false
}

// parseLogChunk returns the chunk of a write-ahead log that b begins with, and the log's number, whichever it is. ok is false if there is no valid
// chunk.
func parseLogChunk(b []byte) (found chunk, log uint32, ok bool) {
	if len(b) < logHeader {
		return chunk{}, 0, false
	}
	log = binary.LittleEndian.Uint32(b[legacyHeader:])
	if log == 0 {
		return chunk{}, 0, false
	}
	found, ok = (&chunkReader{log: log}).parse(b)
	return found, log, ok
}

// isLogTrailer reports whether b begins with the trailer of a log that was closed, whatever its number.
func isLogTrailer(b []byte) bool { return isZero(b[:chunkStart]) && b[chunkStart] == 5 }

// addChunk appends a chunk of the log with the given number to the record that it is a part of, and adds the record's changes to the index when it is
// complete. It ignores a chunk that does not continue the open record, which is then lost, and a record over maxBatch bytes. sound says that the
// chunk is where Pebble has put it.
func (l *logReader) addChunk(found chunk, log uint32, sound bool) error {
	switch {
	case found.first:
		l.record, l.inside, l.log, l.sound = l.record[:0], true, log, true
		l.newest = max(l.newest, log)
	case !l.inside || log != l.log:
		l.inside = false
		return nil
	}
	l.sound = l.sound && sound
	l.record = append(l.record, found.payload...)
	if !found.last || len(l.record) > maxBatch {
		return nil
	}
	l.inside = false
	return l.addBatch()
}

// addBatch adds the changes of l.record, a complete record that is a batch, to the scan's index, and ends the open gap. A record without a batch's
// header is ignored. At the first malformed change it stops, without an error; the changes before stay. An error is one of writing the index.
func (l *logReader) addBatch() error {
	h, ok := batchrepr.ReadHeader(l.record)
	if !ok {
		return nil
	}
	l.found++
	l.open = false
	counts := l.sound && l.mayHave(l.log) && l.scan.counted.countsLog(l.log)
	sequence := uint64(h.SeqNum)
	for changes := batchrepr.Read(l.record); ; {
		kind, key, value, ok, err := changes.Next()
		if !ok || err != nil {
			return nil //nolint:nilerr // it has its checksum, and is none of Larder's
		}
		row := rowVersion{key: key, value: value, sequence: sequence, counts: counts, at: location{kind: inIndex, file: l.number}}
		switch kind {
		case kindSet:
		case kindDelete, kindDeleteSized:
			row.deleted, row.value = true, nil
		default:
			continue // a log entry has no sequence number
		}
		sequence++
		if len(key) == 0 {
			continue
		}
		if err := l.scan.addVersion(row); err != nil {
			return err
		}
	}
}

// countedFiles say which files of a store count: those that the MANIFEST names, or else the mark.
type countedFiles struct {
	known  bool
	log    uint32           // the first write-ahead log that is needed
	tables map[string]int64 // their sizes
	sizes  map[int64]bool   // of the tables
	next   uint32           // tables from this number on are newer than the mark; 0 if the sizes are not from a mark with tables
}

// filesThatCount returns which files belong to the last state of the store, according to the MANIFEST if it is reliable, or else to the mark, the
// record of what was durable. If neither says it, known is false, and all files count.
func (l *inspection) filesThatCount() countedFiles {
	f := countedFiles{known: true, sizes: make(map[int64]bool)}
	switch {
	case l.isReliable():
		f.tables, f.log = l.version.tableSizes(), uint32(l.version.log)
	case l.mark.Tables != nil:
		f.tables, f.log = l.mark.Tables, uint32(l.mark.Log)
		for name := range f.tables {
			f.next = max(f.next, fileNumber(name)+1)
		}
	default:
		f.known = false
	}
	for _, size := range f.tables {
		f.sizes[size] = true
	}
	return f
}

// isReliable reports whether the MANIFEST says which files belong to the last state of the store. It does not if it is missing, damaged or older than
// the mark, or if the folder has a table that it does not name, while one that it names is missing or damaged.
func (l *inspection) isReliable() bool {
	if l.manifest == "" || l.version.edits == 0 {
		return false
	}
	for _, f := range slices.Concat(l.findings, l.less) {
		if isManifest(f.File) || f.File == missingMarker {
			return false
		}
	}
	tables := l.version.tableSizes()
	unnamed := slices.ContainsFunc(l.names, func(name string) bool {
		_, named := tables[name]
		return strings.HasSuffix(name, ".sst") && !named
	})
	missing := slices.ContainsFunc(l.findings, func(f Finding) bool { return strings.HasSuffix(f.File, ".sst") })
	return !unnamed || !missing
}

// countsTable reports whether a table counts as one of the last state of the store. It does if any table of that state has its size in
// bytes, whatever its name, because two may have been swapped; if its number is higher than those of all tables in the mark, because it is
// newer; and if nothing is known about that state.
func (f countedFiles) countsTable(name string, size int64) bool {
	return !f.known || f.sizes[size] || f.next > 0 && fileNumber(name) >= f.next
}

// countsLog reports whether the write-ahead log with this number is needed beside the tables; true for all if that is not known.
func (f countedFiles) countsLog(log uint32) bool { return log >= f.log }

// missingFiles returns findings, sorted by name, about files that belong to the last state of the store and are missing or empty: the tables in f,
// and if the MANIFEST is reliable, logs and blob files. there has the sizes of the files that exist, by name.
func (l *inspection) missingFiles(f countedFiles, there map[string]int64) (missing []Finding) {
	for name := range f.tables {
		if there[name] == 0 {
			missing = append(missing, Finding{name, -1, "the file is missing"})
		}
	}
	if l.isReliable() {
		for _, found := range l.findings {
			if found.Offset < 0 && there[found.File] == 0 && (isBlobFile(found.File) || strings.HasSuffix(found.File, ".log")) {
				missing = append(missing, found)
			}
		}
	}
	slices.SortFunc(missing, func(a, b Finding) int { return strings.Compare(a.File, b.File) })
	return missing
}
