package packages

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Format returns a JSON object as a catalogue has it: two spaces for each level, a line for each entry, a line break at the
// end. If reorder is set, properties are in the schema's order, with unknown ones after them. Texts and numbers stay byte by
// byte what they were. Format returns an error for other data, for over [MaxFileSize] bytes or too many levels, and if an object
// has a property twice, because their order has a meaning.
func Format(data []byte, reorder bool) ([]byte, error) {
	switch {
	case len(data) > MaxFileSize:
		return nil, fmt.Errorf("the file has %d bytes, over the limit of %d", len(data), MaxFileSize)
	case !utf8.Valid(data):
		return nil, errors.New("the file is not UTF-8")
	case !json.Valid(data):
		return nil, errors.New("the file is not JSON")
	}
	root, err := indexJSON(data)
	switch {
	case errors.Is(err, errTooDeep):
		return nil, fmt.Errorf("the document is nested more than %d levels deep", maxDepth)
	case err != nil:
		return nil, err
	case root.properties == nil:
		return nil, errors.New("the document is not an object")
	}
	root.findDuplicates(func(_ []string, duplicate *node) { err = fmt.Errorf("%s is given twice", quote(duplicate.key)) })
	if err != nil {
		return nil, err
	}
	if reorder {
		root.sort(schemaNode())
	}
	var b bytes.Buffer
	root.write(&b, data, 0)
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// PropertyOrder returns the names of the top-level properties of a package JSON, in the order in which the schema describes
// them.
func PropertyOrder() []string {
	var names []string
	for _, child := range schemaNode().properties["properties"].children {
		names = append(names, child.key)
	}
	return names
}

// schemaNode returns the tree of the schema, which has properties in their usual order.
var schemaNode = sync.OnceValue(func() *node {
	root, err := indexJSON(Schema())
	if err != nil {
		panic("packages: the schema: " + err.Error())
	}
	return root
})

// sort sorts the properties of n and of all objects in it into the order in which a schema describes them. Properties that the
// schema does not describe come last, in their order. Without a schema (nil) the order stays.
func (n *node) sort(schema *node) {
	if schema == nil {
		return
	}
	order := cmp.Or(schema.properties["properties"], &node{})
	for _, child := range n.children {
		if n.properties == nil {
			child.sort(schema.properties["items"])
		} else {
			child.sort(order.properties[child.key])
		}
	}
	if n.properties == nil {
		return
	}
	rank := func(property *node) int {
		if i := slices.IndexFunc(order.children, func(o *node) bool { return o.key == property.key }); i >= 0 {
			return i
		}
		return len(order.children)
	}
	slices.SortStableFunc(n.children, func(a, b *node) int { return rank(a) - rank(b) })
}

// write writes a value of the document data, indented for the given level.
func (n *node) write(b *bytes.Buffer, data []byte, level int) {
	opening := data[n.at]
	if opening != '{' && opening != '[' {
		b.Write(data[n.at:n.end])
		return
	}
	b.WriteByte(opening)
	for i, child := range n.children {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n" + strings.Repeat("  ", level+1))
		if opening == '{' {
			b.Write(data[child.keyAt:child.keyEnd])
			b.WriteString(": ")
		}
		child.write(b, data, level+1)
	}
	if len(n.children) > 0 {
		b.WriteString("\n" + strings.Repeat("  ", level))
	}
	b.WriteByte(opening + 2) // '}' after '{', ']' after '['
}
