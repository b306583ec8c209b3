package git

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"

	"github.com/larder-cdn/larder/bot/fetch"
)

// The bounds of a pack. Its own length is Options.PackBytes.
const (
	maxObjects  = 200_000   // files, folders, commits
	maxObject   = 100 << 20 // bytes of one, unpacked; GitHub takes no larger ones either
	maxUnpacked = 2 << 30   // bytes of all, unpacked
	maxDepth    = 250       // objects that one is built on; git itself makes 50
	baseCache   = 32 << 20  // bytes of objects in memory that others are built on
)

// objects finds the object of that hash.
type objects func(plumbing.Hash) (plumbing.EncodedObject, error)

// pack is a pack in a file without a name.
type pack struct {
	file *os.File
	*packfile.Packfile
}

func (p *pack) close() { p.file.Close() }

// readPack takes a pack from a stranger: into a file in dir, and apart only when it is known to be within
// the bounds. Whoever calls closes it.
func readPack(ctx context.Context, r io.Reader, dir string) (_ *pack, err error) {
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
		return nil, packError(ctx, err)
	}
	found, err := index.Index()
	if err != nil {
		return nil, packError(ctx, err)
	}
	return &pack{file, packfile.NewPackfileWithCache(found, nil, packFile{file}, cache.NewObjectLRU(baseCache), 0)}, nil
}

// packError makes a refusal of what a pack is wrong with.
func packError(ctx context.Context, err error) error {
	var local *os.PathError
	var own *RefusedError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &own):
		return err
	case errors.As(err, &local):
		return fetch.NewLocalError(err)
	}
	return refuse("the pack is malformed: %.200v", err)
}

// checkPack reads a pack from beginning to end without putting anything together, and refuses one that
// could take more than the bounds: a few bytes can say that they become a gigabyte, or that they are
// built on thousands of others.
func checkPack(ctx context.Context, file *os.File) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fetch.NewLocalError(err)
	}
	scanner := packfile.NewScanner(file)
	_, count, err := scanner.Header()
	if err != nil {
		return packError(ctx, err)
	}
	if count > maxObjects {
		return refuse("the pack has %d objects, over the limit of %d", count, maxObjects)
	}
	depths := make(map[int64]int, count)
	var total int64
	for range count {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h, err := scanner.NextObjectHeader()
		if err != nil {
			return packError(ctx, err)
		}
		if h.Length > maxObject {
			return refuse("the pack has an object of %d bytes, over the limit of %d", h.Length, maxObject)
		}
		head := &head{most: 2 * binary.MaxVarintLen64}
		if n, _, err := scanner.NextObject(head); err != nil {
			return packError(ctx, err)
		} else if n != h.Length {
			return refuse("the pack is malformed: an object of %d bytes says that it has %d", n, h.Length)
		}
		size := h.Length
		switch h.Type {
		case plumbing.REFDeltaObject:
			return refuse("the pack has objects that are built on others by their hashes, which was not asked for")
		case plumbing.OFSDeltaObject:
			base, ok := depths[h.OffsetReference]
			if !ok || base >= maxDepth {
				return refuse("the pack has an object that is built on more than %d others, or on none", maxDepth)
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
			return refuse("the pack has objects of over %d bytes, or of over %d in all", maxObject, maxUnpacked)
		}
	}
	return nil
}

// deltaSize returns the size of what a delta makes, in bytes: the second number in it, after the size of
// its base (gitformat-pack, "Deltified representation").
func deltaSize(delta []byte) (int64, error) {
	_, n := binary.Uvarint(delta)
	if n <= 0 {
		return 0, refuse("the pack is malformed: a delta without sizes")
	}
	size, n := binary.Uvarint(delta[n:])
	if n <= 0 || size > maxUnpacked {
		return 0, refuse("the pack is malformed, or has an object of over %d bytes", maxUnpacked)
	}
	return int64(size), nil
}

// head keeps the first bytes that are written.
type head struct {
	most int
	data []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.data = append(h.data, p[:min(len(p), h.most-len(h.data))]...)
	return len(p), nil
}

// canceller ends the parsing of a pack with its context.
type canceller struct{ ctx context.Context }

func (c canceller) OnHeader(uint32) error { return c.ctx.Err() }
func (c canceller) OnInflatedObjectHeader(plumbing.ObjectType, int64, int64) error {
	return c.ctx.Err()
}
func (c canceller) OnInflatedObjectContent(plumbing.Hash, int64, uint32, []byte) error {
	return c.ctx.Err()
}
func (c canceller) OnFooter(plumbing.Hash) error { return c.ctx.Err() }

// packFile is a file as go-git wants one.
type packFile struct{ *os.File }

func (packFile) Lock() error   { return nil }
func (packFile) Unlock() error { return nil }

// content reads an object of that type into memory, which the bounds of a pack allow.
func content(get objects, hash plumbing.Hash, want plumbing.ObjectType) ([]byte, error) {
	o, err := get(hash)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return nil, refuse("the repository did not send the object %s", hash)
	}
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", hash, err)
	}
	if o.Type() != want {
		return nil, refuse("the object %s is a %s where a %s belongs", hash, o.Type(), want)
	}
	r, err := o.Reader()
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", hash, err)
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(r, maxObject+1)); err != nil {
		return nil, refuse("the object %s cannot be read: %.200v", hash, err)
	}
	if b.Len() > maxObject {
		return nil, refuse("the object %s has over %d bytes", hash, maxObject)
	}
	return b.Bytes(), nil
}

// besides is the folder where a file is.
func besides(f *os.File) string { return filepath.Dir(f.Name()) }
