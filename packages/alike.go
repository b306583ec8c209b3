package packages

import (
	"slices"
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Alike returns the groups of paths that differ only in case or in Unicode form, sorted. Larder distinguishes
// them, as URLs do; many file systems do not, and keep one file of each group.
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

// foldPath returns a path in the form in which paths that differ only in case are equal (Unicode, D145).
func foldPath(fold cases.Caser, path string) string {
	for i := range len(path) {
		if path[i] >= 0x80 {
			return norm.NFD.String(fold.String(norm.NFD.String(path)))
		}
	}
	return strings.ToLower(path)
}
