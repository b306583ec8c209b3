package kvstore

import (
	"context"
	"encoding/binary"
	"math"
	"path/filepath"
	"runtime/debug"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
)

// Blocks of tables and of blob files hold columns, behind a header of seven bytes and five more for each column. Each is
// followed by how it is compressed and a checksum. The columns of a table's rows, and the one of a blob file's
// values, are these (packages sstable/colblk and sstable/blob of Pebble).
const (
	columnsStart = 7
	columnLength = 5

	rowsHeader     = 4 // the length of the longest key comes before the header
	columnPrefix   = 0
	columnSuffix   = 1
	columnTrailer  = 2
	columnValue    = 4
	columnExternal = 5
	rowColumns     = 7

	valueColumns = 1
	valueHeader  = columnsStart + valueColumns*columnLength

	maxRows = 1 << 20 // in a block
)

// The kinds of keys that Larder writes, and how Pebble packs one with its sequence number.
const (
	kindDelete        = 0
	kindSet           = 1
	kindSetWithDelete = 18
	kindDeleteSized   = 23
	kindBits          = 8
)

// blocksInIndex returns the positions of the blocks of rows according to the index in the table file, without their trailers. It returns nil if the
// index cannot be read or names none. It recovers from Pebble's panics and memory faults.
func (r *fileReader) blocksInIndex() (handles []block.Handle) {
	// Pebble trusts an index whose checksum is right.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			handles = nil
		}
	}()
	table, err := openTable(context.Background(), r.scan.fs, r.scan.fs.PathJoin(r.scan.dir, r.name), r.scan.options.(sstable.ReaderOptions))
	if err != nil {
		return nil
	}
	defer table.Close()
	layout, err := table.Layout()
	if err != nil {
		return nil
	}
	for _, h := range layout.Data {
		handles = append(handles, h.Handle)
	}
	return handles
}

// readTable adds the rows of the table file r to the scan's index: of the blocks that the table's own index names, or if that cannot be read or
// trusted, of those that a search finds. It verifies the checksum of each block. Blocks that cannot be read become gaps. An error is one of the
// scan's index or of ctx, or in a search the disk's.
func (s *FileScan) readTable(ctx context.Context, r *fileReader) error {
	counts := s.counted.countsTable(r.name, r.size)
	var handles []block.Handle
	if filepath.Ext(r.name) == ".sst" || r.beginsWithRows() { // else someone may have published what its end says
		handles = r.blocksInIndex()
	}
	if handles == nil {
		return r.searchBlocks(ctx, counts)
	}
	for _, h := range handles {
		if err := ctx.Err(); err != nil {
			return err
		}
		length := int64(h.Length) + block.TrailerLen
		b, err := r.read(int64(h.Offset), length)
		if err != nil || !isBlock(b) {
			r.addGap(int64(h.Offset), length, r.last)
			continue
		}
		if ok, err := r.addRows(b, int64(h.Offset), counts); err != nil {
			return err
		} else if !ok {
			r.addGap(int64(h.Offset), length, r.last)
		}
	}
	return nil
}

// beginsWithRows reports whether the file begins with a block of rows with a valid checksum. If so, the file is a table, not
// the content of a published file: a publisher of files cannot choose the first bytes of a table. It is false if the file cannot be read.
func (r *fileReader) beginsWithRows() bool {
	buf, err := r.peek(0, min(longestBlock, r.size))
	if err != nil {
		return false
	}
	length := blockLength(buf)
	if length == 0 {
		return false
	}
	_, ok := decodeRows(buf[:length:length])
	return ok
}

// addRows adds the rows of the block b, which begins at offset in the file, to the scan's index, and ends the open gap. The caller has verified the
// checksum. ok is false if b is not a block of rows. counts says that the file belongs to the last state of the store.
func (r *fileReader) addRows(b []byte, offset int64, counts bool) (ok bool, err error) {
	rows, ok := decodeRows(b)
	if !ok {
		return false, nil
	}
	r.found++
	for i, row := range rows {
		if len(row.key) == 0 {
			continue
		}
		r.recordRow(row.key)
		row.counts = counts
		if row.at.kind == inTable {
			row.at = location{inTable, r.number, offset, int64(len(b)), i}
		} else {
			row.at.file = r.number
		}
		if err := r.scan.addVersion(row); err != nil {
			return true, err
		}
	}
	return true, nil
}

// Without an index, a block is where its checksum is right. What is searched beyond damage is bounded.
const (
	longestBlock = 1 << 20  // that is searched for where one begins
	searchBlock  = 16 << 10 // and where one may begin
	searchSteps  = 1 << 26
)

// searchBlocks adds the rows of a table to the scan's index without the table's own index: it reads block after block, and after damage, which
// becomes a gap, it searches for the next block by its checksum. When the search has taken too many steps it returns nil, and the rest of the file is
// in the gap. counts says that the file belongs to the last state of the store; rows after the first damage do not, because a published file may have
// forged them.
func (r *fileReader) searchBlocks(ctx context.Context, counts bool) error {
	steps, lost := searchSteps, int64(-1)
	first := -1 // the first gap of this search
	defer func() {
		if first >= 0 {
			r.gaps[first].To, r.open = math.MaxUint8, false
		}
	}()
	for at := int64(0); at < r.size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		most := int64(longestBlock)
		if lost >= 0 {
			most = searchBlock
		}
		buf, err := r.peek(at, min(most, r.size-at))
		if err != nil {
			return err
		}
		length := blockLength(buf)
		if length > 0 {
			// Bytes after damage may be a published file, with any number of forged blocks in it.
			if ok, err := r.addRows(buf[:length:length], at, counts && first < 0); err != nil {
				return err
			} else if ok || lost < 0 {
				at, lost = at+length, -1
				continue
			}
		}
		if lost < 0 {
			lost = at
			r.addGap(at, r.size-at, r.last)
			if first < 0 {
				first = len(r.gaps) - 1
			}
		}
		if steps -= len(buf); steps < 0 {
			return nil
		}
		at++
	}
	return nil
}

// peek returns length bytes of the file at offset, or an error if they are not all there. It reads ahead; the result is valid until the next call.
func (r *fileReader) peek(offset, length int64) ([]byte, error) {
	if offset < r.ahead || offset+length > r.ahead+int64(len(r.window)) {
		window, err := r.read(offset, min(max(length, 2*longestBlock), r.size-offset))
		if err != nil {
			return nil, err
		}
		r.window, r.ahead = window, offset
	}
	return r.window[offset-r.ahead : offset-r.ahead+length], nil
}

// blockLength returns the length, trailer included, of the block that b begins with, found by its checksum; 0 if b begins with none.
func blockLength(b []byte) int64 {
	sum := ^uint32(0)
	for i, x := range b {
		sum = castagnoli[byte(sum)^x] ^ sum>>8
		end := i + 1
		if end+4 > len(b) || end < columnsStart {
			continue
		}
		if x <= byte(block.MinLZCompressionIndicator) && binary.LittleEndian.Uint32(b[end:]) == maskChecksum(^sum) {
			return int64(end + 4)
		}
	}
	return 0
}

// decompressBlock returns the decompressed content, in new memory, of a block that ends with its trailer, which says how it is compressed. It does
// not verify the checksum. The bool is false if the block cannot be decompressed, or would have over maxBatch bytes decompressed.
func decompressBlock(b []byte) ([]byte, bool) {
	if len(b) < block.TrailerLen {
		return nil, false
	}
	data, kind := b[:len(b)-block.TrailerLen], block.CompressionIndicator(b[len(b)-block.TrailerLen])
	switch kind {
	case block.NoCompressionIndicator:
		return append(make([]byte, 0, len(data)+8), data...), true
	case block.SnappyCompressionIndicator, block.ZstdCompressionIndicator, block.MinLZCompressionIndicator:
	default:
		return nil, false
	}
	n, err := block.DecompressedLen(kind, data)
	if err != nil || n < 0 || n > maxBatch {
		return nil, false
	}
	out := make([]byte, n, n+8)
	return out, block.DecompressInto(kind, data, out) == nil
}

// decodeRows decodes a block of a table, with its trailer, into versions of rows. It does not verify the checksum: rows of a damaged block may have
// any keys and values. ok is false for a block of another kind, or one that cannot be decompressed or parsed. Callers ignore rows whose key is empty:
// they are of a kind that Larder does not write, or their value is elsewhere. A value in a blob file is nil, with at.kind inBlobFile.
func decodeRows(b []byte) (rows []rowVersion, ok bool) {
	data, ok := decompressBlock(b)
	if !ok {
		return nil, false
	}
	c, ok := parseColumns(data, rowsHeader, rowColumns)
	if !ok {
		return nil, false
	}
	keys := c.keysAt(columnPrefix)
	suffixes := c.bytesAt(columnSuffix)
	trailers := c.uintsAt(columnTrailer)
	values := c.bytesAt(columnValue)
	external := c.bitsAt(columnExternal)
	if c.failed {
		return nil, false
	}
	for i := range c.rows {
		key := append(keys.appendKey(nil, i), suffixes.at(i)...)
		trailer := trailers.at(i)
		row := rowVersion{key: key, value: values.at(i), sequence: trailer >> kindBits, at: location{kind: inTable}}
		switch trailer & (1<<kindBits - 1) {
		case kindSet, kindSetWithDelete:
		case kindDelete, kindDeleteSized:
			row.deleted, row.value = true, nil
		default:
			row.key = nil
		}
		if isSet(external, i) {
			if len(row.value) > 0 && block.ValuePrefix(row.value[0]).IsValueBlockHandle() {
				row.key = nil // an older version of a row that is there, too
			}
			row.value, row.at.kind = nil, inBlobFile
			if len(key) > 0 && Namespace(key[0]) != Blobs {
				row.key = nil // a store of an older version, before its compaction
			}
		}
		rows = append(rows, row)
	}
	return rows, true
}

// decodeValues decodes a block of a blob file, with its trailer, into its values. It does not verify the checksum. ok is false for a block of another
// kind, or one that cannot be decompressed or parsed.
func decodeValues(b []byte) (values [][]byte, ok bool) {
	data, ok := decompressBlock(b)
	if !ok {
		return nil, false
	}
	c, ok := parseColumns(data, 0, valueColumns)
	if !ok {
		return nil, false
	}
	column := c.bytesAt(0)
	if c.failed {
		return nil, false
	}
	for i := range c.rows {
		values = append(values, column.at(i))
	}
	return values, true
}

// readBlobFile records the hash and the location of each value of the blob file r in the scan's index, up to the file's own index. Blocks without a
// valid checksum, or that cannot be read, become gaps. After damage it searches for the next block, within bounds; when these are reached it returns
// nil, and the rest is in the gap. An error is one of the scan's index or of ctx.
func (s *FileScan) readBlobFile(ctx context.Context, r *fileReader) (err error) {
	// Each byte behind damage may look like the beginning of a block of any length.
	budget := 1<<30 + 8*r.size
	for at := int64(0); at < r.size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := r.valueBlock(at)
		if b == nil {
			if budget -= r.indexLength(at); r.isIndex(at) {
				return nil
			}
			r.addGap(at, r.size-at, Blobs)
			r.gaps[len(r.gaps)-1].To = Blobs
			if at, err = r.nextValueBlock(ctx, at+1, &budget); err != nil || at < 0 {
				return err
			}
			continue
		}
		values, ok := decodeValues(b)
		if !ok {
			at++
			continue
		}
		r.found++
		r.open = false
		for i, value := range values {
			if err := s.addLocation(Sum(value), location{inBlobFile, r.number, at, int64(len(b)), i}, nil); err != nil {
				return err
			}
		}
		at += int64(len(b))
	}
	return nil
}

// longestIndex bounds the index of a blob file, which has a few bytes for each block.
const longestIndex = 1 << 20

// indexLength returns how many bytes a blob file has from the offset at to the footer. It returns 0 if that is none, or too many for the file's
// index.
func (r *fileReader) indexLength(at int64) int64 {
	if n := r.size - at - blobFooter; n > 0 && n <= longestIndex {
		return n
	}
	return 0
}

// isIndex reports whether the rest of a blob file from the offset at on is its index, with a valid checksum, and footer, or is shorter than a footer,
// so that no block of values follows. It is false if the rest cannot be read.
func (r *fileReader) isIndex(at int64) bool {
	if r.size-at < blobFooter {
		return true
	}
	b, err := r.read(at, r.indexLength(at))
	return err == nil && len(b) > block.TrailerLen && isBlock(b)
}

// valueBlock returns the block of values, with its trailer, that begins at an offset of a blob file; nil if none with a valid checksum does, or it
// cannot be read.
func (r *fileReader) valueBlock(at int64) []byte {
	length := r.valueBlockLength(at)
	if length == 0 {
		return nil
	}
	b, err := r.read(at, length)
	if err != nil || !isBlock(b) {
		return nil
	}
	return b
}

// valueBlockLength returns the length, trailer included, of the block of values at an offset of a blob file according to its own header, 0 if none
// can begin there or the header cannot be read. It does not verify the checksum.
func (r *fileReader) valueBlockLength(at int64) int64 {
	head, err := r.read(at, min(valueHeader+1, r.size-at))
	if err != nil || len(head) <= valueHeader || !isValueHeader(head) {
		return 0
	}
	rows := int64(binary.LittleEndian.Uint32(head[3:]))
	if rows > r.size-at { // each value but an empty one has a byte
		return 0
	}
	length := int64(valueHeader + 2) // with the byte that says how wide offsets are, and padding
	switch width := int64(head[valueHeader]); width {
	case 0:
	case 1, 2, 4:
		offsets := int64(alignUp(valueHeader+1, int(width)))
		var last [8]byte
		b, err := r.read(at+offsets+rows*width, width)
		if err != nil {
			return 0
		}
		copy(last[:], b)
		length = offsets + (rows+1)*width + int64(binary.LittleEndian.Uint64(last[:])) + 1
	default:
		return 0
	}
	if length += block.TrailerLen; at+length > r.size {
		return 0
	}
	return length
}

// isValueHeader reports whether b looks like the header of a block of values.
func isValueHeader(b []byte) bool {
	return len(b) >= valueHeader && b[0] == byte(colblk.Version1) && b[1] == valueColumns && b[2] == 0 &&
		b[columnsStart] == byte(colblk.DataTypeBytes) && binary.LittleEndian.Uint32(b[columnsStart+1:]) == valueHeader &&
		binary.LittleEndian.Uint32(b[3:])-1 < maxRows
}

// nextValueBlock searches the blob file from the offset at on for a block of values, and returns its offset. It returns a negative number, without an
// error, if none was found, the file cannot be read, or budget is used up: it subtracts the bytes that it reads from that. An error is that of ctx.
func (r *fileReader) nextValueBlock(ctx context.Context, at int64, budget *int64) (int64, error) {
	const window = 1 << 20
	for at < r.size {
		buf, err := r.peek(at, min(window, r.size-at))
		if err != nil {
			return -1, nil //nolint:nilerr // the rest of the file is in a gap already
		}
		for i := range buf {
			if !isValueHeader(buf[i:]) {
				continue
			}
			if err := ctx.Err(); err != nil {
				return -1, err
			}
			if *budget -= valueHeader + r.valueBlockLength(at+int64(i)); *budget < 0 {
				return -1, nil
			}
			if r.valueBlock(at+int64(i)) != nil {
				return at + int64(i), nil
			}
		}
		if at += window - valueHeader; int64(len(buf)) < window {
			return -1, nil
		}
	}
	return -1, nil
}
