package kvstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// valuesBlock returns a block of a blob file with the offsets, in four bytes each, that are given, and a checksum that is right.
func valuesBlock(data []byte, offsets ...uint32) []byte {
	b := valuesHeader(uint32(len(offsets) - 1))
	b = append(b, 4, 0, 0, 0) // the width, and padding up to a multiple of it
	for _, offset := range offsets {
		b = binary.LittleEndian.AppendUint32(b, offset)
	}
	b = append(append(b, data...), 0, 0) // padding, and the kind of compression
	return binary.LittleEndian.AppendUint32(b, masked(checksum(b)))
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
		for _, h := range r.blocks() {
			b, err := r.read(int64(h.Offset), int64(h.Length)+5)
			if err != nil {
				t.Fatal(err)
			}
			if rows, ok := decodeRows(b); ok && len(rows) > 3 {
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
	plain, ok := expand(tableBlock(t, newSample(t).now))
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
