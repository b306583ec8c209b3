package kvstore

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// contentFormat is the version of the rows in Contents.
const contentFormat = 1

// A row is: format, flags, uvarint size, count, then for each representation
// coding, uvarint length and sum.
func encodeContent(c Content) []byte {
	row := make([]byte, 0, 16+len(c.Representations)*(1+binary.MaxVarintLen64+len(Hash{})))
	var flags byte
	if c.Squeezed {
		flags = 1
	}
	row = append(row, contentFormat, flags)
	row = binary.AppendUvarint(row, uint64(c.Size))
	row = append(row, byte(len(c.Representations)))
	for _, r := range c.Representations {
		row = append(row, byte(r.Coding))
		row = binary.AppendUvarint(row, uint64(r.Length))
		row = append(row, r.Sum[:]...)
	}
	return row
}

var errShortRow = errors.New("the row ends early")

func decodeContent(row []byte) (Content, error) {
	var c Content
	if len(row) < 2 {
		return c, errShortRow
	}
	if row[0] != contentFormat {
		return c, fmt.Errorf("row format %d is not known", row[0])
	}
	c.Squeezed = row[1]&1 != 0
	row = row[2:]
	size, n := binary.Uvarint(row)
	if n <= 0 || len(row) <= n {
		return c, errShortRow
	}
	c.Size = int64(size)
	count := int(row[n])
	row = row[n+1:]
	for range count {
		if len(row) < 1 {
			return c, errShortRow
		}
		r := Representation{Coding: coding.Coding(row[0])}
		length, n := binary.Uvarint(row[1:])
		if n <= 0 || len(row) < 1+n+len(r.Sum) {
			return c, errShortRow
		}
		r.Length = int64(length)
		row = row[1+n:]
		copy(r.Sum[:], row)
		row = row[len(r.Sum):]
		c.Representations = append(c.Representations, r)
	}
	if count == 0 {
		return c, errors.New("the row has no representation")
	}
	return c, nil
}
