package search

import (
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
)

// maxMeanings is how many names of libraries, guessed from what a user pasted, are looked up.
const maxMeanings = 6

var (
	// installing matches the command of a package manager up to the package's name.
	installing = text.NewRegexp(`^\s*(?:[$>]\s*)?(?:npm|pnpm|yarn|bun|deno|bower|jspm|libman|composer|npx|bunx)\s+(?:(?:global\s+)?(?:install|i|add|in|require)\s+)?`)
	// importing matches a statement that loads a module.
	importing = text.NewRegexp(`^\s*(?:import\b[^'"]*|export\b[^'"]*\bfrom\s*|(?:(?:const|let|var)\b[^=]*=\s*)?(?:await\s+import|import|require)\s*\(\s*)['"]([^'"]+)['"]`)
	// tagging matches the address in a script or link tag, also in one that a query's limit has cut.
	tagging = text.NewRegexp(`(?i)<(?:script|link|img|source)\b[^>]*?\b(?:src|href)\s*=\s*["']?([^"'\s>]+)`)
	// address matches one that stands in anything else, such as an import map, a style sheet or a script.
	address = text.NewRegexp(`https?://[^\s"'<>()]+`)
	// hostAndPath matches an address without a scheme.
	hostAndPath = text.NewRegexp(`(?i)^(?:[a-z0-9-]+\.)+[a-z]{2,}(?::\d+)?/[^/\s]`)
	// specifier matches a name of an npm package that has a scope, or a version behind it.
	specifier = text.NewRegexp(`(?i)^(?:@[\w.~-]+/[\w.~-]+|[\w.~-]+@[\w.^~-]+)(?:[@/]|$)`)
	// fileName matches the name of a file that browsers load.
	fileName = text.NewRegexp(`(?i)^[\w@.+~-]+\.(?:js|mjs|cjs|css|map|wasm|woff2?)$`)
	// versionLike matches a part of an address that is a version.
	versionLike = text.NewRegexp(`^v?\d+(?:\.[\w.+-]*)?$`)
)

// guessNames returns up to maxMeanings names of libraries that a pasted text may refer to, the best guess first: those in an
// address on this or another delivery network, a tag with such an address, an install command, an import statement, the name
// of an npm package with a scope or version, or the name of a file. It returns nil for text that people type.
func guessNames(text string) []string {
	var list []string
	add := func(names ...string) {
		for _, name := range names {
			if name = strings.Trim(name, " /"); name != "" && !slices.Contains(list, name) && len(list) < maxMeanings {
				list = append(list, name)
			}
		}
	}
	tag, statement := tagging.FindStringSubmatch(text), importing.FindStringSubmatch(text)
	command := installing.FindString(text)
	switch {
	case tag != nil:
		add(namesOfAddress(tag[1])...)
	case statement != nil && strings.Contains(statement[1], "//"):
		add(namesOfAddress(statement[1])...)
	case statement != nil:
		add(namesOfSpecifier(statement[1])...)
	case command != "":
		for word := range strings.FieldsSeq(text[len(command):]) {
			if strings.HasPrefix(word, "-") {
				continue
			}
			add(namesOfSpecifier(word)...)
			if owner, name, ok := strings.Cut(word, "/"); ok && !strings.HasPrefix(owner, "@") { // GitHub's and PHP's packages have one
				add(namesOfSpecifier(name)...)
			}
		}
	case address.MatchString(text):
		add(namesOfAddress(address.FindString(text))...)
	case strings.ContainsAny(text, " \t\n"):
	case strings.HasPrefix(text, "//") || strings.Contains(text, "/ajax/libs/"):
		add(namesOfAddress(text)...)
	case hostAndPath.MatchString(text):
		add(namesOfAddress("//" + text)...)
	case specifier.MatchString(text):
		add(namesOfSpecifier(text)...)
	case fileName.MatchString(text):
		add(text) // many libraries are called as their file is
		add(namesOfFile(text)...)
	}
	return list
}

// partNames are what packages in a scope are called after their part in it: the scope names the library.
var partNames = []string{"browser", "cli", "client", "common", "components", "core", "css", "js", "lib", "main", "standalone", "utils", "web"}

// namesOfSpecifier returns the names that a library may have here, the best guess first, given the name s by which a package
// manager or a module loads it. It ignores a prefix such as npm:, the version and the path in s.
func namesOfSpecifier(s string) []string {
	if _, after, ok := strings.Cut(s, ":"); ok && !strings.HasPrefix(after, "/") {
		s = after // of npm:vue, or jspm's
	}
	first, rest, _ := strings.Cut(s, "/")
	if strings.HasPrefix(first, "@") && rest != "" { // a scope
		second, _, _ := strings.Cut(rest, "/")
		second, _, _ = strings.Cut(second, "@")
		scope := first[1:]
		if slices.Contains(partNames, second) {
			return []string{first + "/" + second, scope + "-" + second, scope}
		}
		return []string{first + "/" + second, scope + "-" + second, second, scope}
	}
	name, _, _ := strings.Cut(first, "@")
	if whole, ok := strings.CutSuffix(name, "-es"); ok { // its modules, in a package of their own
		return []string{name, whole}
	}
	return []string{name}
}

// namesOfAddress returns the names of libraries that a file at a URL may belong to, the best guess first; nil if the URL is
// malformed or has no path.
func namesOfAddress(address string) []string {
	if strings.HasPrefix(address, "//") {
		address = "https:" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil
	}
	parts := strings.FieldsFunc(u.Path, func(r rune) bool { return r == '/' })
	if len(parts) == 0 {
		return nil
	}
	var names []string
	if i := slices.Index(parts, "libs"); i > 0 && parts[i-1] == "ajax" && i+1 < len(parts) {
		names = append(names, parts[i+1])
	}
	switch i := slices.IndexFunc(parts, func(p string) bool { return p == "npm" || p == "package" || p == "library" || p == "libraries" }); {
	case len(names) > 0:
	case i >= 0 && i+1 < len(parts):
		names = append(names, namesOfSpecifier(strings.Join(parts[i+1:], "/"))...)
	case parts[0] == "gh" && len(parts) > 2:
		names = append(names, namesOfSpecifier(parts[2])...)
	case strings.HasSuffix(u.Host, "github.com") && len(parts) > 1:
		names = append(names, strings.TrimSuffix(parts[1], ".git"))
	default:
		// Most networks have name@version in front, others name/version.
		for i, p := range parts {
			if strings.Contains(p, "@") {
				names = append(names, namesOfSpecifier(strings.Join(parts[i:], "/"))...)
				break
			}
			if i > 0 && versionLike.MatchString(p) {
				names = append(names, parts[i-1])
				break
			}
		}
		if len(names) == 0 && (len(parts) > 1 || !fileName.MatchString(parts[0])) {
			names = append(names, namesOfSpecifier(strings.Join(parts, "/"))...)
		}
	}
	if last := parts[len(parts)-1]; fileName.MatchString(last) {
		names = append(names, namesOfFile(last)...)
	}
	return names
}

// namesOfFile returns the names of libraries that a file with that name may belong to: the name without its extension and
// suffixes such as .min, then without one part after the other from the end.
func namesOfFile(name string) []string {
	name = strings.TrimSuffix(name, path.Ext(name))
	var names []string
	for name != "" {
		if !slices.Contains([]string{".js", ".min", ".css", ".slim", ".prod", ".esm", ".mjs", ".umd"}, path.Ext(name)) {
			names = append(names, name)
		}
		cut := strings.LastIndexAny(name, ".-_@")
		if cut < 0 {
			break
		}
		name = name[:cut]
	}
	return names
}
