package bot

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	"github.com/larder-cdn/larder/logs"
)

// defaultFile returns the release's main file: the one at the path that the
// package JSON names, else the most similar of the same type, or "" where there
// is none. Libraries rename their files now and then, and a package without a
// default file looks broken.
func defaultFile(filename string, files []logs.File) string {
	if filename == "" {
		return ""
	}
	var candidates []string
	for _, f := range files {
		if f.Path == filename {
			return filename
		}
		if path.Ext(f.Path) == path.Ext(filename) {
			candidates = append(candidates, f.Path)
		}
	}
	if len(candidates) == 0 {
		return ""
	}
	base := strings.ToLower(path.Base(filename))
	return slices.MinFunc(candidates, func(a, b string) int {
		return cmp.Or(
			cmp.Compare(baseDistance(base, a), baseDistance(base, b)),
			cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")),
			strings.Compare(a, b),
		)
	})
}

// baseDistance is how many characters the last part of a path differs from base.
func baseDistance(base, p string) int {
	return levenshtein.ComputeDistance(base, strings.ToLower(path.Base(p)))
}
