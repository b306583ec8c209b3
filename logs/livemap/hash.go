// Package livemap is the map of live releases: which releases are served, by which manifest, and since which entry of the log. Every
// entry states the map's root after itself, so a short proof shows a client that a release is live, or that it is not.
//
// The map is a compact sparse Merkle tree. A release's key is the SHA-256 of its name; the
// key's bits, the highest of the first byte first, lead from the root to its leaf, which is
// as near to the root as no other key shares the way. With || for concatenation:
//
//	key   = SHA-256(length of package, 8 bytes big-endian || package || version)
//	leaf  = SHA-256(0x00 || key || manifest || entry, 8 bytes big-endian)
//	inner = SHA-256(0x01 || left || right)
//	empty = SHA-256("")
//
// It guarantees: maps of the same releases have the same root, in whatever order they were set and deleted; a leaf cannot be confused
// with an inner node, as in RFC 6962; a row is compared with the hash in its parent before it is used.
//
// The package must not know what an entry is, which entries change the map, or where the rows are stored.
package livemap

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/larder-cdn/larder/kvstore"
)

// Empty is the root of the map without releases, and the hash of each empty place in it.
var Empty = kvstore.Hash(sha256.Sum256(nil))

// A Release is the value of a live release in the map.
type Release struct {
	Manifest kvstore.Hash `json:"manifest"`
	// Entry is the index of the entry that made it live: its publication or its last
	// restoration.
	Entry int64 `json:"entry"`
}

// Key returns the key of a release in the map, a hash of its package and version.
func Key(pkg, version string) kvstore.Hash {
	data := binary.BigEndian.AppendUint64(nil, uint64(len(pkg)))
	data = append(data, pkg...)
	return sha256.Sum256(append(data, version...))
}

// keyBits is the length of a key, and so the greatest depth.
const keyBits = 8 * sha256.Size

// keyBit returns the key's bit at a depth of the tree: 0 leads to the left child, 1 to the right one.
func keyBit(key kvstore.Hash, depth int) int {
	return int(key[depth/8]>>(7-depth%8)) & 1
}

// flipBit returns the key with its bit at a depth inverted.
func flipBit(key kvstore.Hash, depth int) kvstore.Hash {
	key[depth/8] ^= 1 << (7 - depth%8)
	return key
}

// sharePrefix reports whether the first bits of two keys, as many as bits says, are equal.
func sharePrefix(a, b kvstore.Hash, bits int) bool {
	for depth := range bits {
		if keyBit(a, depth) != keyBit(b, depth) {
			return false
		}
	}
	return true
}

// hashLeaf returns the hash of the leaf of a release, over its key, manifest and entry, as the doc comment of the package
// says.
func hashLeaf(key kvstore.Hash, r Release) kvstore.Hash {
	data := make([]byte, 0, 1+2*sha256.Size+8)
	data = append(data, 0)
	data = append(data, key[:]...)
	data = append(data, r.Manifest[:]...)
	return sha256.Sum256(binary.BigEndian.AppendUint64(data, uint64(r.Entry)))
}

// hashInner returns the hash of an inner node from those of its children.
func hashInner(left, right kvstore.Hash) kvstore.Hash {
	var data [1 + 2*sha256.Size]byte
	data[0] = 1
	copy(data[1:], left[:])
	copy(data[1+sha256.Size:], right[:])
	return sha256.Sum256(data[:])
}
