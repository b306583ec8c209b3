package main

import (
	"crypto/sha256"
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
)

// A content is the bytes of one or more equal files, kept in a file.
type content struct {
	hash [sha256.Size]byte
	file string
	size int64
}

// A corpus is what is compressed.
type corpus struct {
	files, bytes int64 // repeats included
	contents     []content
}

// readCorpus collects the distinct contents of a folder's files.
func readCorpus(folder string) (*corpus, error) {
	c := new(corpus)
	seen := make(map[[sha256.Size]byte]bool)
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || len(data) == 0 {
			return err
		}
		c.files++
		c.bytes += int64(len(data))
		hash := sha256.Sum256(data)
		if !seen[hash] {
			seen[hash] = true
			c.contents = append(c.contents, content{hash: hash, file: path, size: int64(len(data))})
		}
		return nil
	})
	return c, err
}

// sample returns one in n contents, chosen by hash.
func sample(contents []content, n int) []content {
	if n == 1 {
		return contents
	}
	var some []content
	for _, c := range contents {
		if binary.BigEndian.Uint64(c.hash[:])%uint64(n) == 0 {
			some = append(some, c)
		}
	}
	return some
}

func total(contents []content) int64 {
	sum := int64(0)
	for _, c := range contents {
		sum += c.size
	}
	return sum
}
