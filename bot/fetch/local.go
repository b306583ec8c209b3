package fetch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// LocalError says that a download could not be written down. The fault is this machine's, not the
// server's: the disk is full or broken (errors.Is tells which, as with syscall.ENOSPC), and other
// downloads will fail like this one until somebody mends that.
type LocalError struct {
	// Err is the cause, without the file's name.
	Err error
}

func (e *LocalError) Error() string { return fmt.Sprintf("couldn't write the download: %v", e.Err) }

func (e *LocalError) Unwrap() error { return e.Err }

// NewLocalError leaves out the name of the file: what becomes of a release is published, this machine's
// folders are not.
func NewLocalError(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return &LocalError{Err: err}
}

// LocalWriter marks the errors of a file being written, among those of the body being read.
func LocalWriter(w io.Writer) io.Writer { return localWriter{w} }

type localWriter struct{ io.Writer }

func (w localWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		err = NewLocalError(err)
	}
	return n, err
}
