package replication

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rogpeppe/go-internal/lockedfile"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
)

// BundleOptions say what goes into a bundle.
type BundleOptions struct {
	// Source has the log and the contents. Required.
	Source Source
	// Trust says whose signature the checkpoint must have. Required.
	Trust verify.Trust
	// Since is the size of the log that the reader of the bundle has already.
	Since int64
	// Packages are patterns of the releases whose files go into it, as for [ParseOnly]. Default: all.
	Packages []string
	// Progress, if set, is called after each entry. Both numbers count only the entries from Since on.
	Progress func(entries, of int64)
}

// BundleResult is what was written.
type BundleResult struct {
	Since    int64 `json:"since"`
	Size     int64 `json:"size"` // of the log
	Contents int64 `json:"contents"`
	Bytes    int64 `json:"bytes"` // of the file
	// Cosigned is as of when the checkpoint is vouched to be the newest of its log; zero if nothing says so.
	Cosigned time.Time `json:"cosigned,omitzero"`
	// DeltasMissing counts the deltas that the source has and did not send.
	DeltasMissing int64 `json:"deltasMissing,omitempty"`
	// Resumed counts the bytes that an earlier, interrupted run had written.
	Resumed int64 `json:"resumed,omitempty"`
}

// UnfinishedSuffix ends the name of a bundle that is being written. A run that finds one of the same log, since the same
// size, resumes it: with its checkpoint, after its last complete member.
const UnfinishedSuffix = ".unfinished"

// WriteBundle writes a bundle of the source's log and contents, which it verifies, to a file at path, which appears there when it is complete. It
// makes the same requests to the source as a [Follower]. If it is interrupted, the next call with the same path and options resumes the unfinished
// file beside it. If another process is writing that, WriteBundle waits for it. It returns an error if the path exists.
func WriteBundle(ctx context.Context, path string, o BundleOptions) (BundleResult, error) {
	only, err := ParseOnly(o.Packages)
	if err != nil {
		return BundleResult{}, err
	}
	file, err := openUnfinished(path)
	if err != nil {
		return BundleResult{}, err
	}
	w := &bundleWriter{BundleOptions: o, only: only, file: file, out: bufio.NewWriterSize(file, 1<<20), written: make(map[string]struct{})}
	err = w.write(ctx)
	if err = errors.Join(err, w.out.Flush()); err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	var empty bool
	if err != nil {
		info, unknown := file.Stat()
		if empty = unknown == nil && info.Size() == 0; empty { // removed before the lock is released
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = disk.SyncFolder(vfs.Default, filepath.Dir(path))
	}
	switch {
	case err == nil:
		return w.result, nil
	case empty:
		return w.result, fmt.Errorf("couldn't write the bundle: %w", err)
	}
	return w.result, fmt.Errorf("couldn't write the bundle: %w; run it again to go on with what %s has", err, file.Name())
}

// openUnfinished opens and locks the unfinished file of the bundle at path; it waits for another process that writes it. It returns an error if the
// bundle exists, also if the other process has completed it meanwhile.
func openUnfinished(path string) (*lockedfile.File, error) {
	for {
		if err := checkAbsent(path); err != nil {
			return nil, err
		}
		file, err := lockedfile.OpenFile(path+UnfinishedSuffix, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, fmt.Errorf("couldn't open the unfinished bundle: %w", err)
		}
		locked, err := file.Stat()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("couldn't read the unfinished bundle: %w", err), file.Close())
		}
		named, err := os.Stat(file.Name())
		if err == nil && os.SameFile(locked, named) {
			err = checkAbsent(path)
			if err != nil && locked.Size() == 0 { // opened after the other process had completed the bundle
				err = errors.Join(err, os.Remove(file.Name()))
			}
			if err == nil {
				return file, nil
			}
			return nil, errors.Join(err, file.Close())
		}
		if closed := file.Close(); closed != nil || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("couldn't open the unfinished bundle: %w", errors.Join(err, closed))
		}
	}
}

// checkAbsent returns an error if there is a file at path, or if that cannot be determined.
func checkAbsent(path string) error {
	_, err := os.Lstat(path)
	switch {
	case err == nil:
		return fmt.Errorf("couldn't write the bundle: %s exists already; choose another name", path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("couldn't read whether there is a bundle already: %w", err)
}

type bundleWriter struct {
	BundleOptions
	only    func(pkg, version string) bool
	file    *lockedfile.File
	out     *bufio.Writer
	before  *bundleIndex        // what an earlier run has written
	written map[string]struct{} // names of members, without the suffixes of contents
	result  BundleResult
}

// write writes the bundle to the unfinished file, after what an earlier run has written: first the log, which it verifies, with the proofs of its
// entries, then the contents that the entries need. It calls Progress after each entry.
func (w *bundleWriter) write(ctx context.Context) error {
	resumed, err := w.resume()
	if err != nil {
		return err
	}
	source := &recorder{Source: w.Source, fixed: resumed, paths: map[string]struct{}{}}
	log, err := verify.Open(ctx, verify.Options{Server: w.Source.Name(), Read: source.Get, Trust: w.Trust})
	if err != nil {
		return err
	}
	if w.Since < 0 || w.Since > log.Size() {
		return fmt.Errorf("the log has %d signed entries, so nothing follows the first %d", log.Size(), w.Since)
	}
	w.result.Since, w.result.Size, w.result.Cosigned = w.Since, log.Size(), log.Cosigned()
	withdrawn, err := w.readEntries(ctx, log)
	if err != nil {
		return err
	}
	if err := w.writeLog(ctx, source, log.Size()); err != nil {
		return err
	}
	for e, err := range log.EntriesFrom(ctx, w.Since) {
		if err != nil {
			return err
		}
		if err := w.writeContents(ctx, e, withdrawn); err != nil {
			return fmt.Errorf("entry %d (%s %s %s): %w", e.Index, e.Kind, e.Package, e.Version, err)
		}
		if w.Progress != nil {
			w.Progress(e.Index+1-w.Since, log.Size()-w.Since)
		}
	}
	_, err = w.out.Write(make([]byte, bundleEnd))
	w.result.Bytes += bundleEnd
	return err
}

// readEntries reads every part of the log that a follower with the first Since entries will read, so that the recorder records its path: also the
// entries before Since that change the key. It returns which releases the entries from Since on leave withdrawn.
func (w *bundleWriter) readEntries(ctx context.Context, log *verify.Log) (withdrawals, error) {
	if w.Since > 0 {
		// The follower's root is not known here: this one is only proven by the tiles.
		if err := log.CheckContains(ctx, logs.Checkpoint{Size: w.Since}); verify.OutcomeOf(err) != verify.Differs {
			return nil, err
		}
	}
	for _, c := range log.KeyChanges() { // a follower that has pinned an older key looks them up
		if _, err := log.Entry(ctx, c.Index); err != nil {
			return nil, err
		}
	}
	withdrawn := withdrawals{}
	for e, err := range log.EntriesFrom(ctx, w.Since) {
		if err != nil {
			return nil, err
		}
		withdrawn.add(e)
	}
	return withdrawn, nil
}

// writeLog writes the header and the parts of the log whose paths the recorder has recorded. size is that of the log.
func (w *bundleWriter) writeLog(ctx context.Context, source *recorder, size int64) error {
	var heads [][]byte
	for _, path := range headPaths {
		data, err := source.Get(ctx, path, maxHeader)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		heads = append(heads, data)
	}
	header, err := bundleHeader{Format: bundleFormat, Since: w.Since, Size: size, Packages: w.Packages}.encode(heads...)
	if err == nil {
		err = w.addMember(headerName, header)
	}
	for i, path := range headPaths {
		if err == nil && heads[i] != nil {
			err = w.addMember(path[1:], heads[i])
		}
	}
	if err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(source.paths)) {
		if slices.Contains(headPaths, path) {
			continue
		}
		data, err := source.Get(ctx, path, maxMember)
		if m, ok := w.before.log[path[1:]]; ok && err == nil && m.sum != memberSum(data) {
			err = fmt.Errorf("%s is damaged; delete it", w.file.Name())
		}
		if err == nil {
			err = w.addMember(path[1:], data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeContents fetches from the source, verifies and writes the contents that an entry needs and the bundle does not have yet: those that it names,
// and the files of its release unless it is withdrawn later or not selected.
func (w *bundleWriter) writeContents(ctx context.Context, e logs.Indexed, withdrawn withdrawals) error {
	for _, h := range e.Contents() {
		if err := w.writeContent(ctx, Wanted{Hash: h, Limit: logs.MaxManifest, Entry: e}); err != nil {
			return err
		}
	}
	if !e.Kind.Serves() || withdrawn.leavesOut(e) || w.only != nil && !w.only(e.Package, e.Version) {
		return nil
	}
	data, _, err := Fetch(ctx, w.Source, Wanted{Hash: e.Manifest, Limit: logs.MaxManifest, Entry: e})
	if err != nil {
		return err
	}
	m, err := logs.DecodeManifest(data)
	if err != nil {
		return err
	}
	for i := range m.Files {
		f := &m.Files[i]
		if err := w.writeContent(ctx, Wanted{Hash: f.SHA256, Limit: f.Size, Entry: e, Manifest: m, File: f}); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return nil
}

// writeContent fetches and verifies a content and writes it in the smallest encoding received, after its deltas, unless the bundle has it already.
func (w *bundleWriter) writeContent(ctx context.Context, wanted Wanted) error {
	if _, ok := w.written[contentName(wanted.Hash, coding.Identity)]; ok {
		return nil
	}
	_, found, err := Fetch(ctx, w.Source, wanted)
	if err != nil {
		return err
	}
	smallest := slices.MinFunc(found.Coded, func(a, b kvstore.Coded) int { return len(a.Bytes) - len(b.Bytes) })
	if err := w.writeDeltas(ctx, wanted, found.Dictionaries); err != nil {
		return err
	}
	w.result.Contents++
	return w.addMember(contentName(wanted.Hash, smallest.Coding), smallest.Bytes)
}

// writeDeltas writes the source's deltas of a content against dictionaries. It counts, and leaves out, those that the source fails to send. The
// reader of the bundle verifies them.
func (w *bundleWriter) writeDeltas(ctx context.Context, of Wanted, dictionaries []kvstore.Hash) error {
	source, ok := w.Source.(deltaSource)
	if !ok {
		return nil
	}
	for _, dictionary := range dictionaries {
		delta, err := source.Delta(ctx, of.Hash, dictionary, of.Limit)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			w.result.DeltasMissing++
			continue
		}
		if err := w.addMember(deltaName(of.Hash, dictionary), delta); err != nil {
			return err
		}
	}
	return nil
}

// addMember writes a member with its tar header and padding, unless it was written. A content is written in one encoding only.
func (w *bundleWriter) addMember(name string, data []byte) error {
	if _, ok := w.written[withoutEncoding(name)]; ok {
		return nil
	}
	header, err := memberHeader(name, int64(len(data)), memberSum(data))
	if err != nil {
		return err
	}
	padding := make([]byte, -len(data)&(blockSize-1))
	for _, part := range [][]byte{header, data, padding} {
		if _, err := w.out.Write(part); err != nil {
			return err
		}
		w.result.Bytes += int64(len(part))
	}
	w.written[withoutEncoding(name)] = struct{}{}
	return nil
}

// withoutEncoding returns the name of a member without the suffix of a content's encoding.
func withoutEncoding(name string) string {
	if h, _, ok := parseContentName(name); ok {
		return contentName(h, coding.Identity)
	}
	return name
}

// resume truncates the unfinished file after its last complete member, records in w.written which members it has, and continues there.
// It returns the log's checkpoint that the earlier run used, by its path; nil if the file is started again, since it has other options or too little.
func (w *bundleWriter) resume() (fixed map[string][]byte, err error) {
	info, err := w.file.Stat()
	if err != nil {
		return nil, err
	}
	index, _ := indexBundle(w.file, info.Size()+bundleEnd) // what follows an error is written again
	w.before = index
	checkpoint, unreadable := index.log[checkpointPath[1:]].read(w.file)
	if unreadable == nil && len(index.contents) > 0 && index.header.Since == w.Since && slices.Equal(index.header.Packages, w.Packages) {
		fixed = map[string][]byte{checkpointPath: checkpoint}
		w.written[headerName] = struct{}{}
		for name := range index.log {
			w.written[name] = struct{}{}
		}
		if err := w.resumeContents(); err != nil {
			return nil, err
		}
	} else {
		*index = bundleIndex{}
	}
	if err := w.file.Truncate(index.end); err != nil {
		return nil, err
	}
	_, err = w.file.Seek(index.end, io.SeekStart)
	w.result.Bytes, w.result.Resumed = index.end, index.end
	return fixed, err
}

// resumeContents marks the intact contents and deltas of the unfinished file as written. From the first damaged one on, as after a power failure,
// they are written again.
func (w *bundleWriter) resumeContents() error {
	index := w.before
	members := slices.Concat(index.contents, index.deltas)
	slices.SortFunc(members, func(a, b contentMember) int { return cmp.Compare(a.offset, b.offset) })
	for _, c := range members {
		name, m, err := readMemberHeader(w.file, c.offset)
		if err != nil {
			return err
		}
		_, err = m.read(w.file)
		if errors.Is(err, ErrOther) {
			index.end = c.offset
			return nil
		}
		if err != nil {
			return err
		}
		if strings.HasPrefix(name, contentPrefix) {
			w.result.Contents++
		}
		w.written[withoutEncoding(name)] = struct{}{}
	}
	return nil
}

// A recorder is a source that records which paths of its log are read. Those of fixed have the bytes that they had before.
type recorder struct {
	Source
	fixed map[string][]byte

	mu    sync.Mutex
	paths map[string]struct{}
}

// Get implements [Log]: it returns the fixed bytes of a path if there are any, and else reads it from the source. It records the path, unless that
// failed.
func (r *recorder) Get(ctx context.Context, path string, limit int64) ([]byte, error) {
	data, ok := r.fixed[path]
	if ok {
		data = bytes.Clone(data)
	} else {
		var err error
		if data, err = r.Source.Get(ctx, path, limit); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paths[path] = struct{}{}
	return data, nil
}
