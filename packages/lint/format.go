package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/larder-cdn/larder/packages"
)

// maxDepth bounds how deeply a document may be nested; a package JSON needs six.
const maxDepth = 32

// Format returns a JSON document as a catalogue has it: properties in the schema's order and unknown
// ones after them, two spaces for each level, a line for each entry, a line break at the end. Texts
// and numbers stay byte by byte what they were. The error is for what is no JSON object, or one that
// gives a property twice, so that its order has a meaning.
func Format(data []byte) ([]byte, error) { return format(data, true) }

// format formats a JSON object, with the properties in the order of the schema if reorder is set.
func format(data []byte, reorder bool) ([]byte, error) {
	root, err := readTree(data)
	if err != nil {
		return nil, err
	}
	if root.kind != '{' {
		return nil, errors.New("the document is not an object")
	}
	if reorder {
		root.sort(order())
	}
	var b bytes.Buffer
	root.write(&b, 0)
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// tree is a JSON value whose texts are kept as they were written.
type tree struct {
	kind    byte   // '{', '[' or 0 for anything else
	raw     []byte // of anything else
	keys    []key  // of an object
	entries []*tree
}

type key struct {
	name string
	raw  []byte
}

// readTree parses a JSON object into a tree that keeps the order of properties and the bytes of texts and numbers.
func readTree(data []byte) (*tree, error) {
	switch {
	case len(data) > packages.MaxFileSize:
		return nil, fmt.Errorf("the file has %d bytes, over the limit of %d", len(data), packages.MaxFileSize)
	case !utf8.Valid(data):
		return nil, errors.New("the file is not UTF-8")
	case !json.Valid(data):
		return nil, errors.New("the file is not JSON")
	}
	r := treeReader{data: data, decoder: json.NewDecoder(bytes.NewReader(data))}
	return r.value(0)
}

type treeReader struct {
	data    []byte
	decoder *json.Decoder
}

// token returns the next token and its bytes.
func (r *treeReader) token() (json.Token, []byte, error) {
	from := int(r.decoder.InputOffset())
	token, err := r.decoder.Token()
	if err != nil {
		return nil, nil, err
	}
	return token, bytes.TrimLeft(r.data[from:r.decoder.InputOffset()], " \t\r\n,:"), nil
}

// value reads the next value with all in it.
func (r *treeReader) value(depth int) (*tree, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("the document is nested more than %d levels deep", maxDepth)
	}
	token, raw, err := r.token()
	if err != nil {
		return nil, err
	}
	t := &tree{raw: raw}
	delim, ok := token.(json.Delim)
	if !ok {
		return t, nil
	}
	t.kind, t.raw = byte(delim), nil
	seen := make(map[string]bool)
	for r.decoder.More() {
		if t.kind == '{' {
			name, raw, err := r.token()
			if err != nil {
				return nil, err
			}
			k := key{name: name.(string), raw: raw}
			if seen[k.name] {
				return nil, fmt.Errorf("%q is given twice", shorten(k.name))
			}
			seen[k.name] = true
			t.keys = append(t.keys, k)
		}
		entry, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		t.entries = append(t.entries, entry)
	}
	_, _, err = r.token() // the closing bracket
	return t, err
}

// sort sorts the properties of all objects into the order o.
func (t *tree) sort(o *orders) {
	for i, entry := range t.entries {
		switch {
		case o == nil:
			return
		case t.kind == '[':
			entry.sort(o.items)
		default:
			entry.sort(o.properties[t.keys[i].name])
		}
	}
	if t.kind != '{' {
		return
	}
	type property struct {
		key   key
		entry *tree
	}
	all := make([]property, len(t.keys))
	for i := range all {
		all[i] = property{t.keys[i], t.entries[i]}
	}
	slices.SortStableFunc(all, func(a, b property) int { return o.rank(a.key.name) - o.rank(b.key.name) })
	for i, p := range all {
		t.keys[i], t.entries[i] = p.key, p.entry
	}
}

// write writes the value, indented for the given level.
func (t *tree) write(b *bytes.Buffer, level int) {
	if t.kind == 0 {
		b.Write(t.raw)
		return
	}
	b.WriteByte(t.kind)
	for i, entry := range t.entries {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		b.WriteString(strings.Repeat("  ", level+1))
		if t.kind == '{' {
			b.Write(t.keys[i].raw)
			b.WriteString(": ")
		}
		entry.write(b, level+1)
	}
	if len(t.entries) > 0 {
		b.WriteByte('\n')
		b.WriteString(strings.Repeat("  ", level))
	}
	b.WriteByte(t.kind + 2) // '}' after '{', ']' after '['
}

// orders is the order of an object's properties, or what is known of an array's entries.
type orders struct {
	ranks      map[string]int
	properties map[string]*orders
	items      *orders
}

// rank returns the place of a property in the order; unknown ones come last.
func (o *orders) rank(name string) int {
	if rank, ok := o.ranks[name]; ok {
		return rank
	}
	return len(o.ranks)
}

// names returns the properties in order.
func (o *orders) names() []string {
	names := make([]string, len(o.ranks))
	for name, rank := range o.ranks {
		names[rank] = name
	}
	return names
}

// order is the one in which the schema itself describes the properties.
var order = sync.OnceValue(func() *orders {
	schema, err := readTree(packages.Schema())
	if err != nil {
		panic("lint: the schema: " + err.Error())
	}
	return ordersOf(schema)
})

// ordersOf returns the order of properties that a JSON schema has, at all levels.
func ordersOf(schema *tree) *orders {
	o := &orders{ranks: map[string]int{}, properties: map[string]*orders{}}
	for i, k := range schema.keys {
		switch k.name {
		case "items":
			o.items = ordersOf(schema.entries[i])
		case "properties":
			for j, property := range schema.entries[i].keys {
				o.ranks[property.name] = j
				o.properties[property.name] = ordersOf(schema.entries[i].entries[j])
			}
		}
	}
	return o
}
