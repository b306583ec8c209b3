package server

import (
	"testing"
)

// The request scripts in testdata/ranges.txt have the table; this has what holds
// for every field.
func FuzzRange(f *testing.F) {
	for _, field := range []string{"bytes=0-0", "bytes=-5", "bytes=5-", "bytes=0-1,3-4,-1", "bytes=1-0", "bytes=,", "bytes = 1-2", "bytes=9223372036854775807-", "bytes=-99999999999999999999", "x=1"} {
		f.Add(field, int64(10))
	}
	f.Fuzz(func(t *testing.T, field string, size int64) {
		if size < 0 {
			return
		}
		spans, satisfiable := parseRanges([]string{field}, size)
		if !satisfiable && len(spans) > 0 {
			t.Fatalf("there are %d spans, and none is satisfiable", len(spans))
		}
		if len(spans) > maxRanges {
			t.Fatalf("%d spans", len(spans))
		}
		var total int64
		for _, s := range spans {
			if s.start < 0 || s.length <= 0 || s.start > size-s.length {
				t.Fatalf("the span %+v is not within %d bytes", s, size)
			}
			total += s.length
		}
		if total > size {
			t.Fatalf("%d bytes of %d", total, size)
		}
		if len(spans) > 1 {
			m := newMultipart(spans, size, octets)
			length := total + int64(len(m.tail))
			for _, head := range m.heads {
				length += int64(len(head))
			}
			if length != m.length {
				t.Fatalf("the length is %d, want %d", m.length, length)
			}
		}
	})
}
