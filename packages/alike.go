package packages

import (
	"slices"
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Alike returns the groups, of two or more, of paths that differ only in case or in Unicode form. Groups and paths are
// sorted, and each path is there once. Larder distinguishes such paths, as URLs do; many file systems do not, and keep one
// file of each group.
func Alike(paths []string) [][]string {
	groups := make(map[string][]string, len(paths))
	fold := cases.Fold()
	for _, p := range paths {
		key := foldPath(fold, p)
		groups[key] = append(groups[key], p)
	}
	var alike [][]string
	for _, group := range groups {
		slices.Sort(group)
		if group = slices.Compact(group); len(group) > 1 {
			alike = append(alike, group)
		}
	}
	slices.SortFunc(alike, slices.Compare)
	return alike
}

// foldPath returns a key that is equal for paths that differ only in case or in Unicode form: an ASCII path in lower case, or
// the case folding of the path's canonical decomposition (Unicode, D145).
func foldPath(fold cases.Caser, path string) string {
	for i := range len(path) {
		if path[i] >= 0x80 {
			return norm.NFD.String(fold.String(norm.NFD.String(path)))
		}
	}
	return strings.ToLower(path)
}
