package tiles

import (
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/kvstore"
)

// Prefix is where the log is.
const Prefix = "/log/"

// PublicPrefix begins the keys of the objects that a cluster publishes in its bucket. The path at which a Larder serves the object follows.
const PublicPrefix = "public"

// Height is that of every tile: C2SP's tiles have 256 hashes.
const Height = 8

// Width is the number of hashes in a full tile, and of entries in a full bundle.
const Width = 1 << Height

// TilePath returns the path of a tile of hashes, of height [Height], which begins with [Prefix].
func TilePath(t tlog.Tile) string {
	return Prefix + strings.Replace(t.Path(), "tile/"+strconv.Itoa(Height)+"/", "tile/", 1)
}

// EntriesPath returns the path of bundle n of entries, which begins with [Prefix]. width is the number of entries in it.
func EntriesPath(n int64, width int) string {
	return strings.Replace(TilePath(tlog.Tile{H: Height, N: n, W: width}), "tile/0/", "tile/entries/", 1)
}

// maxLevel is the greatest level of a tile.
const maxLevel = 63

// A kind is a kind of things that a log's paths name.
type kind int

const (
	noKind kind = iota
	checkpoint
	hashes
	entries
	key
	keys
	keyList
	content
	live
	proof
	kinds
)

// String returns the kind's name in metrics.
func (k kind) String() string {
	return [kinds]string{"none", "checkpoint", "tile", "entries", "key", "keys", "key-list", "content", "live", "proof"}[k]
}

// A target is the resource that a path names.
type target struct {
	kind  kind
	level int   // of a tile
	n     int64 // of a tile or a bundle of entries, or the entry that names a content
	width int
	hash  kvstore.Hash // of a content
	file  file         // what a proof is about
}

// caching returns how long caches may store the response for a tile, a bundle of entries or a content, the only targets that it may
// be called for. None of these changes. A partial tile gets an hour, because only clients of one checkpoint request it, and the full
// tile replaces it.
func (t target) caching() answers.Caching {
	if t.width == Width || t.kind == content {
		return answers.CacheImmutable(answers.Forever)
	}
	return answers.CacheImmutable(time.Hour)
}

// fixedPaths are the paths without parameters, below [Prefix].
var fixedPaths = map[string]kind{"checkpoint": checkpoint, "key": key, "keys": keys, "key-list": keyList}

// parsePath parses the path of a request, percent-encoded as it was sent. A path that names nothing is a target of noKind.
// So is another spelling of the path of a tile, a bundle or a content, such as one with leading zeros.
func parsePath(path string) target {
	rest, ok := strings.CutPrefix(path, Prefix)
	if !ok {
		return target{}
	}
	if k, ok := fixedPaths[rest]; ok {
		return target{kind: k}
	}
	if rest, ok := strings.CutPrefix(rest, "content/"); ok {
		return parseContent(rest)
	}
	if rest, ok := strings.CutPrefix(rest, "live/"); ok {
		return parseLive(rest)
	}
	if rest, ok := strings.CutPrefix(rest, "proof/"); ok {
		return parseProof(rest)
	}
	rest, ok = strings.CutPrefix(rest, "tile/")
	if !ok {
		return target{}
	}
	level, index, _ := strings.Cut(rest, "/")
	t := target{kind: hashes}
	if level == "entries" {
		t.kind, level = entries, "0"
	}
	if level == "data" { // the checksum database of Go has that instead of entries
		return target{}
	}
	// Apart from the names, C2SP's tiles are those of the checksum database of Go,
	// whose paths have the Height too.
	tile, err := tlog.ParseTilePath("tile/" + strconv.Itoa(Height) + "/" + level + "/" + index)
	if err != nil || tile.L > maxLevel {
		return target{}
	}
	t.level, t.n, t.width = tile.L, tile.N, tile.W
	return t
}

// isWithin reports whether a log of size entries has all of the target's tile or bundle or, for a content, the entry that
// names it.
func (t target) isWithin(size int64) bool {
	if t.kind == content {
		return t.n < size
	}
	if Height*t.level >= 63 {
		return false
	}
	size >>= Height * t.level // the number of hashes at the level
	return t.n <= size>>Height && t.n<<Height+int64(t.width) <= size
}
