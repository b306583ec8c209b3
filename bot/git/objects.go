package git

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"golang.org/x/sync/semaphore"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/packages/archive"
)

// The bounds of a pack. Its own length is Options.PackBytes.
const (
	maxObjects  = 200_000   // files, folders, commits
	maxObject   = 100 << 20 // bytes of one, unpacked; GitHub takes no larger ones either
	maxUnpacked = 2 << 30   // bytes of all, unpacked
	maxDepth    = 250       // objects that one is built on; git itself makes 50
	baseCache   = 32 << 20  // bytes of objects in memory that others are built on
)

// An objectReader returns the object with a hash.
type objectReader func(plumbing.Hash) (plumbing.EncodedObject, error)

// A pack is a git pack in a file without a name. It has a slot until leave is called.
type pack struct {
	file *os.File
	*packfile.Packfile
	leave func()
}

// close closes the file of the pack, which deletes it, and releases the slot unless leave was called already.
func (p *pack) close() {
	p.file.Close()
	p.leave()
}

// receivePack reads an untrusted pack from r into a nameless file in the folder dir. Then it waits for a slot of slots, which
// limit how many packs are parsed and read at a time, because that takes memory; a download takes none, because a slow host would keep
// all others from publishing. It checks the pack against the limits, and parses it. The caller closes the pack.
func receivePack(ctx context.Context, r io.Reader, dir string, slots *semaphore.Weighted) (_ *pack, err error) {
	file, err := os.CreateTemp(dir, "download-*.pack")
	if err != nil {
		return nil, fetch.NewLocalError(err)
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	if err := os.Remove(file.Name()); err != nil {
		return nil, fetch.NewLocalError(err)
	}
	if _, err := io.Copy(fetch.LocalWriter(file), r); err != nil {
		return nil, err
	}
	if slots.Acquire(ctx, 1) != nil {
		return nil, context.Cause(ctx)
	}
	leave := sync.OnceFunc(func() { slots.Release(1) })
	defer func() {
		if err != nil {
			leave()
		}
	}()
	if err := checkPack(ctx, file); err != nil {
		return nil, err
	}
	index := new(idxfile.Writer)
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, fetch.NewLocalError(err)
	}
	parser, err := packfile.NewParser(packfile.NewScanner(file), index, canceller{ctx})
	if err != nil {
		return nil, err
	}
	if _, err := parser.Parse(); err != nil {
		return nil, classifyPackError(ctx, err)
	}
	found, err := index.Index()
	if err != nil {
		return nil, classifyPackError(ctx, err)
	}
	return &pack{file, packfile.NewPackfileWithCache(found, nil, packFile{file}, cache.NewObjectLRU(baseCache), 0), leave}, nil
}

// classifyPackError returns the error for err, an error of parsing a pack: the cause for which ctx ended if it has,
// a *[fetch.LocalError] if the pack's file could not be used, else a *[RefusedError].
func classifyPackError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, new(*os.PathError)):
		return fetch.NewLocalError(err)
	}
	return refusef("the pack is malformed: %.200v", err)
}

// checkPack reads a pack from beginning to end without resolving deltas, and refuses one that could exceed the limits: a few
// bytes can state that they unpack to a gigabyte, or that they are a delta of thousands of others.
func checkPack(ctx context.Context, file *os.File) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fetch.NewLocalError(err)
	}
	scanner := packfile.NewScanner(file)
	_, count, err := scanner.Header()
	if err != nil {
		return classifyPackError(ctx, err)
	}
	if count > maxObjects {
		return refusef("the pack has %d objects, over the limit of %d", count, maxObjects)
	}
	depths := make(map[int64]int, count)
	var total int64
	for range count {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h, err := scanner.NextObjectHeader()
		if err != nil {
			return classifyPackError(ctx, err)
		}
		if h.Length > maxObject {
			return refusef("the pack has an object of %d bytes, over the limit of %d", h.Length, maxObject)
		}
		head := &headWriter{most: 2 * binary.MaxVarintLen64}
		if n, _, err := scanner.NextObject(head); err != nil {
			return classifyPackError(ctx, err)
		} else if n != h.Length {
			return refusef("the pack is malformed: an object of %d bytes says that it has %d", n, h.Length)
		}
		size := h.Length
		switch h.Type {
		case plumbing.REFDeltaObject:
			return refusef("the pack has objects that are built on others by their hashes, which was not asked for")
		case plumbing.OFSDeltaObject:
			base, ok := depths[h.OffsetReference]
			if !ok || base >= maxDepth {
				return refusef("the pack has an object that is built on more than %d others, or on none", maxDepth)
			}
			depths[h.Offset] = base + 1
			if size, err = deltaSize(head.data); err != nil {
				return err
			}
			total += h.Length
		default:
			depths[h.Offset] = 0
		}
		if total += size; size > maxObject || total > maxUnpacked {
			return refusef("the pack has objects of over %d bytes, or of over %d in all", maxObject, maxUnpacked)
		}
	}
	return nil
}

// deltaSize returns the size in bytes of the object that a delta results in: the second number in the delta, after the size of
// its base (gitformat-pack, "Deltified representation").
func deltaSize(delta []byte) (int64, error) {
	_, n := binary.Uvarint(delta)
	if n <= 0 {
		return 0, refusef("the pack is malformed: a delta without sizes")
	}
	size, n := binary.Uvarint(delta[n:])
	if n <= 0 || size > maxUnpacked {
		return 0, refusef("the pack is malformed, or has an object of over %d bytes", maxUnpacked)
	}
	return int64(size), nil
}

// A headWriter keeps the first bytes that are written to it, and discards the others.
type headWriter struct {
	most int
	data []byte
}

// Write implements [io.Writer]. It stores p as far as the first most bytes go, and never fails.
func (h *headWriter) Write(p []byte) (int, error) {
	h.data = append(h.data, p[:min(len(p), h.most-len(h.data))]...)
	return len(p), nil
}

// A canceller is an observer of a pack's parser, and ends parsing when its context ends.
type canceller struct{ ctx context.Context }

// OnHeader implements [packfile.Observer]. Like the other methods it returns the error of the context, nil before that ends; an
// error ends the parsing of the pack.
func (c canceller) OnHeader(uint32) error { return c.ctx.Err() }

// OnInflatedObjectHeader implements [packfile.Observer]. It returns the error of the context, which ends parsing.
func (c canceller) OnInflatedObjectHeader(plumbing.ObjectType, int64, int64) error {
	return c.ctx.Err()
}

// OnInflatedObjectContent implements [packfile.Observer]. It returns the error of the context, which ends parsing.
func (c canceller) OnInflatedObjectContent(plumbing.Hash, int64, uint32, []byte) error {
	return c.ctx.Err()
}

// OnFooter implements [packfile.Observer]. It returns the error of the context, which ends parsing.
func (c canceller) OnFooter(plumbing.Hash) error { return c.ctx.Err() }

// A packFile is a file with the methods that go-git requires.
type packFile struct{ *os.File }

// Lock does nothing: only one goroutine has the file.
func (packFile) Lock() error { return nil }

// Unlock does nothing, like Lock.
func (packFile) Unlock() error { return nil }

// readObject returns the content of an object of type want. The error is a *[RefusedError] if get does not find the object, if it
// has another type or more than maxObject bytes, or if it cannot be unpacked.
func readObject(get objectReader, hash plumbing.Hash, want plumbing.ObjectType) ([]byte, error) {
	o, err := get(hash)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return nil, refusef("the repository did not send the object %s", hash)
	}
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", hash, err)
	}
	if o.Type() != want {
		return nil, refusef("the object %s is a %s where a %s belongs", hash, o.Type(), want)
	}
	r, err := o.Reader()
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", hash, err)
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(r, maxObject+1)); err != nil {
		return nil, refusef("the object %s cannot be read: %.200v", hash, err)
	}
	if b.Len() > maxObject {
		return nil, refusef("the object %s has over %d bytes", hash, maxObject)
	}
	return b.Bytes(), nil
}

// folderOf returns the path of the folder in which f was opened, for further files beside it.
func folderOf(f *os.File) string { return filepath.Dir(f.Name()) }

const (
	maxFolders    = 100 // in each other
	maxSubmodules = 20  // that are listed by name
)

// readCommit returns the commit with a hash, or the one that the annotated tag with that hash names, through ten tags of tags at
// most. The error is a *[RefusedError] if the object is neither, and that of get if it is not there.
func readCommit(get objectReader, hash plumbing.Hash) (*object.Commit, error) {
	const most = 10 // tags of tags
	for range most {
		o, err := get(hash)
		if err != nil {
			return nil, fmt.Errorf("object %s: %w", hash, err)
		}
		if o.Type() != plumbing.TagObject {
			var c object.Commit
			if err := c.Decode(o); err != nil {
				return nil, refusef("%s is no commit: %.200v", hash, err)
			}
			return &c, nil
		}
		var t object.Tag
		if err := t.Decode(o); err != nil {
			return nil, refusef("%s is no tag: %.200v", hash, err)
		}
		hash = t.Target
	}
	return nil, refusef("%s is a tag of a tag of a tag, and so on", hash)
}

// A treeWalk visits the files, links and submodules of a tree in git's order.
type treeWalk struct {
	ctx     context.Context
	get     objectReader
	entries int
	visit   func(name string, entry object.TreeEntry) error
}

// walkFolder calls visit for the files, links and submodules in the folder with a hash, and in those below it. path is the
// folder's path in the tree, which ends with a slash or is "", and depth is how many folders it is in. It refuses trees that
// exceed the limits.
func (w *treeWalk) walkFolder(hash plumbing.Hash, path string, depth int) error {
	if depth > maxFolders {
		return refusef("folders are more than %d deep in each other", maxFolders)
	}
	if err := w.ctx.Err(); err != nil {
		return context.Cause(w.ctx)
	}
	data, err := readObject(w.get, hash, plumbing.TreeObject)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		var entry object.TreeEntry
		if entry, data, err = parseTreeEntry(data); err != nil {
			return refusef("the folder %.200q: %v", path, err)
		}
		// Folders count as well: a few of them that name each other many times never end.
		if w.entries++; w.entries > 2*archive.DefaultLimits.Entries {
			return refusef("the commit has more than %d files and folders", 2*archive.DefaultLimits.Entries)
		}
		name := path + entry.Name
		// Names of folders are repeated in those of all files below them, so that a small pack could fill the memory.
		if len(name) > archive.DefaultLimits.NameLength {
			return refusef("%.100q has a path of %d bytes, over the limit of %d", name, len(name), archive.DefaultLimits.NameLength)
		}
		switch entry.Mode {
		case filemode.Dir:
			err = w.walkFolder(entry.Hash, name+"/", depth+1)
		case filemode.Submodule, filemode.Symlink, filemode.Regular, filemode.Executable, filemode.Deprecated:
			err = w.visit(name, entry)
		default:
			err = refusef("%.200q has the mode %s, which git does not have", name, entry.Mode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// export writes the files of a tree to dst, as an archive.
type export struct {
	get        objectReader
	wanted     func(name string) bool // nil for all
	tar        *tar.Writer
	left       int64 // bytes
	submodules int
	notes      []string
}

// typeAbsent is the type of a tar's entry that has only a name; package archive leaves it out.
const typeAbsent = 'Z'

// exportTree writes the files of a tree to dst as a tar archive, and returns notes about what it left out. It writes names
// unchanged, because package archive checks them when it reads the archive. Of files that wanted does not accept it writes only
// the names; nil accepts all.
func exportTree(ctx context.Context, get objectReader, tree plumbing.Hash, wanted func(string) bool, dst *os.File) (notes []string, err error) {
	out := bufio.NewWriterSize(fetch.LocalWriter(dst), 64<<10)
	e := &export{get: get, wanted: wanted, tar: tar.NewWriter(out), left: archive.DefaultLimits.Unpacked}
	w := &treeWalk{ctx: ctx, get: get, visit: e.addEntry}
	if err := w.walkFolder(tree, "", 0); err != nil {
		return nil, err
	}
	if err := errors.Join(e.tar.Close(), out.Flush()); err != nil {
		return nil, err
	}
	if more := e.submodules - maxSubmodules; more > 0 {
		e.notes = append(e.notes, fmt.Sprintf("%d more submodules were left out", more))
	}
	return e.notes, nil
}

// addEntry writes a file or a symbolic link of the tree to the archive, only its name if the file is not wanted. It writes
// nothing for a submodule, and adds a note about it.
func (e *export) addEntry(name string, entry object.TreeEntry) error {
	switch {
	case entry.Mode == filemode.Submodule:
		if e.submodules++; e.submodules <= maxSubmodules {
			e.notes = append(e.notes, fmt.Sprintf("the submodule %.200q was left out: it is another repository", name))
		}
		return nil
	case entry.Mode == filemode.Symlink:
		return e.writeEntry(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: "-", Mode: 0o777}, nil)
	case e.wanted != nil && !e.wanted(name):
		return e.writeEntry(&tar.Header{Typeflag: typeAbsent, Name: name, Mode: 0o644}, nil)
	}
	return e.addFile(entry.Hash, name)
}

// addFile writes the file with a hash to the archive under name. The error is a *[RefusedError] if all files of the commit
// together exceed the limit of unpacked bytes, or the file cannot be read.
func (e *export) addFile(hash plumbing.Hash, name string) error {
	data, err := readObject(e.get, hash, plumbing.BlobObject)
	if err != nil {
		return err
	}
	if e.left -= int64(len(data)); e.left < 0 {
		return refusef("the files of the commit have over %d bytes", archive.DefaultLimits.Unpacked)
	}
	return e.writeEntry(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o644}, data)
}

// writeEntry writes an entry with the header h and the content data to the tar archive, at a fixed time, so that the same commit
// gives the same bytes.
func (e *export) writeEntry(h *tar.Header, data []byte) error {
	h.Format, h.ModTime = tar.FormatPAX, time.Unix(0, 0)
	err := e.tar.WriteHeader(h)
	if err == nil {
		_, err = e.tar.Write(data)
	}
	if errors.Is(err, tar.ErrHeader) {
		return refusef("%.200q is no name for a file", h.Name)
	}
	return err
}

// parseTreeEntry parses the first entry of a git tree, which consists of mode, space, name, NUL and the bytes of a hash, and
// returns the rest of data. go-git's own parser changes and refuses names, which the rules of package archive decide here.
func parseTreeEntry(data []byte) (entry object.TreeEntry, rest []byte, err error) {
	space := bytes.IndexByte(data[:min(len(data), 7)], ' ')
	if space < 0 {
		return entry, nil, errors.New("an entry without a mode")
	}
	if entry.Mode, err = filemode.New(string(data[:space])); err != nil {
		return entry, nil, fmt.Errorf("an entry of the mode %q", data[:space])
	}
	data = data[space+1:]
	end := bytes.IndexByte(data[:min(len(data), 4096)], 0)
	switch {
	case end < 0:
		return entry, nil, errors.New("an entry whose name has no end")
	case end == 0:
		return entry, nil, errors.New("an entry without a name")
	case len(data)-end-1 < len(entry.Hash):
		return entry, nil, errors.New("an entry without a hash")
	}
	entry.Name = string(data[:end])
	data = data[end+1:]
	n := copy(entry.Hash[:], data)
	return entry, data[n:], nil
}

// maxPointer is the size below which a file may be a Git LFS pointer
// (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
const maxPointer = 1024

// parsePointer parses a Git LFS pointer, which a repository has in place of a file that is stored elsewhere. It returns the size
// of that file in bytes; ok is false for any other file.
func parsePointer(data []byte) (size int64, ok bool) {
	first, rest, _ := bytes.Cut(data, []byte("\n"))
	switch string(bytes.TrimRight(first, "\r")) {
	case "version https://git-lfs.github.com/spec/v1", "version https://hawser.github.com/spec/v1":
	default:
		return 0, false
	}
	var hasOID, hasSize bool
	for line := range strings.Lines(string(rest)) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		switch key {
		case "oid":
			hasOID = strings.HasPrefix(value, "sha256:")
		case "size":
			n, err := strconv.ParseUint(value, 10, 63)
			size, hasSize = int64(n), err == nil
		}
	}
	return size, hasOID && hasSize
}

// describePointer returns why a file with the content data is left out if it is a Git LFS pointer, "" for any other file.
func describePointer(data []byte) (reason string) {
	if size, ok := parsePointer(data); ok {
		return fmt.Sprintf("a Git LFS pointer: the file itself, of %d bytes, is not in the repository", size)
	}
	return ""
}
