package render

import (
	"strings"

	"github.com/larder-cdn/larder/internal/document"
)

// mostImports bounds what is found in one module.
const mostImports = 2000

// imports returns what a module imports.
func imports(r document.Request) (document.Result, error) {
	return document.Result{Imports: importsOf(r.Text)}, nil
}

// importsOf returns what a module imports, by its text. It looks for the words and knows no syntax: what stands in a comment
// behind code or in a string may be taken for an import, which costs a line in a list; an import is not missed, unless its specifier is
// computed.
func importsOf(source string) []document.Import {
	var found []document.Import
	seen := map[string]bool{}
	add := func(specifier string, ok, dynamic bool) {
		if ok && specifier != "" && !seen[specifier] && len(found) < mostImports {
			seen[specifier] = true
			found = append(found, document.Import{Specifier: specifier, Dynamic: dynamic})
		}
	}
	for at := 0; ; {
		i := strings.IndexAny(source[at:], "fi")
		if i < 0 {
			return found
		}
		at += i
		rest := source[at:]
		switch {
		case at > 0 && inName(source[at-1]):
			at++
		case (strings.HasPrefix(rest, "from") || strings.HasPrefix(rest, "import")) && inComment(source[:at]):
			at += len("from")
		case strings.HasPrefix(rest, "from"):
			specifier, ok := quoted(strings.TrimLeft(rest[len("from"):], " \t\r\n"))
			add(specifier, ok && followsImport(source[:at]), false)
			at += len("from")
		case strings.HasPrefix(rest, "import"):
			after := strings.TrimLeft(rest[len("import"):], " \t\r\n")
			if call, ok := strings.CutPrefix(after, "("); ok {
				specifier, ok := quoted(strings.TrimLeft(call, " \t\r\n"))
				add(specifier, ok, true)
			} else {
				specifier, ok := quoted(after)
				add(specifier, ok, false)
			}
			at += len("import")
		default:
			at++
		}
	}
}

// inComment reports whether the line that a text ends in begins as one of a comment, which has not ended.
func inComment(text string) bool {
	const longest = 4 << 10
	line := text[max(0, len(text)-longest):]
	line = strings.TrimLeft(line[strings.LastIndexByte(line, '\n')+1:], " \t")
	return strings.HasPrefix(line, "//") || (strings.HasPrefix(line, "*") || strings.HasPrefix(line, "/*")) && !strings.Contains(line, "*/")
}

func inName(c byte) bool {
	return c == '_' || c == '$' || c == '.' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || c >= 0x80
}

// quoted returns the string literal that a text begins with.
func quoted(text string) (string, bool) {
	const longest = 500
	if text == "" || text[0] != '"' && text[0] != '\'' {
		return "", false
	}
	end := strings.IndexByte(text[1:min(len(text), longest)], text[0])
	if end < 0 {
		return "", false
	}
	value := text[1 : 1+end]
	return value, !strings.ContainsAny(value, "\n\r\\ ")
}

// followsImport reports whether the statement that a text ends in begins with import or export.
func followsImport(text string) bool {
	const longest = 4 << 10
	text = text[max(0, len(text)-longest):]
	text = text[strings.LastIndexAny(text, `"';()=`)+1:]
	return strings.Contains(text, "import") || strings.Contains(text, "export")
}
