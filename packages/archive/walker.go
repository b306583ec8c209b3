package archive

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/larder-cdn/larder/internal/text"
)

// kind is what a name was seen as.
type kind uint8

const (
	file kind = iota + 1 // or link, device: whatever is not a folder
	folder
)

// walker applies the rules that all forms of archive share.
type walker struct {
	ctx    context.Context
	limits Limits
	fn     func(Entry, io.Reader) error
	strip  bool
	below  int64
	leave  func(data []byte) (reason string)

	modified time.Time // of the file at hand

	names    map[string]kind
	entries  int
	folders  int
	unpacked int64

	// err is the first failure. It is kept because a caller's fn may swallow or reword what its
	// reader returned, and a refused archive must stay refused.
	err error
}

// fail records err as the walk's outcome unless there is one already, and returns the outcome.
func (w *walker) fail(err error) error {
	if w.err == nil {
		w.err = err
	}
	return w.err
}

func (w *walker) refuse(entry, format string, args ...any) error {
	return w.fail(&RefusedError{Entry: entry, Reason: fmt.Sprintf(format, args...)})
}

// corrupt turns a decoder's error into a refusal. Where the error came from below the decoder, from
// the source or the context, it was recorded first and stands.
func (w *walker) corrupt(entry string, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return w.refuse(entry, "truncated")
	}
	return w.refuse(entry, "corrupt: %v", err)
}

// count is called once for every entry of any kind.
func (w *walker) count() error {
	if err := w.ctx.Err(); err != nil {
		return w.fail(err)
	}
	w.entries++
	if w.entries > w.limits.Entries {
		return w.refuse("", "more than %d entries", w.limits.Entries)
	}
	return nil
}

// folder admits a folder entry.
func (w *walker) folder(raw string) error {
	if err := w.count(); err != nil {
		return err
	}
	_, _, err := w.name(raw, folder)
	return err
}

// skip reports an entry that is left out.
func (w *walker) skip(raw, why string) error {
	return w.file(raw, 0, why, false, nil)
}

// file admits an entry that is no folder and hands it to fn. A regular file of size bytes comes with
// open for its bytes; drain says that they must all be read even where fn does not. For anything else
// skipped says what it is.
func (w *walker) file(raw string, size int64, skipped string, drain bool, open func() (io.Reader, error)) error {
	if err := w.count(); err != nil {
		return err
	}
	name, odd, err := w.name(raw, file)
	if err != nil {
		return err
	}
	if size < 0 || size > w.limits.Unpacked-w.unpacked {
		return w.refuse("", "over %d bytes unpacked", w.limits.Unpacked)
	}
	w.unpacked += size
	skipped = cmp.Or(skipped, odd)
	if skipped == "" && w.leave != nil && size < w.below {
		data := make([]byte, size)
		if _, err := io.ReadFull(&body{w: w, entry: raw, open: open, left: size}, data); err != nil {
			return w.fail(err)
		}
		skipped = w.leave(data)
		open = func() (io.Reader, error) { return bytes.NewReader(data), nil }
	}
	if skipped != "" {
		if err := w.fn(Entry{Name: text.Line(name, utf8.RuneError), Skipped: skipped}, emptyReader{}); err != nil {
			return w.fail(err)
		}
		if open == nil {
			return nil
		}
	}
	body := &body{w: w, entry: raw, open: open, left: size}
	if skipped == "" {
		err := w.fn(Entry{Name: name, Size: size, Modified: w.modified}, body)
		if w.err != nil {
			return w.err
		}
		if err != nil {
			return w.fail(err)
		}
	}
	if drain {
		if _, err := io.Copy(io.Discard, body); err != nil {
			return w.fail(err)
		}
	}
	return nil
}

// claim takes name for an entry and refuses what no file system could hold: the same name twice, or a
// file that is also a folder. Links count as files here, so that nothing can be put behind one.
func (w *walker) claim(raw, name string, k kind) error {
	switch seen := w.names[name]; {
	case seen == file && k == file:
		return w.refuse(raw, "the same name twice")
	case seen != 0 && seen != k:
		return w.refuse(raw, "the same name for a file and a folder")
	case seen == 0:
		w.names[name] = k
		if k == folder {
			if err := w.countFolder(); err != nil {
				return err
			}
		}
	}
	for i := len(name) - 1; i > 0; i-- {
		if name[i] != '/' {
			continue
		}
		switch parent := name[:i]; w.names[parent] {
		case folder:
			return nil // and so are all above it
		case file:
			return w.refuse(raw, "it lies below %s, which is a file", quote(parent))
		default:
			w.names[parent] = folder
			if err := w.countFolder(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *walker) countFolder() error {
	w.folders++
	if w.folders > w.limits.Entries {
		return w.refuse("", "more than %d folders", w.limits.Entries)
	}
	return nil
}

// body gives one entry's bytes: exactly as many as were announced, or the archive is refused.
type body struct {
	w     *walker
	entry string
	open  func() (io.Reader, error)
	r     io.Reader // nil before the first Read
	left  int64
}

func (b *body) Read(p []byte) (int, error) {
	if b.w.err != nil {
		return 0, b.w.err
	}
	if b.r == nil {
		r, err := b.open()
		if err != nil {
			return 0, b.w.corrupt(b.entry, err)
		}
		b.r = r
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	switch {
	case b.left < 0:
		return 0, b.w.refuse(b.entry, "larger than it says")
	case err == io.EOF && b.left > 0:
		return n, b.w.refuse(b.entry, "truncated")
	case err != nil && err != io.EOF:
		return n, b.w.corrupt(b.entry, err)
	}
	return n, err
}

type emptyReader struct{}

func (emptyReader) Read([]byte) (int, error) { return 0, io.EOF }
