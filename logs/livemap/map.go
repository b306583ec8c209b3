package livemap

import (
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
)

// A Map is the map in memory, or as much of a stored one as was asked for. After an error
// it must not be used again. It is for one goroutine.
type Map struct {
	root     *node
	get      func(row []byte) ([]byte, error) // nil where all of it is in memory
	len      int                              // releases that were added and not deleted again
	changed  bool
	emptyAt  int64    // the version of the stored root that says that the map is empty
	replaced [][]byte // stored rows that the map has no more
}

// unwritten is the version of what is stored nowhere.
const unwritten = -1

// A node is what is in one place of the tree; where nothing is, it is nil. It has a leaf or
// a child, unless it has yet to be read.
type node struct {
	hash     kvstore.Hash
	version  int64 // of its row
	leaf     *leaf
	children [2]*node
}

type leaf struct {
	key     kvstore.Hash
	release Release
}

// New returns an empty map in memory.
func New() *Map { return &Map{emptyAt: unwritten} }

// Root is the hash of the whole map.
func (m *Map) Root() kvstore.Hash { return m.root.sum() }

// Len is the number of releases in a map that began empty.
func (m *Map) Len() int { return m.len }

// Get returns what the map says of a release, nil where it is not live.
func (m *Map) Get(key kvstore.Hash) (*Release, error) {
	found, _, err := m.find(key)
	if err != nil || found == nil || found.key != key {
		return nil, err
	}
	return &found.release, nil
}

// Set has a release be live.
func (m *Map) Set(key kvstore.Hash, r Release) error {
	before, err := m.Get(key)
	if err != nil {
		return err
	}
	if m.root, err = m.set(m.root, 0, &leaf{key, r}); err != nil {
		return err
	}
	if before == nil {
		m.len++
	}
	m.changed = true
	return nil
}

// Delete has a release be live no more, if it is.
func (m *Map) Delete(key kvstore.Hash) error {
	before, err := m.Get(key)
	if err != nil || before == nil {
		return err
	}
	if m.root, err = m.remove(m.root, 0, key); err != nil {
		return err
	}
	m.len--
	m.changed = true
	return nil
}

// Prove returns the proof of what the map says of a release.
func (m *Map) Prove(key kvstore.Hash) (Proof, error) {
	found, siblings, err := m.find(key)
	if err != nil {
		return Proof{}, err
	}
	p := Proof{Path: make([]kvstore.Hash, len(siblings))}
	for i, sibling := range siblings {
		p.Path[len(siblings)-1-i] = sibling
	}
	switch {
	case found == nil:
	case found.key == key:
		p.Live = &found.release
	default:
		p.Other = &Other{found.key, found.release}
	}
	return p, nil
}

// find returns the leaf at the end of a key's way, whichever key it has, and the hashes
// beside the way from the root down.
func (m *Map) find(key kvstore.Hash) (*leaf, []kvstore.Hash, error) {
	var siblings []kvstore.Hash
	n := m.root
	for depth := 0; ; depth++ {
		if err := m.read(n, depth, key); err != nil {
			return nil, nil, err
		}
		if n == nil || n.leaf != nil {
			break
		}
		b := bit(key, depth)
		siblings = append(siblings, n.children[1-b].sum())
		n = n.children[b]
	}
	if n == nil {
		return nil, siblings, nil
	}
	return n.leaf, siblings, nil
}

// set returns what is in the place of n once the leaf is below it. Nodes are never changed,
// but replaced up to the root.
func (m *Map) set(n *node, depth int, l *leaf) (*node, error) {
	if n == nil {
		return newLeaf(l), nil
	}
	if err := m.read(n, depth, l.key); err != nil {
		return nil, err
	}
	m.replace(n, depth, l.key)
	switch {
	case n.leaf == nil:
		b := bit(l.key, depth)
		child, err := m.set(n.children[b], depth+1, l)
		if err != nil {
			return nil, err
		}
		return n.with(b, child), nil
	case n.leaf.key == l.key:
		return newLeaf(l), nil
	}
	return split(n.leaf, l, depth), nil
}

// split returns the node that has two leaves of different keys below it.
func split(a, b *leaf, depth int) *node {
	if bit(a.key, depth) == bit(b.key, depth) {
		return new(node).with(bit(a.key, depth), split(a, b, depth+1))
	}
	inner := new(node)
	inner.children[bit(a.key, depth)] = newLeaf(a)
	return inner.with(bit(b.key, depth), newLeaf(b))
}

// remove returns what is in the place of n once a leaf that is below it has gone. A leaf
// that is left alone moves up.
func (m *Map) remove(n *node, depth int, key kvstore.Hash) (*node, error) {
	if err := m.read(n, depth, key); err != nil {
		return nil, err
	}
	m.replace(n, depth, key)
	if n.leaf != nil {
		return nil, nil
	}
	b := bit(key, depth)
	child, err := m.remove(n.children[b], depth+1, key)
	if err != nil {
		return nil, err
	}
	sibling := n.children[1-b]
	switch {
	case child == nil:
		beside := flipped(key, depth)
		if err := m.read(sibling, depth+1, beside); err != nil {
			return nil, err
		}
		if sibling.leaf != nil {
			m.replace(sibling, depth+1, beside)
			return newLeaf(sibling.leaf), nil
		}
	case sibling == nil && child.leaf != nil:
		return child, nil
	}
	return n.with(b, child), nil
}

func newLeaf(l *leaf) *node {
	return &node{hash: hashLeaf(l.key, l.release), version: unwritten, leaf: l}
}

// with returns an inner node with another child.
func (n *node) with(b int, child *node) *node {
	next := &node{version: unwritten, children: n.children}
	next.children[b] = child
	next.hash = hashInner(next.children[0].sum(), next.children[1].sum())
	return next
}

func (n *node) sum() kvstore.Hash {
	if n == nil {
		return Empty
	}
	return n.hash
}

// replace remembers that a node's row is not that of the map any more.
func (m *Map) replace(n *node, depth int, key kvstore.Hash) {
	if n.version != unwritten {
		m.replaced = append(m.replaced, rowKey(depth, key, n.version))
	}
}

// read reads a node that is on the key's way.
func (m *Map) read(n *node, depth int, key kvstore.Hash) error {
	if n == nil || n.leaf != nil || n.children != [2]*node{} {
		return nil
	}
	row := rowKey(depth, key, n.version)
	value, err := m.get(row)
	if err != nil {
		return fmt.Errorf("row %x of the map of live releases: %w", row, err)
	}
	got, err := decodeRow(value)
	if err != nil {
		return fmt.Errorf("row %x of the map of live releases: %w", row, err)
	}
	if got.sum() != n.hash || got != nil && got.leaf != nil && !shares(got.leaf.key, key, depth) {
		return fmt.Errorf("row %x of the map of live releases does not have the hash %s", row, n.hash)
	}
	n.leaf, n.children = got.leaf, got.children
	return nil
}
