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

// TilePath is where a tile of hashes is.
func TilePath(t tlog.Tile) string {
	return Prefix + strings.Replace(t.Path(), "tile/"+strconv.Itoa(Height)+"/", "tile/", 1)
}

// EntriesPath is where the bundle n of entries is, of a log in which it has so many entries.
func EntriesPath(n int64, width int) string {
	return strings.Replace(TilePath(tlog.Tile{H: Height, N: n, W: width}), "tile/0/", "tile/entries/", 1)
}

// maxLevel is the greatest level of a tile.
const maxLevel = 63

// A kind is one of those of things that a log is served as.
type kind int

const (
	nothing kind = iota
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

func (k kind) String() string {
	return [kinds]string{"none", "checkpoint", "tile", "entries", "key", "keys", "key-list", "content", "live", "proof"}[k]
}

// A target is what a path names.
type target struct {
	kind  kind
	level int   // of a tile
	n     int64 // of a tile or a bundle of entries, or the entry that names a content
	width int
	hash  kvstore.Hash // of a content
	file  file         // what a proof is about
}

// caching returns how long caches may keep the response. A partial tile never changes either, but
// only clients of one checkpoint request it, and the full one takes its place.
func (t target) caching() answers.Caching {
	if t.width == Width || t.kind == content {
		return answers.CacheImmutable(answers.Forever)
	}
	return answers.CacheImmutable(time.Hour)
}

// parse reads a path as it came, percent-encoded. Each thing has one path.
func parse(path string) target {
	rest, ok := strings.CutPrefix(path, Prefix)
	if !ok {
		return target{}
	}
	switch rest {
	case "checkpoint":
		return target{kind: checkpoint}
	case "key":
		return target{kind: key}
	case "keys":
		return target{kind: keys}
	case "key-list":
		return target{kind: keyList}
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
	if level == "data" { // what the checksum database of Go has instead of entries
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

// within reports whether a log of that size has all of the tile, or the entry.
func (t target) within(size int64) bool {
	if t.kind == content {
		return t.n < size
	}
	if Height*t.level >= 63 {
		return false
	}
	size >>= Height * t.level // the number of hashes at the level
	return t.n <= size>>Height && t.n<<Height+int64(t.width) <= size
}
