package h2

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

func newDecoder() *decoder { return &decoder{max: tableBytes} }

// fieldsOf decodes a block, and returns all of its fields, pseudo-fields first.
func fieldsOf(d *decoder, block []byte) (fields []string, ok bool) {
	var r Request
	r.reset(1 << 30)
	ok = d.decode(block, &r)
	for _, f := range []struct{ name, value string }{{":method", r.Method}, {":scheme", r.Scheme}, {":authority", r.Authority}, {":path", r.Path}} {
		if f.value != "" {
			fields = append(fields, f.name+": "+f.value)
		}
	}
	for _, f := range r.Fields {
		fields = append(fields, f.Name+": "+f.Value)
	}
	return fields, ok
}

// What package hpack encodes is decoded, block by block, while its table changes.
func TestDecoderReadsWhatHpackWrites(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	d := newDecoder()
	for block := range 3000 {
		b.Reset()
		if random.IntN(50) == 0 {
			e.SetMaxDynamicTableSize(uint32(random.IntN(tableBytes + 1)))
		}
		var want []string
		for range random.IntN(20) {
			f := hpack.HeaderField{Name: fmt.Sprintf("x-%d", random.IntN(60)), Value: strings.Repeat(string(rune('!'+random.IntN(90))), random.IntN(200)), Sensitive: random.IntN(5) == 0}
			if random.IntN(3) == 0 {
				f.Name, f.Value = "accept-encoding", "gzip, deflate"
			}
			want = append(want, f.Name+": "+f.Value)
			if err := e.WriteField(f); err != nil {
				t.Fatal(err)
			}
		}
		got, ok := fieldsOf(d, b.Bytes())
		if !ok || strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Fatalf("block %d is read as %q (%v), want %q", block, got, ok, want)
		}
	}
}

// The table allocates its memory once for the fields of common requests, and no more once it is full; besides, each entry has its value.
func TestTableAllocatesSeldom(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	e := entry{name: "accept", value: strings.Repeat("a", 100)}
	if n := testing.AllocsPerRun(100, func() {
		var d decoder
		for d.max = tableBytes; len(d.table) < 16; {
			d.insert(e, true)
		}
	}); n > 16+1 {
		t.Errorf("%v allocations for the first 16 entries", n)
	}
	d := newDecoder()
	for range tableBytes / e.size() {
		d.insert(e, true)
	}
	if n := testing.AllocsPerRun(1000, func() {
		for range 10 {
			d.insert(e, true)
		}
	}); n > 10 {
		t.Errorf("%v allocations for ten entries of a full table", n)
	}
}

func TestDecoderRefuses(t *testing.T) {
	for name, block := range map[string]string{
		"index 0":                         "\x80",
		"an index that there is not":      "\xbe",
		"a name that there is not":        "\x7e\x01a",
		"a table larger than was allowed": "\x3f\xe2\x1f",
		"a new size after a field":        "\x82\x20",
		"a text that is cut off":          "\x00\x05abc",
		"an integer without end":          "\xff\x80\x80\x80",
		"an integer beyond all bounds":    "\xff\xff\xff\xff\xff\xff\x7f",
		"padding of a byte":               "\x00\x81\x1f\x82\x1f\xff",
		"padding of zeros":                "\x00\x81\x1f\x81\x18",
		"the symbol that ends":            "\x00\x81\x1f\x84\xff\xff\xff\xff",
		"a literal without a name":        "\x40",
		"a literal without a value":       "\x40\x01a",
	} {
		if fields, ok := fieldsOf(newDecoder(), []byte(block)); ok {
			t.Errorf("%s is read as %q", name, fields)
		}
	}
}

func TestHuffman(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		text := make([]byte, random.IntN(60))
		for i := range text {
			text[i] = byte(random.IntN(256))
		}
		if got, ok := appendHuffman(nil, hpack.AppendHuffmanString(nil, string(text))); !ok || !bytes.Equal(got, text) {
			t.Fatalf("%q becomes %q", text, got)
		}
	}
}

// Blocks that are made here are what package hpack reads.
func TestBlocks(t *testing.T) {
	b := AppendStatus(AppendStatus(nil, 200), 418)
	b = AppendField(b, "content-type", "text/css; charset=utf-8")
	b = AppendField(b, "accept-encoding", "gzip, deflate")
	b = AppendField(b, "x-own", "a\xff\x01b")
	b = AppendValue(append(b, AppendableName("etag")...), `"`+strings.Repeat("x", 300)+`"`)
	got, err := hpack.NewDecoder(0, nil).DecodeFull(b)
	want := []hpack.HeaderField{
		{Name: ":status", Value: "200"}, {Name: ":status", Value: "418"}, {Name: "content-type", Value: "text/css; charset=utf-8"},
		{Name: "accept-encoding", Value: "gzip, deflate"}, {Name: "x-own", Value: "a\xff\x01b"}, {Name: "etag", Value: `"` + strings.Repeat("x", 300) + `"`},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || err != nil {
		t.Errorf("%v and %v, want %v", got, err, want)
	}
}

// FuzzDecode holds the decoder to package hpack's: what both read is the same. This one refuses
// more: new sizes of the table after a field, and integers of four bytes and more.
func FuzzDecode(f *testing.F) {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, field := range [][2]string{{":method", "GET"}, {":path", "/ajax/libs/a/1/b.js"}, {"user-agent", "x"}, {"cookie", "a=b"}} {
		e.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	f.Add(b.Bytes(), []byte{0xbe, 0xbf, 0x20})
	f.Add([]byte{0x3f, 0xe1, 0x1f, 0x40, 1, 'a', 1, 'b'}, []byte{0xbe})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		d, theirs := newDecoder(), hpack.NewDecoder(tableBytes, nil)
		for _, block := range [][]byte{first, second} {
			var r Request
			r.reset(1 << 30)
			ok := d.decode(block, &r)
			fields, err := theirs.DecodeFull(block)
			if !ok {
				return
			}
			if err != nil {
				t.Fatalf("%x is read, and package hpack says %v", block, err)
			}
			var want []string
			for _, f := range fields {
				if k := kindOf(f.Name); k < method && IsName(f.Name) && IsValue(f.Value) && len(want) < len(r.Fields) {
					want = append(want, f.Name+": "+f.Value)
				}
			}
			var got []string
			for _, f := range r.Fields {
				got = append(got, f.Name+": "+f.Value)
			}
			if !r.malformed && !r.TooLarge && strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Fatalf("%x is read as %q, want %q", block, got, want)
			}
			size := 0
			for i := range d.table {
				size += d.lookup(len(statics) + i).size()
			}
			if size != d.size || size > tableBytes {
				t.Fatalf("the table has %d bytes, and counts %d", size, d.size)
			}
		}
	})
}
