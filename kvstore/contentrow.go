package kvstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// A row in Contents is
//
//	format (1 byte), flags (1 byte), size (uvarint), number of representations (1 byte),
//
// and for each of them, smallest first,
//
//	coding (1 byte), length (uvarint), sum (32 bytes).
const (
	rowFormat   = 1
	rowSqueezed = 1 << 0 // a flag
)

func encodeContent(c Content) []byte {
	row := make([]byte, 0, 3+binary.MaxVarintLen64+len(c.Representations)*(1+binary.MaxVarintLen64+len(Hash{})))
	var flags byte
	if c.Squeezed {
		flags |= rowSqueezed
	}
	row = append(row, rowFormat, flags)
	row = binary.AppendUvarint(row, uint64(c.Size))
	row = append(row, byte(len(c.Representations)))
	for _, r := range c.Representations {
		row = append(row, byte(r.Coding))
		row = binary.AppendUvarint(row, uint64(r.Length))
		row = append(row, r.Sum[:]...)
	}
	return row
}

var errRow = errors.New("its row is malformed")

// decodeContent accepts what encodeContent writes and nothing else.
func decodeContent(row []byte) (Content, error) {
	if len(row) == 0 || row[0] != rowFormat {
		return Content{}, fmt.Errorf("%w, or of a format that this larder doesn't know", errRow)
	}
	d := rowDecoder{row: row[1:]}
	flags := d.byte()
	c := Content{Squeezed: flags&rowSqueezed != 0, Size: d.length()}
	count := int(d.byte())
	for i := 0; i < count && !d.failed; i++ {
		r := Representation{Coding: coding.Coding(d.byte()), Length: d.length(), Sum: d.hash()}
		_, twice := c.Find(r.Coding)
		if twice || i > 0 && r.Length < c.Representations[i-1].Length {
			return Content{}, errRow
		}
		c.Representations = append(c.Representations, r)
	}
	if d.failed || len(d.row) > 0 || count == 0 || flags&^rowSqueezed != 0 {
		return Content{}, errRow
	}
	return c, nil
}

// rowDecoder takes values off the front of a row. Once one is missing, all
// that follow are zero.
type rowDecoder struct {
	row    []byte
	failed bool
}

func (d *rowDecoder) take(n int) []byte {
	if n > len(d.row) {
		d.row, d.failed = nil, true
		return nil
	}
	taken := d.row[:n]
	d.row = d.row[n:]
	return taken
}

func (d *rowDecoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *rowDecoder) hash() (h Hash) {
	copy(h[:], d.take(len(h)))
	return h
}

func (d *rowDecoder) length() int64 {
	v, n := binary.Uvarint(d.row)
	if n <= 0 || v > math.MaxInt64 || n > 1 && d.row[n-1] == 0 {
		d.row, d.failed = nil, true
		return 0
	}
	d.take(n)
	return int64(v)
}
