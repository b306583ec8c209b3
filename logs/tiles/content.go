package tiles

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// A Store has the methods of a [kvstore.Store] that the handler calls.
type Store interface {
	kvstore.Reader
	logs.Contents
}

// ContentPath returns the path of a content that the entry with this index names.
func ContentPath(index int64, h kvstore.Hash) string {
	return Prefix + "content/" + strconv.FormatInt(index, 10) + "/" + h.String()
}

// HashPath returns the path of a content by its hash alone.
func HashPath(h kvstore.Hash) string { return "/content/" + h.String() }

// DictionariesField is the field of a response with a content that names the dictionaries, by their hashes, against which the server has deltas of it.
const DictionariesField = "Larder-Dictionaries"

// FormatDictionaries returns the value of [DictionariesField] for deltas: the hashes of their dictionaries, separated by
// commas; "" for none.
func FormatDictionaries(deltas []kvstore.Delta) string {
	var hashes []string
	for _, d := range deltas {
		hashes = append(hashes, d.Dictionary.String())
	}
	return strings.Join(hashes, ", ")
}

// ParseDictionaries is the inverse of [FormatDictionaries]. It skips what is malformed, and returns at most
// [kvstore.MaxDeltas] hashes.
func ParseDictionaries(value string) (dictionaries []kvstore.Hash) {
	for _, text := range strings.SplitN(value, ",", kvstore.MaxDeltas+1) {
		if h, err := kvstore.ParseHash(strings.TrimSpace(text)); err == nil && len(dictionaries) < kvstore.MaxDeltas {
			dictionaries = append(dictionaries, h)
		}
	}
	return dictionaries
}

// parseContent parses the rest of a path after content/: an index and a hash. A malformed rest, also one with leading zeros
// or capitals, is the zero target.
func parseContent(rest string) target {
	number, hash, _ := strings.Cut(rest, "/")
	index, _ := strconv.ParseInt(number, 10, 64)
	h, _ := kvstore.ParseHash(hash)
	if index < 0 || ContentPath(index, h) != Prefix+"content/"+rest { // malformed, leading zeros, capitals
		return target{}
	}
	return target{kind: content, n: index, hash: h}
}

// readContent reads a content by its hash from the store. If the target's entry does not name the content, the error is an [answers.Failure] with
// 404: the asset handler serves files, because it knows which are withdrawn. A missing entry or content is another error.
func (h *handler) readContent(t target) ([]byte, error) {
	e, err := logs.ReadEntry(h.Store, t.n)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(e.Contents(), t.hash) {
		return nil, newFailure(http.StatusNotFound, fmt.Sprintf("Entry %d names no such content", t.n))
	}
	return h.Store.Identity(t.hash)
}
