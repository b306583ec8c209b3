package disk

import (
	"io"
	"os"
)

// ReadAtMost returns the content of a file. If that is longer than limit bytes, it returns the first limit+1 bytes and no
// error, so callers must check the length.
func ReadAtMost(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, limit+1))
}
