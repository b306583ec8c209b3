package logs

import (
	"fmt"
	"slices"

	"github.com/larder-cdn/larder/kvstore"
)

// A LiveMap is the map of live releases: which releases are served, by which manifest, and since which entry of the log. Every entry states
// the map's root after itself, so a short proof shows a client that a release is live, or that it is not.
//
// The map is a compact sparse Merkle tree. A release's key is the SHA-256 of its name; the key's bits, the highest of the first byte
// first, lead from the root to its leaf, which is as near to the root as no other key shares the way. With || for concatenation:
//
//	key   = SHA-256(length of package, 8 bytes big-endian || package || version)
//	leaf  = SHA-256(0x00 || key || manifest || entry, 8 bytes big-endian)
//	inner = SHA-256(0x01 || left || right)
//	empty = SHA-256("")
//
// It guarantees: maps of the same releases have the same root, in whatever order they were set and deleted; a leaf cannot be confused
// with an inner node, as in RFC 6962; a row is compared with the hash in its parent before it is used.
//
// The tree is in memory, or the part of a stored tree that was read. It must not be used after an error. It is for one goroutine.
type LiveMap struct {
	root     *node
	get      func(row []byte) ([]byte, error) // nil for a map in memory
	len      int                              // releases that were added and not deleted again
	changed  bool
	emptyAt  int64    // the version of the stored root that says that the map is empty
	replaced [][]byte // stored rows that the map has no more
}

// unwritten is the version of a node that is not stored.
const unwritten = -1

// A node is a node of the tree; nil for an empty place. It has a leaf or a child, unless it was not read yet.
type node struct {
	hash     kvstore.Hash
	version  int64 // of its row
	leaf     *leaf
	children [2]*node
}

type leaf struct {
	key     kvstore.Hash
	release LiveRelease
}

// NewLiveMap returns an empty map in memory.
func NewLiveMap() *LiveMap { return &LiveMap{emptyAt: unwritten} }

// Root returns the hash of the map.
func (m *LiveMap) Root() kvstore.Hash { return m.root.hashOrEmpty() }

// Len returns the number of releases in a map that was created by [NewLiveMap]. Of a map that [OpenLiveMap] returned, it is only how many
// were added since, less those that were deleted.
func (m *LiveMap) Len() int { return m.len }

// Get returns the map's record of a release by its key, nil if it is not live. The caller must not change the record. Get
// may read rows of a stored map.
func (m *LiveMap) Get(key kvstore.Hash) (*LiveRelease, error) {
	found, _, err := m.findLeaf(key)
	if err != nil || found == nil || found.key != key {
		return nil, err
	}
	return &found.release, nil
}

// Set adds a live release to the map in memory, or replaces its record; it writes no rows. It may read rows of a stored map. After an
// error of reading, the map must not be used any more.
func (m *LiveMap) Set(key kvstore.Hash, r LiveRelease) error {
	before, err := m.Get(key)
	if err != nil {
		return err
	}
	if m.root, err = m.insert(m.root, 0, &leaf{key, r}); err != nil {
		return err
	}
	if before == nil {
		m.len++
	}
	m.changed = true
	return nil
}

// Delete removes a release from the map in memory, if it is there; it writes no rows. It may read rows of a stored map. After an error
// of reading, the map must not be used any more.
func (m *LiveMap) Delete(key kvstore.Hash) error {
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

// Prove returns the proof of whether a release, by its key, is live, and of its record. It may read rows of a stored map,
// and does not change the map.
func (m *LiveMap) Prove(key kvstore.Hash) (LiveMapProof, error) {
	found, siblings, err := m.findLeaf(key)
	if err != nil {
		return LiveMapProof{}, err
	}
	p := LiveMapProof{Path: append([]kvstore.Hash{}, siblings...)}
	slices.Reverse(p.Path)
	switch {
	case found == nil:
	case found.key == key:
		p.Live = &found.release
	default:
		p.Other = &OtherRelease{found.key, found.release}
	}
	return p, nil
}

// findLeaf returns the leaf at the end of the path that a key's bits lead to, which may have another key, nil if the path
// has none. It also returns the hashes of the nodes beside the path, from the root down. It loads the path's nodes that are not
// in memory yet.
func (m *LiveMap) findLeaf(key kvstore.Hash) (*leaf, []kvstore.Hash, error) {
	var siblings []kvstore.Hash
	n := m.root
	for depth := 0; ; depth++ {
		if err := m.load(n, depth, key); err != nil {
			return nil, nil, err
		}
		if n == nil {
			return nil, siblings, nil
		}
		if n.leaf != nil {
			return n.leaf, siblings, nil
		}
		b := keyBit(key, depth)
		siblings = append(siblings, n.children[1-b].hashOrEmpty())
		n = n.children[b]
	}
}

// insert returns the replacement of the node n at a depth, with a leaf added below it, or in the place of the leaf with its
// key. It does not change the nodes on the way, but for reading them, and replaces them up to n.
func (m *LiveMap) insert(n *node, depth int, l *leaf) (*node, error) {
	if n == nil {
		return newLeafNode(l), nil
	}
	if err := m.load(n, depth, l.key); err != nil {
		return nil, err
	}
	m.markReplaced(n, depth, l.key)
	switch {
	case n.leaf == nil:
		b := keyBit(l.key, depth)
		child, err := m.insert(n.children[b], depth+1, l)
		if err != nil {
			return nil, err
		}
		return n.withChild(b, child), nil
	case n.leaf.key == l.key:
		return newLeafNode(l), nil
	}
	return joinLeaves(n.leaf, l, depth), nil
}

// joinLeaves returns the node at a depth that has two leaves of different keys below it. The keys share the bits before that
// depth.
func joinLeaves(a, b *leaf, depth int) *node {
	if keyBit(a.key, depth) == keyBit(b.key, depth) {
		return new(node).withChild(keyBit(a.key, depth), joinLeaves(a, b, depth+1))
	}
	inner := new(node)
	inner.children[keyBit(a.key, depth)] = newLeafNode(a)
	return inner.withChild(keyBit(b.key, depth), newLeafNode(b))
}

// remove returns the replacement of the node n at a depth, without the leaf of a key, which must be below it; nil if nothing
// is left. A leaf without a sibling moves up.
func (m *LiveMap) remove(n *node, depth int, key kvstore.Hash) (*node, error) {
	if err := m.load(n, depth, key); err != nil {
		return nil, err
	}
	m.markReplaced(n, depth, key)
	if n.leaf != nil {
		return nil, nil
	}
	b := keyBit(key, depth)
	child, err := m.remove(n.children[b], depth+1, key)
	if err != nil {
		return nil, err
	}
	sibling := n.children[1-b]
	switch {
	case child == nil:
		beside := flipBit(key, depth)
		if err := m.load(sibling, depth+1, beside); err != nil {
			return nil, err
		}
		if sibling.leaf != nil {
			m.markReplaced(sibling, depth+1, beside)
			return newLeafNode(sibling.leaf), nil
		}
	case sibling == nil && child.leaf != nil:
		return child, nil
	}
	return n.withChild(b, child), nil
}

// newLeafNode returns the node of a leaf, with its hash, which is not stored yet.
func newLeafNode(l *leaf) *node {
	return &node{hash: hashLeaf(l.key, l.release), version: unwritten, leaf: l}
}

// withChild returns a copy of an inner node with another child, 0 for the left and 1 for the right, and with the hash that
// follows. The copy is not stored yet.
func (n *node) withChild(b int, child *node) *node {
	next := &node{version: unwritten, children: n.children}
	next.children[b] = child
	next.hash = hashInner(next.children[0].hashOrEmpty(), next.children[1].hashOrEmpty())
	return next
}

// hashOrEmpty returns the node's hash, [EmptyLiveMap] for nil.
func (n *node) hashOrEmpty() kvstore.Hash {
	if n == nil {
		return EmptyLiveMap
	}
	return n.hash
}

// markReplaced records that the stored row of a node, if it has one, is not part of the map any more. key is any key whose
// path leads through the node at this depth.
func (m *LiveMap) markReplaced(n *node, depth int, key kvstore.Hash) {
	if n.version != unwritten {
		m.replaced = append(m.replaced, liveRowKey(depth, key, n.version))
	}
}

// load reads a stored node at a depth of the key's path, with its children's hashes, unless it was read before or is nil. It
// verifies the node's hash.
func (m *LiveMap) load(n *node, depth int, key kvstore.Hash) error {
	if n == nil || n.leaf != nil || n.children != [2]*node{} {
		return nil
	}
	row := liveRowKey(depth, key, n.version)
	value, err := m.get(row)
	if err != nil {
		return fmt.Errorf("row %x of the map of live releases: %w", row, err)
	}
	got, err := decodeNode(value)
	if err != nil {
		return fmt.Errorf("row %x of the map of live releases: %w", row, err)
	}
	if got.hashOrEmpty() != n.hash || got != nil && got.leaf != nil && !sharePrefix(got.leaf.key, key, depth) {
		return fmt.Errorf("row %x of the map of live releases does not have the hash %s", row, n.hash)
	}
	n.leaf, n.children = got.leaf, got.children
	return nil
}
