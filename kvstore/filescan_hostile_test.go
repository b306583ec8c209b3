package kvstore

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// valuesBlock returns a block of a blob file with the offsets, in four bytes each, that are given, and a checksum that is right.
func valuesBlock(data []byte, offsets ...uint32) []byte {
	b := valuesHeader(uint32(len(offsets) - 1))
	b = append(b, 4, 0, 0, 0) // the width, and padding up to a multiple of it
	for _, offset := range offsets {
		b = binary.LittleEndian.AppendUint32(b, offset)
	}
	b = append(append(b, data...), 0, 0) // padding, and the kind of compression
	return binary.LittleEndian.AppendUint32(b, maskChecksum(checksum(b)))
}

func valuesHeader(rows uint32) []byte {
	b := []byte{1, valueColumns, 0}
	b = binary.LittleEndian.AppendUint32(b, rows)
	return binary.LittleEndian.AppendUint32(append(b, 3), valueHeader)
}

// tableBlock returns where a block of a table's rows in a sample is.
func tableBlock(t *testing.T, files folder) []byte {
	t.Helper()
	s := scanFolder(t, files, nil)
	for number, name := range s.files {
		file, err := s.fs.Open("store/" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		r := &fileReader{File: file, scan: s, number: number, name: name, size: int64(len(files[name]))}
		for _, h := range r.blocksInIndex() {
			b, err := r.read(int64(h.Offset), int64(h.Length)+5)
			if err != nil {
				t.Fatal(err)
			}
			if rows, ok := decodeRows(b); ok && len(rows) > 3 && slices.ContainsFunc(rows, func(row rowVersion) bool { return len(row.key) > 0 && Namespace(row.key[0]) == Files }) {
				return b
			}
		}
	}
	t.Fatal("no table has a block of rows")
	return nil
}

// Offsets that lie end neither the process nor the scan.
func TestScanChecksOffsets(t *testing.T) {
	data := []byte("12345678")
	if values, ok := decodeValues(valuesBlock(data, 0, 3, 8)); !ok || string(values[0]) != "123" || string(values[1]) != "45678" {
		t.Fatalf("%q, %v", values, ok)
	}
	for _, offsets := range [][]uint32{{0, 0xF0000000, 8}, {0, 5, 4}, {0, 4, 10}, {9, 9, 9}, {0xffffffff, 0, 8}} {
		b := valuesBlock(data, offsets...)
		if !isBlock(b) {
			t.Fatal("the checksum is wrong")
		}
		if values, ok := decodeValues(b); ok {
			t.Errorf("offsets %x: the values are %q", offsets, values)
		}
	}
	// Any byte of a block of rows may lie. It is not compressed, so that each byte counts.
	plain, ok := decompressBlock(tableBlock(t, newSample(t).now))
	if !ok {
		t.Fatal("the block can't be expanded")
	}
	plain = append(plain, 0, 0, 0, 0, 0)
	for at := range min(len(plain)-5, 2048) {
		for _, value := range []byte{0, 1, 4, 0x7f, 0xff} {
			b := bytes.Clone(plain)
			b[at] = value
			rows, _ := decodeRows(b)
			for _, row := range rows {
				_ = Sum(append(row.key, row.value...))
			}
		}
	}
}

// What looks like the beginning of a block at each byte behind damage takes neither long nor much memory.
func TestScanOfFalseHeaders(t *testing.T) {
	for name, header := range map[string][]byte{
		"many rows":  append(valuesHeader(1<<19), 4),
		"short ones": append(valuesHeader(1), 0),
		"far ends":   append(valuesHeader(1), 4, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0),
	} {
		content := bytes.Repeat(header, 1<<20/len(header))
		mem := vfs.NewMem()
		writeTestFile(t, mem, "file", append(make([]byte, 64), content...))
		f, err := mem.Open("file")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r := &fileReader{File: f, size: int64(64 + len(content))}
		const budget = 1 << 27
		left := int64(budget)
		if at, err := r.nextValueBlock(t.Context(), 1, &left); at >= 0 || err != nil {
			t.Errorf("%s: a block at %d, %v", name, at, err)
		}
		if read := budget - left; read == 0 || name == "far ends" && left >= 0 || name != "far ends" && read > 4*r.size {
			t.Errorf("%s: %d bytes of the budget are used", name, read)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.nextValueBlock(ctx, 1, &left); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, although the context has ended", name, err)
		}
	}
}

// logChunk returns a record of a write-ahead log that sets a row, in one chunk.
func logChunk(log uint32, ns Namespace, key, value string) []byte {
	record := binary.LittleEndian.AppendUint64(nil, 1<<40) // newer than everything
	record = append(binary.LittleEndian.AppendUint32(record, 1), kindSet)
	for _, part := range [][]byte{ns.physical([]byte(key)), []byte(value)} {
		record = append(binary.AppendUvarint(record, uint64(len(part))), part...)
	}
	b := binary.LittleEndian.AppendUint16(make([]byte, 4), uint16(len(record)))
	b = append(binary.LittleEndian.AppendUint32(append(b, 5), log), record...)
	binary.LittleEndian.PutUint32(b, maskChecksum(checksum(b[chunkStart:])))
	return b
}

// Chunks of logs count in the file of their log, and not where someone has published them.
func TestScanOfForgedLogs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long in one goroutine, where the race detector has nothing to find")
	}
	of := newSample(t)
	noise := bytes.Repeat([]byte("noise"), blockSize)[:blockSize:blockSize]
	for _, test := range []struct {
		what, file string
		content    []byte
		want       bool
	}{
		{"a log", "000999.log", logChunk(999, Meta, "row", "value"), true},
		{"a log with the name of another file", "000999.blob", logChunk(998, Meta, "row", "value"), true},
		{"an older log that it was written over", "000999.log", append(logChunk(999, Meta, "other", ""), logChunk(998, Meta, "row", "value")...), true},
		{"a log behind damage", "000999.log", append(noise, logChunk(999, Meta, "row", "value")...), true},
		{"a log that never was", "000999.log", append(noise, logChunk(1<<31, Meta, "row", "value")...), false},
		{"a damaged blob file", "000999.blob", append(noise, logChunk(999, Meta, "row", "value")...), false},
		{"a damaged table", "000999.sst", append(noise, logChunk(999, Meta, "row", "value")...), false},
	} {
		s := scanFolder(t, of.now.with(test.file, test.content), of.mark)
		if value, err := s.Get(Meta, []byte("row")); test.want != (err == nil) || test.want && string(value) != "value" {
			t.Errorf("%s: %q, %v", test.what, value, err)
		}
	}
}

// Blocks of rows behind damage to a file without an index do not count, however many follow each other.
func TestScanOfForgedBlocks(t *testing.T) {
	of := newSample(t)
	block := tableBlock(t, of.now)
	forged := slices.Concat([]byte("damage"), block, block, block)
	for _, name := range []string{"000999.blob", "000999.sst"} {
		s := scanFolder(t, folder{name: forged}, nil)
		if !s.Uncertain() {
			t.Fatal("something says which files count")
		}
		if n := s.Count(Versions) + s.Count(Files); n == 0 {
			t.Errorf("%s: no rows are found", name)
		}
		for _, ns := range scannedRows {
			for row := range s.Rows(t.Context(), ns) {
				t.Errorf("%s: %q counts", name, row.Key)
			}
		}
		if len(s.Gaps()) == 0 || !s.Gaps()[0].Concerns(Meta) || !s.Gaps()[0].Concerns(Durable) {
			t.Errorf("%s: the gaps are %v", name, s.Gaps())
		}
	}
}

// Of two different versions with the same sequence number none is dropped silently, in whatever order they are found.
func TestScanReportsContradictingVersions(t *testing.T) {
	value := func(file int, text string) rowVersion {
		return rowVersion{value: []byte(text), at: location{file: file}, counts: true, sequence: 1 << 40}
	}
	deletion := func(file int) rowVersion {
		return rowVersion{deleted: true, at: location{file: file}, counts: true, sequence: 1 << 40}
	}
	older := rowVersion{value: []byte("older"), counts: true, sequence: 1 << 39}
	for name, tt := range map[string]struct {
		versions []rowVersion
		want     string
		err      error
	}{
		"a value":                {[]rowVersion{value(0, "a"), older}, "a", nil},
		"the same value twice":   {[]rowVersion{value(0, "a"), value(1, "a"), older}, "a", nil},
		"a deletion":             {[]rowVersion{deletion(0), older}, "", nil},
		"the same deletion":      {[]rowVersion{deletion(0), deletion(1), older}, "", nil},
		"a value and a deletion": {[]rowVersion{value(0, "a"), deletion(1), older}, "a", ErrUndecided},
		"a deletion and a value": {[]rowVersion{deletion(0), value(1, "a"), older}, "a", ErrUndecided},
	} {
		t.Run(name, func(t *testing.T) {
			of := newSample(t)
			s := scanFolder(t, of.now, of.mark)
			for _, v := range tt.versions {
				v.key = append([]byte{byte(Versions)}, "contradicted"...)
				if err := s.addVersion(v); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.commit(); err != nil {
				t.Fatal(err)
			}
			got, gotErr := "", error(nil)
			for row, err := range s.Rows(t.Context(), Versions) {
				if string(row.Key) == "contradicted" {
					got, gotErr = string(row.Value), err
				} else if err != nil {
					t.Errorf("%q: %v", row.Key, err)
				}
			}
			if got != tt.want || !errors.Is(gotErr, tt.err) {
				t.Errorf("the row is %q, %v", got, gotErr)
			}
		})
	}
}

// An index that cannot be read does not look like one without the rows.
func TestScanReportsAnUnreadableIndex(t *testing.T) {
	of := newSample(t)
	s := scanFolder(t, of.now, of.mark)
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	disk := errors.New("the disk fails")
	s.index = failingIndex{indexOf(s), disk}
	defer func() { s.index = s.index.(failingIndex).DB }()
	rows := 0
	var last error
	for _, err := range s.Rows(t.Context(), Versions) {
		rows, last = rows+1, err
	}
	if rows != 1 || !errors.Is(last, disk) {
		t.Errorf("%d rows, %v", rows, last)
	}
	if _, err := s.Get(Versions, []byte(release(0))); !errors.Is(err, disk) {
		t.Errorf("a row: %v", err)
	}
	if !errors.Is(s.Err(), disk) {
		t.Errorf("the scan: %v", s.Err())
	}
}

// failingIndex is an index of which no row can be iterated over.
type failingIndex struct {
	*pebble.DB
	err error
}

func (f failingIndex) NewIter(*pebble.IterOptions) (*pebble.Iterator, error) { return nil, f.err }

// Values that no row names are decoded up to a limit only, and while the context lasts.
func TestIdentifyIsBounded(t *testing.T) {
	of := newSample(t)
	bomb := gzipped(t, make([]byte, 4<<20))
	h := Sum(make([]byte, 4<<20))
	files := folder{}
	for name, content := range of.now {
		files[name] = content
	}
	files["000999.blob"] = valuesBlock(bomb, 0, uint32(len(bomb)))
	s := scanFolder(t, files, of.mark)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Content(ctx, h, maxBatch); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	if err := s.identify(t.Context(), -int64(identifyFactor*len(bomb))); err != nil {
		t.Fatal(err)
	}
	if _, found := s.readEncodings(h, maxBatch); found != nil {
		t.Error("a content is identified beyond the budget")
	}
	if _, _, err := s.Content(t.Context(), h, 4<<20-1); !errors.Is(err, ErrNotFound) {
		t.Errorf("a content beyond the caller's limit: %v", err)
	}
	if _, found, err := s.Content(t.Context(), h, 4<<20); err != nil || len(found) != 1 {
		t.Errorf("a content of the limit: %d codings, %v", len(found), err)
	}
	if !s.isNamed(Sum(bomb)) {
		t.Error("a value would be decoded again")
	}
	if _, n, ok := hashDecoded(t.Context(), coding.Gzip, bomb, 1<<20); ok || n != 1<<20+1 {
		t.Errorf("%d bytes are decoded with a limit of 1 MiB, %v", n, ok)
	}
}

func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
