package h2

import (
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
	ring      []entry // grows as it is used
	newest, n int
	size, max int
}

// at returns the entry of the static or dynamic table with an index, nil for none.
func (d *decoder) at(index int) *entry {
	if 0 < index && index < len(statics) {
		return &statics[index]
	}
	i := index - len(statics)
	if i < 0 || i >= d.n {
		return nil
	}
	return &d.ring[(d.newest-i+len(d.ring))%len(d.ring)]
}

// evict removes the oldest entries of the dynamic table until it has room.
func (d *decoder) evict(room int) {
	for d.n > 0 && d.size+room > d.max {
		oldest := &d.ring[(d.newest-d.n+1+len(d.ring))%len(d.ring)]
		d.size -= oldest.size()
		*oldest = entry{}
		d.n--
	}
}

// insert adds an entry, whose text nothing else may modify, to the dynamic table.
func (d *decoder) insert(e entry) {
	d.evict(e.size())
	if e.size() > d.max {
		return
	}
	if d.n == len(d.ring) {
		grown := make([]entry, max(16, 2*len(d.ring)))
		for i := range d.n {
			grown[d.n-1-i] = d.ring[(d.newest-i+len(d.ring))%len(d.ring)]
		}
		d.ring, d.newest = grown, d.n-1
	}
	if d.n == 0 {
		d.newest = -1
	}
	d.newest = (d.newest + 1) % len(d.ring)
	d.ring[d.newest] = e
	d.n++
	d.size += e.size()
}

// decode decodes a complete header block into r; false after a compression error.
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
			e := d.at(index)
			if e == nil {
				return false
			}
			r.add(e)
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
		if r.add(&e); c >= 0x40 {
			d.insertCopy(e, index > 0)
		}
	}
	return true
}

// decodeLiteral decodes a field whose value is in the block, and its name too if index is 0.
func (d *decoder) decodeLiteral(index int, b []byte, r *Request) (e entry, rest []byte, ok bool) {
	if index > 0 {
		named := d.at(index)
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

// insertCopy adds an entry to the dynamic table. It copies the text, which is in the memory of the request. named says that the
// name is in a table already and need not be copied.
func (d *decoder) insertCopy(e entry, named bool) {
	if e.size() > d.max {
		d.evict(e.size())
		return
	}
	if named { // the name is an entry's, which owns it
		e.value = string(append([]byte(nil), e.value...))
	} else {
		both := string(append([]byte(e.name), e.value...))
		e.name, e.value = both[:len(e.name)], both[len(e.name):]
	}
	d.insert(e)
}

// decodeNumber decodes an integer with a prefix (RFC 7541 §5.1); false if it is malformed or takes more than four bytes after the
// prefix.
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

// decodeText decodes a string into the memory of the request.
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
