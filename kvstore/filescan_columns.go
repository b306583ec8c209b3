package kvstore

import (
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2/sstable/colblk"
)

// The decoders of Pebble's package sstable/colblk trust a block whose checksum is right: they read memory beyond a block whose offsets
// say so, which ends the process. A publisher of files can compute a checksum. These decoders check every bound.

// columnData is a block of columns, in which an offset counts from the beginning of the block.
type columnData struct {
	data   []byte
	rows   int
	starts []int // where each column begins, and where the last one ends
	types  []colblk.DataType
	failed bool // whether a column was requested that has another type, or is malformed
}

// parseColumns checks the header of a block of columns, which follows custom bytes, and finds where each of its count columns begins. ok is false if
// the block has another version, another number of columns, no rows or over maxRows, or offsets that decrease or are not within data.
func parseColumns(data []byte, custom, count int) (c columnData, ok bool) {
	header := custom + columnsStart + count*columnLength
	if len(data) <= header || data[custom] != byte(colblk.Version1) || int(binary.LittleEndian.Uint16(data[custom+1:])) != count {
		return c, false
	}
	rows := binary.LittleEndian.Uint32(data[custom+3:])
	if rows == 0 || rows > maxRows || int(rows) > len(data) {
		return c, false
	}
	c = columnData{data: data, rows: int(rows)}
	before := header
	for i := range count {
		column := data[custom+columnsStart+i*columnLength:]
		start := binary.LittleEndian.Uint32(column[1:])
		if int64(start) < int64(before) || int64(start) >= int64(len(data)) {
			return c, false
		}
		before = int(start)
		c.starts, c.types = append(c.starts, before), append(c.types, colblk.DataType(column[0]))
	}
	c.starts = append(c.starts, len(data)-1) // the last byte is padding
	return c, true
}

// column returns the offsets in data at which the i-th column begins and ends. It sets c.failed if the column does not have the data type want.
func (c *columnData) column(i int, want colblk.DataType) (at, end int) {
	c.failed = c.failed || c.types[i] != want
	return c.starts[i], c.starts[i+1]
}

// uintColumn is a column of integers.
type uintColumn struct {
	base  uint64
	width int
	data  []byte
}

const deltaEncoding = 1 << 7 // in the byte that says how integers are encoded

// parseUints parses a column of n integers that begins at the offset at and is bounded by the offset end. It returns the column and the offset behind
// it. ok is false if its encoding is unknown or it exceeds end.
func (c columnData) parseUints(at, end, n int) (u uintColumn, next int, ok bool) {
	if at >= end {
		return u, 0, false
	}
	encoding := c.data[at]
	at++
	u.width = int(encoding &^ deltaEncoding)
	if encoding&deltaEncoding != 0 {
		if end-at < 8 {
			return u, 0, false
		}
		u.base = binary.LittleEndian.Uint64(c.data[at:])
		at += 8
	}
	switch u.width {
	case 0:
		return u, at, true
	case 1, 2, 4, 8:
	default:
		return u, 0, false
	}
	at = alignUp(at, u.width)
	next = at + n*u.width
	if next > end {
		return u, 0, false
	}
	u.data = c.data[at:next]
	return u, next, true
}

// alignUp returns the first multiple of width, a power of two, from at on.
func alignUp(at, width int) int { return (at + width - 1) &^ (width - 1) }

// at returns the integer in row i.
func (u uintColumn) at(i int) uint64 {
	switch u.width {
	case 1:
		return u.base + uint64(u.data[i])
	case 2:
		return u.base + uint64(binary.LittleEndian.Uint16(u.data[2*i:]))
	case 4:
		return u.base + uint64(binary.LittleEndian.Uint32(u.data[4*i:]))
	case 8:
		return u.base + binary.LittleEndian.Uint64(u.data[8*i:])
	}
	return u.base
}

// bytesColumn is a column of byte slices, of which each ends where the next one begins.
type bytesColumn struct {
	offsets uintColumn
	data    []byte
}

// parseBytes parses a column of n byte slices that begins at the offset at and ends at the offset end. ok is false if its offsets are not encoded
// as Pebble does, decrease, or exceed end.
func (c columnData) parseBytes(at, end, n int) (b bytesColumn, ok bool) {
	offsets, next, ok := c.parseUints(at, end, n+1)
	if !ok || offsets.base != 0 || offsets.width == 8 {
		return b, false
	}
	before := uint64(0)
	for i := range n + 1 {
		offset := offsets.at(i)
		if offset < before || offset > uint64(end-next) {
			return b, false
		}
		before = offset
	}
	return bytesColumn{offsets, c.data[next:end]}, true
}

// at returns the byte slice in row i. It shares the block's memory, and its capacity is its length.
func (b bytesColumn) at(i int) []byte {
	from, to := b.offsets.at(i), b.offsets.at(i+1)
	return b.data[from:to:to]
}

// bytesAt parses the i-th column as one of byte slices. It sets c.failed if the column has another type or is malformed.
func (c *columnData) bytesAt(i int) bytesColumn {
	at, end := c.column(i, colblk.DataTypeBytes)
	b, ok := c.parseBytes(at, end, c.rows)
	c.failed = c.failed || !ok
	return b
}

// uintsAt parses the i-th column as one of integers. It sets c.failed if the column has another type or is malformed.
func (c *columnData) uintsAt(i int) uintColumn {
	at, end := c.column(i, colblk.DataTypeUint)
	u, _, ok := c.parseUints(at, end, c.rows)
	c.failed = c.failed || !ok
	return u
}

// bitsAt returns the i-th column, one of booleans, as bytes for isSet; nil if all are false. It sets c.failed if the column has another type or is
// malformed.
func (c *columnData) bitsAt(i int) []byte {
	at, end := c.column(i, colblk.DataTypeBool)
	if at < end && c.data[at] == 1 { // all are false
		return nil
	}
	first := alignUp(at+1, 8)
	next := first + (c.rows+63)/64*8
	if next > end || c.data[at] != 0 {
		c.failed = true
		return nil
	}
	return c.data[first:next]
}

// isSet reports whether the boolean in row i is true in a column that bitsAt returned.
func isSet(words []byte, i int) bool { return words != nil && words[i/8]>>(i%8)&1 == 1 }

// keyColumn is a column of keys: what all begin with, and for each bundle of keys what those begin with.
type keyColumn struct {
	parts bytesColumn
	shift int // a bundle has 1 << shift keys
}

// keysAt parses the i-th column as one of keys, which share prefixes. It sets c.failed if the column has another type or is malformed.
func (c *columnData) keysAt(i int) (k keyColumn) {
	at, end := c.column(i, colblk.DataTypePrefixBytes)
	if at >= end || c.data[at] > 31 {
		c.failed = true
		return k
	}
	k.shift = int(c.data[at])
	bundles := 1 + (c.rows-1)>>k.shift
	parts, ok := c.parseBytes(at+1, end, c.rows+bundles)
	c.failed = c.failed || !ok
	k.parts = parts
	return k
}

// appendKey appends the full key of a row to key: the prefix of all keys, that of its bundle, and its own rest.
func (k keyColumn) appendKey(key []byte, row int) []byte {
	bundle := row >> k.shift
	first := bundle<<k.shift + bundle // what the keys of the bundle begin with
	key = append(key, k.parts.data[:k.parts.offsets.at(0)]...)
	key = append(key, k.parts.at(first)...)
	// A key that is the same as the one before has no part of its own.
	for part := 1 + bundle + row; part > first; part-- {
		if own := k.parts.at(part); len(own) > 0 {
			return append(key, own...)
		}
	}
	return key
}
