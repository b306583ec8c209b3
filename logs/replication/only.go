package replication

import (
	"fmt"
	"strings"

	"github.com/larder-cdn/larder/packages/glob"
)

// ParseOnly returns a function that reports whether a release matches one of the patterns, PACKAGE or PACKAGE@VERSION in glob syntax. Without
// patterns it returns nil, which stands for all releases. An invalid pattern is an error.
func ParseOnly(patterns []string) (func(pkg, version string) bool, error) {
	type choice struct{ pkg, version *glob.Glob }
	var all []choice
	for _, pattern := range patterns {
		at := strings.LastIndexByte(pattern, '@')
		if at <= 0 { // that of a scope is no version's
			at = len(pattern)
		}
		var c choice
		var err error
		if c.pkg, err = glob.Compile(pattern[:at]); err == nil && at < len(pattern) {
			c.version, err = glob.Compile(pattern[at+1:])
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w; it is a pattern of packages, or of packages and versions, such as jquery, @vue/* or d3@7.*", pattern, err)
		}
		all = append(all, c)
	}
	if all == nil {
		return nil, nil
	}
	return func(pkg, version string) bool {
		for _, c := range all {
			if c.pkg.Match(pkg) && (c.version == nil || c.version.Match(version)) {
				return true
			}
		}
		return false
	}, nil
}
