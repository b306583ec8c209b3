package logs

import (
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
)

// The index finds entries without reading the others. An entry has a row in it for
// each scope that somebody asks for: the whole log, its package, its release. Within
// a scope rows are apart by kind, so that the few refusals among thousands of
// publications cost no more than as many refusals alone.
//
// Append writes the rows; whoever makes the views again calls Index for each entry.

// indexRow is the value of every row: the version of its form.
var indexRow = []byte{1}

// Index adds the rows of the index that an entry has to b.
func Index(b *kvstore.Batch, index int64, e Entry) {
	for _, scope := range scopes(e.Package, e.Version) {
		b.Set(kvstore.LogIndex, indexRowKey(scope, e.Kind, index), indexRow)
	}
}

// scopes are where an entry about these is found, the widest first.
func scopes(pkg, version string) [][]string {
	all := [][]string{{"a"}}
	if pkg != "" {
		all = append(all, []string{"p", pkg})
	}
	if pkg != "" && version != "" {
		all = append(all, []string{"r", pkg, version})
	}
	return all
}

func scopeOf(pkg, version string) []string {
	all := scopes(pkg, version)
	return all[len(all)-1]
}

// kindPrefix begins the rows of one kind in a scope, which the entries' indexes end.
func kindPrefix(scope []string, kind Kind) []byte {
	return append(kvstore.Prefix(scope...), kvstore.Prefix(string(kind))...)
}

func indexRowKey(scope []string, kind Kind, index int64) []byte {
	return append(kindPrefix(scope, kind), indexKey(index)...)
}

// parseIndexRow returns the index that a row's key ends with.
func parseIndexRow(prefix, key []byte) (int64, error) {
	if len(key) != len(prefix)+8 {
		return 0, fmt.Errorf("logs: the row %q of the index is malformed; `larder rebuild` makes it again", key)
	}
	return parseIndexKey(key[len(prefix):])
}
