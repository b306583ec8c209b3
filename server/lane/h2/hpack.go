package h2

import (
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/net/http2/hpack"
)

// tableBytes bounds the dynamic table that a client's fields are kept in, as RFC 7541 §4.1
// counts them. It is the size that clients assume before they receive SETTINGS.
const tableBytes = 4 << 10

// entryBytes is what an entry counts beside its text.
const entryBytes = 32

// An entry is one of a table: a field that was judged once.
type entry struct {
	name, value string
	kind        Kind
	odd         bool // whether the value is no field's
}

// size returns how many bytes of the table an entry takes (RFC 7541 §4.1).
func (e *entry) size() int { return len(e.name) + len(e.value) + entryBytes }

// statics is RFC 7541 appendix A; the first has index 1.
var statics = func() (all [62]entry) {
	d := hpack.NewDecoder(0, nil)
	for i := 1; i < len(all); i++ {
		fields, err := d.DecodeFull([]byte{0x80 | byte(i)})
		if err != nil {
			panic(err)
		}
		all[i] = entry{name: fields[0].Name, value: fields[0].Value, kind: kindOf(fields[0].Name)}
	}
	return all
}()

// A decoder reads header blocks (RFC 7541). What it puts into its table it copies; the rest of a
// request's text is in the request's own memory.
type decoder struct {
	table     []entry // the newest last
	size, max int
}

// lookup returns the entry with an HPACK index, from the static table or behind it the dynamic one; nil for none.
func (d *decoder) lookup(index int) *entry {
	if 0 < index && index < len(statics) {
		return &statics[index]
	}
	if i := len(d.table) + len(statics) - 1 - index; 0 <= i && i < len(d.table) {
		return &d.table[i]
	}
	return nil
}

// evict removes the oldest entries of the dynamic table until room more bytes fit into it.
func (d *decoder) evict(room int) {
	n := 0
	for ; n < len(d.table) && d.size+room > d.max; n++ {
		d.size -= d.table[n].size()
	}
	d.table = slices.Delete(d.table, 0, n) // in place: it is filled again without allocating
}

// decode decodes the complete header block b, adds its fields to r, and updates the dynamic table. It returns false after a
// compression error; then the table is no longer that of the client. An invalid field is no such error: it marks r as malformed.
func (d *decoder) decode(b []byte, r *Request) bool {
	for first := true; len(b) > 0; {
		c := b[0]
		var index int
		var ok bool
		switch {
		case c >= 0x80:
			if index, b, ok = decodeNumber(b, 0x7f); !ok {
				return false
			}
			e := d.lookup(index)
			if e == nil {
				return false
			}
			r.addField(e)
			first = false
			continue
		case c >= 0x40:
			index, b, ok = decodeNumber(b, 0x3f)
		case c >= 0x20:
			size := 0
			if size, b, ok = decodeNumber(b, 0x1f); !ok || !first || size > tableBytes {
				return false
			}
			d.max = size
			d.evict(0)
			continue
		default:
			index, b, ok = decodeNumber(b, 0x0f)
		}
		if !ok {
			return false
		}
		first = false
		var e entry
		if e, b, ok = d.decodeLiteral(index, b, r); !ok {
			return false
		}
		if r.addField(&e); c >= 0x40 {
			d.insert(e, index > 0)
		}
	}
	return true
}

// decodeLiteral decodes a field whose value is at the beginning of b, after its name if index is 0; else its name is that of the
// table entry index. What is in b as text is copied to the memory of r. It returns the rest of b, and false after a compression error.
// An invalid name or value is no such error: it is marked in e.
func (d *decoder) decodeLiteral(index int, b []byte, r *Request) (e entry, rest []byte, ok bool) {
	if index > 0 {
		named := d.lookup(index)
		if named == nil {
			return e, nil, false
		}
		e.name, e.kind = named.name, named.kind
	} else {
		if e.name, b, ok = r.decodeText(b); !ok {
			return e, nil, false
		}
		if e.kind = kindOf(e.name); e.kind == Other && !IsName(e.name) {
			e.kind = odd
		}
	}
	e.value, rest, ok = r.decodeText(b)
	e.odd = !IsValue(e.value)
	return e, rest, ok
}

// insert adds a copy of an entry to the dynamic table, because the entry's text is in the memory of the request, and evicts others for
// it. named says that the name is in a table already and need not be copied. An entry that is larger than the table is not added, and
// empties the table.
func (d *decoder) insert(e entry, named bool) {
	d.evict(e.size())
	if e.size() > d.max {
		return
	}
	if named { // the name is an entry's, which owns it
		e.value = strings.Clone(e.value)
	} else {
		both := string(append([]byte(e.name), e.value...))
		e.name, e.value = both[:len(e.name)], both[len(e.name):]
	}
	if n := len(d.table); n == cap(d.table) {
		d.table = slices.Grow(d.table, max(16, n)) // requests have many fields: not 1, 2, 4, 8
	}
	d.table = append(d.table, e)
	d.size += e.size()
}

// decodeNumber decodes the HPACK integer at the beginning of b, which is not empty (RFC 7541 §5.1). prefix is the mask of the
// bits in the first byte that belong to it. It returns the rest of b, and false if the integer is malformed or takes more than
// four bytes after the first.
func decodeNumber(b []byte, prefix byte) (n int, rest []byte, ok bool) {
	n = int(b[0] & prefix)
	b = b[1:]
	if n < int(prefix) {
		return n, b, true
	}
	for shift := 0; shift < 28 && len(b) > 0; shift += 7 {
		c := b[0]
		b = b[1:]
		if n += int(c&0x7f) << shift; c < 0x80 {
			return n, b, true
		}
	}
	return 0, nil, false
}

// decodeText decodes the string at the beginning of b, with or without Huffman coding. It returns it, in the memory of the request,
// where it is valid until the request is reset, the rest of b, and false after a compression error.
func (r *Request) decodeText(b []byte) (s string, rest []byte, ok bool) {
	if len(b) == 0 {
		return "", nil, false
	}
	huffman := b[0] >= 0x80
	n, b, ok := decodeNumber(b, 0x7f)
	if !ok || n > len(b) {
		return "", nil, false
	}
	code, rest := b[:n], b[n:]
	begin := len(r.scratch)
	if !huffman {
		r.scratch = append(r.scratch, code...)
	} else if r.scratch, ok = appendHuffman(r.scratch, code); !ok {
		return "", nil, false
	}
	made := r.scratch[begin:]
	return unsafe.String(unsafe.SliceData(made), len(made)), rest, true
}
