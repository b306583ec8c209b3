package tiles

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// A Store is what the handler asks of a [kvstore.Store].
type Store interface {
	kvstore.Reader
	Identity(kvstore.Hash) ([]byte, error)
}

// errNotNamed keeps what the log does not name inside: the asset handler serves files,
// because it knows which of them are withdrawn.
var errNotNamed = errors.New("the entry names no such content")

// ContentPath is where the content is that an entry names.
func ContentPath(index int64, h kvstore.Hash) string {
	return Prefix + "content/" + strconv.FormatInt(index, 10) + "/" + h.String()
}

// ByHash is where a content is, whatever names it.
func ByHash(h kvstore.Hash) string { return "/content/" + h.String() }

// parseContent reads what follows content/: an index and a hash.
func parseContent(rest string) target {
	number, hash, _ := strings.Cut(rest, "/")
	index, err := strconv.ParseInt(number, 10, 64)
	if err != nil || index < 0 {
		return target{}
	}
	h, err := kvstore.ParseHash(hash)
	if err != nil {
		return target{}
	}
	if ContentPath(index, h) != Prefix+"content/"+rest { // leading zeros, capitals
		return target{}
	}
	return target{kind: content, n: index, hash: h}
}

func (h *handler) readContent(t target) ([]byte, error) {
	e, err := logs.ReadEntry(h.Store, t.n)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(e.Contents(), t.hash) {
		return nil, errNotNamed
	}
	return h.Store.Identity(t.hash)
}
