package views

import (
	"bytes"
	"fmt"
	"iter"

	"github.com/larder-cdn/larder/kvstore"
)

// A ServedFile is a file of some release that is served.
type ServedFile struct {
	Package, Version, Path string
	File
}

// AllFiles iterates over every served file, by package, version and path in byte order. After an error it ends.
func AllFiles(r kvstore.Reader) iter.Seq2[ServedFile, error] {
	return func(yield func(ServedFile, error) bool) {
		for item, err := range r.Scan(kvstore.Files, kvstore.Range{}) {
			if err != nil {
				yield(ServedFile{}, fmt.Errorf("views: couldn't list the files: %w", err))
				return
			}
			name := bytes.SplitN(item.Key, []byte{0}, 3)
			if len(name) != 3 {
				yield(ServedFile{}, fmt.Errorf("views: the key %q is not that of a file; `larder fsck` tells what else is wrong", item.Key))
				return
			}
			s := ServedFile{Package: string(name[0]), Version: string(name[1]), Path: string(name[2])}
			if s.File, err = DecodeFile(item.Value); err != nil {
				yield(ServedFile{}, fmt.Errorf("views: file %s of %s %s: %w", s.Path, s.Package, s.Version, err))
				return
			}
			if !yield(s, nil) {
				return
			}
		}
	}
}
