package logs

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/larder-cdn/larder/kvstore"
)

// EmptyLiveMap is the root of the map without releases, and the hash of each empty place in it.
var EmptyLiveMap = kvstore.Hash(sha256.Sum256(nil))

// A LiveRelease is the value of a live release in the map.
type LiveRelease struct {
	Manifest kvstore.Hash `json:"manifest"`
	// Entry is the index of the entry that made it live: its publication or its last
	// restoration.
	Entry int64 `json:"entry"`
}

// LiveKey returns the key of a release in the map, a hash of its package and version.
func LiveKey(pkg, version string) kvstore.Hash {
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

// hashLeaf returns the hash of the leaf of a release, over its key, manifest and entry, as the doc comment of
// [LiveMap] says.
func hashLeaf(key kvstore.Hash, r LiveRelease) kvstore.Hash {
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
