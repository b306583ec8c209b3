package packages

import "strings"

// SplitSpecifier splits what a module imports, such as @scope/name/client, into the name of an npm package and a subpath of it: "."
// or one that starts with "./". It checks neither, so the caller passes no relative paths and URLs.
func SplitSpecifier(specifier string) (name, subpath string) {
	end := 0 // of the scope
	if strings.HasPrefix(specifier, "@") {
		end = strings.IndexByte(specifier, '/') + 1
	}
	name, rest, found := strings.Cut(specifier[end:], "/")
	if !found {
		return specifier, "."
	}
	return specifier[:end] + name, "./" + rest
}
