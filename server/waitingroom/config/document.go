package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// maxSet bounds the fields of a [Document] that were set one by one, in bytes.
const maxSet = 4 << 20

// A Document is the settings of all rooms: a file, and fields that an operator has set since.
type Document struct {
	Name string `json:"name"` // of the file, for messages
	Text string `json:"text"` // of the file
	Set  Set    `json:"set,omitempty"`
}

// Rooms parses the rooms of the document, with the fields that an operator has set. It returns nil if the file has no list. The
// errors are those of [Set.Apply] and [Parse].
func (d Document) Rooms() ([]Room, error) {
	list, err := d.list()
	if err != nil || list == nil {
		return nil, err
	}
	return ParseNode(d.Name, list)
}

// list returns the YAML list of the document's rooms, with the fields that an operator has set; nil if the file has no list. The
// errors are those of [List] and [Set.Apply].
func (d Document) list() (*yaml.Node, error) {
	list, err := List(d.Name, []byte(d.Text))
	if err != nil || list == nil {
		return nil, err
	}
	return d.Set.Apply(list)
}

// With returns a copy of the document with fields of a room changed, whose values are YAML; the value "" resets a field to that
// of the file. It does not check whether the room exists, and leaves the check of fields and values to Rooms. It fails, and
// returns d, only if a field with the value "" is not set and no field of a room, or if all fields together are too long
// (maxSet).
func (d Document) With(room string, fields map[string]string) (Document, error) {
	set := d.Set.clone()
	if set[room] == nil {
		set[room] = map[string]string{}
	}
	for field, value := range fields {
		if value == "" {
			if _, isSet := set[room][field]; !isSet { // a field that another release knows can always be removed
				if err := checkFieldName(field); err != nil {
					return d, err
				}
			}
			delete(set[room], field)
		} else {
			set[room][field] = value
		}
	}
	if len(set[room]) == 0 {
		delete(set, room)
	}
	if n := set.countBytes(); n > maxSet {
		return d, fmt.Errorf("the fields that are set of the waiting rooms would have %d bytes, of %d at most; put long values into the file of rooms, and apply that", n, maxSet)
	}
	d.Set = set
	return d, nil
}

// clone returns a copy of the set that shares no map with it.
func (s Set) clone() Set {
	fresh := Set{}
	for room, fields := range s {
		fresh[room] = maps.Clone(fields)
	}
	return fresh
}

// countBytes returns how many bytes the names of rooms and fields and the values in the set have.
func (s Set) countBytes() (n int) {
	for room, fields := range s {
		n += len(room)
		for field, value := range fields {
			n += len(field) + len(value)
		}
	}
	return n
}

// YAML returns the settings of the document as a file of rooms. If no fields were set, it is the file itself, byte for byte; else
// a list of the rooms by [Marshal], nil if the file has no list. It does not check the values.
func (d Document) YAML() ([]byte, error) {
	if len(d.Set) == 0 {
		return []byte(d.Text), nil
	}
	list, err := d.list()
	if err != nil || list == nil {
		return nil, err
	}
	return Marshal(list)
}

// Marshal returns a list of rooms as YAML text, and does not change the list. It replaces aliases by what they stand for. It
// fails for a list that is too large or complex: see maxNodes, maxDepth and [MaxFile].
func Marshal(list *yaml.Node) ([]byte, error) {
	expanded, err := expandAliases(list, new(int), 0)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err = errors.Join(encoder.Encode(expanded), encoder.Close()); err == nil && b.Len() > MaxFile {
		err = fmt.Errorf("has %d bytes; rooms may take %d", b.Len(), MaxFile)
	}
	return b.Bytes(), err
}

// Canonical returns a form of a list of rooms, in JSON, that depends only on its values as they are written: not on style,
// comments, anchors or the order of fields, nor on the release of the YAML package. It is for comparisons. The factors 1 and 1.0
// differ. It fails for a list that is too complex (maxNodes, maxDepth), and for a repeated field.
func Canonical(list *yaml.Node) ([]byte, error) {
	expanded, err := expandAliases(list, new(int), 0)
	if err != nil {
		return nil, err
	}
	quoteScalars(expanded)
	var values any
	if err := expanded.Decode(&values); err != nil {
		return nil, err
	}
	return json.Marshal(values)
}

// quoteScalars makes n, if it is a scalar, and each scalar below it a text of its value as written, because rooms read 010 and 8
// as different names, 8 and "8" as the same one, and JSON has no keys but texts. It changes the nodes.
func quoteScalars(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		n.Tag = "!!str"
	}
	for _, child := range n.Content {
		quoteScalars(child)
	}
}

// Limits of [Marshal]: aliases of aliases grow exponentially.
const (
	maxNodes = 1 << 20
	maxDepth = 100
)

// expandAliases returns a copy of a YAML node in which aliases are replaced by what they stand for. It adds the nodes of the
// copy to nodes, and fails for more than maxNodes, or beyond the level maxDepth. depth is the level of n.
func expandAliases(n *yaml.Node, nodes *int, depth int) (*yaml.Node, error) {
	if *nodes++; *nodes > maxNodes || depth > maxDepth {
		return nil, errors.New("holds too many aliases or levels; write the rooms out")
	}
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return expandAliases(n.Alias, nodes, depth+1)
	}
	fresh := *n
	fresh.Anchor, fresh.Content = "", slices.Clone(n.Content)
	for i, child := range fresh.Content {
		var err error
		if fresh.Content[i], err = expandAliases(child, nodes, depth+1); err != nil {
			return nil, err
		}
	}
	return &fresh, nil
}
