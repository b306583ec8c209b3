package kvstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/bits"
)

// Pebble's MANIFEST and its write-ahead logs are blocks of 32 KiB that hold chunks. A
// chunk is a checksum (4 bytes), a length (2), a type (1), in a log the number of the log
// (4) and mostly the offset up to which the log had been synced when the chunk was written
// (8), and its part of a record. Package record of Pebble has the whole description.
const (
	blockSize    = 32 << 10
	chunkStart   = 6 // where what the checksum covers begins: at the type
	legacyHeader = 7 // what a MANIFEST's chunks begin with
	logHeader    = 11
	syncedHeader = 19
)

// chunk is one chunk whose checksum is right.
type chunk struct {
	first, last bool  // whether its record begins with it, and ends
	synced      int64 // how much of the log was on the disk before it was written
	payload     []byte
	length      int // with its header
}

// chunkReader reads the chunks of a MANIFEST, or of a log. Unlike Pebble's reader it is
// strict, and when it meets something that is no chunk it says whether that is what a
// crash leaves or damage.
type chunkReader struct {
	r      io.Reader
	log    uint32 // the number of the log; 0 for a MANIFEST
	buf    [blockSize]byte
	block  int64 // where buf begins in the file
	n, pos int   // the valid bytes of buf, and the next of them
	inside bool  // whether a record has begun and not ended
}

// badChunk says where the chunks of a file end without a clean end.
type badChunk struct {
	at int64
	// what is wrong, where a crash cannot have left it so. Empty otherwise: then it may be
	// a write that a crash cut off.
	damage string
}

// Error implements error. The text is the same for all: callers read the fields, which say where the valid chunks end and whether that is damage.
func (b *badChunk) Error() string { return "there is no chunk" }

// newChunkReader returns a reader of the chunks of the write-ahead log with the number log, or of a MANIFEST if log is 0, which starts at the
// beginning of r.
func newChunkReader(r io.Reader, log uint64) *chunkReader {
	return &chunkReader{r: r, log: uint32(log)}
}

// offset returns the offset in the file up to which next has returned valid chunks. It means nothing after next has returned a *badChunk.
func (c *chunkReader) offset() int64 { return c.block + int64(c.pos) }

// next returns the next chunk, whose payload is valid until the next call. At the clean end of the file it returns [io.EOF]: behind the trailer of a
// log, or where the file ends between two records. If no valid chunk follows, or the file ends within a record, the error is a *badChunk, whose field
// damage is empty if a crash may leave that; other errors are the disk's.
func (c *chunkReader) next() (chunk, error) {
	for {
		rest := c.buf[c.pos:c.n]
		found, ok := c.parse(rest)
		switch {
		case ok && found.first == c.inside: // a record that does not end, or has no beginning
			return chunk{}, c.classifyDamage()
		case ok:
			c.pos += found.length
			c.inside = !found.last
			return found, nil
		case c.isTrailer(rest) && !c.inside:
			c.pos += logHeader
			return chunk{}, io.EOF
		case len(rest) >= c.padding() || c.n < blockSize && len(rest) > 0:
			return chunk{}, c.classifyDamage()
		case len(rest) >= legacyHeader && !isZero(rest): // Pebble skips fewer bytes unseen
			return chunk{}, c.classifyDamage()
		}
		c.pos = c.n // so that padding counts as sound
		if err := c.loadBlock(); err == io.EOF && c.inside {
			return chunk{}, &badChunk{at: c.offset()}
		} else if err != nil {
			return chunk{}, err
		}
	}
}

// loadBlock reads the next block of the file into c.buf. It returns [io.EOF] after the last one, which may be shorter than others. Other errors are
// the disk's.
func (c *chunkReader) loadBlock() error {
	if c.n > 0 && c.n < blockSize {
		return io.EOF
	}
	next := c.block + int64(c.n)
	n, err := io.ReadFull(c.r, c.buf[:])
	if err != nil && err != io.ErrUnexpectedEOF {
		return err
	}
	c.block, c.n, c.pos = next, n, 0
	return nil
}

// padding returns the number of bytes below which the rest of a block is left unused.
func (c *chunkReader) padding() int {
	if c.log == 0 {
		return legacyHeader
	}
	return syncedHeader
}

// headerLength returns the length of the header of a chunk whose type byte is kind, 0 for a type that a file of this kind, log or MANIFEST, may not
// have.
func (c *chunkReader) headerLength(kind byte) int {
	switch {
	case c.log == 0 && kind >= 1 && kind <= 4:
		return legacyHeader
	case c.log != 0 && kind >= 5 && kind <= 8:
		return logHeader
	case c.log != 0 && kind >= 9 && kind <= 12:
		return syncedHeader
	}
	return 0
}

// parse parses the chunk that b begins with and verifies its checksum; the payload is a part of b. It returns false if none is there, it belongs to
// another log, or its checksum is wrong.
func (c *chunkReader) parse(b []byte) (chunk, bool) {
	if len(b) < legacyHeader {
		return chunk{}, false
	}
	header := c.headerLength(b[chunkStart])
	end := header + int(binary.LittleEndian.Uint16(b[4:]))
	if header == 0 || end > len(b) || !c.isOfThisLog(b) || maskChecksum(checksum(b[chunkStart:end])) != binary.LittleEndian.Uint32(b) {
		return chunk{}, false
	}
	part := (b[chunkStart] - 1) % 4 // full, first, middle, last
	found := chunk{first: part <= 1, last: part == 0 || part == 3, payload: b[header:end], length: end}
	if header == syncedHeader {
		found.synced = int64(binary.LittleEndian.Uint64(b[logHeader:]))
	}
	return found, true
}

// isOfThisLog reports whether the chunk that b begins with has the number of this write-ahead log: Pebble reuses files of older logs. It is always
// true for a MANIFEST, and false for a log if b is too short. It does not verify the checksum.
func (c *chunkReader) isOfThisLog(b []byte) bool {
	return c.log == 0 || len(b) >= logHeader && binary.LittleEndian.Uint32(b[legacyHeader:]) == c.log
}

// isTrailer reports whether b begins with the trailer that Pebble writes at the end of this write-ahead log when it closes it. It is always false for
// a MANIFEST, which has none.
func (c *chunkReader) isTrailer(b []byte) bool {
	return c.log != 0 && len(b) >= logHeader && isZero(b[:chunkStart]) && b[chunkStart] == 5 &&
		binary.LittleEndian.Uint32(b[legacyHeader:]) == c.log+1
}

// classifyDamage returns a *badChunk for the invalid chunk at c.pos. Its field damage says what the damage is, a flipped bit or that later records
// exist; it is empty if a crash may have left the chunk so. It reads the rest of the file; if that fails, it returns the disk's error instead.
func (c *chunkReader) classifyDamage() error {
	bad := &badChunk{at: c.offset()}
	rest := c.buf[c.pos:c.n]
	flipped := c.hasFlippedBit(rest)
	records, synced, err := c.scanRest()
	switch {
	case err != nil:
		return err
	case flipped:
		bad.damage = "a bit is flipped"
	case c.log == 0 && records:
		// Each record of a MANIFEST is synced before the next is written.
		bad.damage = "a record is damaged, and whole ones follow it"
	case synced > bad.at:
		bad.damage = "a record is damaged that was on the disk already when a later one was written"
	}
	return bad
}

// scanRest reads the rest of the file behind c.pos for valid chunks: in the present block at every offset, in each later block up to the first
// invalid chunk. Afterwards nothing more can be read. It returns whether a record begins there, and how many bytes of the log, at least, had been
// synced to the disk when the last of the chunks was written. err is the disk's.
func (c *chunkReader) scanRest() (records bool, synced int64, err error) {
	count := func(found chunk) {
		records = records || found.first
		synced = max(synced, found.synced)
	}
	// The start of the next chunk of this block is unknown, so each offset is tried.
	for at := c.pos + 1; at < c.n; at++ {
		if found, ok := c.parse(c.buf[at:c.n]); ok {
			count(found)
			at += found.length - 1
		}
	}
	for {
		if err := c.loadBlock(); err == io.EOF {
			return records, synced, nil
		} else if err != nil {
			return false, 0, err
		}
		for {
			found, ok := c.parse(c.buf[c.pos:c.n])
			if !ok {
				break
			}
			count(found)
			c.pos += found.length
		}
	}
}

// hasFlippedBit reports whether b would begin with a valid chunk, or be padding, if one of its bits were flipped: then it is damaged. An interrupted
// write lacks whole sectors: that a single bit makes up for it happens once in 16,000 times at the most, for a chunk as large as a block.
func (c *chunkReader) hasFlippedBit(b []byte) bool {
	if len(b) < c.padding() && c.n == blockSize {
		ones := 0
		for _, x := range b {
			ones += bits.OnesCount8(x)
		}
		if ones == 1 {
			return true
		}
	}
	if len(b) < legacyHeader {
		return false
	}
	fixed := bytes.Clone(b)
	for bit := range 8 * min(len(b), syncedHeader) { // of a header
		fixed[bit/8] ^= 1 << (bit % 8)
		if _, ok := c.parse(fixed); ok {
			return true
		}
		fixed[bit/8] ^= 1 << (bit % 8)
	}
	header := c.headerLength(b[chunkStart])
	end := header + int(binary.LittleEndian.Uint16(b[4:]))
	if header == 0 || end > len(b) || !c.isOfThisLog(b) {
		return false
	}
	// CRCs are linear: a flipped bit changes the sum by what only depends on how far it is from the end. effect has that of each bit of
	// a byte, beginning with the last byte.
	difference := checksum(b[chunkStart:end]) ^ unmaskChecksum(binary.LittleEndian.Uint32(b))
	var effect [8]uint32
	for bit := range effect {
		effect[bit] = castagnoli[1<<bit]
	}
	for range end - header {
		for bit, e := range effect {
			if e == difference {
				return true
			}
			effect[bit] = castagnoli[byte(e)] ^ e>>8
		}
	}
	return false
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the CRC-32 (Castagnoli) of b.
func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// maskChecksum returns a CRC in the masked form in which Pebble stores it.
func maskChecksum(sum uint32) uint32 { return bits.RotateLeft32(sum, 17) + 0xa282ead8 }

// unmaskChecksum is the inverse of maskChecksum: it returns the CRC from its stored form.
func unmaskChecksum(stored uint32) uint32 { return bits.RotateLeft32(stored-0xa282ead8, -17) }

// isZero reports whether all bytes are zero.
func isZero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

// readRecords reads the file to its end and calls f with each record that its chunks form. If limit is not 0, a record is cut behind the chunk with
// which it has limit bytes. A record is valid until f returns. readRecords returns the offset up to which the file is sound, and nil at a clean end.
// Otherwise the error is a *badChunk, the disk's, or that of f, which ends the reading; after one of f, the offset is behind its record.
func (c *chunkReader) readRecords(limit int, f func(record []byte) error) (sound int64, err error) {
	var record []byte
	for {
		part, err := c.next()
		if err == io.EOF {
			return c.offset(), nil
		}
		var bad *badChunk
		if errors.As(err, &bad) {
			return bad.at, bad
		}
		if err != nil {
			return c.offset(), err
		}
		if part.first {
			record = record[:0]
		}
		if limit == 0 || len(record) < limit {
			record = append(record, part.payload...)
		}
		if !part.last {
			continue
		}
		if err := f(record); err != nil {
			return c.offset(), err
		}
	}
}
