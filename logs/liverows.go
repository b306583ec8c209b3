package logs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
)

// A node is stored under its depth, its place and its version, which is the index of the
// last entry of the write that stored it. So the nodes of earlier maps stay beside those of
// the newest one until they are deleted. An inner node names the versions of its children;
// only the root is looked for, the newest one up to an entry.

// The kinds of rows, which begin their values. An inner node's has a bit for each child.
const (
	emptyRow = 0
	leafRow  = 1
	innerRow = 4
)

// liveRowKey returns the key of the row of a node, by its depth, its place on a key's path, and its version. Newer versions come
// first.
func liveRowKey(depth int, key kvstore.Hash, version int64) []byte {
	row := binary.BigEndian.AppendUint16(nil, uint16(depth))
	row = append(row, key[:(depth+7)/8]...)
	if depth%8 > 0 {
		row[len(row)-1] &= 0xff << (8 - depth%8)
	}
	return binary.BigEndian.AppendUint64(row, ^uint64(version))
}

// LiveRootRows returns the bounds, from included and to excluded, of the keys of the root's rows that were written with an entry or an
// earlier one, newest first. The first has the root of the map after the entry; before the first release no row exists.
func LiveRootRows(entry int64) (from, to []byte) {
	return liveRowKey(0, kvstore.Hash{}, entry), []byte{0, 1}
}

// OpenLiveMap returns a stored map with a root hash. rootRow is the key of the root's row, nil before the first release; get
// returns the value of a row by its key. OpenLiveMap reads and verifies the root; the other rows are read when they are needed.
func OpenLiveMap(root kvstore.Hash, rootRow []byte, get func(row []byte) ([]byte, error)) (*LiveMap, error) {
	m := &LiveMap{get: get, emptyAt: unwritten}
	if rootRow != nil {
		if len(rootRow) != 2+8 {
			return nil, fmt.Errorf("the row %x is not that of a root", rootRow)
		}
		version := int64(^binary.BigEndian.Uint64(rootRow[2:]))
		m.root = &node{hash: root, version: version}
		if root == EmptyLiveMap {
			m.root, m.emptyAt = nil, version
		}
	}
	if m.root.hashOrEmpty() != root {
		return nil, errors.New("the map of live releases has no root")
	}
	return m, m.load(m.root, 0, kvstore.Hash{})
}

// Write calls set for each row of the map that is not stored yet, the root's row last, and returns the keys of stored rows
// that the map has no more. From then on these rows count as stored. For an unchanged map it does nothing. The map must be
// that after the entry with this index.
func (m *LiveMap) Write(entry int64, set func(row, value []byte)) (replaced [][]byte) {
	if !m.changed {
		return nil
	}
	if m.emptyAt != unwritten {
		m.replaced = append(m.replaced, liveRowKey(0, kvstore.Hash{}, m.emptyAt))
		m.emptyAt = unwritten
	}
	if m.root == nil {
		set(liveRowKey(0, kvstore.Hash{}, entry), []byte{emptyRow})
		m.emptyAt = entry
	}
	m.root.write(0, kvstore.Hash{}, entry, set)
	replaced, m.replaced, m.changed = m.replaced, nil, false
	return replaced
}

// write calls set for the rows of the node and those below it that are not stored yet, children first. place is the beginning
// of the keys below the node.
func (n *node) write(depth int, place kvstore.Hash, entry int64, set func(row, value []byte)) {
	if n == nil || n.version != unwritten {
		return
	}
	n.version = entry
	for b, child := range n.children {
		child.write(depth+1, childPlace(place, depth, b), entry, set)
	}
	set(liveRowKey(depth, place, entry), n.encode())
}

// childPlace returns the beginning of the keys below a child, 0 for the left and 1 for the right, of the node at a depth and place.
func childPlace(place kvstore.Hash, depth, child int) kvstore.Hash {
	if child == 1 {
		return flipBit(place, depth)
	}
	return place
}

// trimDepth is the depth down to which a trimmed map stays in memory, with 255 nodes or
// fewer.
const trimDepth = 8

// Trim drops most of a stored map from memory, which must have no changes since Write. The map reads the rows again when
// they are needed.
func (m *LiveMap) Trim() { m.root.dropDeepNodes(0) }

// dropDeepNodes drops from memory what is in the nodes at trimDepth, with all below them. It is read again when it is
// needed. depth is that of n.
func (n *node) dropDeepNodes(depth int) {
	switch {
	case n == nil:
	case depth == trimDepth:
		n.leaf, n.children = nil, [2]*node{}
	default:
		n.children[0].dropDeepNodes(depth + 1)
		n.children[1].dropDeepNodes(depth + 1)
	}
}

// encode returns the value of the node's row.
func (n *node) encode() []byte {
	if n.leaf != nil {
		row := append([]byte{leafRow}, n.leaf.key[:]...)
		row = append(row, n.leaf.release.Manifest[:]...)
		return binary.AppendUvarint(row, uint64(n.leaf.release.Entry))
	}
	row := []byte{innerRow}
	for b, child := range n.children {
		if child != nil {
			row[0] |= 1 << b
			row = append(row, child.hash[:]...)
			row = binary.AppendUvarint(row, uint64(child.version))
		}
	}
	return row
}

var errMalformed = errors.New("it is malformed")

// decodeNode parses the value of a node's row. The node's children have hashes and versions, and are not read yet. The root
// of an empty map is nil. A malformed row is an error.
func decodeNode(row []byte) (*node, error) {
	if len(row) == 0 {
		return nil, errMalformed
	}
	kind, rest := row[0], row[1:]
	hash := func() (h kvstore.Hash) {
		if len(rest) >= len(h) {
			rest = rest[copy(h[:], rest):]
		} else {
			rest = nil // so that no number follows
		}
		return h
	}
	number := func() int64 {
		u, n := binary.Uvarint(rest)
		if n <= 0 || int64(u) < 0 {
			return unwritten
		}
		rest = rest[n:]
		return int64(u)
	}
	n := &node{version: unwritten}
	switch {
	case kind == emptyRow && len(rest) == 0:
		return nil, nil
	case kind == leafRow:
		n.leaf = &leaf{hash(), LiveRelease{Manifest: hash()}}
		if n.leaf.release.Entry = number(); n.leaf.release.Entry == unwritten {
			return nil, errMalformed
		}
		n.hash = hashLeaf(n.leaf.key, n.leaf.release)
	case kind&^3 == innerRow && kind != innerRow:
		for b := range n.children {
			if kind>>b&1 == 0 {
				continue
			}
			child := &node{hash: hash(), version: number()}
			if child.version == unwritten {
				return nil, errMalformed
			}
			n.children[b] = child
		}
		n.hash = hashInner(n.children[0].hashOrEmpty(), n.children[1].hashOrEmpty())
	default:
		return nil, errMalformed
	}
	if len(rest) > 0 {
		return nil, errMalformed
	}
	return n, nil
}

// Compare compares the stored map after an entry, with m, which is in memory. rootRow is the key of its root's row, nil for none;
// get returns the value of a row by its key. It calls wrong for each row that is missing or differs, below which it does not look,
// and returns the number of right rows.
func (m *LiveMap) Compare(rootRow []byte, get func(row []byte) ([]byte, error), wrong func(row []byte, err error)) (right int64) {
	if rootRow == nil {
		if m.root != nil {
			wrong([]byte{0, 0}, errors.New("it is missing"))
		}
		return 0
	}
	return m.root.compare(rootRow, 0, kvstore.Hash{}, get, wrong)
}

// compare compares a stored row, at a depth and place, and those below it with the node. It calls wrong for each that is
// missing or differs, and returns the number of right rows.
func (n *node) compare(row []byte, depth int, place kvstore.Hash, get func(row []byte) ([]byte, error), wrong func(row []byte, err error)) (right int64) {
	value, err := get(row)
	var got *node
	if err == nil {
		got, err = decodeNode(value)
	}
	if err == nil && (got.hashOrEmpty() != n.hashOrEmpty() || got != nil && (got.leaf == nil) != (n.leaf == nil)) {
		err = errors.New("it is not what the log says")
	}
	if err != nil {
		wrong(row, err)
		return 0
	}
	right = 1
	if n == nil {
		return right
	}
	for b, child := range n.children {
		if child != nil {
			below := childPlace(place, depth, b)
			right += child.compare(liveRowKey(depth+1, below, got.children[b].version), depth+1, below, get, wrong)
		}
	}
	return right
}
