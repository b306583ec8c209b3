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

// kind is the kind of entry that has a name.
type kind uint8

const (
	file kind = iota + 1 // or link, device: anything but a folder
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

	modified time.Time // of the current file

	names    map[string]kind
	entries  int
	folders  int
	unpacked int64

	// err is the first failure. The walker stores it because fn may hide or change an error of its reader, and a refused
	// archive must stay refused.
	err error
}

// fail records err as the outcome of the walk unless there is one already, and returns the outcome.
func (w *walker) fail(err error) error {
	if w.err == nil {
		w.err = err
	}
	return w.err
}

// refuse ends the walk with a *RefusedError about an entry.
func (w *walker) refuse(entry, format string, args ...any) error {
	return w.fail(&RefusedError{Entry: entry, Reason: fmt.Sprintf(format, args...)})
}

// refuseCorrupt ends the walk with a refusal for a decoder's error. If the source or the context caused the error, that was recorded first
// and stays the outcome.
func (w *walker) refuseCorrupt(entry string, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return w.refuse(entry, "truncated")
	}
	return w.refuse(entry, "corrupt: %v", err)
}

// countEntry counts an entry of any kind, and refuses the archive if it has too many. It also ends the walk when the context ends.
func (w *walker) countEntry() error {
	if err := w.ctx.Err(); err != nil {
		return w.fail(err)
	}
	w.entries++
	if w.entries > w.limits.Entries {
		return w.refuse("", "more than %d entries", w.limits.Entries)
	}
	return nil
}

// addFolder checks an entry that is a folder, counts it and reserves its name. The walk's function is not called for it.
func (w *walker) addFolder(raw string) error {
	if err := w.countEntry(); err != nil {
		return err
	}
	_, _, err := w.cleanName(raw, folder)
	return err
}

// skipEntry passes an entry that is skipped to the walk's function, with the reason.
func (w *walker) skipEntry(raw, why string) error {
	return w.addFile(raw, 0, why, false, nil)
}

// addFile checks an entry that is no folder, and passes it to the walk's function. A regular file has size bytes, which open
// opens, and which addFile closes at the end if they are an io.Closer; it is passed as skipped if its name is odd or
// [Source.LeaveOut] leaves it out. drain says that the walker reads all of its bytes even if the function does not. skipped
// says why any other entry is skipped.
func (w *walker) addFile(raw string, size int64, skipped string, drain bool, open func() (io.Reader, error)) error {
	if err := w.countEntry(); err != nil {
		return err
	}
	name, odd, err := w.cleanName(raw, file)
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
		b := &body{w: w, entry: raw, open: open, left: size}
		defer b.close()
		if _, err := io.ReadFull(b, data); err != nil {
			return w.fail(err)
		}
		skipped = w.leave(data)
		open = func() (io.Reader, error) { return bytes.NewReader(data), nil }
	}
	if skipped != "" {
		if err := w.fn(Entry{Name: text.Line(name, utf8.RuneError), Skipped: skipped}, bytes.NewReader(nil)); err != nil {
			return w.fail(err)
		}
		if open == nil {
			return nil
		}
	}
	body := &body{w: w, entry: raw, open: open, left: size}
	defer body.close()
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

// claimName reserves a name for an entry. It refuses names that no file system could hold together: the same name twice, or a file that is
// also a folder. Links count as files, so that nothing can be put behind one.
func (w *walker) claimName(raw, name string, k kind) error {
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
			return w.refuse(raw, "it lies below %s, which is a file", quoteName(parent))
		default:
			w.names[parent] = folder
			if err := w.countFolder(); err != nil {
				return err
			}
		}
	}
	return nil
}

// countFolder counts a folder, and refuses the archive if it has too many.
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

// close closes what the body opened, if that can be closed.
func (b *body) close() {
	if c, ok := b.r.(io.Closer); ok {
		c.Close()
	}
}

// Read returns bytes of the entry, which the first call opens. It refuses the archive if the entry has more or fewer bytes
// than announced, or is corrupt. After the walk has failed, it returns that error.
func (b *body) Read(p []byte) (int, error) {
	if b.w.err != nil {
		return 0, b.w.err
	}
	if b.r == nil {
		r, err := b.open()
		if err != nil {
			return 0, b.w.refuseCorrupt(b.entry, err)
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
		return n, b.w.refuseCorrupt(b.entry, err)
	}
	return n, err
}
