package worker

import (
	"strings"

	"github.com/larder-cdn/larder/internal/document"
)

// renderImports returns a result with what the module whose source is r.Text imports; see findESImports for what it misses.
func renderImports(r document.Request) (document.Result, error) {
	return document.Result{Imports: findESImports(r.Text)}, nil
}

// findESImports returns the imports of an ES module (import, export … from, and import() with a string, not require) that the
// text of a script seems to have, each specifier once, as it is first imported, up to document.MaxImports. It looks for the
// keywords and knows no syntax. It may report an import that stands in a string or in a comment behind code, which only adds a
// line to a list. It misses, for example, imports with a computed specifier or a template, with a comment before the specifier,
// and on lines that start with *.
func findESImports(source string) []document.Import {
	var found []document.Import
	seen := map[string]bool{}
	add := func(specifier string, ok, dynamic bool) {
		if ok && specifier != "" && !seen[specifier] && len(found) < document.MaxImports {
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
		case at > 0 && isNameOrDot(source[at-1]):
			at++
		case (strings.HasPrefix(rest, "from") || strings.HasPrefix(rest, "import")) && endsInComment(source[:at]):
			at += len("from")
		case strings.HasPrefix(rest, "from"):
			specifier, ok := cutString(strings.TrimLeft(rest[len("from"):], " \t\r\n"))
			add(specifier, ok && followsImport(source[:at]), false)
			at += len("from")
		case strings.HasPrefix(rest, "import"):
			after := strings.TrimLeft(rest[len("import"):], " \t\r\n")
			if call, ok := strings.CutPrefix(after, "("); ok {
				specifier, ok := cutString(strings.TrimLeft(call, " \t\r\n"))
				add(specifier, ok, true)
			} else {
				specifier, ok := cutString(after)
				add(specifier, ok, false)
			}
			at += len("import")
		default:
			at++
		}
	}
}

// endsInComment reports whether the text, which ends in front of a word, ends inside a comment, judged by its last line only: the
// line starts with //, or with * or /* and has no */. Of a line of over 4 KiB it sees only the end, as if the line started there.
func endsInComment(text string) bool {
	const longest = 4 << 10
	line := text[max(0, len(text)-longest):]
	line = strings.TrimLeft(line[strings.LastIndexByte(line, '\n')+1:], " \t")
	return strings.HasPrefix(line, "//") || (strings.HasPrefix(line, "*") || strings.HasPrefix(line, "/*")) && !strings.Contains(line, "*/")
}

// isNameOrDot reports whether a byte can be part of a name in a script, or is the dot before a member's name.
func isNameOrDot(c byte) bool {
	return c == '_' || c == '$' || c == '.' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || c >= 0x80
}

// cutString returns the value of the string literal, in single or double quotes, at the start of a text. ok is false,
// whatever value is, if the text does not start with one, or the literal is over 500 bytes or has a space, a line end or a
// backslash.
func cutString(text string) (value string, ok bool) {
	const longest = 500
	if text == "" || text[0] != '"' && text[0] != '\'' {
		return "", false
	}
	end := strings.IndexByte(text[1:min(len(text), longest)], text[0])
	if end < 0 {
		return "", false
	}
	value = text[1 : 1+end]
	return value, !strings.ContainsAny(value, "\n\r\\ ")
}

// followsImport reports whether the unfinished statement at the end of a text has the letters import or export, also inside a
// longer word, so that a "from" right after the text belongs to it. The statement starts behind the last quote, semicolon, round
// bracket or equals sign, within the last 4 KiB.
func followsImport(text string) bool {
	const longest = 4 << 10
	text = text[max(0, len(text)-longest):]
	text = text[strings.LastIndexAny(text, `"';()=`)+1:]
	return strings.Contains(text, "import") || strings.Contains(text, "export")
}
