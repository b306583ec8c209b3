package kvstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
)

// DamageError says that a store is damaged. Open has not changed it: opening it for
// writing would delete files that the damaged part no longer names. It is [ErrCorrupt].
type DamageError struct {
	Dir      string
	Findings []Finding
}

// Behind says that a store is sound, and lacks the last changes that its mark says were on
// the disk: the end of a log was cut, or the store is an older copy.
type Behind struct {
	// Marked is the sequence number of the last change that the mark has, and Found the last
	// one that is there.
	Marked, Found uint64
	Findings      []Finding // files that are missing, or had more
}

// String returns the two sequence numbers and the findings on one line.
func (b *Behind) String() string {
	lines := []string{fmt.Sprintf("the last change is number %d, and number %d was on the disk", b.Found, b.Marked)}
	for _, f := range b.Findings {
		lines = append(lines, f.String())
	}
	return strings.Join(lines, "; ")
}

// Finding is one thing that is wrong with a store.
type Finding struct {
	File   string // its name in the store's folder
	Offset int64  // where in the file, or -1 where it is about the whole file
	What   string
}

// String returns the file, the offset if there is one, and the finding on one line.
func (f Finding) String() string {
	if f.Offset < 0 {
		return f.File + ": " + f.What
	}
	return fmt.Sprintf("%s, byte %d: %s", f.File, f.Offset, f.What)
}

// Error returns a message with the folder and the first five findings.
func (e *DamageError) Error() string {
	const most = 5
	var lines []string
	for _, f := range e.Findings[:min(most, len(e.Findings))] {
		lines = append(lines, f.String())
	}
	if more := len(e.Findings) - most; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("the store is damaged and can't be opened for writing: %s: %s; nothing was changed", e.Dir, strings.Join(lines, "; "))
}

// Unwrap returns [ErrCorrupt].
func (e *DamageError) Unwrap() error { return ErrCorrupt }

// inspection is the findings in the files of a stopped store.
type inspection struct {
	fs       vfs.FS
	dir      string
	mark     mark
	names    []string // the files in the folder
	manifest string   // the MANIFEST that counts
	version  *version
	found    uint64                    // the sequence number of the last change
	format   pebble.FormatMajorVersion // of the files; 0 if there are none, or where nothing says it
	findings []Finding
	less     []Finding // what the mark has and the store has not

	// The files that opening read-only leaves out, so that Pebble opens the rest.
	cut     string          // the first log that is damaged, or ""
	sound   int64           // up to where that is sound
	hidden  map[string]bool // files
	missing []string        // blob files
}

// missingMarker is what a finding is about where no file names the MANIFEST.
const missingMarker = "marker.manifest.*"

// inspectFiles reads the MANIFEST and the write-ahead logs of the store in dir, and compares them with the files that exist and with the mark file of
// o. The result has the findings: what is missing that a crash cannot have taken. It has none for a folder that is missing or has no store. It also
// has them with an error, which says that a file could not be examined. That the store has less than its mark counts as damage only if opening it for
// writing would delete files that a newer MANIFEST named; otherwise the store is [Behind].
//
// It changes nothing, and reads no table and no blob file: damage inside of those is [ErrCorrupt] to the caller that reads them. No process may have
// the store open for writing meanwhile.
func inspectFiles(dir string, o Options) (*inspection, error) {
	l := &inspection{fs: o.FS, dir: dir, version: newVersion(), hidden: make(map[string]bool)}
	return l, l.inspectAll(o)
}

// damageError returns a [*DamageError] with all findings, nil if there are none.
func (l *inspection) damageError() error {
	if len(l.findings) == 0 {
		return nil
	}
	return &DamageError{Dir: l.dir, Findings: l.findings}
}

// behind returns what the store lacks compared with its mark file, nil if it lacks nothing.
func (l *inspection) behind() *Behind {
	if l.less == nil && l.found >= l.mark.Sequence {
		return nil
	}
	return &Behind{Marked: l.mark.Sequence, Found: l.found, Findings: l.less}
}

// add adds a finding of damage about a file; offset is -1 if it is about the whole file.
func (l *inspection) add(file string, offset int64, format string, args ...any) {
	l.findings = append(l.findings, Finding{file, offset, fmt.Sprintf(format, args...)})
}

// inspectAll reads the mark and inspects all files; it records what it finds in l. A mark that cannot be read is logged and ignored. The error says
// what could not be examined.
func (l *inspection) inspectAll(o Options) error {
	var err error
	if o.Mark != "" {
		if l.mark, err = readMark(l.fs, o.Mark); err != nil {
			o.Logger.Warn("the mark of the store is of no use", "file", o.Mark, "err", err)
		}
	}
	if l.names, err = l.fs.List(l.dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	desc := &pebble.DBDesc{}
	if err == nil {
		desc, err = pebble.Peek(l.dir, l.fs)
		switch {
		case err != nil && strings.Contains(err.Error(), "unknown format major version"):
			l.mark = mark{}
			return nil // opening says this better, and before it changes anything
		case err != nil:
			l.mark = mark{} // nothing was compared with it
			l.add("marker.*", -1, "%v", err)
			return nil
		}
	}
	if !desc.Exists {
		l.inspectWithoutManifest()
		return nil
	}
	l.format = desc.FormatMajorVersion
	l.manifest = l.fs.PathBase(desc.ManifestFilename)
	l.readManifest(l.manifest)
	if desc.FormatMajorVersion == pebble.FormatDefault && len(l.version.tables) > 0 {
		l.add("marker.format-version.*", -1, "the file is missing")
	}
	damaged := len(l.findings)
	if err := l.inspectFiles(); err != nil {
		return err
	}
	l.inspectLogs()
	if damaged > 0 { // then what it named before says little
		l.findings = l.findings[:damaged]
	}
	l.checkOlder()
	if desc.OptionsFilename != "" {
		l.inspectOptions(l.fs.PathBase(desc.OptionsFilename), o)
	}
	return nil
}

// inspectWithoutManifest handles a folder in which no file names the MANIFEST: it adds a finding if there are other files of a store. A store that is
// being created has none yet.
func (l *inspection) inspectWithoutManifest() {
	for _, name := range l.names {
		if isImmutable(name) || strings.HasSuffix(name, ".log") || strings.HasPrefix(name, "OPTIONS-") {
			l.add(missingMarker, -1, "the file that names the MANIFEST is missing")
			return
		}
	}
}

// open opens a file of the store. If that fails, it adds a finding and returns nil.
func (l *inspection) open(name string) vfs.File {
	f, err := l.fs.Open(l.fs.PathJoin(l.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		l.add(name, -1, "the file is missing")
	} else if err != nil {
		l.add(name, -1, "the file can't be opened: %v", err)
	}
	if err != nil {
		return nil
	}
	return f
}

// readManifest reads the version of the store from the MANIFEST, as far as that is sound. It adds findings about its end, and compares it with the
// mark.
func (l *inspection) readManifest(name string) {
	f := l.open(name)
	if f == nil {
		return
	}
	defer f.Close()
	sound, err := newChunkReader(f, 0).readRecords(0, l.version.applyEdit)
	otherwise := ""
	if l.version.edits == 0 {
		otherwise = "nothing in it can be read"
	}
	l.checkEnd(name, sound, err, otherwise)
	if marked := l.mark.manifest(); len(marked) > len(name) || len(marked) == len(name) && marked > name {
		l.addLess(marked, -1, "%s counts, and this newer one did", name)
	}
}

// addLess records something that the mark has and the store lacks. By itself that makes the store [Behind], not damaged; but checkOlder may turn a
// finding about a MANIFEST into damage.
func (l *inspection) addLess(file string, offset int64, format string, args ...any) {
	l.less = append(l.less, Finding{file, offset, fmt.Sprintf(format, args...)})
}

// checkOlder turns the findings that the MANIFEST is older than the mark into damage if the folder has files that only the newer MANIFEST may have
// named: Pebble would delete them.
func (l *inspection) checkOlder() {
	files := l.version.fileSizes()
	unnamed := slices.ContainsFunc(l.names, func(name string) bool {
		_, named := files[name]
		return isImmutable(name) && !named || name == l.mark.manifest() && l.mark.manifest() != l.manifest
	})
	if !unnamed {
		return
	}
	l.less = slices.DeleteFunc(l.less, func(f Finding) bool {
		manifest := isManifest(f.File)
		if manifest {
			l.findings = append(l.findings, f)
		}
		return manifest
	})
}

// inspectFiles compares the tables and blob files that the MANIFEST names with those in the folder, by name and size, and adds findings about missing
// and different ones. Missing blob files are also listed in l.missing. An error is that of reading the size of a file that exists.
func (l *inspection) inspectFiles() error {
	files := l.version.fileSizes()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		want := files[name]
		info, err := l.fs.Stat(l.fs.PathJoin(l.dir, name))
		switch {
		case errors.Is(err, os.ErrNotExist):
			l.add(name, -1, "the file is missing")
			if isBlobFile(name) {
				l.missing = append(l.missing, name)
			}
		case err != nil:
			return err
		case info.Size() != want:
			l.add(name, -1, "it has %d bytes, and had %d", info.Size(), want)
		}
	}
	return nil
}

// inspectLogs reads the write-ahead logs that are needed beside the tables, and adds findings about missing and damaged ones and gaps between them.
// It sets l.found, and which logs a read-only store leaves out.
func (l *inspection) inspectLogs() {
	var numbers []uint64
	for _, name := range l.names {
		if n, _, ok := wal.ParseLogFilename(name); ok && uint64(n) >= l.version.log {
			numbers = append(numbers, uint64(n))
		}
	}
	slices.Sort(numbers)
	const missing = "the file is missing"
	needed := l.version.log
	// The first edits of a MANIFEST may name a log before it is made.
	if l.version.logEdit > 1 {
		if !slices.Contains(numbers, needed) {
			l.add(logName(needed), -1, missing)
		}
		needed++
	}
	for _, name := range slices.Sorted(maps.Keys(l.mark.Files)) {
		if n, _, ok := wal.ParseLogFilename(name); ok && uint64(n) >= needed && !slices.Contains(numbers, uint64(n)) {
			l.addLess(name, -1, missing)
		}
	}
	for i, n := range numbers {
		name := logName(n)
		if l.cut != "" {
			l.hidden[name] = true
		}
		expected, seen := l.found+1, l.found > 0
		first, sound, ok := l.readLog(name, n, i == len(numbers)-1)
		switch {
		case !ok && l.cut == "":
			l.cut, l.sound = name, sound
		case l.cut != "" || first == 0:
		// Sequence numbers have no gaps between logs, and those below 10 are not used. That of
		// the MANIFEST may be of a change in the first log already.
		case seen && first != expected, !seen && first > max(l.version.sequence, 9)+1:
			l.add(name, 0, "it begins with change %d, and what comes before that is missing", first)
		}
	}
	if l.found == 0 {
		l.found = l.version.sequence
	}
}

// readLog reads the named log with the number n, and adds findings about its end. It returns the number of its first change, 0 without one, the
// offset up to which it is sound, and whether it is sound to its end. latest says that no later log exists, so that a crash may have cut the end. It
// sets l.found to the last change.
func (l *inspection) readLog(name string, n uint64, latest bool) (first uint64, sound int64, ok bool) {
	f := l.open(name)
	if f == nil {
		return 0, 0, false
	}
	defer f.Close()
	sound, err := newChunkReader(f, n).readRecords(batchrepr.HeaderLen, func(record []byte) error {
		h, ok := batchrepr.ReadHeader(record)
		if !ok {
			return errors.New("a record is too short for a change")
		}
		if h.Count > 0 {
			if first == 0 {
				first = uint64(h.SeqNum)
			}
			l.found = uint64(h.SeqNum) + uint64(h.Count) - 1
		}
		return nil
	})
	otherwise := ""
	if err != nil && !latest {
		otherwise = "it ends here without its end, and a later log exists"
	}
	return first, sound, l.checkEnd(name, sound, err, otherwise)
}

// checkEnd adds a finding about the end of a file, which chunkReader.readRecords has read up to the offset sound with the result err: that the disk
// cannot read it on, that a record is damaged, or otherwise the damage that the caller has found, unless that is "". Without damage it returns true,
// and records if the mark says that the file had more.
func (l *inspection) checkEnd(name string, sound int64, err error, otherwise string) (ok bool) {
	var bad *badChunk
	if err != nil && !errors.As(err, &bad) {
		otherwise = fmt.Sprintf("it can't be read on: %v", err)
	} else if bad != nil && bad.damage != "" {
		otherwise = bad.damage
	}
	if otherwise != "" {
		l.add(name, sound, "%s", otherwise)
	} else if marked := l.mark.Files[name]; sound < marked {
		l.addLess(name, sound, "it ends here, and had %d bytes", marked)
	}
	return otherwise == ""
}

// logName returns the name of the write-ahead log with the number n.
func logName(n uint64) string { return fmt.Sprintf("%06d.log", n) }

// inspectOptions checks the OPTIONS file as Pebble does at opening, which refuses a store that was made with other options. It adds a finding, and
// hides the file from a read-only store, if Pebble would refuse it.
func (l *inspection) inspectOptions(name string, o Options) {
	f := l.open(name)
	if f == nil {
		return
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err == nil {
		po := pebbleOptions(&o)
		po.EnsureDefaults()
		err = po.CheckCompatibility(l.dir, string(text))
	}
	if err != nil {
		l.hidden[name] = true
		l.add(name, -1, "%v", stripTrace(err))
	}
}

// CheckTables inspects the store in dir as [Open] does. If that finds no damage, it reads every block of every table that the store needs. Damage
// of either kind is a [*DamageError], which names the damaged tables: a compaction of such a table never succeeds, whatever is written above it. It
// does not read blob files, in which [Store.RestoreContent] replaces damaged contents. It changes nothing. No process may have the store open for
// writing meanwhile.
func CheckTables(ctx context.Context, dir string, o Options) error {
	o.setDefaults()
	l, err := inspectFiles(dir, o)
	if err != nil || len(l.findings) > 0 {
		return cmp.Or(err, l.damageError())
	}
	po := pebbleOptions(&o)
	po.EnsureDefaults()
	options := po.MakeReaderOptions()
	for _, name := range slices.Sorted(maps.Keys(l.version.tableSizes())) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := checkTable(ctx, o, o.FS.PathJoin(dir, name), options); err != nil {
			l.add(name, -1, "%v", stripTrace(err))
		}
	}
	return l.damageError()
}

// checkTable reads all blocks of the table at path and returns an error if one does not have its checksum, or the table cannot be opened.
func checkTable(ctx context.Context, o Options, path string, options sstable.ReaderOptions) error {
	r, err := openTable(ctx, o.FS, path, options)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.ValidateBlockChecksums()
}

// openTable opens the table at path for reading. It reads only the end of the file; blocks follow later. The caller closes the result, which closes
// the file.
func openTable(ctx context.Context, fs vfs.FS, path string, options sstable.ReaderOptions) (*sstable.Reader, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return sstable.NewReader(ctx, readable, options) // which closes readable if it fails
}

// isImmutable reports whether the name of a file is that of a table or blob file, which are never changed once they are written.
func isImmutable(name string) bool {
	return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
}
