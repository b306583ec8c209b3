package replication

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sync/semaphore"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/tiles"
)

// A Log is a signed log as C2SP tlog-tiles lays it out. Nothing that it returns is trusted. It is safe for concurrent use,
// bounds how long each call takes, and retries what may be a transient error.
type Log interface {
	// Name returns what messages call the source, and under which its key is remembered: its URL, for example.
	Name() string
	// Get returns what is at a path of the log (/log/checkpoint, /log/key, /log/keys, /log/tile/…), of at most limit bytes,
	// or [fs.ErrNotExist].
	Get(ctx context.Context, path string, limit int64) ([]byte, error)
	// Await returns when the source may have another checkpoint than this one.
	Await(ctx context.Context, checkpoint []byte) error
}

// Contents are contents by their hash. Nothing that they return is trusted. They are safe for concurrent use, bound how
// long each call takes, and retry what may be a transient error.
type Contents interface {
	// Name returns what messages call the source.
	Name() string
	// Content returns a content, or [fs.ErrNotExist]. Callers use [Fetch], which verifies it.
	Content(ctx context.Context, w Wanted) (Found, error)
}

// A Source has a log and the contents that it names.
type Source interface {
	Log
	Contents
}

// Wanted is a content that a caller needs.
type Wanted struct {
	// Hash is that of the content. If it is zero, the content is identified by the integrity of File.
	Hash kvstore.Hash
	// Limit is the most bytes that the content may have.
	Limit int64
	// Encoding is what a source sends that can choose; [Fetch] sets it.
	Encoding coding.Coding
	// Entry names the content, or the manifest that has File. Sources that are addressed by hash do not read it, nor what follows.
	Entry logs.Indexed
	// Manifest and File are those of a file of a release; nil for what the entry itself names.
	Manifest *logs.Manifest
	File     *logs.File
	// PackageJSON returns the package JSON that was in force at the entry.
	PackageJSON func() ([]byte, error)
}

// Found is a content as a source has it, in one encoding or several.
type Found struct {
	Squeezed bool // whether the encodings are the smallest that there are
	Coded    []kvstore.Coded
	// Dictionaries are those against which the source has deltas of the content, at most [kvstore.MaxDeltas].
	Dictionaries []kvstore.Hash
}

// ErrOther says that a source has sent other bytes than those that were requested.
var ErrOther = errors.New("the source sent other bytes")

// Fetch requests a content from a source, in Brotli first, and verifies it. It returns the content's own bytes and those of the received encodings
// that decode to it. An encoding that does not is left out; if no received one does, Fetch requests gzip, and then the content unencoded. If none is
// left, or the size or integrity in the manifest is another, the error is [ErrOther]: damage at the source looks the same as other bytes. With an
// error, the other results are not valid.
func Fetch(ctx context.Context, source Contents, w Wanted) (identity []byte, found Found, err error) {
	for _, w.Encoding = range []coding.Coding{coding.Brotli, coding.Gzip, coding.Identity} {
		sent, err := source.Content(ctx, w)
		if err != nil {
			return nil, Found{}, err
		}
		identity, found, err = w.verifyEncodings(sent)
		switch {
		case err == nil:
			return identity, found, w.checkFile(identity)
		case !slices.ContainsFunc(sent.Coded, func(c kvstore.Coded) bool { return c.Coding != coding.Identity }):
			return nil, Found{}, err
		}
	}
	return nil, Found{}, ErrOther
}

// checkFile returns [ErrOther] if identity, bytes with the wanted hash, does not have the size and integrity that the manifest states for the wanted
// file. Without a file or a hash it returns nil.
func (w Wanted) checkFile(identity []byte) error {
	if w.File == nil || w.Hash == (kvstore.Hash{}) || int64(len(identity)) == w.File.Size && logs.SumSRI(identity) == w.File.SRI {
		return nil
	}
	return fmt.Errorf("%w: its manifest says another size or integrity than the bytes of that hash have", ErrOther)
}

// verifyEncodings decodes the encodings that a source sent. It returns the content's own bytes, and found without encodings that do not decode to the
// wanted content; if there were any, Squeezed is false. If none does, for damage or other bytes, the error is [ErrOther].
func (w Wanted) verifyEncodings(found Found) (identity []byte, sound Found, err error) {
	sound.Squeezed, sound.Dictionaries = found.Squeezed, found.Dictionaries[:min(kvstore.MaxDeltas, len(found.Dictionaries))]
	for _, c := range found.Coded {
		var plain []byte
		if plain, err = coding.DecodeUpTo(c.Coding, c.Bytes, w.Limit); err != nil || int64(len(plain)) > w.Limit || !w.matches(plain) {
			sound.Squeezed = false
			continue
		}
		identity = plain
		sound.Coded = append(sound.Coded, c)
	}
	switch {
	case len(sound.Coded) > 0:
		return identity, sound, nil
	case err != nil:
		return nil, Found{}, fmt.Errorf("%w: %w", ErrOther, err)
	}
	return nil, Found{}, ErrOther
}

// matches reports whether bytes have the hash of the wanted content or, if that is not known, the integrity of its file. It is false if neither is
// known.
func (w Wanted) matches(plain []byte) bool {
	if w.Hash == (kvstore.Hash{}) {
		return w.File != nil && logs.SumSRI(plain) == w.File.SRI
	}
	return kvstore.Sum(plain) == w.Hash
}

// contentMemory bounds the bytes of contents in memory. A larger content is in memory alone.
const contentMemory = 192 << 20

// A Budget bounds the memory of the contents that are fetched at the same time.
type Budget struct{ free *semaphore.Weighted }

// NewBudget returns an unused budget of 192 MiB of memory.
func NewBudget() Budget { return Budget{semaphore.NewWeighted(contentMemory)} }

// Take reserves memory for fetching a content of up to w.Limit bytes: three times that, or 4 MiB for a document that the entry names. It waits until so
// much is free, or ctx ends. A content that is larger than the budget gets all of it. The caller calls release when it no longer needs the content's
// bytes; if err is not nil, it does not.
func (b Budget) Take(ctx context.Context, w Wanted) (release func(), err error) {
	weight := min(contentMemory, 3*w.Limit+1<<16)
	if w.Limit == logs.MaxManifest && slices.Contains(w.Entry.Contents(), w.Hash) { // nearly all documents are far smaller
		weight = 4 << 20
	}
	return func() { b.free.Release(weight) }, b.free.Acquire(ctx, weight)
}

// Paths of a log, and limits of what is at them.
const (
	checkpointPath = tiles.Prefix + "checkpoint"
	keyPath        = tiles.Prefix + "key"
	keysPath       = tiles.Prefix + "keys"

	maxCheckpoint = 64 << 10
)

// An entryReader reads entries one by one, as from a store of which some may be damaged.
type entryReader interface {
	// Entries returns the raw entries from index on that the source has without a gap, at least one, or [fs.ErrNotExist].
	Entries(ctx context.Context, index int64) ([][]byte, error)
}

// ReadUntilGap returns the raw entries from index on that read returns, at most 256, up to the first for which it returns nil. If that is the one at
// index, the error is [fs.ErrNotExist].
func ReadUntilGap(ctx context.Context, index int64, read func(index int64) []byte) (entries [][]byte, err error) {
	for n := index; n < index+tiles.Width; n++ {
		raw := read(n)
		if raw == nil {
			break
		}
		entries = append(entries, raw)
	}
	if entries == nil {
		return nil, fmt.Errorf("entry %d: %w", index, fs.ErrNotExist)
	}
	return entries, ctx.Err()
}

// ReadEntries returns the raw bytes of consecutive log entries from index on, at least one and as many as a source sends at once. It returns
// [fs.ErrNotExist] if the source does not have the entry, or has no log. Nothing of them is verified.
func ReadEntries(ctx context.Context, source Contents, index int64) ([][]byte, error) {
	if r, ok := source.(entryReader); ok {
		return r.Entries(ctx, index)
	}
	l, ok := source.(Log)
	if !ok {
		return nil, fmt.Errorf("%s has no log: %w", source.Name(), fs.ErrNotExist)
	}
	n, skip := index/tiles.Width, int(index%tiles.Width)
	data, err := l.Get(ctx, tiles.EntriesPath(n, tiles.Width), tiles.Width*(2+logs.MaxEntry))
	if errors.Is(err, fs.ErrNotExist) { // the log's last bundle is partial, if it is this one
		var size int64
		if size, err = logSize(ctx, l); err != nil {
			return nil, err
		}
		if index >= size {
			return nil, fmt.Errorf("%s has signed %d entries: %w", l.Name(), size, fs.ErrNotExist)
		}
		data, err = l.Get(ctx, tiles.EntriesPath(n, int(min(tiles.Width, size-n*tiles.Width))), tiles.Width*(2+logs.MaxEntry))
	}
	if err != nil {
		return nil, err
	}
	var entries [][]byte
	for i := 0; len(data) > 0 && i < tiles.Width; i++ {
		raw, rest, ok := tiles.CutEntry(data)
		if !ok {
			return nil, fmt.Errorf("%s: the bundle of entries %d ends in the middle of entry %d", l.Name(), n, n*tiles.Width+int64(i))
		}
		if data = rest; i >= skip {
			entries = append(entries, raw)
		}
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("entry %d: %w", index, fs.ErrNotExist)
	}
	return entries, nil
}

// logSize requests the log's checkpoint and returns how many entries the log has according to that. Nothing of it is verified.
func logSize(ctx context.Context, l Log) (int64, error) {
	data, err := l.Get(ctx, checkpointPath, maxCheckpoint)
	if err != nil {
		return 0, err
	}
	n, err := logs.CheckpointSize(data)
	if err != nil {
		err = fmt.Errorf("%s%s: %w", l.Name(), checkpointPath, err)
	}
	return n, err
}
