package git

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// maxPointer is the size below which a file may be a Git LFS pointer
// (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
const maxPointer = 1024

// pointerSize reads a Git LFS pointer, which stands in a repository for a file that is elsewhere, and
// returns the size of that file in bytes. ok is false for any other file.
func pointerSize(data []byte) (size int64, ok bool) {
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

func leaveOutPointer(data []byte) (reason string) {
	if size, ok := pointerSize(data); ok {
		return fmt.Sprintf("a Git LFS pointer: the file itself, of %d bytes, is not in the repository", size)
	}
	return ""
}
